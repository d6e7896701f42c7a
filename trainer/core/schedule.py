"""The learning rate of a step, and the check of its gradients before they change the model.

The rate is stateless; it depends on the world size only by `rate_batch`. Unusually large gradients
are computed again before they change the model: this repairs a transient fault of a GPU's memory
or arithmetic, and its rank is named if its loss differs. If they are large again, the samples
are the cause.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from trainer.checkpoints.format import Progress
from trainer.contract.batch import rate_factor
from trainer.contract.job import Train
from trainer.core.run import Run
from trainer.data.shards import next_size
from trainer.output import say_error
from trainer.parallel.halt import HaltError

TRIANGLE = (0.2, 0.23, 0.07)
"""Share of the rate at the start, share of the training at which the rate is highest, share of the
rate at the end, as in cifar10-airbench (Jordan 2024, arXiv 2404.00498)."""


def set_rate(run: Run, progress: Progress) -> None:
    """Set the optimizer's rate for the next step."""
    train = run.job.train
    rate = run.rate(share_done(run, progress)) * warm_up(run, progress)
    rate *= rate_factor(train, run.global_batch)
    for group in run.optimizer.param_groups:
        group["lr"] = rate * group["scale"]


def warm_up(run: Run, progress: Progress) -> float:
    """The warm-up factor of the next step's rate: 1 from the last step of the warm-up on."""
    length, start = run.job.train.warm_up, run.job.train.warm_up_start or 0.0
    if not length:
        return 1.0
    if length >= 1:
        done = (progress.step + 1) / length
    else:
        taken = next_size(len(run.data.train) - progress.position, run.global_batch)
        done = share_done(run, replace(progress, position=progress.position + taken)) / length
    return min(1.0, start + (1 - start) * done)


def require_warm_up_fits(run: Run, steps: int) -> None:
    """Raise HaltError on all ranks if the warm-up has more steps than the training."""
    length = run.job.train.warm_up or 0
    if length > steps:
        what = f"train.warm_up: {length:.0f} steps are more than the {steps} of the training"
        raise HaltError("input", f"{what}; write fewer, or a share below 1 such as 0.05")


def share_done(run: Run, progress: Progress) -> float:
    """Share of the job's samples that are processed."""
    return (progress.epoch + progress.position / len(run.data.train)) / run.job.train.epochs


def learning_rate(train: Train, done: float) -> float:
    """The rate of the next step, after a share `done` of the training.

    cosine: annealing without restarts (Loshchilov and Hutter 2016, arXiv 1608.03983), down to the
    job's share of the rate.
    """
    if train.schedule == "constant":
        return train.learning_rate
    if train.schedule == "triangle":
        start, peak, end = TRIANGLE
        rising = done < peak
        along = done / peak if rising else (1 - done) / (1 - peak)
        low = start if rising else end
        return train.learning_rate * (low + (1 - low) * along)
    floor = train.final_rate or 0.0
    return train.learning_rate * (floor + (1 - floor) * (1 + math.cos(math.pi * done)) / 2)


SAME = 1e-3
"""Largest relative difference between the losses of equal computations: precisions and orders of
sums differ by less."""

Result = tuple[Tensor, str]
"""A rank's loss, and the description of a loss that is not finite."""


def examined(run: Run, number: int, first: Result, again: Callable[[], Result]) -> Result:
    """Check a step's gradients; if they are suspicious, compute them again by `again`.

    Return the result of the last computation. All ranks must call it: they have the same gradients,
    so their decisions are equal.
    """
    limit = run.job.faults.repeat_above
    if limit is None:
        return first
    norm = norm_of(run)
    times = run.norms.times_usual(norm)
    if times <= limit:
        run.norms.note(norm)
        return first
    second = again()
    repeated = run.norms.times_usual(norm_of(run))
    run.norms.note(norm_of(run))
    found = run.world.gather((float(first[0]), float(second[0]), run.world.name))
    if run.world.rank == 0:
        what = f"trainer: warning: the gradients of step {number} are {times:.0f} times as large as"
        if repeated > limit:
            say_error(f"{what} usual, also when they are computed again")
        else:
            say_error(f"{what} usual, but not when they are computed again: {differing(found)}")
    return second


def norm_of(run: Run) -> float:
    """The L2 norm of all gradients, without the scale of fp16."""
    gradients = [each.grad for each in run.model.parameters() if each.grad is not None]
    norms = torch.stack([torch.linalg.vector_norm(each) for each in gradients])
    return float(torch.linalg.vector_norm(norms)) / float(run.scaler.get_scale())


def differing(found: list[tuple[float, float, str]]) -> str:
    """Name the ranks whose two losses differ."""
    others = [
        who for one, two, who in found if not math.isclose(one, two, rel_tol=SAME, abs_tol=SAME)
    ]
    return f"{', '.join(others)} computed another loss" if others else "all losses are the same"
