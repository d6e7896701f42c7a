"""A person works in a session on a Swarm and on Compose, by SSH and by a page like JupyterLab's.

Cheaper tests have no container: what is shown here is sshd for one connection over Docker's exec,
what counts as a connection, the home that outlives containers and power, the end by time of a
session and of a job, after which no engine starts them again, and the way of a coordinator's
notifications out of its network, with a key that is an engine's secret.
"""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Docker
from tests.lab.conftest import CLUSTER, Lab, wait_for
from tests.lab.operator import Operator, make_operator
from tests.lab.settings import BASE, IMAGE, STAND_IN
from tests.receiver import Hook, hook
from tests.sandbox import Project

pytestmark = pytest.mark.lab
JOB = f"""\
image: {STAND_IN}
train: {{dataset: digits, model: cnn, epochs: 9999, batch_size: 32, learning_rate: 0.05}}
environment: {{OMP_NUM_THREADS: "1", LAB_PACE: "0.1"}}
hosts: {{gpus_per_host: 1}}
max_duration: 60s
"""
PAGE = """\
#!/usr/bin/env python3
import http.server, json, os, sys
port = next(int(each.partition("=")[2]) for each in sys.argv if "port=" in each)
class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        known = f"token {os.environ['JUPYTER_TOKEN']}"
        ok = self.headers["Authorization"] == known or known[6:] in self.path
        self.send_response(200 if ok else 403)
        self.end_headers()
        self.wfile.write(json.dumps({"connections": 0, "kernels": 0}).encode())
http.server.HTTPServer(("127.0.0.1", port), Page).serve_forever()
"""
DATA = ("cluster: test", f"cluster: test\ndata: {{image: {IMAGE}}}")


@pytest.fixture
def receiver(lab: Lab) -> Iterator[Hook]:
    """It is no node: on this machine, where the nodes' network ends."""
    with hook(500, 200, address=f"{lab.settings.network}.1") as made:
        yield made


@pytest.fixture(params=["compose", "swarm"])
def operator(
    request: pytest.FixtureRequest, lab: Lab, project: Project, docker: Docker, receiver: Hook
) -> Iterator[Operator]:
    made = make_operator(lab, project, docker, request.param)
    made.env["HOOK_KEY"] = "a key of the lab"
    made.env["HOME"] = str(project.folder / "home")
    (project.folder / "home" / ".ssh").mkdir(mode=0o700, parents=True)
    key = project.folder / "home" / ".ssh" / "id_ed25519"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    notify = f"notify: [{{url: '{receiver.url}', key: {{env: HOOK_KEY}}}}]"
    notified = ("cluster: test", f"cluster: test\n{notify}")
    made.write({"own": JOB}, notified, *([DATA] if request.param == "compose" else []))
    if request.param == "swarm":
        made.kit("swarm", "up", "--yes")
    try:
        yield made
    finally:
        with contextlib.suppress(AssertionError):
            made.kit("stop", "anna")
        with contextlib.suppress(AssertionError):
            made.kit("stop", "--all")


def start(operator: Operator, *arguments: str) -> str:
    key = operator.project.folder / "home" / ".ssh" / "id_ed25519.pub"
    own = ("--name", "anna", "--image", BASE, "--host", "n2", "--key", str(key))
    return operator.kit("session", "start", *own, *arguments)


