"""kit-host, the program of a host's owner, with stand-ins of docker, nvidia-smi and who."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

from tests.queue.test_files import FIXED, INVENTORY, QUEUED
from tests.sandbox import DEADLINE, Project

PROGRAMS = {
    # Containers are files; a signal to one removes it.
    "docker": """\
case $1 in
    ps) ls "$PLACE/containers" ;;
    kill) shift 3; for each; do rm -f "$PLACE/containers/$each"; done ;;
esac
""",
    "nvidia-smi": 'cat "$PLACE/processes"',
    "who": 'cat "$PLACE/logins"',
    "sudo": 'exec "$@"',
}


class Host:
    """A host whose files are in a folder."""

    def __init__(self, folder: Path, text: str) -> None:
        self.folder = folder
        for old, new in (("/var/lib/kit", "var"), ("/etc/kit", "etc"), ("/proc/", "proc/")):
            assert old in text
            text = text.replace(old, str(folder / new.rstrip("/")) + "/" * new.endswith("/"))
        text = text.replace("every=2 ", "every=1 ")
        (folder / "kit-host.sh").write_text(text)
        for each in ("bin", "containers", "proc", "etc"):
            (folder / each).mkdir()
        for name in ("processes", "logins"):
            (folder / name).touch()
        for name, program in PROGRAMS.items():
            (folder / "bin" / name).write_text(f"#!/bin/sh\n{program}\n")
            (folder / "bin" / name).chmod(0o755)

    def environment(self) -> dict[str, str]:
        path = f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
        return {**os.environ, "PATH": path, "PLACE": str(self.folder)}

    def run(self, *arguments: str, status: int = 0) -> str:
        done = subprocess.run(
            ["sh", str(self.folder / "kit-host.sh"), *arguments],
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=DEADLINE,
            check=False,
        )
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout + done.stderr

    def train(self) -> None:
        (self.folder / "containers" / "training").touch()

    def trains(self) -> bool:
        return (self.folder / "containers" / "training").exists()

    def process(self, number: int, cgroup: str) -> None:
        (self.folder / "processes").write_text(f"GPU-a, {number}, 1024, python\n")
        (self.folder / "proc" / str(number)).mkdir(exist_ok=True)
        (self.folder / "proc" / str(number) / "cgroup").write_text(f"{cgroup}\n")


@pytest.fixture
def host(project: Project, tmp_path_factory: pytest.TempPathFactory) -> Host:
    tree = project.write(INVENTORY, {"a": QUEUED}).rendered()
    return Host(tmp_path_factory.mktemp("host"), (tree / "kit-host.sh").read_text())


def test_only_a_pool_with_a_queue_has_it(project: Project) -> None:
    tree = project.write(INVENTORY.replace("lend:", "# lend:"), {"fixed": FIXED}).rendered()
    assert not (tree / "kit-host.sh").exists()
    assert "pool=" not in (tree / "hosts" / "pc1" / "prepare.sh").read_text()
    tree = project.write(INVENTORY, {"a": QUEUED, "fixed": FIXED}).rendered()
    assert "\npool=yes\nconsole=no\n" in (tree / "hosts" / "pc1" / "prepare.sh").read_text()


def test_an_owner_takes_the_host_back_and_lends_it(host: Host) -> None:
    assert host.run("status") == "the queue may use this machine\n"
    host.train()
    assert "this machine is yours" in host.run("reclaim")
    assert not host.trains()
    assert "has taken it back" in host.run("status")
    host.run("lend")
    assert host.run("status") == "the queue may use this machine\n"
    assert "usage: kit-host reclaim" in host.run("take", status=2)


@pytest.mark.parametrize(
    ("cgroup", "own"),
    [
        ("0::/user.slice/user-1000.slice/session-3.scope", True),
        ("0::/system.slice/docker-3f2a.scope", False),
        ("0::/docker/3f2a", False),
    ],
)
def test_a_process_on_the_gpu_is_the_owners_unless_it_is_in_a_container(
    host: Host, cgroup: str, own: bool
) -> None:
    host.process(4711, cgroup)
    said = host.run("status")
    assert ("the process 4711 computes on a GPU" in said) == own


def test_a_login_at_the_console_counts_if_the_host_says_so(host: Host) -> None:
    (host.folder / "logins").write_text("ben      pts/0   2026-11-27 09:00 (10.0.0.5)\n")
    (host.folder / "etc" / "host.conf").write_text("console=yes\n")
    assert "may use" in host.run("status")
    (host.folder / "logins").write_text("ben      tty2    2026-11-27 09:00 (tty2)\n")
    assert "ben is logged in at the console" in host.run("status")
    (host.folder / "etc" / "host.conf").write_text("console=no\n")
    assert "may use" in host.run("status")


@contextmanager
def service(host: Host) -> Iterator[IO[str]]:
    """Run the service of the program; yields what it prints."""
    with subprocess.Popen(
        ["sh", str(host.folder / "kit-host.sh"), "watch"],
        env=host.environment(),
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            yield process.stdout
        finally:
            process.terminate()


def test_the_service_ends_trainings_while_the_host_is_used_and_a_while_after(host: Host) -> None:
    host.train()
    with service(host) as lines:
        time.sleep(1.5)
        assert host.trains()
        host.process(4711, "0::/user.slice")
        assert "trainings of the queue leave this machine" in lines.readline()
        _gone(host)
        # One that starts shortly after is ended, too.
        (host.folder / "processes").write_text("")
        host.train()
        _gone(host)


def test_a_training_that_starts_after_the_host_is_lent_stays(host: Host) -> None:
    host.run("reclaim")
    with service(host) as lines:
        assert "has taken it back" in lines.readline()
        host.train()
        _gone(host)
        host.run("lend")
        host.train()
        time.sleep(2.5)  # Two more looks of the service.
        assert host.trains()


def _gone(host: Host) -> None:
    deadline = time.monotonic() + DEADLINE
    while host.trains():
        assert time.monotonic() < deadline
        time.sleep(0.05)
