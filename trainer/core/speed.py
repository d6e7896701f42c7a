"""The speed of a training on text: tokens a second, and the share of the GPUs' peak that it uses.

The model FLOPs utilisation (MFU) is that of Chowdhery et al. 2022 (PaLM, arXiv 2204.02311, appendix
B): the operations that the model needs, without those of activation checkpointing, divided by the
peak of all GPUs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

import torch

from trainer.contract.gpt import gpt_of
from trainer.contract.gpus import sheet_of
from trainer.contract.job import Train
from trainer.data.samples import DataSet
from trainer.parallel.world import World


class SpeedFigures(TypedDict):
    """Fields of events and of metrics.jsonl."""

    tokens_per_second: float | None
    mfu: float | None


@dataclass(frozen=True)
class Speed:
    """Converts samples a second to the figures of a text."""

    tokens: int = 0  # Of a sample; 0 for images.
    operations: float = 0.0  # FLOPs for a token; 0 if the model is not known.
    peak: float = 0.0  # FLOPs a second of all ranks' GPUs; 0 if one is not known.

    @property
    def unit(self) -> str:
        """The unit of `count`, for people."""
        return "tokens/s" if self.tokens else "images/s"

    def count(self, samples: float) -> float:
        """Return samples a second in `unit`."""
        return samples * (self.tokens or 1)

    def figures(self, samples: float | None) -> SpeedFigures:
        """Return the figures of so many samples a second."""
        if not samples or not self.tokens:
            return {"tokens_per_second": None, "mfu": None}
        tokens = samples * self.tokens
        known = self.peak and self.operations
        mfu = tokens * self.operations / self.peak if known else None
        return {"tokens_per_second": tokens, "mfu": mfu}


def speed_of(world: World, train: Train, data: DataSet, precision: str) -> Speed:
    """Return how the speed of a run is counted; all ranks must call it."""
    peaks = world.gather(own_peak(world.device, precision))
    if not data.text:
        return Speed()
    operations = 0.0
    if train.model == "gpt":
        operations = gpt_of(train.options).operations(data.classes, train.context)
    return Speed(train.context, operations, sum(peaks) if all(peaks) else 0.0)


def own_peak(device: torch.device, precision: str) -> float:
    """Return the operations a second of this rank's GPU; 0 on a CPU and where it is not known.

    The table has those of tensor cores in half precision. An instance of MIG has the name of its
    card, but only a part of it.
    """
    if device.type != "cuda" or precision == "fp32":
        return 0.0
    name = torch.cuda.get_device_name(device)
    sheet = None if "MIG" in name else sheet_of(name)
    return sheet.operations if sheet else 0.0
