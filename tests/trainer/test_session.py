"""A session's launcher: when it ends, whom it warns, and what counts as use."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.ports import free_port
from tests.receiver import hook
from tests.sandbox import DEADLINE
from tests.trainer.hosts import wait_until, write_programs
from trainer.launcher.errors import LaunchError
from trainer.launcher.session.access import quoted, set_variables
from trainer.launcher.session.deadline import (
    begin,
    extended,
    notes_of,
    read_deadline,
    write_deadline,
)
from trainer.launcher.session.hold import Warner, duration
from trainer.launcher.session.use import Sight, connections, look

HELD = """\
import os, pwd, sys
from types import SimpleNamespace
# The home of the user of an image; the test's own is not for tests.
home = sys.argv.pop(1)
pwd.getpwuid = lambda uid: SimpleNamespace(pw_name="anna", pw_dir=home)
from trainer.launcher import main
from trainer.launcher.session import hold
hold.WATCH_EVERY = 0.1
# Processes from outside are those of a container; this machine may be one, with others in it.
hold.connections = lambda: 0
sys.exit(main.main(sys.argv[1:]))
"""


class Container:
    """The launcher of a session as in a container, with a home that outlives it."""

    def __init__(self, tmp_path: Path, **keys: object) -> None:
        self.home, self.folder = tmp_path / "home", tmp_path
        job = {"name": "anna", "session": {"home": str(self.home), "keys": []}, **keys}
        (tmp_path / "job.json").write_text(json.dumps(job))
        (tmp_path / "tmp").mkdir(exist_ok=True)
        self.env = {
            **{name: value for name, value in os.environ.items() if name != "KIT_HOST"},
            "KIT_JOB": str(tmp_path / "job.json"),
            "KIT_NPROC": "1",
            "KIT_HOST": "pc1",
            "NVIDIA_VISIBLE_DEVICES": "void",
            "TMPDIR": str(tmp_path / "tmp"),
        }

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", HELD, str(self.home), *arguments],
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *arguments: str) -> tuple[int, str]:
        process = self.start(*arguments)
        output, _ = process.communicate(timeout=DEADLINE)
        return process.returncode, output

    def begun(self) -> subprocess.Popen[str]:
        """Start it, and wait until it is open."""
        process = self.start()
        assert process.stdout is not None
        lines = list[str]()
        while "the session is open" not in "".join(lines[-1:]):
            lines.append(process.stdout.readline())
            assert lines[-1], "".join(lines)
        return process


def events(output: str) -> list[dict[str, Any]]:
    """The session's events in what was printed."""
    told = [json.loads(line[5:]) for line in output.splitlines() if line.startswith("@kit ")]
    return [each for each in told if each["event"] == "session"]


def test_a_session_ends_after_its_time_with_its_programs(tmp_path: Path) -> None:
    container = Container(tmp_path, max_duration=2)
    process = container.begun()
    deadline = read_deadline(container.home / ".kit")
    assert deadline is not None
    marks = tmp_path / "ended"
    program = subprocess.Popen(
        ["sh", "-c", f"trap 'touch {marks}; exit 0' TERM; while :; do sleep 0.1; done"],
        env={**os.environ, "KIT_SESSION": deadline.id},
    )
    try:
        output, _ = process.communicate(timeout=DEADLINE)
        assert process.returncode == 0, output
        assert program.wait(timeout=DEADLINE) == 0
    finally:
        program.kill()
    assert marks.exists()
    assert "session anna ends: its time is over; its home stays" in output
    told = events(output)
    assert told[-1]["ended"] == "its time is over"
    assert told[0]["until"] == deadline.until
    assert "without SSH: `session: {keys: […]}` names no key" in output or told[0]["ssh"]
    # It is over: another start is another session.
    again = container.begun()
    assert (found := read_deadline(container.home / ".kit")) is not None
    again.send_signal(signal.SIGTERM)
    again.communicate(timeout=DEADLINE)
    assert again.returncode == 128 + signal.SIGTERM
    assert found.id != deadline.id
    assert found.until > deadline.until


def test_people_are_notified_of_the_end_of_a_session(tmp_path: Path) -> None:
    container, port = Container(tmp_path, max_duration=1), free_port()
    with hook() as receiver:
        receivers = [{"url": receiver.url, "on": ["ended"]}]
        wanted = {"job": "anna", "cluster": "lab", "receivers": receivers}
        container.env["KIT_RENDEZVOUS"] = f"127.0.0.1:{port}"
        environ = {**container.env, "KIT_NOTIFY": json.dumps(wanted), "KIT_NNODES": "1:1"}
        launch = write_programs(tmp_path / "kit")
        coordinator = subprocess.Popen([sys.executable, str(launch), "coordinator"], env=environ)
        try:
            wait_until(lambda: is_open(port), "the coordinator")
            assert container.run()[0] == 0
            wait_until(lambda: receiver.kinds == ["ended"], "the notification")
        finally:
            coordinator.terminate()
            coordinator.wait(DEADLINE)
    assert receiver.posted[0].body["message"].endswith("anna has ended: its time is over")


