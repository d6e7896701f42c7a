"""What the lines of jobs and servers tell: how far, where the ranks are, GPUs and checkpoints.

Engines that reach the hosts through Docker see no metrics.jsonl, only what is printed there.
trainer/report.py, train.py, saving.py, world.py, launch.py and serve/ write these lines; tests hold
them together.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace

from kit.engine import LogLine, Progress

_RANK = re.compile(r"\[rank(\d+)\]: ?")
_MEMBER = re.compile(r"rank (\d+) of (\d+), local rank \d+ on ")
_BEGIN = re.compile(r"job .*, (\d+) steps in (\d+) epochs$")
_RESUMED = re.compile(r"goes on from step (\d+), epoch (\d+) ")
_TICK = re.compile(r"  epoch (\d+)/(\d+) +(\d+) %, step (\d+), loss (\S+), (\d+) images/s$")
_ROW = re.compile(r" *(\d+)/(\d+) +(\d+) +(\S+) +(\S+) +(\d+) +\S+ +[\d/]*$")
_STOPPED = re.compile(r"stopped at step (\d+), epoch (\d+) ")
_SAVED = re.compile(r"saved (step-\d+)$")
_SEES = re.compile(r"\w+ \S+: sees .*UUID: ((?:GPU|MIG)-[^)]+)\)")
_SERVES = re.compile(r".*\bserves (step-\d+ .*)$")

Match = re.Match[str]


def split(text: str) -> tuple[int | None, str]:
    """Take off the `[rank3]: ` that the launcher puts in front of a worker's line."""
    found = _RANK.match(text)
    return (int(found[1]), text[found.end() :]) if found else (None, text)


class Printed:
    """What the lines of one job have told so far."""

    def __init__(self, progress: Progress | None = None, checkpoint: str | None = None) -> None:
        self.progress = progress
        """How far the training is; None until it has begun, and for scripts that are not kit's."""
        self.checkpoint = checkpoint
        """The name of the newest checkpoint."""
        self.seen: dict[str, tuple[str, ...]] = {}
        """The UUIDs of the GPUs that each host's container sees."""
        self._looking: dict[str, bool] = {}
        self._holders: dict[int, str] = {}
        self._size = 0
        self._began: tuple[float, int] | None = None
        self._readers: tuple[tuple[re.Pattern[str], Callable[[Match, LogLine], None]], ...] = (
            (_MEMBER, self._member),
            (_BEGIN, self._begin),
            (_RESUMED, self._resumed),
            (_TICK, self._tick),
            (_ROW, self._row),
            (_STOPPED, self._stopped),
            (_SAVED, self._saved),
            (_SERVES, self._serves),
        )

    @property
    def begun(self) -> bool:
        """Whether all that is said at the beginning has been said."""
        return self.progress is not None and len(self._holders) == self._size

    @property
    def ranks(self) -> dict[str, tuple[int, ...]]:
        """Each host's ranks, as torchrun has given them out last."""
        ranks: dict[str, tuple[int, ...]] = {}
        for rank, host in sorted(self._holders.items()):
            ranks[host] = (*ranks.get(host, ()), rank)
        return ranks

    def read(self, line: LogLine) -> None:
        """Take in one more line; they come in the order of time."""
        self._look(line)
        if line.rank is not None:
            self._holders[line.rank] = line.host
        for pattern, reader in self._readers:
            if found := pattern.match(line.text):
                reader(found, line)
                return

    def _look(self, line: LogLine) -> None:
        """A container lists its GPUs when it starts, one below the other."""
        found = _SEES.match(line.text)
        if found:
            # Of a GPU that is split by MIG only the instances can be used.
            before = self.seen.get(line.host, ()) if self._looking.get(line.host) else ()
            whole = found[1].startswith("MIG-") and before[-1:] and before[-1].startswith("GPU-")
            self.seen[line.host] = (*(before[:-1] if whole else before), found[1])
        self._looking[line.host] = bool(found)

    def _serves(self, found: Match, _line: LogLine) -> None:
        self.checkpoint = found[1]

    def _member(self, found: Match, line: LogLine) -> None:
        # A world that has become smaller has no higher ranks any more.
        self._size = int(found[2])
        kept = {rank: host for rank, host in self._holders.items() if rank < self._size}
        self._holders = kept | {int(found[1]): line.host}

    def _begin(self, found: Match, line: LogLine) -> None:
        self.progress = Progress(0, int(found[2]), 0, int(found[1]), None, None, None)
        self._began = None if line.time is None else (line.time, 0)

    def _resumed(self, found: Match, line: LogLine) -> None:
        self._advance(line, epoch=int(found[2]), step=int(found[1]))
        self._began = None if line.time is None else (line.time, int(found[1]))
        self.checkpoint = f"step-{int(found[1]):08d}"

    def _tick(self, found: Match, line: LogLine) -> None:
        # It names the epoch that it is in; Progress counts those that are done.
        epoch, step, rate = int(found[1]) - 1, int(found[4]), float(found[6])
        self._join(line, int(found[2]), step, epoch + int(found[3]) / 100)
        self._advance(line, epoch=epoch, step=step, loss=_finite(found[5]), images_per_second=rate)

    def _row(self, found: Match, line: LogLine) -> None:
        self._join(line, int(found[2]), int(found[3]), int(found[1]))
        self._advance(
            line,
            epoch=int(found[1]),
            step=int(found[3]),
            loss=_finite(found[4]),
            accuracy=_finite(found[5]),
            images_per_second=float(found[6]),
        )

    def _join(self, line: LogLine, epochs: int, step: int, done: float) -> None:
        """Begin with a line out of the middle, where those before it are not at hand any more.

        `step` of so many `epochs` as are `done` says how many steps the whole has.
        """
        if self.progress is None and done > 0:
            steps = round(step * epochs / done)
            self.progress = Progress(0, epochs, 0, steps, None, None, None)
            self._began = None if line.time is None else (line.time, step)

    def _stopped(self, found: Match, line: LogLine) -> None:
        self._advance(line, epoch=int(found[2]), step=int(found[1]))

    def _saved(self, found: Match, _line: LogLine) -> None:
        self.checkpoint = found[1]

    def _advance(self, line: LogLine, *, step: int, **figures: float | None) -> None:
        if self.progress is None:
            return
        left = self._seconds_left(line, step)
        self.progress = replace(self.progress, step=step, seconds_left=left, **figures)  # type: ignore[arg-type]

    def _seconds_left(self, line: LogLine, step: int) -> float | None:
        if self.progress is None or self._began is None or line.time is None:
            return None
        since, first = self._began
        if step <= first or line.time < since:
            return None
        return (line.time - since) / (step - first) * (self.progress.steps - step)


def _finite(text: str) -> float | None:
    """Read a figure; one that is none, as a loss that has overflowed, is not told."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
