"""Corrections that are safe: they touch no running job, and need no restart."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kit.doctor import codes, host_codes
from kit.doctor.facts import Wanted
from kit.doctor.findings import Finding, Verdict
from kit.errors import KitError
from kit.hosts import ssh
from kit.model import Host

ABSENT = (host_codes.START, Verdict.NOTE)
"""The finding that a host has no image for a container."""


@dataclass(frozen=True, slots=True)
class Fix:
    """A command for a host's shell; `login` is the host that runs it."""

    host: str
    login: Host
    what: str
    script: str


def fixes_for(findings: Sequence[Finding], wanted: Wanted) -> list[Fix]:
    """Return the fixes for findings of faults, each once."""
    bad = [each for each in findings if each.verdict is not Verdict.OK]
    fixes = (fix for each in bad for fix in _fix(each, wanted))
    return list(dict.fromkeys(fixes))


def _fix(finding: Finding, wanted: Wanted) -> Iterator[Fix]:
    if not finding.host:
        return
    want = wanted.of(finding.host)
    login = want.host
    if finding.code is codes.LABELS:
        manager = next((each.host for each in wanted.hosts if each.manager), None)
        if manager is not None:
            words = " ".join(f"--label-add {shlex.quote(f'{k}={v}')}" for k, v in want.labels)
            # The node's name may no longer be in the inventory: the host itself knows its ID.
            node = _node(login)
            script = f"docker node update {words} {shlex.quote(node)}" if node else "false"
            yield Fix(want.name, manager, "set the labels of its node", script)
    elif finding.code is host_codes.IMAGE or (finding.code, finding.verdict) == ABSENT:
        own = dict.fromkeys(use.image for use in want.uses)
        for image in own or wanted.images[:1]:
            script = f"docker pull -q {shlex.quote(image)}"
            yield Fix(want.name, login, f"pull {image}", script)
    elif finding.code is host_codes.PERSISTENCE:
        script = "nvidia-smi -pm 1 || sudo -n nvidia-smi -pm 1"
        yield Fix(want.name, login, "turn on the persistence mode", script)


def _node(host: Host) -> str:
    try:
        return ssh.run(host, "docker info --format '{{.Swarm.NodeID}}'").strip()
    except KitError:
        return ""


def apply(fix: Fix) -> str:
    """Run a fix; return the reason if it failed, else ""."""
    try:
        ssh.run(fix.login, fix.script)
    except KitError as error:
        return f"failed: {error.message}"
    return ""
