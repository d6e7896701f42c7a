"""Errors as values; `kit.cli` prints all of them.

A `Fault` is a mistake in the input that a pure function found. It contains the place in the
document, but not the file. A `Problem` is the same mistake with its file and line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

INVENTORY = "inventory"
"""The source of faults in the inventory. Faults in a job have the job's name."""

SIGNALLED = 128
"""The exit status after a signal, without the signal's number."""

MOST_PROBLEMS = 100
"""The largest number of mistakes that are printed."""

Loc = tuple[str | int, ...]
"""A place in a document: keys and list positions from its root."""


def dotted(loc: Loc) -> str:
    """Return a place as text: `hosts.pc2.gpus[1].uuid`."""
    text = ""
    for part in loc:
        plain = isinstance(part, str) and re.fullmatch(r"\S+", part)
        text += f"[{part}]" if isinstance(part, int) else f".{part if plain else repr(part)}"
    return text.removeprefix(".")


def once(lines: Iterable[str]) -> str:
    """Join lines without duplicates: several jobs or hosts may give the same line."""
    return "\n".join(dict.fromkeys(lines))


def one_line(text: str) -> str:
    """Return a text with control characters escaped, so that it cannot control the terminal."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


@dataclass(frozen=True, slots=True)
class Fault:
    """A mistake at `loc` of the document `source` (`inventory`, or a job's name).

    `what` and `fix` may contain `{line}`: the line of `other` (a place in the same document), or
    its `file:line` if `other_source` is set.
    """

    source: str
    loc: Loc
    what: str
    fix: str
    other: Loc | None = None
    other_source: str | None = None


@dataclass(frozen=True, slots=True)
class Problem:
    """A mistake with its place in a file, printed as `file:line: path: what; fix`."""

    file: str
    line: int
    path: str
    what: str
    fix: str

    def __str__(self) -> str:
        path = f" {self.path}:" if self.path else ""
        text = f"{self.file}:{self.line}:{path} {self.what}; {self.fix}"
        return one_line(text)


class KitError(Exception):
    """A foreseeable failure: a message, a hint on what to run, an exit status.

    Exit status 1: the work failed. 2: the input is wrong (`InputError`).
    """

    exit_status = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n{self.hint}" if self.hint else self.message


def joined(errors: Iterable[KitError], otherwise: str = "") -> KitError:
    """Return one error with the messages and the hints of several, and one more hint."""
    all_errors = list(errors)
    hints = (*(error.hint for error in all_errors), otherwise)
    return KitError(once(error.message for error in all_errors), once(filter(None, hints)))


class InputError(KitError):
    """The input is wrong: a file, an option or a target folder."""

    exit_status = 2


class ProblemsError(InputError):
    """All mistakes in the user's files."""

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = sorted(problems, key=lambda p: (p.file, p.line))
        lines = [str(problem) for problem in self.problems[:MOST_PROBLEMS]]
        if len(self.problems) > MOST_PROBLEMS:
            lines.append(f"only the first {MOST_PROBLEMS} mistakes are listed")
        super().__init__("\n".join(lines))


class FaultsError(Exception):
    """Faults that a pure function found. `Sources.problems` converts them to a `ProblemsError`."""

    def __init__(self, faults: list[Fault]) -> None:
        super().__init__(f"{len(faults)} faults")
        self.faults = faults
