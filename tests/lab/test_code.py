"""Code that travels with a job, to hosts of a Swarm and of Compose: an edit, and it runs there.

Cheaper tests have no hosts: what is shown here is the way from a folder over the storage host and
the other hosts' agents into containers of users that may not write to /workspace.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import subprocess
import sys
import termios
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from tests.conftest import Docker
from tests.lab.conftest import Lab, wait_for
from tests.lab.operator import Operator, make_operator
from tests.lab.settings import IMAGE
from tests.ports import free_port
from tests.sandbox import Project

pytestmark = pytest.mark.lab
JOB = f"""\
image: {IMAGE}
command: [main.py]
code: research
hosts: {{gpus_per_host: 1}}
stop_grace_period: 1s
environment: {{OMP_NUM_THREADS: "1"}}
"""
MAIN = """\
import http.server, os, threading, time
from lib.words import WORD
page = http.server.HTTPServer(("127.0.0.1", 8000), http.server.SimpleHTTPRequestHandler)
threading.Thread(target=page.serve_forever, daemon=True).start()
open("written", "w").write("by the script")
print(WORD, "in", os.getcwd(), "at", time.time(), flush=True)
time.sleep(600)
"""
DATA = ("cluster: test", f"cluster: test\ndata: {{image: {IMAGE}}}")


@pytest.fixture(params=["swarm", "compose"])
def operator(
    request: pytest.FixtureRequest, lab: Lab, project: Project, docker: Docker
) -> Iterator[Operator]:
    made = make_operator(lab, project, docker, request.param)
    research = made.project.folder / "research"
    (research / "lib").mkdir(parents=True)
    (research / "main.py").write_text(MAIN)
    say(made, "first")
    made.write({"own": JOB}, DATA)
    if request.param == "swarm":
        made.kit("swarm", "up", "--yes")
    try:
        yield made
    finally:
        with contextlib.suppress(AssertionError):
            made.kit("stop", "--all")
        if request.param == "swarm":
            made.kit("swarm", "down", "--yes")
            lab.do("swarm")


def say(operator: Operator, word: str) -> Path:
    file = operator.project.folder / "research" / "lib" / "words.py"
    file.write_text(f"WORD = '{word}'\n")
    return file


def said(operator: Operator, word: str) -> list[str]:
    """The lines of this word, once both hosts have printed one."""
    lines = [line for line in operator.kit("logs").splitlines() if f"| {word} in /" in line]
    return lines if len(lines) == 2 else []


def test_an_edit_and_a_deploy_run_the_new_code_on_all_hosts(operator: Operator, lab: Lab) -> None:
    assert "2 files, " in operator.kit("deploy")
    wait_for(lambda: said(operator, "first"), "the script's lines")
    say(operator, "second")
    saved = time.time()
    operator.kit("render")
    operator.kit("deploy")
    deployed = time.time() - saved
    wait_for(lambda: said(operator, "second"), "the edited script's lines")
    began = [float(line.rpartition(" at ")[2]) - saved for line in said(operator, "second")]
    print(f"from the edit: deployed {deployed:.2f} s, ran {began} s")
    status = operator.kit("status")
    assert "own: code " in status
    assert "of research" in status
    # A person looks into a container, beside what the script has written.
    shown = operator.kit("shell", "own", "--rank", "1", "--", "sh", "-c", "ls; echo $KIT_HOST")
    assert shown.split() == ["lib", "main.py", "written", "n2"]
    operator.kit("shell", "own", "--", "sh", "-c", "exit 3", status=3)
    assert "its ranks are 0 to 1" in operator.kit("shell", "own", "--rank", "2", status=2)
    check_terminal(operator)
    check_forwarded(operator)
    check_run(operator, lab)
    operator.kit("stop")
    assert "nothing of it runs" in operator.kit("shell", "own", status=1)


def check_forwarded(operator: Operator) -> None:
    """A page that listens to its container alone is here."""
    port = free_port()
    with operator.forwarded("own", f"{port}:8000") as said:
        assert f"http://127.0.0.1:{port}/ is port 8000 of own on n1" in said
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/lib/words.py", timeout=60) as page:
            assert page.read() == b"WORD = 'second'\n"


def check_run(operator: Operator, lab: Lab) -> None:
    """A run takes the GPU that is free, and is gone at its end; the job beside it goes on."""
    research = operator.project.folder / "research"
    before = operator.status("own")["started"]
    run = ("run", "--rm", "--image", IMAGE, "--code", "research", "--")
    script = "import subprocess\nprint('ran', subprocess.getoutput('nvidia-smi -L'))\n"
    (research / "once.py").write_text(script)
    output = operator.kit(*run, "once.py")
    assert "job once on n2 (1 GPU), world size 1: once.py" in output
    assert re.search(rf"n2 0 \| ran GPU \d: .*{lab.uuids('n2')[1]}", output)
    assert "job once: removed" in output
    (research / "once.py").write_text("raise SystemExit(3)\n")
    assert "job once: removed" in operator.kit(*run, "once.py", status=3)
    assert not (operator.project.folder / "jobs" / "once.yaml").exists()
    own = operator.status("own")
    assert (own["started"], own["state"]) == (before, "running")


def check_terminal(operator: Operator) -> None:
    """A shell has a terminal of this side's size, also after that has changed."""
    master, slave = pty.openpty()
    termios.tcsetwinsize(slave, (24, 80))
    shell = subprocess.Popen(
        [sys.executable, "-m", "kit", "shell", "own"],
        cwd=operator.project.folder,
        env=operator.env,
        stdin=slave, stdout=slave, stderr=slave, start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )  # fmt: skip
    os.close(slave)
    try:
        with os.fdopen(master, "r+b", buffering=0) as end:
            wait_for(lambda: size_of(end) == "24 80", "the size of this terminal")
            wait_for(lambda: resized(end) == "50 132", "the new size")
            end.write(b"exit\n")
            assert shell.wait(60) == 0
    finally:
        shell.kill()


def resized(end: IO[bytes]) -> str:
    """Change the size: docker misses changes before it listens, so that this repeats."""
    termios.tcsetwinsize(end, (50, 131))
    termios.tcsetwinsize(end, (50, 132))
    return size_of(end)


def size_of(end: IO[bytes]) -> str:
    """Ask the shell for its size; the command's echo has no number behind `size=`."""
    end.write(b"echo size=$(stty size).\n")
    text = ""
    while not (found := re.findall(r"size=(\d+ \d+)\.", text)):
        text += os.read(end.fileno(), 1000).decode(errors="replace")
    return str(found[-1])
