"""The local engine, with real processes: starts, status, and what remains."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any

import psutil
import pytest

from kit.targets.local.supervise import run_processes
from tests.receiver import hook
from tests.sandbox import DEADLINE
from tests.targets.cluster import Cluster, wait_for
from trainer.group.messages import Report, encode

HELLO = """\
import os
print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], flush=True)
"""

WAIT = """\
import os, pathlib, signal, sys
def end(*_):
    print("last checkpoint of", os.environ["RANK"], flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
(pathlib.Path(os.environ["KIT_CHECKPOINTS"]) / ("up-" + os.environ["RANK"])).touch()
print("waiting", flush=True)
while True:
    signal.pause()
"""

FAIL = """\
import sys, time
from torch import distributed
distributed.init_process_group("gloo")
distributed.barrier()
time.sleep(1)
if distributed.get_rank() == 1:
    sys.exit("the disk is full")
time.sleep(600)
"""
"""The others compute. In a collective they would fail, too, and perhaps be seen to fail first."""


def ranks_up(cluster: Cluster, job: str) -> bool:
    return len(list((cluster.state / job).glob("*/*/up-*"))) == 3


def run_id(cluster: Cluster, job: str) -> str:
    return str(json.loads((cluster.state / job / "run.json").read_text())["id"])


def job_state(cluster: Cluster, job: str) -> str:
    jobs = json.loads(cluster.kit("status", "--json"))["jobs"]
    return str(next(entry["state"] for entry in jobs if entry["job"] == job))


def test_a_script_runs_on_every_host_of_the_plan(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.script("hello", HELLO)
    job = cluster.folder / "jobs" / "hello.yaml"
    # The receiver hears of the end after its first answer, an error, while kit ends the job.
    with hook(500, 200) as found:
        monkeypatch.setenv("HOOK_URL", found.url)
        job.write_text(job.read_text() + "notify: [{url: {env: HOOK_URL}}]\n")
        cluster.kit("render")
        output = cluster.kit("deploy")
        wait_for(lambda: not cluster.processes(), "an end of all processes")
        assert found.kinds == ["completed", "completed"]
    assert "hello: started as 2 hosts, world size 3" in output
    for rank in range(3):
        assert f"| rank {rank} of 3" in output
    assert "hello completed after" in output

    status = json.loads(cluster.kit("status", "--json"))
    (job,) = status["jobs"]
    assert job["state"] == "completed"
    assert [(host["host"], host["processes"]) for host in job["hosts"]] == [("pc1", 1), ("pc2", 2)]
    assert "completed" in cluster.kit("status")

    logs = cluster.kit("logs", "hello", "--host", "pc2").splitlines()
    assert logs
    assert all(re.match(r"pc2( [12])? \| ", line) for line in logs)
    assert "did you mean pc2?" in cluster.kit("logs", "--host", "pc3", status=2)


def test_an_older_clone_does_not_undo_a_newer_one_without_a_word(cluster: Cluster) -> None:
    def git(*arguments: str) -> str:
        own = ("-c", "user.name=a", "-c", "user.email=a@b")
        done = subprocess.run(
            ["git", "-C", str(cluster.folder), *own, *arguments],
            check=True,
            capture_output=True,
            text=True,
        )
        return done.stdout.strip()

    git("init", "-q", "-b", "main")
    (cluster.folder / ".gitignore").write_text("state/\n*.log\n")
    cluster.script("hello", HELLO)
    cluster.kit("render")
    git("add", "-A")
    git("commit", "-qm", "Begin")
    cluster.script("hello", HELLO.replace("rank", "place"))
    job = cluster.folder / "jobs" / "hello.yaml"
    job.write_text(job.read_text() + "environment: {BATCH: '64'}\n")
    cluster.kit("render")
    git("commit", "-qam", "Double the batch")
    cluster.kit("deploy", "--dry-run")
    cluster.kit("deploy")
    newer = git("rev-parse", "HEAD")
    (entry,) = json.loads(cluster.kit("history", "--json"))
    told = {key: entry[key] for key in ("commit", "subject", "branch", "changed")}
    assert told == {
        "commit": newer,
        "subject": "Double the batch",
        "branch": "main",
        "changed": False,
    }
    said = f"hello: deployed from commit {newer[:9]} “Double the batch” on main, by "
    assert said in cluster.kit("status")
    (deployed,) = json.loads(cluster.kit("status", "--json"))["jobs"]
    assert entry.items() >= deployed["deployment"].items()

    git("checkout", "-q", "HEAD~1")
    refused = cluster.kit("deploy", status=2)
    assert f"hello runs from {newer[:9]} “Double the batch”, which " in refused
    assert "“Begin”, do not contain it: a deploy undoes it" in refused
    assert "kit deploy --yes-older" in refused
    assert "note: the files here" in cluster.kit("deploy", "--dry-run")
    assert "note" not in cluster.kit("deploy", "--dry-run", "--yes-older")
    git("checkout", "-q", "main")
    git("commit", "-q", "--allow-empty", "-m", "Later")
    assert "note" not in cluster.kit("deploy", "--dry-run")


def test_the_jobs_of_a_swarm_are_tried_here(cluster: Cluster) -> None:
    cluster.script("hello", HELLO)
    inventory = cluster.folder / "inventory.yaml"
    inventory.write_text("engine: swarm\n" + inventory.read_text())
    cluster.kit("render")
    output = cluster.kit("deploy", "--engine", "local")
    assert "| rank 2 of 3" in output
    assert "hello completed after" in output
    # The job, and both of its hosts.
    assert cluster.kit("status", "--engine", "local").count("completed") == 3


def test_ctrl_c_ends_all_that_was_started_and_nothing_else(cluster: Cluster) -> None:
    cluster.script("wait", WAIT)
    cluster.script("other", WAIT)
    (cluster.folder / "jobs" / "other.yaml").rename(cluster.folder / "other.later")
    cluster.kit("render")
    first = cluster.start("deploy", "wait")
    wait_for(lambda: ranks_up(cluster, "wait"), "three ranks of wait")

    (cluster.folder / "jobs" / "wait.yaml").rename(cluster.folder / "wait.later")
    (cluster.folder / "other.later").rename(cluster.folder / "jobs" / "other.yaml")
    cluster.kit("render")
    cluster.kit("deploy", "other", "--detach")
    wait_for(lambda: ranks_up(cluster, "other"), "three ranks of other")

    first.send_signal(signal.SIGINT)
    output, _ = first.communicate(timeout=DEADLINE)
    assert first.returncode == 130
    assert "stopping, after a last checkpoint" in output
    assert output.count("last checkpoint of") == 3
    assert "wait stopped after" in output
    assert run_processes(run_id(cluster, "wait")) == []
    assert job_state(cluster, "other") == "running"

    output = cluster.kit("stop")
    assert "other stopped after" in output
    wait_for(lambda: not cluster.processes(), "an end of all processes")
    assert "nothing is running" in cluster.kit("stop")


def test_a_job_that_ends_after_its_time_is_told(cluster: Cluster) -> None:
    cluster.script("wait", WAIT)
    job = cluster.folder / "jobs" / "wait.yaml"
    job.write_text(f"{job.read_text()}max_duration: 12h\n")
    (port,) = re.findall(r"port: (\d+)", job.read_text())
    cluster.kit("render")
    cluster.kit("deploy", "--detach")
    wait_for(lambda: ranks_up(cluster, "wait"), "three ranks")
    with socket.create_connection(("127.0.0.1", int(port))) as rendezvous:
        late = Report("pc3-1", "pc3", 0, starting=True, asks=True, ran=43200.0)
        rendezvous.sendall(encode(late))
        rendezvous.makefile("rb").readline()
    wait_for(lambda: not cluster.processes(), "an end of all processes")
    (found,) = json.loads(cluster.kit("status", "--json"))["jobs"]
    assert (found["state"], found["message"]) == ("stopped", "ended after its max_duration of 12 h")
    assert cluster.kit("logs").count("last checkpoint of") == 3
    shown = cluster.kit("report", "wait")
    assert "ended after its max_duration of 12 h" in shown


def test_a_second_deploy_replaces_a_job_only_if_it_has_changed(cluster: Cluster) -> None:
    cluster.script("wait", WAIT)
    cluster.kit("render")
    cluster.kit("deploy", "--detach")
    wait_for(lambda: ranks_up(cluster, "wait"), "three ranks")
    before = run_id(cluster, "wait")
    assert "wait: runs already, from the same file" in cluster.kit("deploy", "--detach")
    assert run_id(cluster, "wait") == before
    assert job_state(cluster, "wait") == "running"
    cluster.kit("split", "--infer", "pc2:1", "--yes")
    cluster.kit("render")
    assert "wait: started as 2 hosts, world size 2" in cluster.kit("deploy", "--detach")
    assert run_id(cluster, "wait") != before


def test_secrets_are_variables_here(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster.script("hush", "import os; print('told', os.environ['TOKEN'], flush=True)\n")
    job = cluster.folder / "jobs" / "hush.yaml"
    job.write_text(f"{job.read_text()}secrets: {{TOKEN: env}}\nhosts: {{names: [pc1]}}\n")
    cluster.kit("render")
    monkeypatch.setenv("TOKEN", "hush-9")
    assert "told hush-9" in cluster.kit("deploy")
    assert "hush-9" not in (cluster.state / "hush" / "run.json").read_text()


def test_a_port_that_is_in_use_is_the_reason(cluster: Cluster) -> None:
    cluster.script("wait", WAIT)
    (port,) = re.findall(r"port: (\d+)", (cluster.folder / "jobs" / "wait.yaml").read_text())
    cluster.kit("render")
    with socket.create_server(("127.0.0.1", int(port))):
        output = cluster.kit("deploy", status=1)
    assert f"the coordinator failed with exit status 1: port {port} cannot be served" in output
    assert "give the job another port: `rendezvous: {port: …}`; its output:" in output


def test_a_failing_worker_fails_the_job_with_its_words(cluster: Cluster) -> None:
    cluster.script("fail", FAIL)
    cluster.kit("render")
    output = cluster.kit("deploy", status=1)
    assert "the disk is full" in output
    assert "fail failed after" in output
    said = r'failed on pc\d: rank \d failed first on this host .*: "the disk is full"; 3 times'
    assert re.search(said, output)
    assert re.search(said, " ".join(cluster.kit("status").split()))
    [job] = json.loads(cluster.kit("status", "--json"))["jobs"]
    assert (job["state"], '"the disk is full"' in job["failure"]) == ("failed", True)
    wait_for(lambda: not cluster.processes(), "an end of all processes")
    # There is no record of a script, but its launchers have said what happened.
    shown = cluster.kit("report", "fail")
    assert "fail@1: failed; it has no record" in shown
    assert re.search(r"failed: rank \d failed first on this host", shown)
    assert "its ranks are restarted, 2 restarts so far" in shown
    assert not (cluster.folder / "report.html").exists()
    (known,) = json.loads(cluster.kit("report", "--json"))["without_record"]
    assert (known["job"], known["state"]) == ("fail", "failed")


def test_a_killed_supervisor_is_told_and_cleaned_up(cluster: Cluster) -> None:
    """With processes as users' are: each starts its own Python, and shows its own variables."""
    cluster.cold = True
    cluster.script("wait", WAIT)
    cluster.kit("render")
    cluster.kit("deploy", "--detach")
    wait_for(lambda: ranks_up(cluster, "wait"), "three ranks")
    pid = json.loads((cluster.state / "wait" / "state.json").read_text())["pid"]
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not psutil.pid_exists(pid), "the supervisor's end")

    assert "its supervisor is gone" in cluster.kit("status")
    assert "has processes of a supervisor" in cluster.kit("deploy", "--detach", status=1)
    cluster.kit("stop", "wait")
    wait_for(lambda: cluster.processes() == [], "no process of the run")


