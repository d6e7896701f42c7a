"""How large the gradients of the newest steps were."""

from __future__ import annotations

import math
from collections import deque
from statistics import median

KEPT = 100
"""Steps whose median norm is the usual one."""
LEAST = 20
"""Steps before any is suspicious: the first ones differ much."""


class Norms:
    """The L2 norms of the newest gradients; the same on every rank."""

    def __init__(self) -> None:
        self._known: deque[float] = deque(maxlen=KEPT)

    def times_usual(self, norm: float) -> float:
        """Return how many times as large as usual a norm is; 0 if that is not known yet."""
        usual = median(self._known) if len(self._known) >= LEAST else 0.0
        return norm / usual if usual > 0 and math.isfinite(norm) else 0.0

    def note(self, norm: float) -> None:
        """Remember the norm of a step that is taken."""
        if math.isfinite(norm):
            self._known.append(norm)
