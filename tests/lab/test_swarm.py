"""The Swarm engine from end to end: real engines in a real swarm, over SSH."""

from __future__ import annotations

import contextlib
import json
import re
import threading
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest

from tests.conftest import Docker
from tests.lab.conftest import Lab, wait_for
from tests.lab.operator import Operator, make_operator
from tests.lab.settings import BASE, STAND_IN
from tests.sandbox import ROOT, Project

pytestmark = pytest.mark.lab
NODES = ["n1", "n2", "n3"]
TORCH = "registry.lab:5000/torch:lab"
"""Like pytorch/pytorch: PyTorch without kit."""
TRAIN = f"""\
image: {STAND_IN}
train: {{dataset: digits, model: cnn, epochs: 30, batch_size: 32, learning_rate: 0.05}}
environment: {{OMP_NUM_THREADS: "1"}}
"""
QUICK = (
    TRAIN
    + """\
checkpoint: {every_epochs: 1}
exchange: {timeout: 10s}
hosts: {min: 1}
"""
)
# More epochs than any machine completes, with pauses.
ELASTIC = QUICK.replace("epochs: 30", "epochs: 9999").replace('"1"', '"1", LAB_PACE: "0.1"')
OWN = f"""\
image: {TORCH}
command: [ddp.py, "4000", "20", --batch_size, "64"]
working_dir: /workspace
mounts:
  - {{bind: /srv/ddp, to: /workspace}}
hosts: {{min: 1}}
environment: {{OMP_NUM_THREADS: "1", LAB_PACE: "0.02"}}
"""
TELLS = f"""\
image: {TORCH}
command: [tell.py]
working_dir: /workspace
mounts:
  - {{bind: /srv/ddp, to: /workspace}}
hosts: {{names: [n1]}}
secrets: {{TOKEN: env}}
"""
SCRIPT = "import os, time\nprint('backwards', os.environ['TOKEN'][::-1])\ntime.sleep(600)\n"


def on(lab: Lab, node: str, script: str) -> str:
    ended = lab.ssh(node, script)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip()


@pytest.fixture(scope="module")
def hosts(lab: Lab) -> Iterator[Lab]:
    """The nodes in no swarm, with the user's scripts, and an image with only PyTorch."""
    for node in reversed(NODES):
        lab.leave_swarm(node)
    dockerfile = f"FROM {BASE}\\nENV KIT_LAB_TORCH=/opt/torch PYTHONPATH=/opt/torch"
    build = f"DOCKER_BUILDKIT=0 docker build -q -t {TORCH} -"
    on(lab, "n1", f"printf '{dockerfile}' | {build} && docker push -q {TORCH}")
    script = (ROOT / "tests" / "trainer" / "ddp.py").read_text(encoding="utf-8")
    for node in ("n1", "n2"):
        for name, text in (("ddp.py", script), ("tell.py", SCRIPT)):
            on(lab, node, f"mkdir -p /srv/ddp && cat >/srv/ddp/{name} <<'END'\n{text}\nEND")
    yield lab
    for node in reversed(NODES):
        lab.leave_swarm(node)


@pytest.fixture
def operator(hosts: Lab, project: Project, docker: Docker) -> Iterator[Operator]:
    made = make_operator(hosts, project, docker, "swarm")
    made.write({"digits": TRAIN})
    made.kit("swarm", "up", "--yes")
    try:
        yield made
    finally:
        hosts.do("start", "n2")
        with contextlib.suppress(AssertionError):
            made.kit("stop")
        for node in ("n1", "n2"):
            hosts.ssh(
                node, "docker volume rm -f kit-test_digits-checkpoints kit-test_own-checkpoints"
            )


def listed(lab: Lab, kind: str) -> set[str]:
    return set(lab.docker("n1", kind, "ls", "--format", "{{.Name}}").splitlines())