def test_a_lost_host_ends_the_job_unless_fewer_are_enough(cluster: Cluster) -> None:
    cluster.script("wait", WAIT)
    cluster.kit("render")
    deploy = cluster.start("deploy")
    wait_for(lambda: ranks_up(cluster, "wait"), "three ranks")
    agent = next(
        process
        for process in run_processes(run_id(cluster, "wait"))
        if process.environ().get("KIT_HOST") == "pc2" and "agent" in process.cmdline()
    )
    agent.kill()
    output, _ = deploy.communicate(timeout=DEADLINE)
    assert deploy.returncode == 1
    assert "pc2 was killed by SIGKILL" in output
    wait_for(lambda: not cluster.processes(), "an end of all processes")


def test_stale_files_are_not_deployed(cluster: Cluster) -> None:
    cluster.script("hello", HELLO)
    output = cluster.kit("deploy", status=2)
    assert "differs from the inventory and the jobs in" in output
    assert "kit render" in output
    assert not cluster.state.exists()


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (("deploy", "helo"), 2, "did you mean hello?"),
        (("logs", "hello"), 1, "no job hello was ever deployed"),
        (("stop", "hello"), 1, "no job hello was ever deployed"),
        (("deploy", "--engine", "swarm"), 2, "is not there: the files are for another engine"),
    ],
)
def test_mistakes_are_answered(
    cluster: Cluster, arguments: tuple[str, ...], status: int, words: str
) -> None:
    cluster.script("hello", HELLO)
    cluster.kit("render")
    assert words in cluster.kit(*arguments, status=status)


