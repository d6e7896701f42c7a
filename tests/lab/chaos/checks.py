"""What must be true when the training has ended."""

from __future__ import annotations

import re
import time
from typing import Any

from tests.lab.chaos.steps import Counted, count_samples
from tests.lab.chaos.world import NODES, SAMPLES, VOLUME, World

TOLERANCE = 0.02
"""Largest difference between the accuracies of two runs. The test set of digits has 360 pictures:
at 98 % its accuracy has a standard deviation of 0.7 points, the difference of two runs 1.0."""
LEAST = 0.95
"""An accuracy below this is none of a training that has gone well."""
UNFINISHED = re.compile(r"^\.|\.(part|tmp|draft)$")
CHECKPOINT = {"COMPLETE", "manifest.json", "state.pt"}
GONE = 90.0
"""Seconds in which everything of a job is gone after `kit stop`."""


def samples(world: World) -> tuple[Counted, list[str]]:
    """Count the samples of all epochs."""
    counted = count_samples(world.steps(), SAMPLES)
    return counted, [*counted.wrong]


def completed(status: dict[str, Any]) -> list[str]:
    """Return what is wrong with the end of the training."""
    wrong = []
    if status.get("state") != "completed":
        wrong.append(f"the training ended as {status.get('state')}: {status.get('failure')}")
    accuracy = (status.get("progress") or {}).get("accuracy")
    if accuracy is None or accuracy < LEAST:
        wrong.append(f"the accuracy at the end is {accuracy}, not {LEAST} or more")
    return wrong


def accuracies(disturbed: float | None, calm: float | None) -> list[str]:
    """Compare the accuracies of the run with faults and the one without."""
    if disturbed is None or calm is None:
        return [f"the accuracies are {disturbed} with faults, {calm} without"]
    if abs(disturbed - calm) > TOLERANCE:
        return [f"the accuracy is {disturbed:.4f} with faults, {calm:.4f} without"]
    return []


def folders(world: World) -> list[str]:
    """Return what is half-written in the folders of checkpoints."""
    wrong: list[str] = []
    for node in NODES:
        paths = world.inside(node, f"cd {VOLUME} && find . -mindepth 1 -printf '%P\\n'").split("\n")
        wrong += [f"{node} has a half-written {path}" for path in paths if is_unfinished(path)]
        for folder in (path for path in paths if re.fullmatch(r"step-\d+", path)):
            found = {path.rpartition("/")[2] for path in paths if path.startswith(f"{folder}/")}
            if lacking := CHECKPOINT - found:
                wrong.append(f"{node}: {folder} has no {', '.join(sorted(lacking))}")
        if not any(re.fullmatch(r"step-\d+", path) for path in paths):
            wrong.append(f"{node} has no checkpoint")
    return wrong


def is_unfinished(path: str) -> bool:
    """Whether a path is one that is written before it gets its name."""
    return any(UNFINISHED.search(part) for part in path.split("/"))


def leftovers(world: World) -> list[str]:
    """Return what `kit stop` has left on the nodes, after a while."""
    deadline = time.monotonic() + GONE
    while (left := world.remains()) and time.monotonic() < deadline:
        time.sleep(1)
    return [f"kit stop has left {each}" for each in left]
