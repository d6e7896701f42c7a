"""The program that measures on a host, and the requests that it answers.

kit sends its text along, so that it runs in any image with PyTorch, and in an old image measures as
the present kit expects.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from kit.errors import InputError, KitError

PATIENCE = 90.0
"""Seconds for one measurement."""
FIRST_PATIENCE = 900.0
"""Seconds until the container runs; the host may have to pull the image."""


class RefusedError(KitError):
    """A measurement failed on a host; `what` is its reason."""

    def __init__(self, host: str, what: str) -> None:
        super().__init__(f"{host}: {what}")
        self.host = host
        self.what = what


class Agent:
    """A connection to the program on one host. One thread at a time uses it."""

    def __init__(self, name: str, command: Sequence[str]) -> None:
        self.name = name
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 (`close` closes it)
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._said,
                start_new_session=True,  # kit handles Ctrl-C, and ends it by closing its input.
            )
        except FileNotFoundError:
            raise InputError("ssh is not installed here", "install openssh-client") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the program, and with it its container."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
            self._process.wait(10)
        except (OSError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        finally:
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._said.close()

    def abort(self) -> None:
        """End the program without its consent, also while somebody waits for an answer."""
        self._process.kill()

    def ask(self, do: str, *, patience: float = PATIENCE, **arguments: Any) -> dict[str, Any]:
        """Have something measured, and return the answer.

        Raises:
            RefusedError: The measurement failed; the program goes on.
            KitError: The program has ended, or does not answer.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        limit = threading.Timer(patience, self._process.kill)
        limit.start()
        try:
            self._process.stdin.write(json.dumps({"do": do, **arguments}).encode() + b"\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except OSError:
            line = b""
        finally:
            limit.cancel()
        if not line:
            raise KitError(f"{self.name}: the measuring container ended: {self._last_error()}")
        try:
            answer: dict[str, Any] = json.loads(line)
        except ValueError:
            said = line.decode(errors="replace").strip()[:100]
            what = f"{self.name}: answers {said!r} instead of a measurement"
            raise KitError(
                what, "does a login there print something? try `ssh HOST true`"
            ) from None
        if "error" in answer:
            raise RefusedError(self.name, str(answer["error"]))
        return answer

    def start(self) -> None:
        """Wait until the program runs.

        Raises:
            KitError: The host cannot be reached, or the container does not start.
        """
        self.ask("hello", patience=FIRST_PATIENCE)

    def _last_error(self) -> str:
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._said.seek(0)
        said = self._said.read().decode(errors="replace").strip().splitlines()
        # Docker's last line is a pointer to its help.
        told = [line for line in said if line.strip() and "docker run --help" not in line]
        return told[-1].strip() if told else "it said nothing"


def probe_text() -> str:
    """Return the source of the program, without importing the trainer."""
    spec = importlib.util.find_spec("trainer")
    if spec is None or not spec.submodule_search_locations:
        raise KitError("the package `trainer` is not installed", "reinstall kit")
    path = Path(spec.submodule_search_locations[0]) / "bench" / "probe.py"
    return path.read_text(encoding="utf-8")
