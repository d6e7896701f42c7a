"""The test after the training, by the checkpoint that the validation has chosen."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from trainer.checkpoints.format import best_of, read, scores_of
from trainer.checkpoints.layout import folder_name
from trainer.checkpoints.manifest import UnusableError
from trainer.core.run import Run
from trainer.core.state import load
from trainer.output import say

WEIGHTS = ("model", "average")
"""The parts of a checkpoint that are tested and served."""


@contextmanager
def best_weights(run: Run, newest: str) -> Iterator[str]:
    """Give the model the weights of the best checkpoint for a while, and yield its name.

    All ranks must enter it, after the checkpoint `newest` is on the disk. A model that ranks divide
    keeps its weights, as no rank could load it whole.
    """
    content = b"" if run.job.parallel.used else run.world.broadcast(_best(run, newest), 0)
    if not content:
        yield newest
        return
    state = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    weights = {name: part for name, part in run.parts().items() if name in WEIGHTS}
    own = {name: _copied(part.state_dict()) for name, part in weights.items()}
    try:
        load(run, weights, state)
        yield folder_name(state["progress"]["step"])
    finally:  # A group that is formed anew goes on with the weights of its last step.
        load(run, weights, own)


def _best(run: Run, newest: str) -> bytes:
    """Return the state of the best checkpoint of rank 0's host; b"" if it is the newest."""
    best = best_of(scores_of(run.checkpoints, run.job)) if run.world.rank == 0 else None
    if best is None or best.name == newest:
        return b""
    try:
        return read(best, run.job).state
    except UnusableError as reason:
        say(f"tests {newest} instead of {best.name}, the best: {reason}")
        return b""


def _copied(state: dict[str, Any]) -> dict[str, Any]:
    return {name: each.to("cpu", copy=True) for name, each in state.items()}
