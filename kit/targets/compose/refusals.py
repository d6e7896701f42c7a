"""The faults that prevent a deploy with Compose: missing GPUs, ports in use. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from kit.errors import KitError, once
from kit.model import Gpu
from kit.plan.types import Placement
from kit.targets.compose.containers import Container, HostState
from kit.targets.compose.lower import opened
from kit.values import meant_gpus
from kit.workload.types import Kind, Workload


def refuse(
    workloads: Sequence[Workload],
    observed: Mapping[str, HostState],
    foreign: Sequence[Container],
    rendered: Collection[str],
    fresh_jobs: set[str],
) -> None:
    """Raise KitError with all faults that prevent the deploy of workloads.

    `foreign` are the containers of other engines and clusters; the other arguments are those of
    `decide`.
    """
    for each in workloads:
        _refuse_foreign(each, foreign)
    problems = [
        f"{placement.host.name}: {problem}"
        for each in workloads
        for ports in (opened(each),)
        for placement in each.placements
        for problem in _problems(
            each, workloads, placement, ports, observed[placement.host.name], foreign, rendered
        )
    ]
    for each in workloads:
        if each.name in fresh_jobs:
            problems += [*_keeps(each), *_runs(each, observed)]
    if problems:
        raise KitError(once(problems), "nothing was changed on any host")


def _refuse_foreign(work: Workload, foreign: Iterable[Container]) -> None:
    """Reject a name that another engine uses; other clusters have other project names."""
    for one in foreign:
        if one.job == work.name and not one.cluster and (one.service or one.runs):
            what = f"{one.host}: another engine already runs {work.stack}"
            raise KitError(what, "end that one, or give yours another name")


def _runs(job: Workload, observed: Mapping[str, HostState]) -> Iterator[str]:
    hosts = {
        one.host for host in observed.values() for one in host.containers if one.works_for(job.name)
    }
    if hosts:
        where = ", ".join(sorted(hosts))
        end = "cancel" if job.queue else "stop"
        yield f"job {job.name} runs on {where}: end it first, kit {end} {job.name}"


def _problems(
    work: Workload,
    workloads: Sequence[Workload],
    placement: Placement,
    ports: Mapping[str, Sequence[tuple[int, str]]],
    observed: HostState,
    foreign: Iterable[Container],
    rendered: Collection[str],
) -> Iterator[str]:
    """Yield the reasons why a workload cannot run on a host, each with its remedy."""
    yield from _missing(placement, observed)
    if not observed.hook:
        yield (
            "Docker finds no nvidia-container-runtime-hook, which gives a container its GPUs; "
            "install nvidia-container-toolkit and restart Docker"
        )
    ours = {each.name for each in workloads}  # The deploy assigns their GPUs again.
    others = [one for one in observed.containers if one.job not in ours]
    others += [one for one in foreign if one.host == placement.host.name]
    if not work.queue:
        yield from _held(placement, others, observed, rendered)
    # Containers of this deploy may use the ports; they end before the new ones start.
    if any(one.job in ours and one.runs for one in observed.containers):
        return
    for port, key in ports.get(placement.host.name, ()):
        if port in observed.ports:
            yield (
                f"port {port} is in use (`ss -tlnp` on the host shows by which process); "
                f"end that, or write `{key}` in {work.file}"
            )


def _missing(placement: Placement, observed: HostState) -> Iterator[str]:
    present = {uuid.lower() for uuid in observed.gpus}
    for gpu in placement.gpus:
        if _uuid(gpu, observed.gpus) not in present:
            if gpu.known and (meant := meant_gpus(gpu.id, observed.gpus)):
                fault = f"{gpu.title} is the beginning of {' and '.join(meant)}"
                yield f"{fault}: run `kit discover {placement.host.name}`, then `kit render`"
                continue
            listed = ", ".join(observed.gpus) or "none"
            yield (
                f"{gpu.title} does not exist; `nvidia-smi -L` lists {listed}: "
                f"correct the inventory, then run `kit render`"
            )


def _held(
    placement: Placement,
    others: Iterable[Container],
    observed: HostState,
    rendered: Collection[str],
) -> Iterator[str]:
    own = {_uuid(gpu, observed.gpus): gpu.title for gpu in placement.gpus}
    # The monitoring sees all GPUs and holds none; jobs of the queue leave those that are claimed.
    leave = {one.id for one in observed.containers if one.since is not None}
    holders = (one for one in others if one.runs and one.id not in leave)
    for one in (one for one in holders if one.job or not one.cluster):
        held = {_named(device, observed.gpus) for device in one.devices}
        shared = [name for uuid, name in own.items() if uuid in held or "all" in held]
        if shared:
            holder = one.job if one.kind is Kind.SERVER else f"job {one.job}"
            too = "deploy it too, or " if one.job in rendered else ""
            fix = f"{too}end it with `kit stop {one.job}`"
            if one not in observed.containers:
                owner = f"cluster {one.cluster}" if one.cluster else "another engine"
                holder, fix = f"{holder} of {owner}", "end it there"
            verb = "is" if len(shared) == 1 else "are"
            yield f"{', '.join(shared)} {verb} held by {holder}; {fix}"


def queued(placement: Placement, observed: HostState) -> tuple[Gpu, ...]:
    """Return the GPUs of a placement that jobs of the queue have."""
    made = (one for one in observed.containers if one.since is not None and one.runs)
    held = {_named(device, observed.gpus) for one in made for device in one.devices}
    return tuple(gpu for gpu in placement.gpus if _uuid(gpu, observed.gpus) in held)


def _uuid(gpu: Gpu, listed: Sequence[str]) -> str:
    """Return the UUID of a planned GPU, or "" if the host does not have it."""
    if gpu.known:
        return gpu.id.lower()
    index = int(gpu.id)
    return listed[index].lower() if index < len(listed) else ""


def _named(device: str, listed: Sequence[str]) -> str:
    """Return the UUID of a container's GPU, which may be given by index."""
    by_index = {str(index): uuid for index, uuid in enumerate(listed)}
    return by_index.get(device, device).lower()


def _keeps(job: Workload) -> Iterator[str]:
    """Yield the reason why kit must not delete a job's checkpoints: the volume is the user's."""
    if job.store is not None and not job.store.volume:
        yield f"job {job.name} keeps its checkpoints in {job.store.place}; move them away by hand"
