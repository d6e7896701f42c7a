"""The built-in training with the parameters of its model and a sleep instead of its computation.

PRETENDED_SAMPLES are in an epoch; forward and backward of a step take PRETENDED_SECONDS.
"""

import os
import sys
import time
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.distributed.elastic.multiprocessing.errors import record

from trainer import train as training
from trainer.contract.job import Train
from trainer.core import setup
from trainer.core.models import build_model
from trainer.data.samples import DataSet, Samples

SAMPLES = int(os.environ["PRETENDED_SAMPLES"])
SECONDS = float(os.environ["PRETENDED_SECONDS"])


class Pretended(nn.Module):
    """Has the parameters of a model; a third of a step's time is forward, two thirds backward.

    The gradients arrive one after the other during the backward pass, the last layer's first, so
    that the exchange can overlap with it as in reality. The CPU time for copies, compression and
    the optimizer, which take a GPU little time, is subtracted from the sleep.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.weights = nn.ParameterList(parameter.detach() for parameter in model.parameters())
        self.owed = 0.0  # Seconds of this thread that no sleep was shortened by yet.

    def forward(self, images: Tensor) -> Tensor:
        scores, parts = torch.zeros(len(images), 10), 3 * len(self.weights)
        self.owed += time.thread_time() - Touch.ended
        paid = min(self.owed, SECONDS)
        self.owed -= paid
        began = time.monotonic() - paid
        for number, weight in enumerate(self.weights):
            until = began + SECONDS * (parts - 2 * number) / parts
            scores = Touch.apply(scores, weight, until)  # type: ignore[no-untyped-call]
        if self.training:
            sleep_until(began + SECONDS / 3)
        return scores


class Touch(torch.autograd.Function):
    """Passes the scores on; the weight's gradient is a constant, available at a set time."""

    ended = time.thread_time()  # This thread's, at the last time that is set.

    @staticmethod
    def forward(context, scores, weight, until):  # type: ignore[no-untyped-def]
        context.shape, context.until = weight.shape, until
        return scores.clone()

    @staticmethod
    def backward(context, gradient):  # type: ignore[no-untyped-def]
        sleep_until(context.until)
        Touch.ended = time.thread_time()
        return gradient, SMALL.expand(context.shape), None


def sleep_until(moment: float) -> None:
    """Return at a moment of time.monotonic(), or at once if it has passed."""
    time.sleep(max(0.0, moment - time.monotonic()))


SMALL = torch.full((), 1e-6)


def load(train: Train, root: Path) -> DataSet:
    """Samples of CIFAR-10's shape, one to test."""

    def some(count: int) -> Samples:
        images = torch.zeros(count, 3, 32, 32, dtype=torch.uint8)
        return Samples(images, torch.zeros(count, dtype=torch.int64))

    ones = torch.ones(3, 1, 1)
    return DataSet(some(SAMPLES), some(1), ones, ones, 10)


def build(train: Train, data: DataSet) -> nn.Module:
    return Pretended(build_model(train, data))


def build_optimizer(model: nn.Module, *_: object) -> torch.optim.Optimizer:
    """The cheapest optimizer: the job's own would need more than a step's time on a core."""
    groups = [{"params": list(model.parameters()), "scale": 1.0}]
    return torch.optim.SGD(groups, 1e-6, foreach=True)


setup.build_optimizer = build_optimizer  # type: ignore[assignment]
training.load_data = load  # type: ignore[attr-defined]
setup.build_model = build  # type: ignore[attr-defined]
if __name__ == "__main__":
    sys.exit(record(training.main)())
