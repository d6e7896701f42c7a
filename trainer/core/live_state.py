"""The state of a training in memory, when its group has changed.

An all-reduce is not atomic: when a rank is lost, some of the others may have taken a step whose
gradients the rest did not receive. Whoever took it has all that belongs to it, also the part of the
lost rank. So every state is a valid one, that of a first part of the job's samples, each counted
once; the one with the most samples is the best, and the ranks without it get it from one that has
it.

States of as many samples differ if a rank was left out and the others have taken its step again,
without it: the newest group in which a rank has agreed on a state tells them apart.
tests/trainer/interleavings.py tries the orders in which this can happen.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from trainer.checkpoints.format import Progress
from trainer.core.run import Run
from trainer.record.telemetry import Evaluation


class Claim(NamedTuple):
    """What a rank has in memory; the highest is the state of all.

    At an epoch's end the state before its evaluation is the higher one: all ranks take part in it.
    """

    samples: int  # Of all epochs.
    generation: int  # Of the group in which it agreed on a state last.
    epoch: int  # Negative.


@dataclass(frozen=True)
class About:
    """What goes with a rank's state, besides tensors."""

    claim: Claim
    progress: Progress
    saved: int  # The step of its newest checkpoint.
    run: str
    checkpoint: str | None
    found: Evaluation


def elect(claims: list[Claim | None]) -> int | None:
    """Return the first rank with the highest claim; None if no rank has any."""
    known = [claim for claim in claims if claim]
    return claims.index(max(known)) if known else None


def resume_live(run: Run) -> Progress | None:
    """Give all ranks the state that one of them has in memory; None if none has any.

    All ranks must call it. With local steps each rank has a state of its own, of which those of
    lost ranks are gone: then a checkpoint is the newest state that all can agree on.
    """
    known = run.world.gather(describe(run))
    first = elect([about.claim if about else None for about in known])
    chosen = known[first] if first is not None else None
    if first is None or chosen is None:
        return None
    lacks = [about is None or about.claim != chosen.claim for about in known]
    if any(lacks):
        content = run.world.broadcast(pack(run) if run.world.rank == first else b"", first)
        if lacks[run.world.rank]:
            unpack(run, content)
    run.saver.step = chosen.saved
    run.recorder.run = chosen.run
    run.announcer.recall(chosen.checkpoint, chosen.found)
    run.reached.progress, run.reached.generation = chosen.progress, run.world.generation
    run.ranks.share_buffers(run.modules)
    return chosen.progress


def describe(run: Run) -> About | None:
    """Describe what this rank has in memory, if it has trained."""
    progress, saver = run.reached.progress, run.saver
    if progress is None or not run.ranks.holds_all:
        return None
    samples = progress.epoch * len(run.data.train) + progress.position
    claim = Claim(samples, run.reached.generation, -progress.epoch)
    announcer = run.announcer
    newest = (announcer.checkpoint, announcer.found)
    return About(claim, progress, saver.step, run.recorder.run, *newest)


def pack(run: Run) -> bytes:
    """Serialise this rank's state."""
    state: dict[str, Any] = {name: each.state_dict() for name, each in objects(run).items()}
    content = io.BytesIO()
    torch.save(state | {"own": run.ranks.own(run.modules)}, content)
    return content.getvalue()


def unpack(run: Run, content: bytes) -> None:
    """Restore what another rank has packed."""
    state = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    for name, each in objects(run).items():
        each.load_state_dict(state[name])
    run.ranks.load_own(state["own"], run.modules)


def objects(run: Run) -> dict[str, Any]:
    """The objects whose state makes the training."""
    return {**run.parts(), **run.steppers}
