"""Checks of a host itself: login, clock, disk, names, memory. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kit.doctor import codes, host_codes
from kit.doctor.facts import Report, Wanted, WantedHost
from kit.doctor.findings import Finding, note, ok, wrong
from kit.platforms import of_kernel
from kit.values import SHARERS, show_age, show_size

SLOW_LOGIN = 3.0
"""Seconds; a usual login takes some tenths."""
CLOCK = 1.0
"""Seconds that clocks may differ."""
STALL = 2.0
"""Seconds of a look-up; a resolver asks the next server after 5 (resolv.conf(5))."""
LEAST = 2 * 2**30
"""Bytes below which neither an image nor a checkpoint fits."""
LOW = 10 * 2**30
"""Bytes: the size of an image with CUDA and PyTorch."""
SWAPPED = 2**28
"""Bytes of swap in use that are worth a note; some idle pages are always swapped."""


def check(report: Report, want: WantedHost, _wanted: Wanted) -> Iterator[Finding]:
    """Yield the findings of one host."""
    yield from _login(report)
    yield from _processor(report, want)
    yield from _clock(report)
    yield from _disk(report, want)
    yield from _names(report)
    yield from _memory(report, want)
    yield from _device_rules(report)
    yield from _folders(report, want)


def _login(report: Report) -> Iterator[Finding]:
    yield ok(host_codes.SSH, report.host)
    if report.login > SLOW_LOGIN:
        run = "`UseDNS no` in its sshd_config; look at /etc/ssh/sshrc and ~/.ssh/rc"
        yield note(host_codes.SSH_TIME, report.host, f"the login took {report.login:.1f} s", run)
    else:
        yield ok(host_codes.SSH_TIME, report.host)


def _processor(report: Report, want: WantedHost) -> Iterator[Finding]:
    found, planned = of_kernel(report.facts.architecture), want.host.architecture
    if found and found != planned:
        evidence = f"its processor is {found}, the inventory says {planned}"
        run = f"kit discover {report.host}, or write `architecture: {found}`; then kit plan"
        yield wrong(host_codes.PROCESSOR, report.host, evidence, run)
    elif found:
        yield ok(host_codes.PROCESSOR, report.host)


def _clock(report: Report) -> Iterator[Finding]:
    error = report.clock_error
    if abs(error) > CLOCK:
        direction = "ahead of" if error > 0 else "behind"
        evidence = f"its clock is at least {show_age(abs(error))} {direction} this machine's"
        yield wrong(host_codes.CLOCK, report.host, evidence, "timedatectl set-ntp true")
    else:
        yield ok(host_codes.CLOCK, report.host)


def _disk(report: Report, want: WantedHost) -> Iterator[Finding]:
    rooms = report.vitals.rooms
    if not rooms:
        return
    needed = sum(use.checkpoint_bytes for use in want.uses)
    findings: list[Finding] = []
    for room in rooms:
        evidence = f"{room.path} has {show_gib(room.free)} free of {show_gib(room.size)}"
        run = "docker system df; docker image prune -a"
        if room.free < LEAST:
            findings.append(wrong(host_codes.DISK, report.host, evidence, run))
        elif room.free < needed:
            evidence += f", the checkpoints need {show_gib(needed)}"
            findings.append(wrong(host_codes.DISK, report.host, evidence, run))
        elif room.free < LOW:
            findings.append(note(host_codes.DISK, report.host, evidence, run))
    yield from findings or [ok(host_codes.DISK, report.host)]


def show_gib(number: int) -> str:
    """Return bytes in GiB, or in MiB below one."""
    return f"{number / 2**30:.1f} GiB" if number >= 2**30 else f"{number / 2**20:.0f} MiB"


def _names(report: Report) -> Iterator[Finding]:
    slow = {name: took for name, took in report.vitals.lookups.items() if took >= STALL}
    if slow:
        name, took = next(iter(slow.items()))
        evidence = f"to look up {name} took {took:.1f} s"
        yield wrong(
            host_codes.DNS, report.host, evidence, "resolvectl status; cat /etc/resolv.conf"
        )
    else:
        yield ok(host_codes.DNS, report.host)


def _memory(report: Report, want: WantedHost) -> Iterator[Finding]:
    host, vitals = report.host, report.vitals
    if vitals.swap_used > SWAPPED:
        evidence = f"{show_gib(vitals.swap_used)} of memory are swapped out"
        yield note(
            host_codes.SWAP, host, evidence, "swapoff -a (as root), or end what uses the memory"
        )
    else:
        yield ok(host_codes.SWAP, host)
    if vitals.overcommit == "2":
        run = "sysctl -w vm.overcommit_memory=0 (as root)"
        yield wrong(host_codes.OVERCOMMIT, host, "vm.overcommit_memory is 2", run)
    else:
        yield ok(host_codes.OVERCOMMIT, host)
    planned = sum(use.shared_memory for use in want.uses)
    if planned > report.facts.memory > 0:
        memory = show_gib(report.facts.memory)
        evidence = (
            f"its containers may use {show_size(planned)} of /dev/shm, it has {memory} of memory"
        )
        yield wrong(host_codes.MEMORY, host, evidence, "limits: {shared_memory: …} in the job")
    elif want.uses:
        shared = {gpu.model for gpu in report.facts.gpus if gpu.shared}
        size = show_gib(report.facts.memory)
        evidence = f"{', '.join(sorted(shared))}: {SHARERS} share {size}" if shared else ""
        yield ok(host_codes.MEMORY, host, evidence)


def _device_rules(report: Report) -> Iterator[Finding]:
    facts, vitals = report.facts, report.vitals
    if not facts.gpus or facts.docker.fault:
        return
    if vitals.cgroup_driver == "systemd" and not vitals.char_devices:
        evidence = "Docker uses systemd's cgroups, and /dev/char has no link to the GPUs' devices"
        run = "nvidia-ctk system create-dev-char-symlinks --create-all (as root)"
        yield wrong(host_codes.CGROUP, report.host, evidence, run)
    else:
        yield ok(host_codes.CGROUP, report.host)


def _folders(report: Report, want: WantedHost) -> Iterator[Finding]:
    wanted = {folder for use in want.uses for folder in use.folders}
    missing = sorted(wanted & set(report.vitals.missing))
    for folder in missing:
        evidence = f"{folder} does not exist"
        yield wrong(codes.FOLDERS, report.host, evidence, f"{want.ssh} mkdir -p {folder}")
    if wanted and not missing:
        yield ok(codes.FOLDERS, report.host)


def names(reports: Sequence[Report], wanted: Wanted) -> Iterator[Finding]:
    """Yield the findings on host names."""
    hosts: dict[str, list[str]] = {}
    for report in reports:
        hosts.setdefault(report.facts.hostname.lower(), []).append(report.host)
    double = {name: same_name for name, same_name in hosts.items() if len(same_name) > 1}
    for name, same_name in double.items():
        evidence = f"{', '.join(same_name)} all have the host name {name}"
        run = f"{wanted.of(same_name[-1]).ssh} hostnamectl set-hostname {same_name[-1]}"
        yield wrong(host_codes.HOSTNAME, same_name[-1], evidence, run)
    if not double and len(reports) > 1:
        yield ok(host_codes.HOSTNAME, "")
