"""The tables of `kit plan`. Equal hosts share a row, so that large clusters stay readable."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, TypeVar

from kit.commands.tables import table
from kit.model import Host, Use
from kit.plan.types import Placement
from kit.plan.work import JobPlan, Plan, ServerPlan
from kit.values import count, show_age, show_speed

if TYPE_CHECKING:
    from rich.table import Table

T = TypeVar("T")
FEW = 20
"""Up to this number of rows, only adjacent hosts share a row and GPUs are listed by id."""


def host_rows(plan: Plan, *, every: bool) -> Table:
    """Return the table of the hosts."""
    shown = [Use.TRAINING, Use.INFERENCE]
    if any(gpu.use is Use.SPARE for host in plan.hosts for gpu in host.gpus):
        shown.append(Use.SPARE)
    rows = table("host", "address", "roles", "link", "GPUs", *shown, right=("GPUs",))
    for group in _grouped(plan.hosts, _host_shape, _host_shape, every=every):
        first, last = group[0], group[-1]
        rows.add_row(
            _names([host.name for host in group]),
            f"{first.address} … {last.address}" if len(group) > 1 else first.address,
            ", ".join(first.roles) or "-",
            show_speed(first.speed),
            str(len(first.gpus)),
            *(_gpu_names(first, use) for use in shown),
        )
    return rows


def placement_rows(job: JobPlan, *, every: bool) -> Table:
    """Return the table of a job's hosts."""
    rows = table("host", "processes", "ranks", "GPUs", right=("processes",))
    for group in _grouped(job.placements, _placement_shape, _rough_shape, every=every):
        ranks = sum(placement.processes for placement in group)
        rows.add_row(*_placed(group), _ranks(group, ranks), _gpus(group))
    rows.add_section()
    rows.add_row("total", str(job.world_size), "", "")
    for group in _grouped(job.spares, _placement_shape, _rough_shape, every=every):
        rows.add_row(*_placed(group), "spare", _gpus(group))
    return rows


def work_of(job: JobPlan) -> str:
    """Describe what a job runs."""
    train = job.job.train
    if train is not None:
        return f"{train.model} on {train.dataset}, {count(train.epochs, 'epoch')}"
    if job.job.command:
        return shlex.join(job.job.command)
    limit = f" for {show_age(job.job.max_duration)}" if job.job.max_duration else ""
    unused = f", or until unused for {show_age(job.job.idle)}" if job.job.idle else ""
    return f"a session{limit}{unused}"


def serving_rows(server: ServerPlan, *, every: bool) -> Table:
    """Return the table of a server's hosts."""
    rows = table("host", "replicas", "GPUs", right=("replicas",))
    for group in _grouped(server.placements, _placement_shape, _rough_shape, every=every):
        rows.add_row(*_placed(group), _gpus(group))
    return rows


def _grouped(
    items: Sequence[T],
    shape: Callable[[T], object],
    rough: Callable[[T], object],
    *,
    every: bool,
) -> Iterable[Sequence[T]]:
    """Group adjacent equal items; if many groups remain, group all similar items instead."""
    if every:
        return [[item] for item in items]
    neighbours = [list(equal) for _, equal in groupby(items, key=shape)]
    if len(neighbours) <= FEW:
        return neighbours
    alike: dict[object, list[T]] = {}
    for item in items:
        alike.setdefault(rough(item), []).append(item)
    return alike.values()


def _names(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} … {names[-1]} ({len(names)})"


def _placed(group: Sequence[Placement]) -> tuple[str, str]:
    processes = str(group[0].processes)
    each = f"{processes} each" if len(group) > 1 else processes
    return _names([placement.host.name for placement in group]), each


def _ranks(group: Sequence[Placement], number: int) -> str:
    first, last = group[0].first_rank, group[-1].first_rank + group[-1].processes - 1
    if last - first + 1 != number:  # The ranks are not contiguous.
        return f"{number:,} of {first}–{last}"
    return str(first) if first == last else f"{first}–{last}"


def _gpus(group: Sequence[Placement]) -> str:
    first = group[0]
    if first.whole:
        return f"all {len(first.gpus)}"
    if len({_ids(placement) for placement in group}) == 1:
        return _ids(first)
    return f"{len(first.gpus)} of {len(first.host.gpus)}"


def _host_shape(host: Host) -> tuple[object, ...]:
    gpus = tuple((gpu.model, gpu.use, gpu.memory) for gpu in host.gpus)
    return (gpus, host.roles, host.speed)


def _placement_shape(placement: Placement) -> tuple[object, ...]:
    return ("" if placement.whole else _ids(placement), len(placement.gpus))


def _rough_shape(placement: Placement) -> tuple[object, ...]:
    ids = _ids(placement) if placement.by_index and not placement.whole else ""
    return (placement.whole, ids, len(placement.gpus), len(placement.host.gpus))


def _ids(placement: Placement) -> str:
    return ", ".join(gpu.id for gpu in placement.gpus)


def _gpu_names(host: Host, use: Use) -> str:
    names = [
        gpu.model or ("GPU" if gpu.known else "unnamed") for gpu in host.gpus if gpu.use is use
    ]
    counted = {name: names.count(name) for name in names}
    return ", ".join(f"{n} × {name}" if n > 1 else name for name, n in counted.items()) or "-"