def test_stop_works_while_the_inventory_is_broken(cluster: Cluster) -> None:
    cluster.script("wait", WAIT)
    cluster.kit("render")
    cluster.kit("deploy", "--detach")
    wait_for(lambda: ranks_up(cluster, "wait"), "three ranks")
    inventory = cluster.folder / "inventory.yaml"
    inventory.write_text(inventory.read_text() + "oops: 1\n")
    assert "wait stopped after" in cluster.kit("stop")
    wait_for(lambda: not cluster.processes(), "an end of all processes")


def test_fresh_forgets_kits_own_checkpoints_and_never_the_users(
    cluster: Cluster, tmp_path: Path
) -> None:
    cluster.script("hello", HELLO)
    cluster.kit("render")
    old = cluster.state / "hello" / "pc1" / "kit-hello-checkpoints" / "step-00000001"
    old.mkdir(parents=True)
    cluster.kit("deploy", "--fresh")
    assert not old.exists()

    own = tmp_path / "mine"
    (own / "step-00000001").mkdir(parents=True)
    cluster.job("kept", f"command: [x.py]\nmounts: [{{bind: {own}, to: /checkpoints}}]\n")
    (cluster.folder / "jobs" / "hello.yaml").unlink()
    cluster.kit("render")
    assert "a folder of yours" in cluster.kit("deploy", "--fresh", status=1)
    assert (own / "step-00000001").exists()


