"""A session's launcher: when it ends, whom it warns, and what counts as use."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.ports import free_port
from tests.receiver import hook
from tests.sandbox import DEADLINE
from tests.trainer.hosts import wait_until, write_programs
from trainer.launcher.errors import LaunchError
from trainer.launcher.limits import spoken
from trainer.launcher.session import access, hold
from trainer.launcher.session.access import is_locked, quoted, set_variables, write_config
from trainer.launcher.session.deadline import (
    begin,
    extended,
    notes_of,
    read_deadline,
    write_deadline,
)
from trainer.launcher.session.hold import Warner, end_programs, make_runtime_folder
from trainer.launcher.session.jupyter import Jupyter
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
hold.connections = lambda idle: 0
# What the machine does besides is no work of the session.
hold.processor_seconds = lambda: 0.0
sys.exit(main.main(sys.argv[1:]))
"""


class Container:
    """The launcher of a session as in a container, with a home that outlives it."""

    def __init__(self, tmp_path: Path, **keys: object) -> None:
        self.home, self.folder = tmp_path / "home", tmp_path
        job = {"name": "anna", "session": {"home": str(self.home), "keys": []}, **keys}
        (tmp_path / "job.json").write_text(json.dumps(job))
        self.notes = self.home / ".kit" / str(job["name"])
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
    container = Container(tmp_path, max_duration=6)
    process = container.begun()
    deadline = read_deadline(container.notes)
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
    assert (found := read_deadline(container.notes)) is not None
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


def test_a_program_that_has_just_started_is_ended_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hold, "PROC", tmp_path)
    program = subprocess.Popen(["sleep", "600"])
    environ = tmp_path / str(program.pid) / "environ"
    environ.parent.mkdir()
    environ.touch()  # As in /proc until the kernel has ended the exec.
    begins = threading.Timer(0.1, environ.write_text, ["KIT_SESSION=x"])
    begins.start()
    try:
        end_programs("x", 1)
        assert program.wait(timeout=DEADLINE) == -signal.SIGTERM
    finally:
        begins.join()
        program.kill()


def test_a_container_that_starts_again_keeps_the_end(tmp_path: Path) -> None:
    container = Container(tmp_path, max_duration=3600)
    first = container.begun()
    before = read_deadline(container.notes)
    status, output = container.run("session", "extend", "7200")
    assert status == 0, output
    assert before is not None
    answer = json.loads(output)
    assert answer["until"] == pytest.approx(before.until + 7200)
    assert answer["user"] == "anna"
    first.kill()  # As with the power of its host.
    first.communicate()
    second = container.begun()
    assert read_deadline(container.notes) == before._replace(until=answer["until"])
    assert json.loads(container.run("session", "about")[1]) == answer
    # A person stops it: its programs end, too, and the next start has all its time.
    program = subprocess.Popen(["sleep", "600"], env={**os.environ, "KIT_SESSION": before.id})
    second.terminate()
    assert program.wait(DEADLINE) == -signal.SIGTERM
    second.communicate(timeout=DEADLINE)
    found = read_deadline(container.notes)
    assert found is not None
    assert not found.over


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
    notes = notes_of(tmp_path / "home", "anna")
    begun = begin(notes, "monday", 60, now=1000.0)
    assert begun.until == 1060.0
    assert begin(notes, "monday", 60, now=5000.0) == begun
    # Another start, and one after the end, have all their time.
    assert begin(notes, "tuesday", 60, now=1010.0).until == 1070.0
    write_deadline(notes, begun._replace(over=True))
    assert begin(notes, "monday", 60, now=5000.0).until == 5060.0
    assert extended(begun._replace(until=0.0), 600, now=1010.0).until == 0.0
    assert extended(begun, 600, now=1010.0).until == 1660.0
    assert extended(begun, 600, now=5000.0).until == 5600.0
    (notes / "session.json").write_text("{")  # A disk that was full.
    assert begin(notes, "", None, now=1.0).until == 0.0
    # A session of the same home, on another host.
    assert begin(notes_of(tmp_path / "home", "ben"), "monday", 9, now=1.0).until == 10.0
    assert (notes.stat().st_mode & 0o777) == 0o700


def test_a_home_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("a file")
    with pytest.raises(LaunchError, match="must own its home"):
        notes_of(tmp_path / "home", "anna")


