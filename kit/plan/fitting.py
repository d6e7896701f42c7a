"""The mistakes of divided models: grids that the ranks cannot form, models that do not fit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, replace

from kit.errors import Fault, dotted
from kit.jobs import Job
from kit.plan.division import least_room, memory, shown
from kit.plan.gpus import chosen, shares_memory
from kit.plan.types import Placement
from kit.values import count, show_bytes, show_size
from trainer.contract.job import Parallel, Train
from trainer.contract.parallel_rules import PLAIN
from trainer.contract.rules import problems

USABLE = 0.95
"""The share of a GPU's memory that one process can have."""


def session_faults(jobs: Sequence[Job], training: Sequence[Sequence[Placement]]) -> Iterator[Fault]:
    """Yield the sessions that have several hosts: a session is one container."""
    for job, placements in zip(jobs, training, strict=True):
        if job.session and len(placements) > 1:
            what = f"a session is on one host, this one on {len(placements)}"
            fix = f"write `hosts: {{names: [{placements[0].host.name}]}}`"
            yield Fault(job.name, ("hosts",), what, fix)


def division_faults(jobs: Sequence[Job], placed: Sequence[tuple[Placement, ...]]) -> list[Fault]:
    """Refuse grids that the ranks cannot form, and models that do not fit into a GPU."""
    faults = []
    for job, placements in zip(jobs, placed, strict=True):
        if job.train is not None and placements:
            faults += _faults_of_grid(job, placements) or _faults_of_memory(job, placements)
    return faults


def _faults_of_grid(job: Job, placements: Sequence[Placement]) -> list[Fault]:
    parallel, cell = job.parallel, job.parallel.cell
    if not parallel.used:
        return []
    ranks = sum(placement.processes for placement in placements)
    if parallel.data and parallel.data * cell != ranks:
        product = f"{parallel.data} replicas of {count(cell, 'rank')} are {parallel.data * cell}"
        what = f"{product}, not {ranks}"
        fix = f"write `data: {ranks // cell}`" if ranks % cell == 0 else "leave it out"
        return [Fault(job.name, ("parallel", "data"), what, fix)]
    if ranks % cell:
        what = f"a replica of the model takes {cell} ranks; {ranks} is not a multiple of it"
        name = next(name for name in ("shard", "tensor", "pipeline") if getattr(parallel, name))
        fix = f"change `shard`, `tensor`, `pipeline`, or hosts: their product must divide {ranks}"
        return [Fault(job.name, ("parallel", name), what, fix)]
    fewest = job.hosts.fewest
    if fewest is not None and fewest < len(placements):
        if parallel.data:
            what = "fixes the number of replicas, but the job may run on fewer hosts"
            fix = "leave out `data`: then there are as many replicas as hosts have ranks for"
            return [Fault(job.name, ("parallel", "data"), what, fix)]
        whole = [each for each in placements if each.processes % cell]
        if whole:
            what = f"with fewer hosts, the rest of the ranks may be no multiple of {cell}"
            fix = "leave it out, or divide the model among the GPUs of one host"
            return [Fault(job.name, ("hosts", "min"), what, fix)]
    return []


def _faults_of_memory(job: Job, placements: Sequence[Placement]) -> list[Fault]:
    least, train = least_room(job, placements), job.train
    if least is None or train is None:
        return []
    room = least * USABLE
    needs = memory(job, train, placements, job.parallel)
    if needs is None or needs.total <= room:
        return []
    what = (
        f"a rank needs {show_bytes(needs.total)} of {show_bytes(least)} of its GPU "
        f"({shown(needs)}){_inside(job, placements)}"
    )
    place = ("parallel",) if job.parallel.used else ("train", "batch_size")
    fix = _fitting(job, train, placements, room)
    return [Fault(job.name, place, what, fix)]


def _inside(job: Job, placements: Sequence[Placement]) -> str:
    """Explain what reduces the memory of a GPU that uses its host's memory."""
    if not any(shares_memory(gpu.model or "") for _, gpu in chosen(placements)):
        return ""
    size = show_size(job.limits.shared_memory)
    return f"; it uses its host's memory, of which /dev/shm may take {size}"


