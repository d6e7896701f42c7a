"""The accuracy on the test samples."""

from __future__ import annotations

from functools import partial

import torch

from trainer.core.models import flip_scores
from trainer.core.precision import autocast
from trainer.core.run import Run
from trainer.data import shards

EVALUATION_BATCH = 512
"""Samples of up to 64 pixels a side; fewer of larger ones. Without gradients the batch size affects
only memory."""


@torch.no_grad()
def evaluate(run: Run) -> tuple[int, int]:
    """Classify each test sample on exactly one rank; return (correct, all), the same everywhere."""
    run.ranks.share_buffers(run.modules)
    run.model.eval()
    test = run.data.test
    # Without DDP's wrapper: ranks may have different numbers of parts, and must not wait in it.
    model = partial(flip_scores, run.model) if run.job.train.flip_at_test else run.model
    own = shards.evaluation_shard(len(test), run.world.rank, run.world.size)
    correct, seen = torch.zeros((), dtype=torch.int64, device=run.world.device), 0
    side = max(64, run.data.side)
    batches = torch.split(own, max(1, EVALUATION_BATCH * 64**2 // side**2))
    test.expect(batches)
    for part in batches:
        inputs, labels = test.take(part, run.world.device)
        with autocast(run.precision, run.world.device):
            found = model(run.data.prepared(inputs)).argmax(dim=1)
        correct += (found == labels).sum()
        seen += labels.numel()
    right, all_seen = run.world.sums([correct.item(), seen])
    return int(right), int(all_seen)
