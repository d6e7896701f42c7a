"""Findings as lines and as JSON. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from kit.doctor.codes import CODES
from kit.doctor.findings import Finding, Verdict
from kit.values import count

ORDER = {Verdict.WRONG: 0, Verdict.NOTE: 1, Verdict.OK: 2}
FEW = 4
"""Up to this number of hosts, their names are listed."""


def ordered(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings in the order of the codes, those of one code by their hosts."""
    places = {code: place for place, code in enumerate(CODES)}
    return sorted(findings, key=lambda each: places[each.code.id])


def lines(findings: Sequence[Finding], *, every: bool) -> Iterator[tuple[Verdict, str]]:
    """Yield the lines to print; equal good findings of several hosts share a line."""
    for _, group in groupby(ordered(findings), key=lambda each: each.code.id):
        same = list(group)
        good = [each for each in same if each.verdict is Verdict.OK]
        if good:
            yield from _good(good, every=every)
        for each in sorted(same, key=lambda each: ORDER[each.verdict]):
            if each.verdict is not Verdict.OK:
                yield from _bad(each)


def _good(findings: Sequence[Finding], *, every: bool) -> Iterator[tuple[Verdict, str]]:
    code = findings[0].code
    if every:
        for each in findings:
            evidence = f" ({each.evidence})" if each.evidence else ""
            yield Verdict.OK, f"ok     {code.id:14}  {_where(each)}{code.title}{evidence}"
        return
    hosts = list(dict.fromkeys(each.host for each in findings if each.host))
    evidences = {each.evidence for each in findings if each.evidence}
    evidence = f" ({evidences.pop()})" if len(evidences) == 1 else ""
    names = ", ".join(hosts) if len(hosts) <= FEW else count(len(hosts), "host")
    where = f": {names}" if hosts else ""
    yield Verdict.OK, f"ok     {code.id:14}  {code.title}{evidence}{where}"


def _bad(finding: Finding) -> Iterator[tuple[Verdict, str]]:
    code, verdict = finding.code, finding.verdict
    yield verdict, f"{verdict:5}  {code.id:14}  {_where(finding)}{finding.evidence}"
    if finding.run:
        yield verdict, f"{'':23}run: {finding.run}"
    if verdict is Verdict.WRONG:
        yield verdict, f"{'':23}see: {code.anchor}"


def _where(finding: Finding) -> str:
    return f"{finding.host}: " if finding.host else ""


def summary(findings: Sequence[Finding], hosts: int, seconds: float) -> str:
    """Return the last line."""
    wrong = sum(each.verdict is Verdict.WRONG for each in findings)
    notes = sum(each.verdict is Verdict.NOTE for each in findings)
    checks = len({each.code.id for each in findings})
    verdict = "all is well" if not wrong else f"{count(wrong, 'finding')} to correct"
    more = f", {count(notes, 'note')}" if notes else ""
    return f"{verdict}{more}: {count(checks, 'check')} of {count(hosts, 'host')} in {seconds:.1f} s"


def document(findings: Sequence[Finding], cluster: str) -> dict[str, Any]:
    """Return the JSON document."""
    return {
        "cluster": cluster,
        "wrong": sum(each.verdict is Verdict.WRONG for each in findings),
        "findings": [
            {
                "code": each.code.id,
                "title": each.code.title,
                "host": each.host or None,
                "verdict": str(each.verdict),
                "evidence": each.evidence,
                "run": each.run,
                "doc": each.code.anchor,
            }
            for each in ordered(findings)
        ],
    }
