"""The elapsed time of a run, and for how long its hosts have been idle. Pure.

A new coordinator, a host that joins late and a restarted container learn the start of the run from
the others. Hosts that were asked to end do not count. When no host counts any more, the run is
over: hosts that come then begin another one.
"""

from collections.abc import Callable, Collection

from trainer.group.messages import Report


class Spent:
    """The elapsed time of a run, by the coordinator's clock."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._began: float | None = None
        # A new coordinator knows of no work: it counts from its own start.
        self._worked = clock()

    def note(self, report: Report, hosts: Collection[Report]) -> None:
        """Process a host's report; `hosts` has the present reports of all hosts."""
        now = self._clock()
        if report.ran is not None:
            began = now - report.ran
            self._began = began if self._began is None else min(self._began, began)
        elif not report.asks and all(each.ran is None for each in hosts):
            self._began = None
        if report.idle is not None:
            self._worked = max(self._worked, now - report.idle)

    @property
    def known(self) -> bool:
        """Whether the start of the run is known."""
        return self._began is not None

    def ran(self) -> float:
        """Seconds since the first start; 0 if it is not known."""
        return 0.0 if self._began is None else self._clock() - self._began

    def idle(self, hosts: Collection[Report]) -> float:
        """Seconds for which no host has computed anything; 0 if no host reports it.

        After a pause of this process, the reports are as old as the time of the last work.
        """
        found = [each.idle for each in hosts if each.idle is not None]
        return min([self._clock() - self._worked, *found]) if found else 0.0
