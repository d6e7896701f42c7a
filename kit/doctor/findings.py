"""Findings: the results of checks, each with its code, on one host or on all together. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

PAGE = "docs/troubleshooting.md"


@dataclass(frozen=True, slots=True)
class Code:
    """A check. `title` is true if all is well; `cause` and `remedy` are for the documentation.

    `active`: it starts a container. `quick`: `kit deploy` runs it, too.
    """

    id: str
    title: str
    cause: str
    remedy: str
    active: bool = False
    quick: bool = False

    @property
    def anchor(self) -> str:
        """The place in the documentation."""
        return f"{PAGE}#{self.id.lower()}"


class Verdict(StrEnum):
    """`note`: worth knowing, or not known. Only `wrong` makes the exit status 1."""

    OK = "ok"
    NOTE = "note"
    WRONG = "wrong"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of a check; `host` is "" for the hosts together.

    `evidence` is what was seen, `run` the command or the change that helps.
    """

    code: Code
    host: str
    verdict: Verdict
    evidence: str
    run: str = ""


def ok(code: Code, host: str, evidence: str = "") -> Finding:
    """Return the finding that all is well."""
    return Finding(code, host, Verdict.OK, evidence)


def note(code: Code, host: str, evidence: str, run: str = "") -> Finding:
    """Return a finding that does not prevent the work."""
    return Finding(code, host, Verdict.NOTE, evidence, run)


def wrong(code: Code, host: str, evidence: str, run: str) -> Finding:
    """Return a finding that must be corrected."""
    return Finding(code, host, Verdict.WRONG, evidence, run)