def leftovers(lab: Lab, nodes: Sequence[str] = NODES) -> set[str]:
    """The remains of jobs on the nodes."""
    kinds = {"service", "config", "secret"}
    found = {f"{kind} {name}" for kind in kinds for name in listed(lab, kind)}
    for node in nodes:
        names = lab.docker(node, "ps", "--all", "--format", "{{.Names}}").splitlines()
        found |= {f"container {name} on {node}" for name in names}
    return {name for name in found if "train-" in name}


class Processes:
    """Records the command lines of all processes of this machine, including the nodes'."""

    def __init__(self) -> None:
        self.lines: set[str] = set()
        self._over = threading.Event()

    def __enter__(self) -> Processes:
        threading.Thread(target=self._look, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()

    def _look(self) -> None:
        while not self._over.wait(0.01):
            for path in Path("/proc").glob("[0-9]*/cmdline"):
                with contextlib.suppress(OSError):
                    self.lines.add(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))


def test_hosts_become_a_swarm_and_part_again(hosts: Lab, project: Project, docker: Docker) -> None:
    operator = make_operator(hosts, project, docker, "swarm")
    operator.write({"digits": TRAIN})
    shown = operator.kit("swarm", "up", "--dry-run")
    assert re.search(r"n2 +join as worker +it is in no swarm", shown)
    assert "without a terminal kit cannot ask for confirmation" in operator.kit(
        "swarm", "up", status=2
    )
    with Processes() as seen:
        done = operator.kit("swarm", "up", "--yes")
    assert any("dial-stdio" in line for line in seen.lines)
    assert not [line for line in seen.lines if "SWMTKN" in line]
    assert "SWMTKN" not in done
    assert "everything is up to date" in operator.kit("swarm", "up")
    labels = json.loads(hosts.docker("n1", "node", "inspect", "n2"))[0]["Spec"]["Labels"]
    assert labels == {"kit.host": "n2", "kit.job.digits": "train-on-n2", "kit.joined": "test"}
    info = hosts.docker("n1", "info")
    assert "Heartbeat Period: 2 seconds" in info

    on(hosts, "n3", "docker swarm leave")
    wait_for(lambda: "Down" in hosts.docker("n1", "node", "ls"), "n3 to be missed")
    again = operator.kit("swarm", "up", "--yes")
    assert "n3: join as worker" in again
    assert "n3: remove the old node" in again

    down = operator.kit("swarm", "down", "--yes")
    steps = [line for line in down.splitlines() if ": done after " not in line]
    assert steps[-1] == "n1: leave the swarm"
    for node in NODES:
        assert "Swarm: inactive" in hosts.docker(node, "info")
    assert "everything is up to date" in operator.kit("swarm", "down")


def test_what_was_changed_by_hand_is_named_and_repaired(operator: Operator, hosts: Lab) -> None:
    """Only a real Swarm shows that no field of a real deploy counts as changed."""
    operator.write({"digits": ELASTIC + "limits: {cpus: 1.5, memory: 2GiB}\n"})
    operator.kit("deploy")
    assert "nothing to do" in operator.kit("deploy", "--dry-run")
    first, second = "train-digits_train-on-n1", "train-digits_train-on-n2"
    on(hosts, "n1", f"docker service update --detach --env-add TOKEN=geheim {first}")
    on(hosts, "n1", f"docker service scale --detach {second}=0")
    on(hosts, "n1", "docker service rm train-digits_rendezvous")
    shown = " ".join(operator.kit("deploy", "--dry-run").split())
    assert "rendezvous is not there" in shown
    assert "train-on-n1: environment.TOKEN is set" in shown
    assert "train-on-n2: deploy.replicas is 0, not 1" in shown
    assert "geheim" not in shown
    operator.kit("deploy")
    assert "nothing to do" in operator.kit("deploy", "--dry-run")
    wait_for(lambda: operator.status()["world_size"] == 3, "both hosts to train")