def is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_a_session_that_nobody_uses_ends(tmp_path: Path) -> None:
    status, output = Container(tmp_path, idle=1).run()
    assert status == 0
    assert events(output)[-1]["ended"].startswith("nobody was connected and nothing computed")
    assert events(output)[0]["until"] == 0


def test_a_container_that_starts_again_keeps_the_end(tmp_path: Path) -> None:
    container = Container(tmp_path, max_duration=3600)
    first = container.begun()
    before = read_deadline(container.home / ".kit")
    status, output = container.run("session", "extend", "7200")
    assert status == 0, output
    assert before is not None
    answer = json.loads(output)
    assert answer["until"] == pytest.approx(before.until + 7200)
    assert answer["user"] == "anna"
    first.kill()  # As with the power of its host.
    first.communicate()
    second = container.begun()
    assert read_deadline(container.home / ".kit") == before._replace(until=answer["until"])
    status, output = container.run("session", "renew", "60")
    assert json.loads(output)["until"] < time.time() + 61
    second.terminate()
    second.communicate(timeout=DEADLINE)


def test_what_cannot_be_done_is_told(tmp_path: Path) -> None:
    container = Container(tmp_path)
    status, output = container.run("session", "extend", "60")
    assert (status, "the session has not begun yet, or has ended" in output) == (1, True)
    status, output = container.run("session", "jupyter")
    assert status == 1
    assert "JupyterLab" in output
    status, output = container.run("session", "dance")
    assert status == 2
    # The image's user has another home: nothing would stay.
    (tmp_path / "other").mkdir()
    other = Container(tmp_path / "other")
    other.home = tmp_path / "elsewhere"
    status, output = other.run()
    assert status == 2
    assert f"write `session: {{home: {tmp_path / 'elsewhere'}}}`" in output


def test_an_end_that_passed_while_the_host_was_off_is_kept(tmp_path: Path) -> None:
    notes = notes_of(tmp_path / "home")
    begun = begin(notes, 60, now=1000.0)
    assert begun.until == 1060.0
    assert begin(notes, 60, now=5000.0) == begun
    write_deadline(notes, begun._replace(over=True))
    assert begin(notes, 60, now=5000.0).until == 5060.0
    assert extended(begun, 600, now=1010.0).until == 1660.0
    assert extended(begun, 600, now=5000.0).until == 5600.0
    (notes / "session.json").write_text("{")  # A disk that was full.
    assert begin(notes, None, now=1.0).until == 0.0
    assert (notes.stat().st_mode & 0o777) == 0o700


def test_a_home_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("a file")
    with pytest.raises(LaunchError, match="must own its home"):
        notes_of(tmp_path / "home")


def test_warnings_come_once_and_again_after_an_extension() -> None:
    warner = Warner()
    left = [7000, 3500, 3400, 590, 580, 20_000, 3000, 10]
    assert [warner.due("its time", each) for each in left] == [
        *(False, True, False, True, False),
        *(False, True, True),
    ]
    # A session of 30 minutes does not begin with a warning.
    assert [Warner().due("its time", each) for each in (1800, 1700)] == [False, False]


def test_use_is_a_connection_or_work() -> None:
    idle = Sight(at=0.0, used=0.0)
    assert look(idle, 5.0, 0, computes=False, spent=100.0).used == 0.0
    assert look(idle, 5.0, 1, computes=False, spent=0.0).used == 5.0
    assert look(idle, 5.0, 0, computes=True, spent=0.0).used == 5.0
    # Without a GPU that can tell, the processors do: an editor that waits is no use.
    assert look(idle, 5.0, 0, computes=None, spent=4.0).used == 5.0
    assert look(idle, 5.0, 0, computes=None, spent=0.5).used == 0.0


def test_connections_are_what_was_started_from_outside(tmp_path: Path) -> None:
    def process(number: int, parent: int, command: bytes) -> None:
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "stat").write_text(f"{number} (a) b) S {parent} 1 1 0 -1")
        (folder / "cmdline").write_bytes(command)

    process(1, 0, b"tini\0--\0")
    process(2, 0, b"")  # A kernel thread, where no namespace hides them.
    process(7, 1, b"python3\0launch.py\0")
    process(20, 0, b"python3\0/kit/launch.py\0health\0")
    assert connections(tmp_path) == 0
    process(30, 0, b"sshd: root@pts/0\0")
    process(31, 30, b"bash\0")
    process(40, 0, b"bash\0")
    assert connections(tmp_path) == 2


def test_variables_of_logins() -> None:
    line = set_variables({"HOME": "/", "A": 'x "y" \\z', "B": "two\nlines", "PATH": "/opt/bin"})
    assert line == 'SetEnv "A=x \\"y\\" \\\\z" "PATH=/opt/bin"'
    assert quoted("A", "b c") == '"A=b c"'


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(45, "45 s"), (600, "10 min"), (3600, "1 h"), (7500, "2 h 5 min"), (-3, "0 s")],
)
def test_durations_are_for_people(seconds: float, text: str) -> None:
    assert duration(seconds) == text
