"""The quick checks before a deploy: one login per host, and only faults that surely break a run."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace

from kit.doctor.checks.all import check_all
from kit.doctor.facts import Report, Wanted
from kit.doctor.findings import Finding, Verdict
from kit.doctor.probe import ask_quickly
from kit.errors import KitError
from kit.values import Say

PATIENCE = 15.0
"""Seconds to wait for the slowest host; the deploy itself reports a host that does not answer."""


class QuickDoctor:
    """Asks the hosts in the background, while the caller does something else."""

    def __init__(self, wanted: Wanted) -> None:
        self._wanted = used_only(wanted)
        self._reports: list[Report] = []
        self._thread = threading.Thread(target=self._ask, daemon=True)
        self._thread.start()

    def _ask(self) -> None:
        answers = ask_quickly(self._wanted)
        # The deploy reports hosts that cannot be reached: a job may do without some.
        self._reports += [each for each in answers.values() if isinstance(each, Report)]

    def refuse(self, needed: Mapping[str, int], say: Say) -> None:
        """Report what is wrong; `needed` is the smallest number of hosts of each workload.

        Raises:
            KitError: A workload has too few sound hosts.
        """
        self._thread.join(PATIENCE)
        findings = certain(self._reports, self._wanted)
        if not findings:
            return
        lines = [
            f"{each.host}: {each.evidence} ({each.code.id})\n  run: {each.run}" for each in findings
        ]
        ill = {each.host for each in findings}
        short = sorted(name for name, hosts in _hosts(self._wanted).items()
                       if len(hosts - ill) < needed.get(name, 1))  # fmt: skip
        if short:
            raise KitError(
                "\n".join(lines),
                f"{', '.join(short)} cannot run: see kit doctor, or add --skip-doctor",
            )
        for line in lines:
            say(f"note: {line}")


def certain(reports: Sequence[Report], wanted: Wanted) -> list[Finding]:
    """Return the findings that are certain to break a run on their host."""
    findings = check_all(reports, wanted)
    return [each for each in findings if each.code.quick and each.verdict is Verdict.WRONG]


def used_only(wanted: Wanted) -> Wanted:
    """Return the expectations of hosts with workloads, and only of the GPUs that these use."""
    hosts = []
    for want in wanted.hosts:
        used = {gpu for use in want.uses for gpu in use.gpus}
        gpus = tuple(gpu for gpu in want.host.gpus if gpu.id in used)
        if want.uses:
            hosts.append(replace(want, host=replace(want.host, gpus=gpus)))
    return replace(wanted, hosts=tuple(hosts))


def _hosts(wanted: Wanted) -> dict[str, set[str]]:
    hosts: dict[str, set[str]] = {}
    for host in wanted.hosts:
        for use in host.uses:
            hosts.setdefault(use.workload, set()).add(host.name)
    return hosts
