"""Steps whose gradients are unusually large: they are computed again before they change the model.

A fault of a GPU's memory or arithmetic that does not happen again then does no harm, and its rank
is named if its loss was another one. What is large again is so because of its samples.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from trainer.core.run import Run
from trainer.output import say_error

SAME = 1e-3
"""Largest relative difference between the losses of equal computations: precisions and orders of
sums differ by less."""

Result = tuple[Tensor, str]
"""A rank's loss, and the description of a loss that is not finite."""


def examined(run: Run, number: int, first: Result, again: Callable[[], Result]) -> Result:
    """Return the result of a step's gradients, computed by `again` too if they are suspicious.

    All ranks must call it: they have the same gradients, and so decide alike.
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
    """Name the ranks whose two losses are not the same."""
    others = [
        who for one, two, who in found if not math.isclose(one, two, rel_tol=SAME, abs_tol=SAME)
    ]
    return f"{', '.join(others)} computed another loss" if others else "all losses are the same"
