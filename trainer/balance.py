"""Who works on how much of a global batch, where GPUs differ in speed.

A step is as fast as its slowest rank. Each rank's samples a second are measured in the first steps
and now and then later; its share of every global batch follows. The mean loss of the batch, and so
its gradient, does not depend on the division: only rounding does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainer.watch import Watch
    from trainer.world import World

FIRST, LONGEST = 4, 256
"""Steps of the first measurement, which is thrown away: it pays for caches and kernels. Each next
one takes twice as many, up to the longest."""
LEAST = 0.1
"""Of an even share: a rank that stood still for a moment must be measured again."""


class Balance:
    """The ranks' `shares` of every global batch; 1 in all."""

    def __init__(self, world: World, watch: Watch, *, auto: bool) -> None:
        self.shares = [1 / world.size] * world.size
        self._world, self._watch, self._auto = world, watch, auto
        self._window, self._steps, self._samples, self._work = FIRST, 0, 0, 0.0

    def note(self, samples: int) -> None:
        """Count a step; after some, divide anew. All ranks must call it after the same step."""
        if not self._auto:
            return
        self._steps, self._samples = self._steps + 1, self._samples + samples
        if self._steps < self._window:
            return
        spent = self._watch.read()
        before, self._work = self._work, spent["data"] + spent["compute"]
        speeds = self._world.gather(self._samples / max(self._work - before, 1e-9))
        if self._window > FIRST:
            even = sum(speeds) / len(speeds)
            speeds = [max(speed, LEAST * even) for speed in speeds]
            self.shares = [speed / sum(speeds) for speed in speeds]
        self._window, self._steps, self._samples = min(2 * self._window, LONGEST), 0, 0