def test_a_host_that_is_left_out_is_shown_and_taken_back(cluster: Cluster) -> None:
    train = "{dataset: digits, model: cnn, epochs: 99999, batch_size: 64}"
    cluster.job("long", f"train: {train}\nhosts: {{min: 1}}\nfaults: {{killed: leave_out}}\n")
    cluster.kit("render")
    cluster.kit("deploy", "--detach")

    def told() -> dict[str, Any]:
        (job,) = json.loads(cluster.kit("status", "--json"))["jobs"]
        return {host["host"]: host for host in job["hosts"]}

    def trains(number: int) -> bool:
        return sum(len(host["ranks"]) for host in told().values()) == number

    wait_for(lambda: trains(3), "all ranks")
    assert cluster.kit("release") == "no host is left out\n"
    assert "pc1: no training leaves it out" in cluster.kit("release", "pc1", status=1)
    (worker,) = [
        process
        for process in run_processes(run_id(cluster, "long"))
        if process.environ().get("KIT_HOST") == "pc1"
        and "trainer.train" in process.cmdline()[-1]
        and "trainer.elastic.agent" not in process.cmdline()
        and "worker" not in process.cmdline()
    ]
    worker.kill()
    wait_for(lambda: told()["pc1"]["left_out"], "pc1 to be left out")
    assert "is left out, `kit release pc1` takes it back" in cluster.kit("status")
    wait_for(lambda: trains(2), "pc2 to train")
    assert cluster.kit("release", "pc1") == "long: pc1 is released\n"
    wait_for(lambda: trains(3), "all ranks again")
    cluster.kit("stop", "long")