def test_two_desktops_train_lose_a_host_and_go_on(operator: Operator, hosts: Lab) -> None:
    operator.write({"digits": ELASTIC})
    done = operator.kit("deploy")
    assert "digits/n2: running" in done
    wait_for(operator.trains, "a checkpoint")

    def ranks() -> list[int]:
        return sorted(rank for host in operator.status()["hosts"] for rank in host["ranks"])

    # One host may begin alone, as `min: 1` allows.
    wait_for(lambda: ranks() == [0, 1, 2], "both hosts to train")
    parts = {host["host"]: host for host in operator.status()["hosts"]}
    assert [parts[host]["devices"] for host in ("n1", "n2")] == [
        hosts.uuids("n1"),
        hosts.uuids("n2"),
    ]
    assert len(parts["n2"]["ranks"]) == 2
    lines = operator.kit("logs").splitlines()
    for host in ("n1", "n2"):
        seen = [line for line in lines if line.startswith(f"{host} | launch {host}: sees GPU")]
        assert [line.rpartition("UUID: ")[2].rstrip(")") for line in seen] == hosts.uuids(host)

    hosts.do("kill", "n2")
    wait_for(lambda: "n2: the node is down" in operator.status()["message"], "the loss of n2")
    assert operator.status()["state"] == "running"
    own = partial(operator.kit, "logs", "--host", "n1")
    # The process of n1 stays. Lines of n2 are lost while its node is down.
    three = r"(rank \d of 3, |3 processes on n1, n2 continue)"
    alone = re.compile(three + r".*1 process on n1 continues at step [1-9]", re.DOTALL)
    wait_for(lambda: alone.search(own()), "n1 to go on alone")
    hosts.do("start", "n2")
    whole = re.compile(alone.pattern + r".*3 processes on n1, n2 continue", re.DOTALL)
    wait_for(lambda: whole.search(own()), "n2 to be back in the run")
    # After these checks the job is made shorter.
    done = operator.progress()["epoch"]
    operator.write({"digits": QUICK.replace("epochs: 30", f"epochs: {done + 30}")})
    operator.kit("deploy")
    wait_for(lambda: operator.status()["state"] == "completed", "the end")
    assert operator.status()["checkpoint"]
    volume = "/var/lib/docker/volumes/kit-test_digits-checkpoints/_data"
    for host in ("n1", "n2"):
        assert on(hosts, host, f"ls {volume}/*/COMPLETE")
    metrics = [on(hosts, host, f"cat {volume}/metrics.jsonl || true") for host in ("n1", "n2")]
    assert any('"event": "end"' in lines for lines in metrics)
    assert "digits completed" in operator.kit("stop")
    wait_for(lambda: not leftovers(hosts), f"an end of {leftovers(hosts)}")
    [entry] = json.loads(operator.kit("history", "--json"))[:1]
    assert (entry["job"], entry["image"]) == ("digits", STAND_IN)


@pytest.mark.long
def test_ones_own_script_loses_a_host_and_goes_on(operator: Operator, hosts: Lab) -> None:
    operator.write({"own": OWN})
    operator.kit("deploy")

    def epoch() -> int:
        found = re.findall(r"\[RANK0\] Epoch (\d+) ", operator.kit("logs", "--rank", "0"))
        return int(found[-1]) if found else 0

    wait_for(lambda: epoch() > 40, "the script to train")
    hosts.do("kill", "n2")
    wait_for(lambda: "n2: the node is down" in operator.status("own")["message"], "the loss of n2")
    hosts.do("start", "n2")
    again = re.compile(r"becomes the agent.*becomes the agent", re.DOTALL)
    own = partial(operator.kit, "logs", "--host", "n2")
    wait_for(lambda: again.search(own()), "n2 to be back in the run")
    at = epoch()
    wait_for(lambda: epoch() > at + 20, "the run to go on")
    wait_for(lambda: operator.status("own")["message"] == "", "all to run")
    stopped = operator.kit("stop", "own")
    assert "own stopped after" in stopped
    wait_for(lambda: not leftovers(hosts), f"an end of {leftovers(hosts)}")


