"""A Python process that has imported PyTorch, for tests of processes that would each import it.

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
from contextlib import suppress
from functools import cache
from pathlib import Path

HERE = Path(__file__).parent


class WarmPython:
    """A server and its folder; both end with the process that made them."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="kit-warm-"))
        client = self._folder / "python"
        self.executable = str(client)
        # The client needs neither site-packages nor variables: so it starts in 20 ms.
        source = (HERE / "client.py").read_text(encoding="utf-8")
        client.write_text(f"#!{sys.executable} -IS\n{source}", encoding="utf-8")
        client.chmod(0o755)
        self._server = subprocess.Popen(
            [sys.executable, HERE / "server.py", self._folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            env={"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        )
        assert self._server.stdout
        assert self._server.stdout.readline() == b"ready\n", "the warm Python has not started"

    def program_of(self, client: int) -> int | None:
        """The process that a client represents."""
        try:
            return int((self._folder / str(client)).read_text(encoding="ascii"))
        except (OSError, ValueError):
            return None

    def show_stacks(self) -> None:
        """Let all programs print the stacks of their threads, on standard error."""
        clients = {int(note.name) for note in self._folder.glob("[0-9]*")}
        # A program that has called exec is itself a client.
        programs = {program for client in clients if (program := self.program_of(client))}
        for program in programs - clients:
            with suppress(ProcessLookupError):
                os.kill(program, signal.SIGUSR2)

    def close(self) -> None:
        """End the server, which ends its forked processes."""
        assert self._server.stdin
        self._server.stdin.close()
        self._server.wait()


@cache
def warm_python() -> WarmPython:
    """Return the warm Python of this process, started at its first use."""
    result = WarmPython()
    atexit.register(result.close)
    return result
