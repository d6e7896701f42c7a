"""The predictions of a trained model on the test samples, small enough to keep with each run."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trainer.data.identity import identity
from trainer.data.samples import DataSet
from trainer.data.shards import evaluation_batches
from trainer.parallel.world import World
from trainer.record.pictures import png, reduced

MOST = 10_000
"""Test samples at most; of more, evenly spaced ones are chosen, the same in every run."""
BATCH = 256
MISTAKES, OTHERS = 160, 40
"""Pictures: the most confident mistakes, and other evenly spaced samples."""
PICTURES = 400_000
"""Bytes of all pictures."""


@torch.no_grad()
def predict(
    world: World, data: DataSet, kept: Path, scores: Callable[[Tensor], Tensor]
) -> dict[str, Any] | None:
    """Classify test samples, each on one rank; return the content of evaluation.json on rank 0.

    `scores` maps inputs to float32 [N, K]; `kept` has the digests of the data's files. All ranks
    must call it.
    """
    every = -(-len(data.test) // MOST)
    chosen = torch.arange(0, len(data.test), every)
    batches = evaluation_batches(len(chosen), world.rank, world.size, BATCH)
    data.test.expect(chosen[part] for part, _ in batches)
    found = [
        _classify(data, chosen[part], world.device, scores)[: len(part) * counts]
        for part, counts in batches
    ]
    table = torch.cat(world.gather(torch.cat(found)))
    if world.rank != 0:
        return None
    table = table[table[:, 0].argsort()]
    indices, truth, predicted = (table[:, column].long() for column in range(3))
    return {
        "data": identity(data.to(torch.device("cpu")), kept),
        "samples": len(data.test),
        "every": every,
        "truth": packed(truth, torch.int16),
        "predicted": packed(predicted, torch.int16),
        "confidence": packed((table[:, 3] * 255).round(), torch.uint8),
        "pictures": pictures(data, indices, truth != predicted, table[:, 3]),
    }


def _classify(
    data: DataSet, part: Tensor, device: torch.device, scores: Callable[[Tensor], Tensor]
) -> Tensor:
    """Return float64 [n, 4]: index, truth, prediction and its probability."""
    inputs, labels = data.test.take(part, device)
    confidence, predicted = scores(inputs).softmax(dim=1).max(dim=1)
    columns = (part, labels.cpu(), predicted.cpu(), confidence.cpu())
    return torch.stack([column.double() for column in columns], dim=1)


def packed(values: Tensor, kind: torch.dtype) -> str:
    """Return the values as base64 of little-endian integers."""
    return base64.b64encode(values.to(kind).numpy().tobytes()).decode()


def pictures(data: DataSet, indices: Tensor, wrong: Tensor, confidence: Tensor) -> dict[str, str]:
    """Return PNG files in base64 by the index of their sample, as many as `PICTURES` permits."""
    mistakes = indices[wrong][confidence[wrong].argsort(descending=True)][:MISTAKES]
    spread = indices[:: -(-len(indices) // OTHERS) or 1]
    chosen = list(dict.fromkeys([*mistakes.tolist(), *spread.tolist()]))
    if not chosen:
        return {}
    part = torch.tensor(chosen)
    data.test.expect([part])
    images = data.test.take(part, torch.device("cpu"))[0].cpu()
    largest = 255 if int(images.max()) > 16 else 16  # The digits of scikit-learn have 17 shades.
    result, size = dict[str, str](), 0
    for index, image in zip(chosen, reduced(images, largest), strict=True):
        content = base64.b64encode(png(image)).decode()
        size += len(content)
        if size > PICTURES:
            break
        result[str(index)] = content
    return result
