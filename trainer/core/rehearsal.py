"""A step before the first one, whose gradients are thrown away."""

from __future__ import annotations

import torch

from trainer.core.run import Run
from trainer.core.state import random_states, set_random_states
from trainer.core.step import gradients


def rehearse(run: Run) -> None:
    """Run forward and backward once, so that every step of the training meets the same machinery.

    DDP puts its buckets in order by the first gradients that come. A sum of three values or more
    is rounded by its place in a bucket, and PowerSGD remembers by bucket: without a rehearsal the
    first step after an interruption would differ from that of an uninterrupted training. Also
    torch.compile compiles here, before the clock of the first epoch runs.
    """
    own, states = run.ranks.own(run.modules), random_states(run.world.device)
    run.model.train()
    batch = torch.arange(min(run.global_batch, len(run.data.train)))
    pieces = run.pieces(batch)
    gradients(run, batch, pieces[:1], None, local=False)
    run.optimizer.zero_grad()
    run.ranks.load_own(own, run.modules)
    set_random_states(states, run.world.device)
    run.watch.pause()
