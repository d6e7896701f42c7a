"""The accuracy and the loss on the test samples."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from trainer.core.models import flip_scores
from trainer.core.precision import autocast
from trainer.core.run import Run
from trainer.data import shards

EVALUATION_BATCH = 512
"""Samples of up to 64 pixels a side; fewer of larger ones. Without gradients the batch size affects
only memory."""


def classifier(run: Run) -> Callable[[Tensor], Tensor]:
    """Return the function from inputs to float32 scores by which the model is tested."""
    # Without DDP's wrapper: ranks may have different numbers of parts, and must not wait in it.
    model = partial(flip_scores, run.model) if run.job.train.flip_at_test else run.model

    def scores(inputs: Tensor) -> Tensor:
        with autocast(run.precision, run.world.device):
            found: Tensor = model(run.data.prepared(inputs))
        return found.float()

    return scores


@torch.no_grad()
def evaluate(run: Run) -> tuple[int, int, float]:
    """Classify each test sample on exactly one rank; all ranks return the same.

    Return the number of correct ones, the number of all, and the sum of their cross entropies, in
    nats.
    """
    run.ranks.share_buffers(run.modules)
    run.model.eval()
    test = run.data.test
    scores = classifier(run)
    own = shards.evaluation_shard(len(test), run.world.rank, run.world.size)
    correct, seen = torch.zeros((), dtype=torch.int64, device=run.world.device), 0
    loss = torch.zeros((), dtype=torch.float64, device=run.world.device)
    side = max(64, run.data.side)
    batches = torch.split(own, max(1, EVALUATION_BATCH * 64**2 // side**2))
    test.expect(batches)
    for part in batches:
        inputs, labels = test.take(part, run.world.device)
        found = scores(inputs)
        correct += (found.argmax(dim=1) == labels).sum()
        loss += functional.cross_entropy(found, labels, reduction="sum")
        seen += labels.numel()
    right, all_seen, all_loss = run.world.sums([correct.item(), seen, loss.item()])
    return int(right), int(all_seen), all_loss
