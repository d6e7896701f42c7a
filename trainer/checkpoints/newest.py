"""Chooses the checkpoint to resume from. Without shared storage, the ranks agree on one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trainer.checkpoints import format as checkpoints
from trainer.checkpoints.format import NONE, Saved
from trainer.checkpoints.layout import folder_name
from trainer.checkpoints.parts import own_of, read_part
from trainer.contract.job import TrainJob
from trainer.output import say_error
from trainer.parallel.world import World


@dataclass(frozen=True)
class Found:
    """The checkpoint that the ranks agreed on."""

    saved: Saved  # Other ranks than the holder have no state until it is sent.
    holder: int  # The lowest rank that has it.
    mine: bool  # Whether this rank has it.
    parts: dict[int, int]  # From the rank of a part to the lowest present rank that can read it.

    @property
    def lacking(self) -> list[int]:
        """The ranks whose parts are on no host."""
        return [rank for rank in own_of(self.saved).ranks if rank not in self.parts]


def is_writer(job: TrainJob, world: World) -> bool:
    """Whether this rank writes: the first of each host or, for a shared folder, of all."""
    return (world.rank if job.checkpoint.shared else world.local_rank) == 0


def newest_of_all(folder: Path, job: TrainJob, world: World) -> Found | None:
    """Give all ranks the newest checkpoint of any host; None if no host has one.

    After a fault, ranks can be one step apart, and a host may have lost its disk. The highest step
    is used: the lowest rank that has it sends it to all, and hosts without it write a copy. If all
    ranks were killed before some had written their parts, the previous checkpoint is used, if it
    has all of its parts.
    """
    found = agree(folder, job, world)
    if found and found.lacking:
        before = agree(folder, job, world, found.saved.step)
        if before and not before.lacking:
            if world.rank == 0:
                ranks, name = ", ".join(map(str, found.lacking)), folder_name(found.saved.step)
                say_error(
                    f"trainer: warning: passes over {name}: no host has the part of rank {ranks}"
                )
            found = before
    if found is None:
        return None
    state = world.broadcast(found.saved.state, found.holder)
    chosen = Saved(found.saved.manifest, state)
    if is_writer(job, world) and not found.mine:
        checkpoints.write(folder, chosen, job, job.checkpoint.keep)
    return Found(chosen, found.holder, found.mine, found.parts)


def agree(folder: Path, job: TrainJob, world: World, before: int | None = None) -> Found | None:
    """Find the newest checkpoint of any host, of a step below `before`, and the ranks' parts."""
    own = None
    if is_writer(job, world):
        warning = f"trainer {world.host}: warning: "
        own = checkpoints.newest(folder, job, lambda text: say_error(warning + text), before)
    steps = world.gather(own.step if own else NONE)
    if max(steps) == NONE:
        return None
    holder = steps.index(max(steps))
    manifest = world.broadcast(own.manifest if own else b"", holder)
    mine = own is not None and own.manifest == manifest
    chosen = Saved(manifest, own.state if own and mine else b"")
    ranks = own_of(chosen).ranks if world.local_rank == 0 else ()
    read = [rank for rank in ranks if read_part(folder, chosen, rank) is not None]
    parts: dict[int, int] = {}
    for reader, known in enumerate(world.gather(read)):
        for rank in known:
            parts.setdefault(rank, reader)
    return Found(chosen, holder, mine, parts)
