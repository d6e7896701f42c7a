"""Python processes that have imported PyTorch or kit, for tests that start many of either.

`server.py` imports it once and forks a process for every program; `client.py` is the `python` that
tests start. It represents the forked process in the process tree: it forwards signals and returns
the exit status. Programs that the forked process starts with `sys.executable` are warm too.
"""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from functools import cache, cached_property
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
OF_A_RANK = (
    "torch",
    "torch._dynamo",  # The first optimizer imports it: half of a rank's start.
    "torch.distributed.checkpoint.state_dict",
    "torch.distributed.pipelining",
    "torch.distributed.run",
    "torch.nn.parallel",
    *(["torchvision"] if find_spec("torchvision") else []),  # Of the tests in tests/vision.
)
"""What a rank and its agent import."""
PREFIX = "kit-warm-"
"""Of a server's folder."""


class Programs:
    """The programs of a server, by its folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.executable = str(folder / "python")

    def program_of(self, client: int) -> int | None:
        """The process that a client represents."""
        try:
            return int((self._folder / str(client)).read_text(encoding="ascii"))
        except (OSError, ValueError):
            return None

    @cached_property
    def shows_variables(self) -> bool:
        """Whether /proc shows the variables of its programs, as it does of other processes."""
        code = "import sys; sys.stdout.buffer.write(open('/proc/self/environ', 'rb').read())"
        shown = subprocess.check_output([self.executable, "-c", code], env={"WARM": "yes"})
        return b"WARM=yes" in shown.split(b"\0")

    def show_stacks(self) -> None:
        """Let all programs print the stacks of their threads, on standard error."""
        clients = {int(note.name) for note in self._folder.glob("[0-9]*")}
        # A program that has called exec is itself a client.
        programs = {program for client in clients if (program := self.program_of(client))}
        for program in programs - clients:
            with suppress(ProcessLookupError):
                os.kill(program, signal.SIGUSR2)


class WarmPython(Programs):
    """A server and its folder; both end with the process that made them."""

    def __init__(self, imported: Sequence[str], path: str = "") -> None:
        super().__init__(Path(tempfile.mkdtemp(prefix=PREFIX)))
        client = Path(self.executable)
        # The client needs neither site-packages nor variables: so it starts in 10 ms.
        source = (HERE / "client.py").read_text(encoding="utf-8")
        client.write_text(f"#!{sys.executable} -IS\n{source}", encoding="utf-8")
        client.chmod(0o755)
        self._server = subprocess.Popen(
            [sys.executable, HERE / "server.py", self._folder, *imported],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            env={"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": path},
        )
        assert self._server.stdout
        assert self._server.stdout.readline() == b"ready\n", "the warm Python has not started"

    def close(self) -> None:
        """End the server, which ends its forked processes."""
        assert self._server.stdin
        self._server.stdin.close()
        self._server.wait()


@cache
def warm_python() -> Programs:
    """Return the Python with PyTorch of this process: its own, or one started at its first use."""
    own = Path(sys.executable).parent
    if own.name.startswith(PREFIX):
        return Programs(own)
    return _closed_at_exit(WarmPython(OF_A_RANK))


@cache
def warm_kit() -> WarmPython:
    """Return the Python with all modules of kit, started at its first use."""
    return _closed_at_exit(WarmPython(_of_kit(), str(ROOT)))


@cache
def python_of_engine() -> str:
    """Return the Python of all processes under the local engine: with PyTorch and kit.

    It is a cold one where kit would not recognise the processes of a warm one.
    """
    warm = _closed_at_exit(WarmPython([*OF_A_RANK, *_of_kit()], str(ROOT)))
    return warm.executable if warm.shows_variables else sys.executable


def programs_of_engine(folder: Path) -> Path:
    """Make a folder with `kit` and `python` of the local engine, in place of .venv/bin."""
    folder.mkdir()
    for name, line in (("kit", "-m kit "), ("python", "")):
        text = f'#!/bin/sh\nexec {python_of_engine()} {line}"$@"\n'
        (folder / name).write_text(text, encoding="utf-8")
        (folder / name).chmod(0o755)
    return folder


def _of_kit() -> list[str]:
    files = [file for file in (ROOT / "kit").rglob("*.py") if not file.stem.startswith("__")]
    return sorted(".".join(file.relative_to(ROOT).with_suffix("").parts) for file in files)


def _closed_at_exit(python: WarmPython) -> WarmPython:
    atexit.register(python.close)
    return python