def _fitting(job: Job, train: Train, placements: Sequence[Placement], room: float) -> str:
    """Return the smallest change with which the model fits and the job is valid."""
    obstructed = ""
    for change, changed, parallel in _changes(train, job.parallel, placements):
        obstacles = _obstacles(replace(job, train=changed, parallel=parallel), placements)
        if obstacles and "train.precision" in obstacles:
            changed = replace(changed, precision="auto")
        needs = memory(job, changed, placements, parallel)
        if obstacles is None or needs is None or needs.total > room:
            continue
        fix = f"write {change} (about {show_bytes(needs.total)})"
        if not obstacles:
            return fix
        without = ", ".join(f"`{name}`" for name in obstacles)
        obstructed = obstructed or f"leave out {without} and {fix}"
    return obstructed or "no division among these GPUs fits: use more of them, or a smaller model"


def _obstacles(job: Job, placements: Sequence[Placement]) -> list[str] | None:
    """Return the keys that a changed job must leave out to be valid; None if that is not enough."""
    sections = {name: getattr(job, name) for name in ("train", "exchange", "parallel", "faults")}
    values = {
        f"{name}.{each.name}": getattr(section, each.name)
        for name, section in sections.items()
        for each in fields(section)
    }
    obstacles = [f"{each.section}.{each.key}" for each in problems(values, {"parallel"})]
    obstacles += [dotted(each.loc) for each in _faults_of_grid(job, placements)]
    known = {*PLAIN, "train.precision", "hosts.min"}
    return list(dict.fromkeys(obstacles)) if known.issuperset(obstacles) else None


def _changes(
    train: Train, before: Parallel, placements: Sequence[Placement]
) -> Iterator[tuple[str, Train, Parallel]]:
    """Yield changes of a job, those that cost the least speed first."""
    batches = list(_smaller_batches(train))
    saving, lighter = "`activation_checkpointing: true` in `train:`", list(batches[-1:])
    if train.model == "gpt" and not train.activation_checkpointing:
        lighter = [
            (" and ".join((*words, saving)), replace(changed, activation_checkpointing=True))
            for words, changed in [((), train), *(((words,), each) for words, each in batches[-1:])]
        ]
    for words, changed in (*batches, *lighter):
        yield words, changed, before
    for each in _sharded(before, placements):
        parallel = f"`parallel: {_yaml(each)}`"
        yield parallel, train, each
        for words, changed in lighter:
            yield f"{parallel} with {words}", changed, each


def _smaller_batches(train: Train) -> Iterator[tuple[str, Train]]:
    """Yield half of a batch, a quarter and so on, in more micro-steps of the same global batch."""
    size, steps = train.batch_size, train.accumulation
    while size % 2 == 0:
        size, steps = size // 2, steps * 2
        if train.global_batch:
            yield f"`batch_size: {size}`", replace(train, batch_size=size)
        else:
            words = f"`batch_size: {size}`, `accumulation: {steps}`"
            yield words, replace(train, batch_size=size, accumulation=steps)


def _sharded(parallel: Parallel, placements: Sequence[Placement]) -> list[Parallel]:
    """Return the same division with more shards: first those of ranks of one host."""
    ranks = sum(placement.processes for placement in placements)
    more = range((parallel.shard or 1) + 1, ranks + 1)
    # With more shards there are fewer replicas: as many as there are ranks for.
    meshes = [replace(parallel, shard=number, data=None) for number in more]
    return [each for each in meshes if ranks % each.cell == 0]


def _yaml(parallel: Parallel) -> str:
    named = (("data", parallel.data), ("pipeline", parallel.pipeline), ("shard", parallel.shard))
    known = [(name, value) for name, value in (*named, ("tensor", parallel.tensor)) if value]
    return "{" + ", ".join(f"{name}: {value}" for name, value in known) + "}"
