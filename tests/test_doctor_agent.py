"""The agent of `kit doctor`, as a process of this machine, and the quick part before a deploy."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kit.doctor.active.sessions import AGENT, docker_run
from kit.doctor.facts import WantedHost
from kit.doctor.quick import certain, used_only
from tests.ports import free_port
from tests.sandbox import Project
from tests.test_discover import GV100, TITAN
from tests.test_doctor import FACTS, HOST, REPORT, USE, WANTED
from tests.trainer.hosts import wait_until

Ask = Callable[..., dict[str, Any]]


@pytest.fixture
def ask() -> Iterator[Ask]:
    """An agent that answers."""
    process = subprocess.Popen(
        [sys.executable, "-u", AGENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin
    assert process.stdout
    stdin, stdout = process.stdin, process.stdout

    def one(do: str, **request: Any) -> dict[str, Any]:
        stdin.write(json.dumps({"do": do, **request}) + "\n")
        stdin.flush()
        answer: dict[str, Any] = json.loads(stdout.readline())
        return answer

    try:
        yield one
        process.communicate(timeout=20)
        assert process.returncode == 0
    finally:
        process.kill()
        process.communicate()


def target(*ports: int) -> dict[str, Any]:
    return {"host": "b", "address": "127.0.0.1", "tcp": ports, "udp": {}}


def test_it_tells_open_ports_from_closed_ones(ask: Ask) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port, closed = taken.getsockname()[1], free_port()
        sent = ask("send", me="a", token=1, targets=[target(port, closed)])["targets"]["b"]
        assert sent["tcp"][str(port)] == ""
        assert "refused" in sent["tcp"][str(closed)]
        assert sent["source"] == "127.0.0.1"
        assert ask("listen", tcp=[port], udp=[], token=1)["busy"] == [port]


def test_it_exchanges_data_by_names(ask: Ask) -> None:
    port = free_port()
    assert ask("listen", tcp=[port], udp=[], token=1)["busy"] == []
    targets = [{"host": "b", "name": "localhost"}]
    assert ask("exchange", port=port, targets=targets) == {"targets": {"b": ""}}
    nobody = [{"host": "c", "name": "kit-doctor.invalid", "port": port}]
    assert "does not resolve" in ask("reach", targets=nobody)["targets"]["c"]


@pytest.mark.skipif(os.geteuid() != 0, reason="raw sockets need root, as in the container")
def test_it_hears_packets_to_ports_of_others(ask: Ask) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        port, token = taken.getsockname()[1], 77
        assert ask("listen", tcp=[], udp=[port], token=token)["udp_error"] == ""
        to_it = {**target(), "udp": {str(port): [0, 1200]}}
        ask("send", me="other", token=token + 1, targets=[to_it])
        assert ask("report")["heard"] == []
        ask("send", me="a", token=token, targets=[to_it])
        both = [["a", port, 42], ["a", port, 1200]]
        wait_until(lambda: ask("report")["heard"] == both, "both packets")


def test_it_lists_files_and_the_trainers_data(ask: Ask, tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "one").write_bytes(bytes(100))
    first = ask("data", folders=[str(tmp_path)], documents=[])["folders"][str(tmp_path)]
    assert (first["files"], first["bytes"]) == (1, 100)
    (tmp_path / "x" / "one").write_bytes(bytes(99))
    second = ask("data", folders=[str(tmp_path)], documents=[])["folders"][str(tmp_path)]
    assert second["digest"] != first["digest"]


def test_it_knows_torch_and_reports_its_own_failures(ask: Ask) -> None:
    assert ask("torch")["torch"].startswith("2.")
    assert ask("nothing") == {"error": "KeyError: 'nothing'"}
    assert ask("hello")["files"] > 0


def test_a_container_leaves_nothing_and_pulls_nothing() -> None:
    words = docker_run("kit-doctor-x", "image:1", ["--network", "host"], "python3", ["-V"]).split()
    assert {"--rm", "--pull", "never", "--log-driver", "none"} <= set(words)


# -------- Before a deploy


def test_only_the_gpus_of_the_workloads_count() -> None:
    half = replace(WANTED.hosts[0], uses=(replace(USE, gpus=(TITAN,)),))
    idle = WantedHost(replace(HOST, name="pc9"))
    found = used_only(replace(WANTED, hosts=(half, idle)))
    assert [(want.name, [gpu.id for gpu in want.host.gpus]) for want in found.hosts] == [
        ("pc2", [TITAN])
    ]
    lost = replace(REPORT, facts=replace(FACTS, gpus=FACTS.gpus[:1]))
    assert FACTS.gpus[1].uuid == GV100
    assert certain([lost], found) == []
    assert [each.code.id for each in certain([lost], WANTED)] == ["KIT-GPU-002"]


def test_nothing_but_what_is_certain_refuses_a_deploy() -> None:
    ill = replace(REPORT, clock_error=90.0, login=9.0)
    assert certain([ill], WANTED) == []


FAKE_SSH = """\
#!/bin/sh
# A host whose driver does not answer.
for last; do :; done
case $last in *nvidia*) ;; *) exit 0 ;; esac
printf '@@ host\\npc\\nLinux\\nx86_64\\n\\n@@ gpus\\nFailed to initialize NVML: Unknown Error\\n'
printf '@@ docker\\n{"Server":{"Version":"26.1.5"}}\\n@@ docker-info\\n'
printf '{"Runtimes":{"nvidia":{}},"DefaultRuntime":"nvidia"}\\n@@ toolkit\\nversion 1.17.8\\n'
printf '@@ clock\\n1700000000.5\\n@@ end\\n'
"""


def test_a_deploy_is_refused_before_it_begins(
    project: Project, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "ssh").write_text(FAKE_SSH)
    (folder / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    project.write()
    assert project.kit("render").status == 0
    refused = project.kit("deploy")
    assert refused.status == 1
    assert "pc1: Failed to initialize NVML: Unknown Error (KIT-GPU-001)" in refused.err
    assert "digits cannot run: see kit doctor, or add --skip-doctor" in refused.err
    skipped = project.kit("deploy", "--skip-doctor")
    assert "KIT-GPU-001" not in skipped.err