def test_a_split_host_shows_what_is_its_own(operator: Operator, hosts: Lab) -> None:
    first, second = hosts.uuids("n2")
    operator.write({"digits": TRAIN}, (f"{{uuid: {second},", f"{{uuid: {second}, use: inference,"))
    done = operator.kit("deploy", "--wait")
    assert f"n2 | launch n2: sees GPU 0: TITAN RTX (UUID: {first})" in done
    assert second not in done
    assert "digits completed" in done


def tasks(lab: Lab, stack: str, state: str = "Running") -> set[str]:
    found = lab.docker(
        "n1", "stack", "ps", "--no-trunc", "--format", "{{.ID}} {{.CurrentState}}", stack
    )
    return {line.split()[0] for line in found.splitlines() if state in line}


def test_two_jobs_a_change_of_one_a_secret_and_a_lock(operator: Operator, hosts: Lab) -> None:
    long = ELASTIC.replace("{min: 1}", "{names: [n2]}")
    operator.write({"digits": long, "tells": TELLS})
    assert "TOKEN: the variable is not set here" in operator.kit("deploy", status=2)
    with Processes() as seen:
        operator.kit("deploy", TOKEN="hush-1")
    assert not [line for line in seen.lines if "hush-1" in line]
    backwards = partial(operator.kit, "logs", "tells", "--rank", "0")
    wait_for(lambda: "n1 0 | backwards 1-hsuh" in backwards(), "the secret to be there")
    for place in (["inspect", "train-tells_train-on-n1"], ["logs", "train-tells_train-on-n1"]):
        assert "hush-1" not in hosts.docker("n1", "service", *place)
    first, second = tasks(hosts, "train-digits"), tasks(hosts, "train-tells")

    shown = operator.kit("deploy", "--dry-run", TOKEN="hush-1")
    assert "nothing to do" in shown
    operator.write({"digits": long, "tells": TELLS.replace("[tell.py]", "[tell.py, more]")})
    shown = operator.kit("deploy", "--dry-run", TOKEN="hush-2")
    assert re.search(r"deploy train-tells.stack.yaml +jobs/tells.yaml has changed", shown)
    assert "train-digits" not in shown
    operator.kit("deploy", TOKEN="hush-2")
    wait_for(lambda: "n1 0 | backwards 2-hsuh" in backwards(), "the new secret")
    assert tasks(hosts, "train-digits") == first
    # The coordinator has not changed. It ends by itself when the script takes long to come back.
    assert len(tasks(hosts, "train-tells", "Shutdown") & second) == 1
    assert len([name for name in listed(hosts, "secret") if "TOKEN" in name]) == 1

    holder = json.dumps({"by": "ann@desk", "pid": 7, "since": 0})
    on(hosts, "n1", f"echo '{holder}' | docker config create --label kit-lock= kit-lock -")
    output = operator.kit("deploy", status=1, TOKEN="hush-2")
    assert "ann@desk (process 7) has been deploying for" in output
    assert "runs already" in operator.kit("deploy", "--break-lock", TOKEN="hush-2")
    assert "kit-lock" not in listed(hosts, "config")

    assert operator.kit("stop", "tells").startswith("tells stopped")
    assert operator.status()["state"] == "running"
    operator.kit("stop")
    wait_for(lambda: not leftovers(hosts), f"an end of {leftovers(hosts)}")
    resumed = operator.kit("resume", "digits", TOKEN="hush-2")
    assert "digits/n2: running" in resumed
    wait_for(lambda: "resumes at step" in operator.kit("logs", "digits"), "the resumption")


def test_what_was_rendered_before_is_refused(operator: Operator) -> None:
    job = operator.project.folder / "jobs" / "digits.yaml"
    job.write_text(job.read_text().replace("batch_size: 32", "batch_size: 16"))
    for command in (["deploy"], ["swarm", "up"]):
        output = operator.kit(*command, status=2)
        assert "differs from the inventory and the jobs" in output
