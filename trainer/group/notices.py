"""Notifications for people: from reports and lost hosts, each once. Pure.

A notice has the same id whichever coordinator creates it. Orders have the ids of sent notices, and
hosts repeat these in their reports: so a new coordinator does not send them again.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from trainer.group.messages import Group, Halt, Notice, Report

REPEATED = 3600.0
"""Seconds in which the same failure is reported once: engines restart a container several times."""
MOST_TOLD = 20
"""Number of ids in an order: older notices concern former hosts and groups."""
MOST_KNOWN = 1000
LONGEST_MESSAGE = 1000
"""Characters."""


@dataclass
class Notices:
    """The notices of a job; without `send` there are none."""

    send: Callable[[Notice], None] | None = None
    clock: Callable[[], float] = lambda: 0.0
    told: tuple[str, ...] = ()  # The ids of those that were sent, the newest last.
    fault: str = ""  # The last reason why a notification could not be sent.
    _known: dict[str, None] = field(default_factory=dict)  # The ids of all notices.
    _failures: dict[str, float] = field(default_factory=dict)  # Times of the last, by message.

    def learn(self, ids: Iterable[str]) -> None:
        """Mark the notices that the previous coordinator has sent."""
        for each in ids:
            self.note_sent(each)

    def note_sent(self, name: str) -> None:
        """Mark a notice as sent, or given up."""
        self._remember(name)
        if name not in self.told:
            self.told = (*self.told, name)[-MOST_TOLD:]

    def tell(self, notice: Notice) -> None:
        """Send a notice, unless it was sent before."""
        if self.send is None or notice.id in self._known:
            return
        self._remember(notice.id)
        if notice.kind == "failed" and self._is_repeated(notice.message):
            return
        self.send(replace(notice, message=notice.message[:LONGEST_MESSAGE]))

    def _remember(self, name: str) -> None:
        self._known[name] = None
        if len(self._known) > MOST_KNOWN:
            del self._known[next(iter(self._known))]

    def _is_repeated(self, message: str) -> bool:
        now = self.clock()
        recent = {text: at for text, at in self._failures.items() if now - at < REPEATED}
        self._failures = {message: now, **recent}  # A recent failure keeps its time.
        return message in recent

    # ---- Contents

    def completed(self, generation: int, why: str, report: Report) -> None:
        """Send that the job is complete."""
        at = f": {report.result.words}" if report.result else ""
        notice = Notice("completed", f"completed-{generation}", f"{why}{at}")
        self.tell(replace(notice, result=report.result))

    def ended(self, report: Report) -> None:
        """Send that the job has reached one of its limits and ends before it is complete."""
        what = f"the job has reached its `{report.ends}` and stops: its GPUs become free"
        # Before the first group, the agent distinguishes two runs.
        at = report.generation or report.agent
        self.tell(Notice("ended", f"ended-{report.ends}-{at}", what))

    def failed(self, report: Report, halt: Halt) -> None:
        """Send that the job ends because of a failure on a host."""
        at = max(report.generation, report.left)
        notice = Notice("failed", f"failed-{report.agent}-{at}", halt.message, (report.host,))
        code = halt.exit_code or halt.code
        self.tell(replace(notice, exit_code=code, result=report.result))

    def left_out(self, report: Report, halt: Halt) -> None:
        """Send that a host is left out, until a person releases it or corrects the job."""
        at = max(report.generation, report.left)
        what = f"{report.host} is left out: {halt.message}"
        notice = Notice("left_out", f"left_out-{report.agent}-{at}", what, (report.host,))
        self.tell(replace(notice, exit_code=halt.exit_code or halt.code))

    def host_lost(self, agent: str, host: str, why: str, group: Group | None) -> None:
        """Send that a host of a group, or one that waits for a group, is lost."""
        at = group.generation if group and agent in group.agents else 0
        self.tell(Notice("host_lost", f"host_lost-{agent}-{at}", why, (host,)))
