"""The steps of a training, as its processes have written them down (lab_pace.py)."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Taken:
    """A step that a rank has taken; `epoch` and `position` are those before it.

    `time` is that of time.monotonic(), which all processes of a machine share. `batch` are the
    samples of all ranks in it, `own` those of this one.
    """

    time: float
    host: str
    rank: int
    size: int
    generation: int
    epoch: int
    position: int
    step: int
    batch: tuple[int, ...]
    own: tuple[int, ...]


class Witness:
    """Reads the steps from a folder of each node, as they are written."""

    def __init__(self, folders: Mapping[str, Path]) -> None:
        self._folders = folders
        self._read: dict[Path, int] = {}
        self._known: list[Taken] = []

    def steps(self) -> Sequence[Taken]:
        """Return all steps that were taken so far, in the order of time."""
        fresh: list[Taken] = []
        for host, folder in self._folders.items():
            for file in folder.glob("*.jsonl"):
                fresh += self._lines(host, file)
        if fresh:
            self._known = sorted([*self._known, *fresh], key=lambda each: each.time)
        return self._known

    def _lines(self, host: str, file: Path) -> Iterable[Taken]:
        """Yield the lines that are new; a process that is killed leaves a part of one."""
        with file.open("rb") as stream:
            stream.seek(self._read.get(file, 0))
            for line in stream:
                if not line.endswith(b"\n"):
                    return
                self._read[file] = self._read.get(file, 0) + len(line)
                content = json.loads(line)
                content |= {name: tuple(content[name]) for name in ("batch", "own")}
                yield Taken(host=host, **content)


def since(steps: Iterable[Taken], time: float) -> list[Taken]:
    """Return the steps after a time."""
    return [each for each in steps if each.time > time]


def is_whole(steps: Sequence[Taken], hosts: int) -> bool:
    """Whether all hosts take steps in one group: the newest has some steps of each."""
    if not steps:
        return False
    newest = max(each.generation for each in steps)
    of_group = [each for each in steps if each.generation == newest]
    counts = defaultdict[str, int](int)
    for each in of_group:
        counts[each.host] += 1
    return len(counts) == hosts and min(counts.values()) >= ENOUGH


ENOUGH = 5
"""Steps of each host after which a group counts as one that trains."""


def lost(steps: Iterable[Taken]) -> set[tuple[int, int]]:
    """Return the steps that all ranks of a group had, and that a later group took again.

    Each is named by the group and its number.
    """
    ranks = defaultdict[tuple[int, int], set[int]](set)
    sizes: dict[tuple[int, int], int] = {}
    begins: dict[int, int] = {}
    for each in steps:
        place = each.generation, each.step
        ranks[place].add(each.rank)
        sizes[place] = each.size
        begins[each.generation] = min(each.step, begins.get(each.generation, each.step))
    committed = {place for place, found in ranks.items() if len(found) == sizes[place]}
    return {
        (generation, step)
        for generation, step in committed
        if any(later > generation and begins[later] <= step for later in begins)
    }


@dataclass(frozen=True)
class Counted:
    """The steps that have led to the last state, and what is wrong with their samples."""

    steps: int
    epochs: int
    wrong: tuple[str, ...]


def count_samples(steps: Sequence[Taken], samples: int) -> Counted:
    """Follow the last state back to the first step: each sample of an epoch must count once.

    Where two groups have taken a step from the same position, that of the newest group counts which
    is not newer than the step after it.
    """
    before = _by_end(steps, samples)
    place, generation = max(before), max(each.generation for each in steps)
    found: dict[int, list[int]] = defaultdict(list)
    number = 0
    while place != (0, 0):
        led = [each for each in before.get(place, []) if each.generation <= generation]
        if not led:
            return Counted(number, len(found), (f"no step leads to epoch {place[0]} + {place[1]}",))
        step = max(led, key=lambda each: each.generation)
        found[step.epoch] += step.batch
        place, generation, number = (step.epoch, step.position), step.generation, number + 1
    whole = list(range(samples))
    wrong = [f"epoch {epoch}: {_wrong(found[epoch], whole)}" for epoch in sorted(found)[:-1]]
    wrong += _divided(steps)
    return Counted(number, len(found), tuple(each for each in wrong if not each.endswith(": ")))


def _by_end(steps: Iterable[Taken], samples: int) -> dict[tuple[int, int], list[Taken]]:
    """Return the steps by the epoch and position after them."""
    found: dict[tuple[int, int], list[Taken]] = defaultdict(list)
    for each in steps:
        end = each.position + len(each.batch)
        found[(each.epoch + 1, 0) if end == samples else (each.epoch, end)].append(each)
    return found


def _wrong(found: list[int], whole: list[int]) -> str:
    if sorted(found) == whole:
        return ""
    twice = len(found) - len(set(found))
    return f"{twice} samples counted again, {len(set(whole) - set(found))} not counted"


def _divided(steps: Iterable[Taken]) -> list[str]:
    """Return what is wrong with the division of batches among the ranks that wrote a step down."""
    own = defaultdict[tuple[int, int], dict[int, tuple[int, ...]]](dict)
    batch: dict[tuple[int, int], tuple[tuple[int, ...], int]] = {}
    for each in steps:
        place = each.generation, each.step
        own[place][each.rank], batch[place] = each.own, (each.batch, each.size)
    return [
        f"step {place[1]} of group {place[0]}: the ranks took other samples than its batch"
        for place, (wanted, size) in batch.items()
        if len(own[place]) == size
        and sorted(sample for part in own[place].values() for sample in part) != sorted(wanted)
    ]
