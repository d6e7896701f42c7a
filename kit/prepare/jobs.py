"""The workloads that run while hosts are prepared."""

from __future__ import annotations

import time

from kit.errors import KitError
from kit.runtime.status import ENDED, JobStatus, State
from kit.runtime.target import Target
from kit.values import Say

SETTLED = 600.0
"""The most seconds until jobs run again after a restart: the first step may compile a model."""


class RunningJobs:
    """The workloads of a target that run now; on unprepared hosts, they may be unknown."""

    def __init__(self, target: Target, say: Say) -> None:
        self._target, self._say = target, say
        try:
            status = target.status()
        except KitError:
            self._before, self.unknown = dict[str, JobStatus](), True
        else:
            self._before = {each.job: each for each in status if each.state not in ENDED}
            self.unknown = False

    @property
    def several_hosts(self) -> bool:
        """Whether one of them runs on several hosts, or may do so."""
        return self.unknown or any(len(each.hosts) > 1 for each in self._before.values())

    def settle(self) -> None:
        """Wait until they run again as before: the next host may hold their newest checkpoint.

        Raises:
            KitError: One does not.
        """
        if self._before:
            self._say(f"wait until {', '.join(self._before)} runs again on all its hosts")
        deadline = time.monotonic() + SETTLED
        while waiting := [each for each in self._before.values() if not self._runs_again(each)]:
            if time.monotonic() > deadline:
                names = ", ".join(each.job for each in waiting)
                what = f"{names}: not running again within {SETTLED:.0f} s"
                raise KitError(what, "see `kit status`; then kit host prepare --run continues")
            time.sleep(1)

    def _runs_again(self, before: JobStatus) -> bool:
        try:
            statuses = [each for each in self._target.status() if each.job == before.job]
        except KitError:
            return False  # The manager is still restarting.
        if not statuses or statuses[0].state in ENDED:
            return True
        enough = (statuses[0].world_size or 0) >= (before.world_size or 0)
        return statuses[0].state is State.RUNNING and enough
