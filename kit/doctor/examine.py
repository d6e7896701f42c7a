"""Examine the hosts: the facts of all hosts, then containers on hosts that can run them."""

from __future__ import annotations

from kit.doctor import host_codes
from kit.doctor.checks.all import check_all
from kit.doctor.facts import Report, Wanted
from kit.doctor.findings import Finding, wrong
from kit.doctor.probe import ask_all
from kit.errors import KitError
from kit.values import Say


def examine(wanted: Wanted, *, active: bool, progress: Say = lambda _: None) -> list[Finding]:
    """Return all findings; `progress` gets a line about each step."""
    answers = _ask(wanted, progress)
    reports = [answer for answer in answers.values() if isinstance(answer, Report)]
    findings = [*_silent(answers, wanted), *check_all(reports, wanted)]
    if active and reports:
        from kit.doctor.active.run import run_active

        findings += run_active(reports, wanted, progress)
    return findings


def _ask(wanted: Wanted, progress: Say) -> dict[str, Report | KitError]:
    left = {host.name for host in wanted.hosts}
    total = len(left)

    def done(name: str) -> None:
        left.discard(name)
        waiting = f", waiting for {min(left)}" if 0 < len(left) < 4 else ""
        progress(f"facts: {total - len(left)} of {total} hosts{waiting}")

    return ask_all(wanted, done)


def _silent(answers: dict[str, Report | KitError], wanted: Wanted) -> list[Finding]:
    return [
        wrong(host_codes.SSH, name, _reason(answer, name), f"{wanted.of(name).ssh} true")
        for name, answer in answers.items()
        if isinstance(answer, KitError)
    ]


def _reason(error: KitError, name: str) -> str:
    return error.message.removeprefix(f"{name}: ")
