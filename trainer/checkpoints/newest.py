"""Chooses the checkpoint to resume from. Without shared storage, the ranks agree on one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from trainer.checkpoints import format as checkpoints
from trainer.checkpoints.fetch import fetch
from trainer.checkpoints.format import NONE, Saved
from trainer.checkpoints.layout import folder_name
from trainer.checkpoints.manifest import UnusableError
from trainer.checkpoints.parts import own_of, read_part
from trainer.checkpoints.pieces import cells, is_divided
from trainer.contract.job import TrainJob
from trainer.output import say_error
from trainer.parallel.world import World


@dataclass(frozen=True)
class Found:
    """The checkpoint that the ranks have chosen."""

    saved: Saved  # Ranks other than the holders have no state yet.
    holders: list[int]  # The ranks that have read it: the first of each host with a copy.
    receivers: list[int]  # The first ranks of the other hosts.
    parts: dict[int, int]  # From the rank of a part to the lowest present rank that can read it.

    @property
    def lacking(self) -> list[int]:
        """The ranks whose parts are on no host and, if the model is divided, have no replica."""
        own = own_of(self.saved)
        missing = [rank for rank in own.ranks if rank not in self.parts]
        if not is_divided(own.way):
            return missing
        there = {rank % cells(own.way) for rank in self.parts}
        return [rank for rank in missing if rank % cells(own.way) not in there]


def is_writer(job: TrainJob, world: World) -> bool:
    """Whether this rank writes checkpoints: local rank 0 or, for a shared folder, rank 0."""
    return (world.rank if job.checkpoint.shared else world.local_rank) == 0


def newest_of_all(folder: Path, job: TrainJob, world: World) -> Found | None:
    """Give all ranks the newest checkpoint of any host; None if no host has one.

    After a fault, ranks can be one step apart, and a host may have lost its disk. The highest step
    is used: hosts without it fetch a copy from all that have it (fetch.py). If all ranks were
    killed before some had written their parts, the previous checkpoint is used, if it has all of
    its parts.

    Raises OSError if it cannot be written or read.
    """
    found = agree(folder, job, world)
    if found and found.lacking:
        before = agree(folder, job, world, found.saved.step)
        if before and not before.lacking:
            if world.rank == 0:
                ranks, name = ", ".join(map(str, found.lacking)), folder_name(found.saved.step)
                say_error(f"trainer: warning: skips {name}: no host has the part of rank {ranks}")
            found = before
    if found is None:
        return None
    saved = found.saved
    if found.receivers:
        saved = fetch(folder, saved, found.holders, found.receivers, job, world)
    return replace(found, saved=saved if saved.state else copy_of_host(folder, found, job))


def copy_of_host(folder: Path, found: Found, job: TrainJob) -> Saved:
    """Read the checkpoint that the first rank of this host has read or fetched; raises OSError."""
    path = folder / folder_name(found.saved.step)
    try:
        saved = checkpoints.read(path, job)
    except UnusableError as error:
        raise OSError(f"{path}: {error}") from error
    if saved.manifest != found.saved.manifest:
        raise OSError(f"{path}: it is not the checkpoint that the ranks have chosen")
    return saved


def agree(folder: Path, job: TrainJob, world: World, before: int | None = None) -> Found | None:
    """Find the newest checkpoint of any host, of a step below `before`, and the ranks' parts."""
    own = None
    if is_writer(job, world):
        warning = f"trainer {world.host}: warning: "
        own = checkpoints.newest(folder, job, lambda text: say_error(warning + text), before)
    steps = world.gather(own.step if own else NONE)
    if max(steps) == NONE:
        return None
    first = steps.index(max(steps))
    manifest = world.broadcast(own.manifest if own else b"", first)
    state = own.state if own and own.manifest == manifest else b""
    chosen = Saved(manifest, state)
    ranks = own_of(chosen).ranks if world.local_rank == 0 else ()
    read = [rank for rank in ranks if read_part(folder, chosen, rank) is not None]
    known = world.gather((is_writer(job, world), bool(state), read))
    parts: dict[int, int] = {}
    for reader, (_, _, readable) in enumerate(known):
        for rank in readable:
            parts.setdefault(rank, reader)
    holders = [rank for rank, (_, has, _) in enumerate(known) if has]
    receivers = [rank for rank, (writes, has, _) in enumerate(known) if writes and not has]
    return Found(chosen, holders, receivers, parts)
