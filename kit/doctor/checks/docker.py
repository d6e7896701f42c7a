"""Checks of Docker: usable, one version, known faults, images. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from kit.discover.engines import REMEDIES
from kit.doctor import host_codes
from kit.doctor.facts import Report, Wanted, WantedHost
from kit.doctor.findings import Finding, note, ok, wrong
from kit.platforms import of_kernel

NAMED_GPUS = (25, 0, 3)
"""The first engine whose Swarm accepts counts of named GPUs in a stack file (moby PR 47224)."""
FEW_FILES = (29, 0)
"""From this engine on the default limit of open files is 1,024 (its release notes)."""
NO_SWARM_RESOURCE = ((1, 18), (1, 19))
"""Toolkits that ignore `swarm-resource` (nvidia-container-toolkit #1599): from, to."""


def check(report: Report, want: WantedHost, wanted: Wanted) -> Iterator[Finding]:
    """Yield the findings of one host."""
    docker = report.facts.docker
    if docker.stand_in:
        explained = REMEDIES[docker.stand_in]
        run = explained.run.format(host=want.name)
        yield wrong(host_codes.ENGINE, report.host, explained.what, run)
        return
    if docker.fault:
        yield wrong(host_codes.DOCKER, report.host, docker.fault, _remedy(docker.fault, want))
        return
    yield ok(host_codes.DOCKER, report.host)
    yield ok(host_codes.ENGINE, report.host)
    faults = [*_engine(report, wanted), *_toolkit(report)]
    yield from faults or [ok(host_codes.FAULTY, report.host)]


def _remedy(fault: str, want: WantedHost) -> str:
    login = want.ssh
    if "permission denied" in fault:
        typed = login.replace("ssh", "ssh -t", 1)
        return f"{typed} 'sudo usermod -aG docker $USER', then log in again"
    if "not installed" in fault:
        return f"kit host prepare --run {want.name}"
    return f"{login} systemctl status docker"


def version_of(text: str) -> tuple[int, ...]:
    """Return the first three numbers of a version."""
    return tuple(int(part) for part in re.findall(r"\d+", text)[:3])


def _engine(report: Report, wanted: Wanted) -> Iterator[Finding]:
    text = report.facts.docker.version
    version = version_of(text)
    if wanted.swarm and version < NAMED_GPUS:
        oldest = ".".join(map(str, NAMED_GPUS))
        evidence = f"the Swarm of Docker {text} refuses tasks that reserve GPUs (moby PR 47224)"
        run = f"install Docker {oldest} or newer, the same on all hosts"
        yield wrong(host_codes.FAULTY, report.host, evidence, run)
    elif version >= FEW_FILES:
        evidence = (
            f"Docker {text} gives containers 1,024 open files by default; kit's jobs get 65,536"
        )
        yield note(host_codes.FAULTY, report.host, evidence)


def _toolkit(report: Report) -> Iterator[Finding]:
    version = version_of(report.facts.toolkit)[:2]
    first, fixed = NO_SWARM_RESOURCE
    if first <= version < fixed:
        evidence = (
            f"NVIDIA's toolkit {report.facts.toolkit} ignores `swarm-resource` (issue 1599); kit "
            "pins GPUs without it, other stacks may see all GPUs"
        )
        yield note(
            host_codes.FAULTY, report.host, evidence, "install nvidia-container-toolkit 1.19"
        )


def versions(reports: Sequence[Report], _wanted: Wanted) -> Iterator[Finding]:
    """Yield the findings on different versions of Docker."""
    by_version: dict[str, list[str]] = {}
    for report in reports:
        if report.facts.docker.version:
            by_version.setdefault(report.facts.docker.version, []).append(report.host)
    if len(by_version) < 2:
        if by_version and len(reports) > 1:
            yield ok(host_codes.VERSION, "", next(iter(by_version)))
        return
    newest = max(by_version, key=version_of)
    releases = {version_of(version)[:2] for version in by_version}
    for version, hosts in by_version.items():
        if version == newest:
            continue
        run = f"install Docker {newest} there"
        for host in hosts:
            evidence = f"Docker {version}; {', '.join(by_version[newest])} has {newest}"
            differs = len(releases) > 1 and version_of(version)[:2] != version_of(newest)[:2]
            yield (wrong if differs else note)(host_codes.VERSION, host, evidence, run)


def images(reports: Sequence[Report], wanted: Wanted) -> Iterator[Finding]:
    """Yield the findings on images that differ; an image that a host lacks will be pulled."""
    for image in wanted.images:
        users = {host.name for host in wanted.hosts if image in {use.image for use in host.uses}}
        having = [one for one in reports if one.host in users and image in one.vitals.images]
        yield from (finding for report in having for finding in _platform(report, image))
        differing: list[Finding] = []
        # Under one tag, each architecture has an image of its own.
        for architecture in dict.fromkeys(one.vitals.images[image].architecture for one in having):
            same = [one for one in having if one.vitals.images[image].architecture == architecture]
            differing += _differing(same, image, wanted)
        yield from differing or ([ok(host_codes.IMAGE, "", image)] if having else [])


def _platform(report: Report, image: str) -> Iterator[Finding]:
    architecture, own = report.vitals.images[image].architecture, report.facts.architecture
    if architecture and own and architecture != of_kernel(own):
        evidence = f"{image} is for {architecture}, its processor is {of_kernel(own)}"
        run = "kit image build --platform linux/amd64,linux/arm64 --push; then pull it there"
        yield wrong(host_codes.PLATFORM, report.host, evidence, run)
    elif architecture:
        yield ok(host_codes.PLATFORM, report.host, image)


def _differing(reports: Sequence[Report], image: str, wanted: Wanted) -> Iterator[Finding]:
    by_image: dict[str, list[str]] = {}
    for report in reports:
        by_image.setdefault(report.vitals.images[image].id, []).append(report.host)
    groups = sorted(by_image.items(), key=lambda each: len(each[1]), reverse=True)
    usual, most = groups[0]
    for identifier, hosts in groups[1:]:
        for host in hosts:
            evidence = f"{image} is {_short(identifier)}, on {', '.join(most)} {_short(usual)}"
            run = f"{wanted.of(host).ssh} docker pull {image}"
            yield wrong(host_codes.IMAGE, host, evidence, run)


def _short(identifier: str) -> str:
    return identifier.removeprefix("sha256:")[:12]
