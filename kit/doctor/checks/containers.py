"""Checks of containers: their start, limits, GPUs, PyTorch, data. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from kit.doctor import codes, host_codes
from kit.doctor.checks.docker import version_of
from kit.doctor.facts import Report, Wanted
from kit.doctor.findings import Finding, note, ok, wrong
from kit.doctor.results import ContainerResults, Listing, Torch, TrialContainer, VisibleGpus
from kit.values import count, names_gpu, show_size

OPEN_FILES = 65536
"""The limit that templates give a job's containers."""
FEW_FILES = 4096
"""Open files that are too few for DataLoader workers and sockets; Docker 29 gives 1,024."""
DRIVERS = {11: (450, 80), 12: (525, 60), 13: (580,)}
"""The oldest driver for each major version of CUDA (NVIDIA, CUDA Compatibility, "Minor Version
Compatibility", table 1; its exact numbers are of the CUDA Toolkit's release notes, table 2)."""


def check(
    results: ContainerResults, reports: Sequence[Report], wanted: Wanted
) -> Iterator[Finding]:
    """Yield the findings of containers."""
    for container in results.containers:
        yield from _start(container, wanted)
    for visible in results.visible_gpus:
        yield from _visible_gpus(visible, wanted)
    yield from _computed(results, wanted)
    for torch in results.torches:
        yield from _torch(torch, reports, wanted)
    yield from _data(results.listings)


def _start(container: TrialContainer, wanted: Wanted) -> Iterator[Finding]:
    want = wanted.of(container.host)
    host, login = want.name, want.ssh
    if not wanted.images:
        evidence = "no job names an image: containers, ports and the MTU were not tried"
        yield note(host_codes.START, host, evidence, "describe a job in jobs/")
    elif not container.image:
        evidence = "it has no image of a job: containers, ports and the MTU were not tried"
        yield note(host_codes.START, host, evidence, f"{login} docker pull {wanted.images[0]}")
    elif container.fault:
        run = f"{login} docker run --rm --entrypoint python3 {container.image} --version"
        yield wrong(host_codes.START, host, container.fault, run)
    else:
        yield ok(host_codes.START, host)
        yield from _limits(container, wanted)
        if container.gpus:
            evidence = (
                f"a container with NVIDIA_VISIBLE_DEVICES=void has {container.gpus} GPU devices"
            )
            run = "look at /etc/nvidia-container-runtime/config.toml and CDI there"
            yield wrong(host_codes.VOID, host, evidence, run)
        else:
            yield ok(host_codes.VOID, host)


def _limits(container: TrialContainer, wanted: Wanted) -> Iterator[Finding]:
    uses = wanted.of(container.host).uses
    if not uses:
        return
    shared = max(use.shared_memory for use in uses)
    run = "systemctl edit docker: [Service] LimitNOFILE=infinity; restart Docker"
    if container.files < OPEN_FILES:
        evidence = f"a container may open {container.files} files, kit asks for {OPEN_FILES}"
        few = container.files < FEW_FILES
        yield (wrong if few else note)(host_codes.LIMITS, container.host, evidence, run)
    elif container.shm < shared:
        evidence = (
            f"/dev/shm of a container is {show_size(container.shm)}, planned {show_size(shared)}"
        )
        yield wrong(
            host_codes.LIMITS,
            container.host,
            evidence,
            "mount -o remount,exec /dev/shm; docker info",
        )
    else:
        yield ok(host_codes.LIMITS, container.host)


def _visible_gpus(visible: VisibleGpus, wanted: Wanted) -> Iterator[Finding]:
    if visible.busy:
        evidence = f"GPUs of {visible.workload} were not tried: {visible.busy} uses them"
        yield note(host_codes.SEES, visible.host, evidence)
        return
    run = f"{wanted.of(visible.host).ssh} cat /etc/nvidia-container-runtime/config.toml"
    if visible.fault:
        evidence = f"a container with the GPUs of {visible.workload} fails: {visible.fault}"
        yield wrong(host_codes.SEES, visible.host, evidence, run)
        return
    named = all(map(names_gpu, visible.given))
    given, seen = ({each.lower() for each in each_of} for each_of in (visible.given, visible.seen))
    if (named and given != seen) or len(visible.given) != len(visible.seen):
        planned = ", ".join(visible.given) if named else count(len(visible.given), "GPU")
        evidence = (
            f"a container of {visible.workload} sees {', '.join(visible.seen)}, planned {planned}"
        )
        yield wrong(host_codes.SEES, visible.host, evidence, run)
    else:
        yield ok(host_codes.SEES, visible.host)


