"""Divides the wall time of a rank among the states of contract/metrics.py, without a rest."""

from __future__ import annotations

import time
from collections.abc import Mapping

from trainer.contract.metrics import STATES
from trainer.core.watch import Watch

STATE_OF = {"data": "data", "compute": "useful", "communication": "exchange"}


class Goodput:
    """The seconds of each state since the launcher began.

    `seconds` are those of this worker's earlier processes. `launched` and `started` are the times,
    since 1970, at which the launcher and this process began: a process was missing in the time
    between that the earlier ones do not account for.
    """

    def __init__(
        self, watch: Watch, seconds: Mapping[str, float], launched: float, started: float
    ) -> None:
        self.seconds = {state: float(seconds.get(state, 0.0)) for state in STATES}
        before = max(0.0, started - launched - sum(self.seconds.values()))
        self.seconds["idle"] += before
        self._watch, self._work = watch, watch.read()
        self._until = time.monotonic() - max(0.0, time.time() - started)

    def count(self, state: str) -> float:
        """Count the time since the last call as `state`; return it in seconds."""
        now = time.monotonic()
        spent, self._until = now - self._until, now
        self.seconds[state] += spent
        return spent

    def count_steps(self, *, lost: bool) -> None:
        """Count the time since the last call as steps: by the watch's kinds, or as `lost`.

        A failure loses the steps since the last checkpoint, which is known only after it, and a
        counter cannot decrease: so the repeated steps are the lost ones.
        The watch measures a GPU's time, which lags behind the host's: it gives only the shares.
        """
        before, self._work = self._work, self._watch.read()
        work = {STATE_OF[kind]: self._work[kind] - before[kind] for kind in self._work}
        total = sum(work.values())
        if lost or not total:
            self.count("lost" if lost else "useful")
            return
        now = time.monotonic()
        spent, self._until = now - self._until, now
        for state, part in work.items():
            self.seconds[state] += spent * part / total
