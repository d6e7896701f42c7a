"""The processors of hosts: images that do not run on them, and jobs that mix them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from kit.errors import Fault
from kit.model import Host, Lock
from kit.plan.allocate import Allocation
from kit.plan.types import Placement
from kit.plan.work import JobPlan
from kit.platforms import lacks, platform
from trainer.contract.words import some


def architecture_faults(
    lock: Lock | None, work: Iterable[tuple[str, str, Sequence[Host]]]
) -> list[Fault]:
    """Reject images that lack the architecture of a host, as far as the lock knows their platforms.

    `work` are the names of jobs and servers with their image and hosts. Without this check a host
    would pull the image, and its containers would end with `exec format error`.
    """
    if lock is None:
        return []
    return [fault for name, image, hosts in work for fault in _faults(name, image, hosts, lock)]


def _faults(name: str, image: str, hosts: Sequence[Host], lock: Lock) -> Iterator[Fault]:
    platforms = lock[image].platforms if image in lock else ()
    for architecture, names in _by_architecture(hosts).items():
        if lacks(platforms, architecture):
            what = (
                f"images.lock has {image} for {', '.join(platforms)} alone, {some(names)} "
                f"{'needs' if len(names) == 1 else 'need'} {platform(architecture)}"
            )
            wanted = ",".join(sorted({*platforms, platform(architecture)}))
            fix = (
                f"build it for all: `kit image build --platform {wanted} --push`, then `kit image "
                "lock`; or name an image that has them, or other hosts"
            )
            yield Fault(name, ("image",), what, fix)


def _by_architecture(hosts: Iterable[Host]) -> dict[str, list[str]]:
    names: dict[str, list[str]] = {}
    for host in hosts:
        names.setdefault(host.architecture, []).append(host.name)
    return names


def images_of(
    allocation: Allocation, jobs: Iterable[tuple[str, str]], servers: Iterable[tuple[str, str]]
) -> Iterator[tuple[str, str, Sequence[Host]]]:
    """Yield the names of jobs and servers with their image and the hosts that run it."""
    training = zip(jobs, allocation.training, allocation.spares, strict=True)
    for (name, image), placements, spares in training:
        yield name, image, _hosts((*placements, *spares))
    for (name, image), placements in zip(servers, allocation.serving, strict=True):
        yield name, image, _hosts(placements)


def _hosts(placements: Iterable[Placement]) -> list[Host]:
    return [placement.host for placement in placements]


def mixed_notes(plans: Iterable[JobPlan]) -> list[str]:
    """Warn of jobs whose hosts have different processors."""
    notes = []
    for plan in plans:
        groups = _by_architecture(plan.hosts)
        if len(groups) > 1:
            listed = "; ".join(f"{each} on {some(names)}" for each, names in groups.items())
            notes.append(
                f"{plan.name}: its hosts have different processors: {listed}. Sums on the CPU "
                "round differently, and PyTorch's builds for both may differ in version, CUDA and "
                "NCCL: install the same versions in both, or give each kind a job of its own"
            )
    return notes
