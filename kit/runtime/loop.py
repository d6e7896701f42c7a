"""The loop that executes steps."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

from kit.errors import KitError, joined
from kit.hosts.docker import concurrently
from kit.runtime.steps import Step
from kit.values import Say

LONG = 1.0
"""If a step takes more seconds, its end is reported too."""


class StepsError(KitError):
    """Steps that failed; the steps before them are done."""

    def __init__(self, steps: Sequence[Step], failures: Sequence[KitError]) -> None:
        whole = joined(failures)
        super().__init__(whole.message, whole.hint)
        self.steps = tuple(steps)


def execute_steps(
    steps: Sequence[Step], execute: Callable[[Step], object], say: Say
) -> Iterator[tuple[Step, ...]]:
    """Execute steps in order, and yield each batch of concurrent steps when it is done.

    Raises:
        StepsError: Some steps failed; a second run continues from there.
    """

    def tell(step: Step) -> None:
        say(f"{step.where}: {step.what}")
        began = time.monotonic()
        execute(step)
        seconds = time.monotonic() - began
        if seconds >= LONG:
            say(f"{step.where}: {step.what}: done after {seconds:.1f} s")

    for batch, steps_of_batch in groupby(steps, key=lambda step: step.batch):
        together = tuple(steps_of_batch)
        for some in ((step,) for step in together) if batch is None else (together,):
            if failed := _failures(tell, some):
                raise StepsError(some, failed)
            yield some


def _failures(work: Callable[[Step], None], steps: Sequence[Step]) -> list[KitError]:
    if len(steps) > 1:
        return [result for result in concurrently(work, steps) if isinstance(result, KitError)]
    try:
        work(steps[0])  # In this thread, which Ctrl-C interrupts.
    except KitError as error:
        return [error]
    return []
