"""A step before the first one, whose gradients are discarded."""

from __future__ import annotations

import torch

from trainer.core.freeze import train_mode
from trainer.core.run import Run
from trainer.core.state import random_states, set_random_states
from trainer.core.step import gradients


def rehearse(run: Run) -> None:
    """Run forward and backward once, so that all steps of the training have the same buckets.

    DDP orders its buckets in its first backward pass. The rounding of a sum of three or more values
    depends on its place in a bucket, and PowerSGD has a state per bucket: without a rehearsal the
    first step after an interruption would differ from that of an uninterrupted training.
    torch.compile also compiles here, before the time of the first epoch is measured.
    """
    own, states = run.ranks.own(run.modules), random_states(run.world.device)
    train_mode(run.model, run.job.train.freeze)
    batch = torch.arange(min(run.global_batch, len(run.data.train)))
    pieces = run.pieces(batch)
    gradients(run, batch, pieces[:1], None, local=False)
    run.optimizer.zero_grad()
    run.ranks.load_own(own, run.modules)
    set_random_states(states, run.world.device)
    run.watch.pause()
