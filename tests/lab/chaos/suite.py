"""All faults one after the other, and what must be true in the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.lab.chaos import checks
from tests.lab.chaos.faults import Fault
from tests.lab.chaos.measure import Outcome, make
from tests.lab.chaos.world import ViolatedError, World
from tests.lab.settings import LabError

Say = Callable[[str], None]
LAST = 12
"""Epochs after the last fault: a deploy on a busy machine must not come after the last one."""


@dataclass(frozen=True)
class Result:
    """The outcomes, what was violated, and the last figures."""

    outcomes: tuple[Outcome, ...]
    wrong: tuple[str, ...]
    epochs: int = 0
    steps: int = 0
    accuracy: float | None = None
    calm: float | None = None


def begin(world: World) -> None:
    """Deploy the job, and wait until all nodes train."""
    world.write()
    world.operator.kit("swarm", "up", "--yes")
    world.operator.kit("deploy")
    world.wait_until_whole(0, "at the beginning")


def run(world: World, faults: Sequence[Fault], say: Say, *, compare: bool) -> Result:
    """Make the faults in the order given, let the training end, and check what it has left."""
    outcomes: list[Outcome] = []
    doing = ""
    try:
        for fault in faults:
            doing = fault.name
            say(f"{fault.name}: {fault.what}")
            outcomes.append(make(world, fault))
            say(f"  {line(outcomes[-1])}")
        doing = "the end"
        return end(world, outcomes, say, compare=compare)
    except (ViolatedError, LabError, AssertionError) as error:
        wrong = [each for outcome in outcomes for each in outcome.wrong]
        return Result(tuple(outcomes), (*wrong, f"{doing}: {error}"))


def end(world: World, outcomes: Sequence[Outcome], say: Say, *, compare: bool) -> Result:
    """Let the training end after some epochs more, and check everything."""
    epochs = world.newest().epoch + LAST
    say(f"the training ends after epoch {epochs}")
    world.write(epochs=epochs)
    world.operator.kit("deploy")
    status = world.wait_for_end()
    counted, wrong = checks.samples(world)
    wrong += [each for outcome in outcomes for each in outcome.wrong]
    wrong += checks.completed(status) + checks.folders(world)
    accuracy = (status.get("progress") or {}).get("accuracy")
    world.operator.kit("stop")
    wrong += checks.leftovers(world)
    calm = None
    if compare:
        say(f"the same {epochs} epochs without faults")
        calm = undisturbed(world, epochs)
        wrong += checks.accuracies(accuracy, calm)
    return Result(tuple(outcomes), tuple(wrong), counted.epochs, counted.steps, accuracy, calm)


def undisturbed(world: World, epochs: int) -> float | None:
    """Train the same job without faults; return its accuracy."""
    world.forget()
    world.write_calm(epochs)
    world.operator.kit("deploy")
    status = world.wait_for_end()
    world.operator.kit("stop")
    accuracy: float | None = (status.get("progress") or {}).get("accuracy")
    return accuracy


def line(outcome: Outcome) -> str:
    detected = "-" if outcome.detected is None else f"{outcome.detected:.1f}"
    told = f"{outcome.node}: detected {detected} s, steps again {outcome.again:.1f} s"
    return f"{told}, lost {outcome.lost}{''.join(f'; {each}' for each in outcome.wrong)}"


def table(outcomes: Sequence[Outcome]) -> str:
    """The outcomes as a table of Markdown."""
    rows = ["| fault | detected s | steps again s | steps lost |", "| --- | --- | --- | --- |"]
    for each in outcomes:
        detected = "–" if each.detected is None else f"{each.detected:.1f}"
        rows.append(f"| {each.what} | {detected} | {each.again:.1f} | {each.lost} |")
    return "\n".join(rows)
