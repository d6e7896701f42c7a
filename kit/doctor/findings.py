"""Findings: the result of a check, on one host or on all together. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from kit.doctor.codes import Code


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
