"""The checkpoint to resume from. Hosts need no shared storage: the ranks agree on one."""

from __future__ import annotations

from pathlib import Path

from trainer.checkpoints import format as checkpoints
from trainer.checkpoints.format import NONE, Saved
from trainer.contract.job import TrainJob
from trainer.output import complain
from trainer.parallel.world import World


def is_writer(job: TrainJob, world: World) -> bool:
    """Whether this rank writes: the first of each host, or of all where the folder is shared."""
    return (world.rank if job.checkpoint.shared else world.local_rank) == 0


def newest_of_all(folder: Path, job: TrainJob, world: World) -> Saved | None:
    """Give all ranks the newest checkpoint that any host has; None where no host has any.

    Ranks can be one step apart after a fault, and a host may have lost its disk: the highest step
    wins, the lowest rank that has it sends it to all, and hosts that lack it write a copy.
    """
    own = None
    if is_writer(job, world):
        warning = f"trainer {world.host}: warning: "
        own = checkpoints.newest(folder, job, lambda text: complain(warning + text))
    steps = world.gather(own.step if own else NONE)
    if max(steps) == NONE:
        return None
    holder = steps.index(max(steps))
    chosen = Saved(*(world.broadcast(part, holder) for part in own or (b"", b"")))
    if is_writer(job, world) and chosen != own:
        checkpoints.write(folder, chosen, job, job.checkpoint.keep)
    return chosen