def ssh(operator: Operator, *command: str) -> subprocess.Popen[str]:
    alias = f"kit-{CLUSTER}-anna"
    file = operator.project.folder / "home" / ".ssh" / "kit" / f"{alias}.conf"
    return subprocess.Popen(
        ["ssh", "-F", str(file), "-o", "BatchMode=yes", alias, *command],
        env=operator.env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def inside(operator: Operator, command: str) -> str:
    output, said = ssh(operator, command).communicate(timeout=120)
    assert not said, said
    return output


def listed(operator: Operator) -> str:
    return operator.kit("session", "list")


def ends(operator: Operator) -> float | None:
    session = operator.status("anna")["session"]
    return session["until"] if session else None


def check_page(operator: Operator) -> None:
    """The page is here, with its token; nobody else's request is answered."""
    page = operator.start("session", "jupyter", "anna", "--port", "0")
    assert page.stdout is not None
    try:
        url = page.stdout.readline().strip()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/lab\?token=\S{32}", url)
        with urllib.request.urlopen(url, timeout=60) as answer:
            assert answer.status == 200
        with pytest.raises(urllib.error.HTTPError):
            urllib.request.urlopen(url.partition("?")[0], timeout=60)
    finally:
        page.send_signal(signal.SIGINT)
        page.communicate(timeout=60)
    assert page.returncode == 0


def test_a_person_works_in_a_session(
    operator: Operator, lab: Lab, receiver: Hook, tmp_path: Path
) -> None:
    folder, compose = operator.project.folder, operator.engine == "compose"
    (folder / "page").write_text(PAGE)
    line = f"cat > /usr/local/bin/jupyter-lab <<'EOF'\n{PAGE}EOF"
    more = ["--setup", line, "--setup", "chmod +x /usr/local/bin/jupyter-lab"]
    if compose:
        (tmp_path / "model.py").write_text("print('hello from the code')\n")
        more += ["--code", str(tmp_path)]
    output = start(operator, "--hours", "2", *more)
    assert f"ssh -F {folder}/home/.ssh/kit/kit-{CLUSTER}-anna.conf kit-{CLUSTER}-anna" in output
    assert "kit session jupyter anna" in output

    # A login has the container's GPU and variables, and only its key opens it.
    assert inside(operator, "echo $KIT_HOST $HOME; nvidia-smi -L").splitlines()[0] == "n2 /root"
    assert "GPU 0" in inside(operator, "nvidia-smi -L")
    if compose:
        assert inside(operator, "python3 workspace/*/model.py") == "hello from the code\n"
    inside(operator, "echo mine > notes")
    check_page(operator)
    with ssh(operator, "cat") as connection:
        wait_for(lambda: "1 connection" in listed(operator), "the connection to be seen")
        assert connection.stdin is not None
        connection.stdin.close()
    wait_for(lambda: "unused for" in listed(operator), "the end of the connection to be seen")
    status = operator.status("anna")
    # The first one is the job's, also while that does not run.
    assert status["hosts"][0]["seen"] == lab.uuids("n2")[1:2]
    extended = status["session"]["until"] + 3 * 3600
    assert "is open until" in operator.kit("session", "extend", "anna", "--hours", "3")
    wait_for(lambda: ends(operator) == pytest.approx(extended), "the session to know its end")

    if not compose:
        # Its host loses power: it comes back with the home and the end that it had.
        lab.do("kill", "n2")
        lab.do("start", "n2")
        wait_for(lambda: "mine" in ssh(operator, "cat notes").communicate()[0], "its home")
        wait_for(lambda: ends(operator) == pytest.approx(extended), "the end that it had")
    assert "job anna: removed" in operator.kit("session", "stop", "anna")
    assert not (folder / "jobs" / "anna.yaml").exists()

    # The next one has the home again, and ends by itself; its GPUs are free then.
    start(operator, "--hours", "0.02")  # Long enough to enter it, on a busy machine too.
    assert inside(operator, "cat notes") == "mine\n"
    wait_for(lambda: "its time is over" in listed(operator), "the end of its time")
    assert operator.status("anna")["state"] == "completed"
    operator.kit("session", "stop", "anna")
    assert "there is no session" in listed(operator)

    # A job ends by its time, too: all hosts at one step, with a checkpoint.
    operator.kit("deploy", "own")
    wait_for(lambda: operator.status("own")["state"] == "stopped", "the end of the job's time")
    status = operator.status("own")
    assert re.search("ended after its max_duration of 60 s, saved at step [0-9]+", str(status))
    assert {host["exit_status"] for host in status["hosts"]} == {0}

    # People know of both ends, once, though the receiver's first answer was an error.
    # A host of a busy machine may be silent for a moment, which is told, too.
    def ended() -> list[dict[str, Any]]:
        return [each.body for each in receiver.posted if each.body["kind"] != "host_lost"]

    wait_for(lambda: len({each["id"] for each in ended()}) == 2, "two notifications")
    told = [(each["kind"], each["job"]) for each in ended()]
    assert told == [("ended", "anna"), ("ended", "anna"), ("ended", "own")]
    assert all(each.headers["webhook-signature"].startswith("v1,") for each in receiver.posted)
