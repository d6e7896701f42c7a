"""Programs on the hosts that print lines of JSON, mostly in containers, by ssh or docker.

A container ends when its standard input ends or when docker passes on a signal; it is then removed.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, Self

from kit.errors import KitError
from kit.hosts import ssh

PATIENCE = 90.0
"""Seconds for an answer."""
GRACE = 10.0
"""Seconds in which a program must end by itself, once its input or its output has ended."""
LONGEST = 240
"""Characters of a reason: the beginning of Docker's error says what failed, its end why."""
HINT = re.compile(r"docker run --help|^Unable to find image")


class ProgramError(KitError):
    """A program gave no answer; `what` is the reason, without the program's name."""

    def __init__(self, name: str, what: str, before: str = "") -> None:
        super().__init__(f"{name}: {before}{what}")
        self.name = name
        self.what = what


class RefusedError(ProgramError):
    """A program has answered that it cannot do what it was asked to do; it continues to run."""


class Program:
    """A program that runs; `name` is that of its host or container in messages.

    One thread at a time uses it; `abort` is for any.
    """

    def __init__(
        self, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (`close` closes it)
        self._late = False
        self._feeder: threading.Thread | None = None
        self._failed: KitError | None = None
        try:
            self._process = subprocess.Popen(
                command,
                env=None if environment is None else dict(environment),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                start_new_session=True,  # kit handles Ctrl-C, and ends the program itself.
            )
        except FileNotFoundError:  # Callers that need docker have queried its engine.
            self._errors.close()
            raise ssh.not_installed() from None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input, self._output = self._process.stdin, self._process.stdout

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def ask(self, do: str, *, patience: float = PATIENCE, **arguments: Any) -> dict[str, Any]:
        """Send a request as a line, and return the next object that the program prints.

        Raises:
            RefusedError: The object has an `error`.
            ProgramError: The program has ended, or was ended as it did not answer in time.
        """
        with self._limited(patience):
            self.send(json.dumps({"do": do, **arguments}))
            answer = next((each for each in self.values() if isinstance(each, dict)), None)
        if answer is None and self._late:
            raise ProgramError(self.name, f"no answer within {patience:.0f} s")
        if answer is None:
            raise ProgramError(self.name, self.reason(), "its container ended: ")
        if "error" in answer:
            raise RefusedError(self.name, str(answer["error"]))
        return answer

    def send(self, line: str) -> None:
        """Write a line to the program's input."""
        with suppress(OSError):  # The missing answer has the reason.
            self._input.write(f"{line}\n".encode())
            self._input.flush()

    def feed(self, blocks: Iterable[bytes]) -> None:
        """Write all of the program's input in a thread; `end` raises a KitError of `blocks`."""
        self._feeder = threading.Thread(target=self._feed, args=(blocks,), daemon=True)
        self._feeder.start()

    def values(self) -> Iterator[Any]:
        """Yield the JSON values that it prints; skip other lines, of logins and libraries."""
        for line in self._output:
            with suppress(ValueError):
                yield json.loads(line)

    def end(self) -> int:
        """Wait for the program's own end, and return its exit status.

        Raises:
            KitError: Its input could not be read.
        """
        status = self._process.wait()
        if self._feeder is not None:
            self._feeder.join()
        if self._failed is not None:
            raise self._failed
        return status

    def reason(self) -> str:
        """Return why a program without more output has ended: the last line of docker or ssh."""
        status = self._finish()
        self._errors.seek(0)
        return _reason(self._errors.read().decode(errors="replace")) or f"exit status {status}"

    def abort(self) -> None:
        """End the program by a signal, which docker passes on to the container."""
        self._process.terminate()

    def close(self) -> None:
        """End the program, by the end of its input or, if it was fed, by a signal."""
        try:
            if self._feeder is not None:
                self.abort()
            else:
                with suppress(OSError):
                    self._input.close()
            self._finish()
        finally:
            self._output.close()
            self._errors.close()
            if self._feeder is not None:
                self._feeder.join()  # Its pipe has no reader any more.

    def _finish(self) -> int:
        try:
            return self._process.wait(GRACE)
        except subprocess.TimeoutExpired:
            self.abort()
            return self._process.wait()

    @contextmanager
    def _limited(self, patience: float) -> Iterator[None]:
        limit = threading.Timer(patience, self._expire)
        limit.start()
        try:
            yield
        finally:
            limit.cancel()

    def _expire(self) -> None:
        self._late = True
        self.abort()

    def _feed(self, blocks: Iterable[bytes]) -> None:
        try:
            with suppress(OSError):  # The exit status has the reason.
                for block in blocks:
                    self._input.write(block)
        except KitError as error:
            self._failed = error
        with suppress(OSError):
            self._input.close()


@contextmanager
def aborted(programs: Iterable[Program]) -> Iterator[None]:
    """Abort the programs after Ctrl-C: the threads that wait for them would continue."""
    try:
        yield
    except BaseException:
        for program in programs:
            program.abort()
        raise


def _reason(stderr: str) -> str:
    """Return Docker's error without its hints, or else the last line."""
    stderr = stderr.rpartition("stderr=")[2]  # docker's own text is before that of its ssh.
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    lines = [line for line in lines if not HINT.search(line)]
    errors = [place for place, line in enumerate(lines) if line.startswith("docker: ")]
    text = " ".join(lines[errors[-1] if errors else -1 :]).removeprefix("docker: ")
    return text if len(text) <= LONGEST else f"{text[: LONGEST // 2]} … {text[-LONGEST // 2 :]}"