def _computed(results: ContainerResults, wanted: Wanted) -> Iterator[Finding]:
    bad = [each for each in results.computed if each.fault]
    for each in bad:
        login = wanted.of(each.host).host.ssh
        run = f"ssh {login} 'sudo dmesg | grep -E \"NVRM|SXid\"'; reset the GPU or reboot"
        evidence = f"a container of {each.workload} cannot use {each.device}: {each.fault}"
        yield wrong(host_codes.COMPUTES, each.host, evidence, run)
    faulty = {each.host for each in bad}
    for host in dict.fromkeys(each.host for each in results.computed):
        if host not in faulty:
            yield ok(host_codes.COMPUTES, host)


def _torch(torch: Torch, reports: Sequence[Report], wanted: Wanted) -> Iterator[Finding]:
    users = {host.name for host in wanted.hosts if torch.image in {u.image for u in host.uses}}
    with_gpus = [each for each in reports if each.host in users and each.facts.gpus]
    if not with_gpus:
        return
    if torch.fault or not torch.version:
        evidence = torch.fault or f"{torch.image} has no torch"
        yield note(host_codes.DRIVER, "", f"the CUDA of {torch.image} is not known: {evidence}")
        return
    if not torch.cuda:
        evidence = (
            f"torch {torch.version} of {torch.image} is a CPU build: it leaves the GPUs unused"
        )
        yield note(host_codes.DRIVER, "", evidence, "kit image build --base with a CUDA image")
        return
    for report in with_gpus:
        yield _driver(torch, report)
        yield from _capability(torch, report)


def _driver(torch: Torch, report: Report) -> Finding:
    oldest = DRIVERS.get(version_of(torch.cuda)[0])
    driver = report.facts.driver
    if oldest and driver and version_of(driver)[: len(oldest)] < oldest:
        needed = ".".join(map(str, oldest))
        evidence = f"driver {driver}; CUDA {torch.cuda} of {torch.image} needs {needed} or newer"
        run = f"install driver {needed} or newer, or use an image with an older CUDA"
        return wrong(host_codes.DRIVER, report.host, evidence, run)
    return ok(host_codes.DRIVER, report.host)


def _capability(torch: Torch, report: Report) -> Iterator[Finding]:
    lacking = False
    for gpu in report.facts.gpus:
        if gpu.compute and torch.archs and not runs_on(gpu.compute, torch.archs):
            lacking = True
            evidence = (
                f"{gpu.model} has compute capability {gpu.compute}; torch {torch.version} of "
                f"{torch.image} has {' '.join(torch.archs)}"
            )
            run = "kit image build --base with an image for this GPU"
            yield wrong(host_codes.CAPABILITY, report.host, evidence, run)
    if torch.archs and not lacking:
        yield ok(host_codes.CAPABILITY, report.host)


def runs_on(compute: str, archs: Sequence[str]) -> bool:
    """Return whether code for the architectures runs on a compute capability, such as `7.5`.

    Machine code (`sm_70`) runs on the same major version with the same or a later minor one; PTX
    (`compute_70`) on all later ones (CUDA C++ Programming Guide, "Application Compatibility").
    """
    major, _, minor = compute.partition(".")
    for arch in archs:
        match = re.fullmatch(r"(sm|compute)_(\d+)(\d)[a-z]?", arch)
        if match is None:
            continue
        kind, its_major, its_minor = match[1], int(match[2]), int(match[3])
        if kind == "sm" and its_major == int(major) and its_minor <= int(minor or 0):
            return True
        if kind == "compute" and (its_major, its_minor) <= (int(major), int(minor or 0)):
            return True
    return False


def _data(listings: Sequence[Listing]) -> Iterator[Finding]:
    groups: dict[tuple[str, str], list[Listing]] = {}
    for each in listings:
        groups.setdefault((each.workload, each.name), []).append(each)
    for (workload, name), same in groups.items():
        bad: list[Finding] = []
        for each in same:
            if each.missing:
                evidence = f"{workload}: {each.missing.partition(';')[0]}"
                run = f"copy the data to {each.host}, from a host that has it"
                bad.append(wrong(codes.DATA, each.host, evidence, run))
        present = [each for each in same if not each.missing]
        usual = Counter(each.digest for each in present).most_common(1)
        for each in present:
            if usual and each.digest != usual[0][0]:
                model = next(one for one in present if one.digest == usual[0][0])
                evidence = (
                    f"{workload}: {name} has {count(each.files, 'file')} of {each.bytes:,} bytes, "
                    f"on {model.host} {count(model.files, 'file')} of {model.bytes:,}"
                )
                run = f"copy the data from {model.host} to {each.host}"
                bad.append(wrong(codes.DATA, each.host, evidence, run))
        yield from bad or [ok(codes.DATA, each.host) for each in same]
