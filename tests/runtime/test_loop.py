"""The loop that executes steps: order, concurrency, and the steps left after a failure."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import pytest

from kit.errors import KitError
from kit.runtime.loop import StepsError, execute_steps
from kit.runtime.steps import Step


@dataclass(frozen=True, slots=True)
class Alike(Step):
    """Taken together with its neighbours of the same kind."""

    @property
    def batch(self) -> object:
        return type(self)


def step(where: str, kind: type[Step] = Step) -> Step:
    return kind(where, f"do {where}", "it is wanted")


def test_steps_are_taken_and_told_in_their_order() -> None:
    done: list[str] = []
    said: list[str] = []
    steps = [step("a"), step("b")]
    assert list(execute_steps(steps, lambda one: done.append(one.where), said.append)) == [
        (steps[0],),
        (steps[1],),
    ]
    assert (done, said) == (["a", "b"], ["a: do a", "b: do b"])


def test_neighbours_that_are_alike_are_taken_at_once() -> None:
    together = threading.Barrier(2, timeout=20)

    def execute(one: Step) -> None:
        if isinstance(one, Alike):
            together.wait()

    steps = [step("a"), step("b", Alike), step("c", Alike), step("d")]
    batches = [len(batch) for batch in execute_steps(steps, execute, lambda _: None)]
    assert batches == [1, 2, 1]


def test_a_failure_names_the_steps_that_failed_and_leaves_the_rest() -> None:
    done: list[str] = []

    def execute(one: Step) -> None:
        if one.where in {"b", "c"}:
            raise KitError(f"{one.where} is broken", "mend it")
        done.append(one.where)

    steps = [step("a"), step("b", Alike), step("c", Alike), step("d", Alike), step("e")]
    with pytest.raises(StepsError) as error:
        list(execute_steps(steps, execute, lambda _: None))
    assert error.value.message == "b is broken\nc is broken"
    assert error.value.hint == "mend it"
    assert error.value.steps == tuple(steps[1:4])
    assert sorted(done) == ["a", "d"]