def test_a_home_that_cannot_be_written_any_more_ends_as_others_do(tmp_path: Path) -> None:
    container = Container(tmp_path, max_duration=8)
    process = container.begun()
    shutil.rmtree(container.home / ".kit")
    (container.home / ".kit").touch()
    output, _ = process.communicate(timeout=DEADLINE)
    assert process.returncode == 0, output
    assert "session anna ends: its time is over; its home stays" in output
    assert f"warning: {container.notes}/session.json: cannot be written: Not a directory" in output
    assert "Traceback" not in output


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
    assert connections(60, tmp_path, tmp_path) == 0
    process(30, 0, b"sshd: root@pts/0\0")
    process(31, 30, b"bash\0")
    process(40, 0, b"bash\0")
    assert connections(60, tmp_path, tmp_path) == 2


def test_a_shell_whose_client_was_lost_is_no_connection(tmp_path: Path) -> None:
    (tmp_path / "proc" / "40").mkdir(parents=True)
    device = os.makedev(136, 300)
    (tmp_path / "proc" / "40" / "stat").write_text(f"40 (bash) S 0 40 40 {device} 40")
    (tmp_path / "proc" / "40" / "cmdline").write_bytes(b"bash\0")
    found = partial(connections, 60, tmp_path / "proc", tmp_path)
    assert found() == 1
    terminal, now = tmp_path / "300", time.time()
    terminal.touch()
    os.utime(terminal, (now - 30, now - 90))
    assert found() == 1
    os.utime(terminal, (now - 90, now))  # Its programs print, and nobody types.
    assert found() == 0


def program(folder: Path, name: str, text: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)
    return folder / name


def test_a_jupyter_that_cannot_start_is_told_once(tmp_path: Path) -> None:
    container = Container(tmp_path, max_duration=5)
    container.env["PATH"] = f"{tmp_path / 'bin'}:{container.env['PATH']}"
    program(tmp_path / "bin", "jupyter-lab", "#!/nowhere/python\n")
    status, output = container.run()
    assert status == 0, output
    assert output.count("JupyterLab cannot be started: ") == 1
    assert events(output)[-1]["jupyter"].startswith("it cannot be started: ")
    program(tmp_path / "bin", "jupyter-lab", "#!/bin/sh\nexit 7\n")
    status, output = container.run()
    assert status == 0, output
    assert output.count(f"JupyterLab has ended (7): see {container.notes}/jupyter.log") == 1


def test_the_token_of_jupyter_goes_to_no_proxy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = """#!/usr/bin/env python3
import http.server, os, sys
port = next(int(each.partition("=")[2]) for each in sys.argv if "port=" in each)
class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        ok = self.headers["Authorization"] == f"token {os.environ['JUPYTER_TOKEN']}"
        self.send_response(200 if ok else 403)
        self.end_headers()
        self.wfile.write(b'{"connections": 3, "kernels": 0}')
http.server.HTTPServer(("127.0.0.1", port), Page).serve_forever()
"""
    path = program(tmp_path / "bin", "jupyter-lab", page).parent
    monkeypatch.setenv("PATH", f"{path}:{os.environ['PATH']}")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    make_runtime_folder()
    made = Jupyter(notes_of(tmp_path / "home", "anna"), tmp_path, os.environ)
    try:
        made.keep()
        wait_until(lambda: made.connected() == 3, "its answer")
    finally:
        assert made._process is not None
        made._process.kill()
        made._process.wait()


def test_an_image_in_which_ssh_cannot_work_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shadow = tmp_path / "shadow"
    shadow.write_text("daemon:*:19000::::::\nroot:!:19000::::::\nanna:!$y$j9T:19000::::::\n")
    locked = [name for name in ("daemon", "root", "anna", "nobody") if is_locked(name, shadow)]
    assert locked == ["root", "anna"]
    assert not is_locked("root", tmp_path / "none")
    monkeypatch.setattr(access, "runtime_folder", lambda: tmp_path)
    (tmp_path / "ssh_host_ed25519_key").write_text("a key")
    said = "echo 'Bad configuration option: SetEnv' >&2; exit 255"
    old = program(tmp_path / "bin", "sshd", f"#!/bin/sh\n{said}\n")
    refused = "sshd refuses its configuration: Bad configuration option: SetEnv"
    assert write_config(str(old), tmp_path, ["a key"], {"A": "b"}) == refused


def test_variables_of_logins() -> None:
    line = set_variables({"HOME": "/", "A": 'x "y" \\z', "B": "two\nlines", "PATH": "/opt/bin"})
    assert line == 'SetEnv "A=x \\"y\\" \\\\z" "PATH=/opt/bin"'
    assert quoted("A", "b c") == '"A=b c"'


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(45, "45 s"), (600, "10 min"), (3600, "1 h"), (7500, "2 h 5 min"), (-3, "0 s")],
)
def test_durations_are_for_people(seconds: float, text: str) -> None:
    assert spoken(seconds) == text
