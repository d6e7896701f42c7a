"""The comparison of jobs and servers before and after a split, as rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kit.jobs import Job
from kit.model import Inventory, Use
from kit.plan.traffic import scaled
from kit.plan.types import Batch, Placement
from kit.plan.work import Plan
from kit.split.sections import Key, Slot, Split, section_of, slots

UNKNOWN = "-"


@dataclass(frozen=True, slots=True)
class JobState:
    """A job in one plan; `gpus` is its world size."""

    name: str
    hosts: tuple[str, ...]
    gpus: int
    batch: Batch


@dataclass(frozen=True, slots=True)
class ServerState:
    """A server in one plan, with its hosts and the number of its GPUs. It is idle without GPUs."""

    name: str
    job: str
    hosts: tuple[str, ...]
    gpus: int


@dataclass(frozen=True, slots=True)
class State:
    """The number of GPUs for each use, and the GPUs of jobs and servers.

    `jobs` and `servers` are None if the inventory and the jobs do not fit each other.
    """

    uses: tuple[tuple[Use, int], ...]
    jobs: tuple[JobState, ...] | None
    servers: tuple[ServerState, ...] | None


@dataclass(frozen=True, slots=True)
class Holding:
    """A GPU and the jobs and servers that use it on at least one of its hosts."""

    slot: Slot
    owners: tuple[str, ...]


def holdings(inventory: Inventory, plan: Plan) -> tuple[Holding, ...]:
    """Return the owners of each GPU, in the order of the inventory."""
    section = {host.name: section_of(host) for host in inventory.hosts}
    owners: dict[Key, dict[str, None]] = {}
    claims = [(f"job {job.name}", job.containers) for job in plan.jobs]
    claims += [(server.name, server.placements) for server in plan.servers]
    for owner, placements in claims:
        for placement in placements:
            for gpu in placement.gpus:
                owners.setdefault((section[placement.host.name], gpu.id), {})[owner] = None
    return tuple(Holding(slot, tuple(owners.get(slot.key, ()))) for slot in slots(inventory))


@dataclass(frozen=True, slots=True)
class Move:
    """A GPU that changes its use. In a range of hosts it is one GPU of each host."""

    slot: Slot
    before: Use
    after: Use


def moves(inventory: Inventory, split: Split) -> tuple[Move, ...]:
    """Return the changes, in the order of the inventory."""
    return tuple(
        Move(slot, slot.gpu.use, split[slot.key])
        for slot in slots(inventory)
        if slot.key in split and split[slot.key] is not slot.gpu.use
    )


def reverse(done: Sequence[Move]) -> tuple[tuple[str, str], ...]:
    """Return the options and selectors that undo a split."""
    options = (
        (Use.TRAINING, "--train"),
        (Use.INFERENCE, "--infer"),
        (Use.SPARE, "--spare"),
        (Use.NONE, "--none"),
    )
    arguments = []
    for use, option in options:
        positions: dict[str, list[int]] = {}
        for move in done:
            if move.before is use:
                positions.setdefault(move.slot.section, []).append(move.slot.position)
        arguments += [(option, f"{section}:{_spans(each)}") for section, each in positions.items()]
    return tuple(arguments)


def _spans(positions: Sequence[int]) -> str:
    """Format ascending numbers as spans: 0-2,5."""
    spans: list[list[int]] = []
    for position in positions:
        if spans and position == spans[-1][1] + 1:
            spans[-1][1] = position
        else:
            spans.append([position, position])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in spans)


def state(inventory: Inventory, plan: Plan | None) -> State:
    """Return the state of a plan; `plan` is None if it cannot be made."""
    total = dict.fromkeys(Use, 0)
    for host in inventory.hosts:
        for gpu in host.gpus:
            total[gpu.use] += 1
    jobs = servers = None
    if plan is not None:
        jobs = tuple(
            JobState(job.name, _hosts(job.placements), job.world_size, job.batch)
            for job in plan.jobs
        )
        servers = tuple(
            ServerState(one.name, one.server.job, _hosts(one.placements), _gpus(one.placements))
            for one in plan.servers
        )
    return State(tuple(total.items()), jobs, servers)


def with_suggestions(before: State, after: State, jobs: Sequence[Job]) -> State:
    """Add suggested learning rates for new global batches, if the jobs name no reference batch.

    The rate of a job was chosen for its old batch.
    """
    olds = {job.name: job.batch.total for job in before.jobs or ()}
    by_name = {job.name: job for job in jobs}

    def suggested(job: JobState) -> JobState:
        batch, old = job.batch, olds.get(job.name)
        if batch.reference is not None or batch.total is None or old is None:
            return job
        rate = scaled(by_name[job.name], batch.total, old)
        return replace(job, batch=replace(batch, suggested_learning_rate=rate))

    return replace(after, jobs=after.jobs and tuple(map(suggested, after.jobs)))


def _hosts(placements: Sequence[Placement]) -> tuple[str, ...]:
    return tuple(placement.host.name for placement in placements)


def _gpus(placements: Sequence[Placement]) -> int:
    return sum(len(placement.gpus) for placement in placements)


def made_idle(before: State, after: State) -> tuple[str, ...]:
    """Return the servers that had a GPU before and have none after."""
    had = {server.name for server in before.servers or () if server.gpus}
    return tuple(s.name for s in after.servers or () if s.name in had and not s.gpus)


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the comparison: subject, figure, value before and after."""

    of: str
    what: str
    before: str
    after: str


def rows(before: State, after: State) -> tuple[Row, ...]:
    """Compare two states, figure by figure."""
    lines = []
    old_uses = dict(before.uses)
    for use, number in after.uses:
        if use.splits or old_uses[use] or number:
            lines.append(Row("GPUs", f"for {use}", str(old_uses[use]), str(number)))
    old_jobs = {job.name: job for job in before.jobs or ()}
    for job in after.jobs or ():
        old = old_jobs.get(job.name)
        olds = dict(_job_figures(old)) if old else {}
        for what, figure in _job_figures(job):
            lines.append(Row(f"job {job.name}", what, olds.get(what, UNKNOWN), figure))
    old_servers = {server.name: server for server in before.servers or ()}
    for server in after.servers or ():
        old_server = old_servers.get(server.name)
        was = _server_figure(old_server) if old_server else UNKNOWN
        what = f"GPUs, serves {server.job}" if server.job else "GPUs"
        lines.append(Row(server.name, what, was, _server_figure(server)))
    return tuple(lines)


def _job_figures(job: JobState) -> list[tuple[str, str]]:
    figures = [("GPUs", str(job.gpus)), ("hosts", _named(job.hosts))]
    batch = job.batch
    if batch.total is not None:
        figures.append(("global batch", f"{batch.total:,}"))
    if batch.learning_rate is not None:
        rate = f"{batch.learning_rate:g}"
        if batch.suggested_learning_rate is not None:
            rate += f", suggested {batch.suggested_learning_rate:g}"
        figures.append(("learning rate", rate))
    return figures


def _server_figure(server: ServerState) -> str:
    return f"{server.gpus} on {_named(server.hosts)}" if server.gpus else "idle"


def _named(hosts: tuple[str, ...]) -> str:
    if len(hosts) <= 4:
        return ", ".join(hosts)
    return f"{hosts[0]} … {hosts[-1]} ({len(hosts)})"
