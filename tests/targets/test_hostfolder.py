"""kit's folder on a host, through an `ssh` that stays on this machine: real shells, real files."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from kit.commands.status import RETRY, Deployments
from kit.errors import KitError
from kit.hosts import ssh
from kit.model import Host
from kit.runtime.history import Deployment
from kit.runtime.status import HostStatus, JobStatus, Progress, State
from kit.targets.compose.folder import WHOLE, HostFolder
from kit.workload.types import Kind

HOST = Host("n1", "10.0.0.1", "me@n1:2222", (), (), None, 10**9, ("hosts", "n1"))
DEPLOYMENT = Deployment("j", 100.0, "me@pc", "abc", "def", "image:1")
STATUS = JobStatus(
    "j",
    Kind.JOB,
    State.STOPPED,
    "",
    100.0,
    160.0,
    (HostStatus("n1", 2, State.STOPPED, 143, ("GPU-a", "GPU-b"), (0, 1), ""),),
    Progress(1, 2, 15, 30, 0.5, None, 99.0, 12.0),
    "step-00000015",
)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home on the host; `ssh` is a shell there, which takes the words behind the login."""
    program, home = tmp_path / "bin" / "ssh", tmp_path / "home"
    program.parent.mkdir()
    home.mkdir()
    program.write_text(
        f'#!/bin/sh\nwhile [ $1 != -- ]; do shift; done\nshift 2\nHOME={home} exec sh -c "$*"\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    return home / ".local" / "share" / "kit" / "lab"


@pytest.fixture
def folder() -> HostFolder:
    return HostFolder(HOST, "lab")


def refuse(_text: str) -> None:
    raise AssertionError("nothing was to be said")


def failure(work: Callable[[], object]) -> str:
    with pytest.raises(KitError) as error:
        work()
    return str(error.value)


@pytest.mark.parametrize(
    ("login", "words"),
    [
        ("me@n1:2222", ["-p", "2222", "--", "me@n1"]),
        ("me@n1", ["--", "me@n1"]),
        ("10.0.0.1", ["--", "10.0.0.1"]),
    ],
)
def test_a_login_may_have_a_port(login: str, words: list[str]) -> None:
    assert ssh.command(login)[-len(words) :] == words


def test_files_replace_those_of_before(home: Path, folder: HostFolder) -> None:
    (home / "jobs").mkdir(parents=True)
    (home / "jobs" / "j.json").write_text("old")
    (home / "jobs" / "k.json").write_text("another's")
    files = {"jobs/j.json": b"new", "hosts/n1/a b.yaml": b"\xff", "launch.py": b""}
    assert folder.put(files) == str(home)
    for name, content in files.items():
        assert (home / name).read_bytes() == content
    assert (home / "jobs" / "k.json").read_text() == "another's"
    assert sorted(path.name for path in home.iterdir()) == ["hosts", "jobs", "launch.py"]


@pytest.mark.parametrize("share", [0.0, 0.3, 0.7])
def test_a_connection_that_breaks_off_changes_nothing(
    home: Path, folder: HostFolder, monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    folder.put({"a": b"old", "b": b"old"})
    run = ssh.run

    def broken(host: Host, script: str, content: bytes = b"") -> str:
        whole = content.index(WHOLE.encode())
        return run(host, script, content[: int(whole * share) // 512 * 512])

    monkeypatch.setattr(ssh, "run", broken)
    failure(lambda: folder.put({"a": b"new" * 1000, "b": b"new"}))
    assert sorted(path.name for path in home.iterdir()) == ["a", "b"]
    assert (home / "a").read_text() == (home / "b").read_text() == "old"


def test_one_holds_the_lock_and_others_are_told_who(home: Path, folder: HostFolder) -> None:
    def second() -> None:
        with folder.locked(refuse):
            raise AssertionError("two have it")

    with folder.locked(refuse):
        said = failure(second)
        assert re.search(rf"\(process {os.getpid()}\) has been deploying for \d+ s ", said)
        assert " s (see ~/.local/share/kit/lab/lock on n1)\n" in said
        assert "kit deploy --break-lock" in said
    with folder.locked(refuse):
        pass
    assert not (home / "lock").exists()


def test_a_lock_that_was_broken_is_the_next_ones(home: Path, folder: HostFolder) -> None:
    with folder.locked(refuse):
        folder.break_lock()
        (home / "lock").mkdir()
        (home / "lock" / "holder").write_text("ann@desk, by an older kit")
    assert (home / "lock" / "holder").exists()
    folder.break_lock()
    folder.break_lock()
    assert not (home / "lock").exists()


def test_a_lock_that_cannot_be_made_says_why(home: Path, folder: HostFolder) -> None:
    home.mkdir(parents=True)
    (home / "lock").write_text("")

    def take() -> None:
        with folder.locked(refuse):
            pass

    assert "n1: mkdir: " in failure(take)


def test_history_and_ends_are_remembered(home: Path, folder: HostFolder) -> None:
    assert folder.history() == ()
    assert folder.recorded_statuses() == ()
    assert not home.exists()
    later = Deployment("k", 200.0, "me@pc", "abc", "def", "image:1")
    folder.add_to_history(DEPLOYMENT)
    folder.add_to_history(later)
    with (home / "history.jsonl").open("a") as file:
        file.write('{"job": "cut o')
    assert folder.history() == (later, DEPLOYMENT)
    folder.record_status(STATUS)
    assert folder.recorded_statuses() == (STATUS,)
    (home / "stopped" / "old.json").write_text('{"job": "of another version"}\n')
    assert folder.recorded_statuses() == (STATUS,)
    folder.delete_status("j")
    assert folder.recorded_statuses() == ()


def test_a_history_that_cannot_be_read_is_asked_for_again() -> None:
    off = KitError("n1 is off")
    answers: list[KitError | tuple[Deployment, ...]] = [off, off, (DEPLOYMENT,)]
    now, asked = [0.0], list[float]()

    def history() -> tuple[Deployment, ...]:
        asked.append(now[0])
        answer = answers[len(asked) - 1]
        if isinstance(answer, KitError):
            raise answer
        return answer

    deployments = Deployments(history, lambda: now[0])
    looks = {}
    for second in range(0, 5 * int(RETRY), 2):
        now[0] = float(second)
        looks[second] = deployments.of([STATUS])
    assert asked == [0, RETRY, 2 * RETRY]  # Neither at each look nor never.
    assert looks[0] == {}
    assert looks[int(2 * RETRY)] == {"j": DEPLOYMENT}
