"""Deployments whose containers are gone: kit reads the lines that the hosts have kept.

The lines are those of real runs (tests/kept/README.md), by Compose. `docker` and `ssh` stay on this
machine: pc1 has kept lines, pc2 is down, pc3 has no log collector, and pc4 has left the inventory.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict

import pytest

from kit.runtime.history import Deployment
from tests.sandbox import COMMAND, JOB, ROOT, Project, kit_process

INVENTORY = """\
cluster: lab
engine: compose
hosts:
  pc1: {address: 192.168.8.151, ssh: pc1, roles: [manager], gpus: [{uuid: GPU-a}]}
  pc2: {address: 192.168.8.114, ssh: pc2, gpus: [{uuid: GPU-b}]}
  pc3: {address: 192.168.8.115, ssh: pc3, gpus: [{uuid: GPU-c}]}
network: {speed: 1Gbit}
monitoring: {logs: 30d}
"""
KEPT = ROOT / "tests" / "kept"
SSH = """\
#!/bin/sh
while [ "$1" != -- ]; do shift; done
host=$2; shift 2
[ "$host" != pc2 ] || { echo "ssh: connect to host pc2: No route to host" >&2; exit 255; }
HOME=$HOME STUB_HOST=$host exec sh -c "$*"
"""
DOCKER = f"""#!{sys.executable}
import json, os, sys
words = sys.argv[1:]
if "exec" in words:
    program = words[words.index("exec") + 2:]
    program[2] = program[2].replace("cd /logs", "cd {KEPT}")
    os.execvp(program[0], program)
while request := sys.stdin.buffer.readline():
    while sys.stdin.buffer.readline().strip():
        pass
    status, found = "200 OK", []
    if b"log-collector" in request and os.environ["STUB_HOST"] == "pc1":
        found = [{{"Id": "c0", "Names": ["/lab_monitoring-log-collector-1"]}}]
    elif b"/containers/json" not in request:
        status, found = "404 Not Found", {{"message": "it is not there"}}
    text = json.dumps(found)
    sys.stdout.write(f"HTTP/1.1 {{status}}\\r\\nContent-Length: {{len(text)}}\\r\\n\\r\\n{{text}}")
    sys.stdout.flush()
"""
DEPLOYED = {"own": [1795768072.1, 1795768081.4, 1795768091.3], "digits": [1795768099.9]}
"""When the lines begin, and one second more."""


@pytest.fixture
def lab(project: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    home, programs = project.folder / "home", project.folder / "bin"
    folder = home / ".local" / "share" / "kit" / "lab"
    for each in (folder, programs):
        each.mkdir(parents=True)
    for name, text in {"ssh": SSH, "docker": DOCKER}.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    hosts = ("pc1", "pc2", "pc3", "pc4")
    deployed = [
        Deployment(job, moment, "me@here", "1", "2", "trainer:1", hosts=hosts)
        for job, moments in DEPLOYED.items()
        for moment in moments
    ]
    lines = (json.dumps(asdict(each)) for each in sorted(deployed, key=lambda each: each.time))
    (folder / "history.jsonl").write_text("".join(f"{line}\n" for line in lines))
    jobs = {"own": COMMAND + "hosts: {names: [pc2, pc3]}\n"}
    project.write(INVENTORY, {**jobs, "digits": JOB + "hosts: {names: [pc1]}\n"}).rendered()
    return project


def test_the_history_says_how_each_deployment_has_ended(lab: Project) -> None:
    shown = kit_process(lab.folder, "history", "--json")
    assert shown.status == 0, shown.err
    ends = {(each["job"], each["number"]): each["outcome"] for each in json.loads(shown.out)}
    failed = ends["own", 1]
    assert (failed["state"], failed["exit_status"], failed["step"]) == ("failed", 7, None)
    assert "rank 0 failed first on this host" in failed["failure"]
    assert (ends["own", 2]["state"], ends["own", 2]["exit_status"]) == ("completed", 0)
    assert (ends["own", 3]["state"], ends["own", 3]["exit_status"]) == ("stopped", 143)
    trained = ends["digits", 1]
    assert (trained["state"], trained["step"], trained["steps"]) == ("completed", 6, 6)
    assert trained["accuracy"] > 0.1
    assert "lines of a host are missing: pc2: " in shown.err
    assert "lines of a host are missing: pc3: no log collector runs there" in shown.err


def test_a_report_has_runs_whose_containers_are_gone(lab: Project) -> None:
    shown = kit_process(lab.folder, "report", "own@1", "digits")
    assert shown.status == 0, shown.err
    assert "own@1: failed, exit status 7; it has no record" in shown.out
    assert "its ranks are restarted, 2 restarts so far" in " ".join(shown.out.split())
    assert "digits@1: completed, step 6 of 6, accuracy 55.83%; it has no record" in shown.out
    listed = json.loads(kit_process(lab.folder, "report", "own", "--runs", "8", "--json").out)[
        "without_record"
    ]
    assert [(each["number"], each["state"]) for each in listed] == [
        (1, "failed"), (2, "completed"), (3, "stopped"),
    ]  # fmt: skip
    assert all(each["events"] for each in listed)
    refused = kit_process(lab.folder, "report", "own@4")
    assert (refused.status, "own has 3 deployments in the history, not 4" in refused.err) == (
        2,
        True,
    )


def test_lines_of_a_run_are_printed_though_hosts_are_missing(lab: Project) -> None:
    shown = kit_process(lab.folder, "logs", "own", "--run", "1")
    assert shown.status == 0, shown.err
    assert "launch pc1: job own from" in shown.out
    assert "completed" not in shown.out
    assert "@kit" not in shown.out
    for missing in ("pc2: ", "pc3: no log collector runs there", "pc4 is not in the inventory"):
        assert f"note: lines of a host are missing: {missing}" in shown.err


def test_the_message_without_kept_lines_names_the_given_option(project: Project) -> None:
    project.write(INVENTORY.replace("engine: compose", "engine: local")).rendered()
    for option in (("--since", "yesterday"), ("--run", "2")):
        refused = project.kit("logs", "digits", *option)
        assert (refused.status, f"leave out {option[0]}:" in refused.err) == (2, True)


def test_a_project_without_rendered_files_is_named(project: Project) -> None:
    refused = project.write().kit("status")
    assert refused.status == 2
    assert "nothing is rendered yet" in refused.err
    assert "run `kit render`" in refused.err
