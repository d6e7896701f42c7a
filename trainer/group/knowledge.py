"""The coordinator's state: the hosts' reports, and the group that trains.

A new coordinator learns the present group from the reports: no state is lost with the old one.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

from trainer.group.messages import Group, Member, Order, Report, host_of
from trainer.group.notices import Notices
from trainer.group.spent import Spent


@dataclass
class Knowledge:
    """The hosts of a job, and their present or last group."""

    clock: Callable[[], float]  # In seconds; never goes back.
    least: int  # Hosts with which the job trains.
    most: int
    spares: int = 0
    today: Callable[[], float] = lambda: 0.0  # Seconds since 1970.
    chance: Callable[[], int] = lambda: 0  # Any number from 0 on.
    say: Callable[[str], None] = lambda _: None
    notices: Notices = field(default_factory=Notices)
    hosts: dict[str, Report] = field(default_factory=dict)
    group: Group | None = None  # The present or the last one, even if it is over.
    over: float | None = None  # Time at which the group ended; None while it continues.
    asked: bool = False  # Whether its workers must leave at the end of a step.
    ends: str = ""  # The key of the job by which all hosts end.
    end: Order | None = None  # How the last run ended; None while there is a group.
    _began: float = 0.0
    _formed: float = 0.0
    _adopted: float | None = None
    _newest: int = 0  # Generation.
    _reason: str = ""  # Why the group is over.
    _lost: dict[str, str] = field(default_factory=dict)  # Agents, and how they were lost.
    _hung: set[str] = field(default_factory=set)  # Hung agents; the next group does not wait.
    _failed: set[str] = field(default_factory=set)  # Hosts of the group that restart workers.

    noun: ClassVar[str] = "group"
    """The word for a group in log lines."""

    def __post_init__(self) -> None:
        """Store the start time: hosts that train need time to report to a new coordinator."""
        self._began, self.spent = self.clock(), Spent(self.clock)

    def report(self, report: Report) -> None:
        """Store a host's report; a new agent of the same host replaces the old one."""
        for agent in [agent for agent, old in self.hosts.items() if old.host == report.host]:
            if agent != report.agent:
                del self.hosts[agent]
                self._lost[agent] = f"{report.host} has restarted"
        if report.agent not in self.hosts and not report.asks:
            self.say(f"{report.host} has connected")
            self.notices.learn(report.told)
        self.hosts[report.agent] = report
        self._lost.pop(report.agent, None)
        if report.starting and self.group and report.agent in self.group.agents:
            self._failed.add(report.host)
        self._newest = max(self._newest, report.generation, report.left, report.heard)
        self.spent.note(report, self.hosts.values())
        if report.ends and not self.ends:
            self.ends = report.ends
            why = f"{report.host} reports that the job has reached its `{report.ends}`"
            self.say(f"stops the job on all hosts: {why}")
            self.notices.ended(report)

    def lose(self, agent: str, why: str) -> None:
        """Remove a host that is silent or has closed its connection."""
        report = self.hosts.pop(agent, None)
        if report and not report.asks:
            self._lost[agent] = f"{report.host} {why}"
            self.say(self._lost[agent])

    def _adopt(self) -> None:
        """Adopt the group of hosts that already train."""
        running = self._running()
        if not running or (self.group and self.group.generation >= self._newest):
            return
        first = max(running, key=lambda each: each.generation)
        if self.group and first.generation <= self.group.generation:
            return
        members = tuple(Member(agent, host_of(agent), "", 0) for agent in first.members)
        self.group = Group(first.generation, members, number=first.number)
        self.over, self.asked, self.end = None, False, None
        self._adopted = self._formed = self.clock()
        self.say(f"found the running {self._name(self.group)} with {self.group.names}")

    def _running(self) -> list[Report]:
        """The hosts that are in a group."""
        return [each for each in self.hosts.values() if each.generation > each.left]

    def _name(self, group: Group) -> str:
        return f"{self.noun} {group.number or group.generation}"

    def _members(self) -> list[str]:
        """The ids of the present hosts of the group."""
        members = self.group.members if self.group else ()
        return [member.agent for member in members if member.agent in self.hosts]

    def _present(self) -> list[Report]:
        """The reports of the present hosts of the group."""
        return [self.hosts[agent] for agent in self._members()]

    def _why(self, members: tuple[Member, ...]) -> str:
        """Describe how the next group differs from the last one, if that is known."""
        before = {each.agent: each.host for each in (self.group.members if self.group else ())}
        after = {each.agent: each.host for each in members}
        words = [self._fate(agent, host) for agent, host in before.items() if agent not in after]
        stay = [host for agent, host in after.items() if agent in before and host in self._failed]
        words += [f"a worker of {host} failed" for host in stay]
        words += [f"{host} joins" for agent, host in after.items() if agent not in before]
        return "; ".join(words) if before else ""

    def _fate(self, agent: str, host: str) -> str:
        """Describe why a host is not in the next group."""
        report = self.hosts.get(agent)
        if report is None:
            return f"{host} is lost"
        if report.leaving:
            return f"{host} ends"
        if agent in self._hung:
            return f"{host} hangs"
        if report.out:
            return f"{host} is left out"
        return f"a worker of {host} failed" if report.starting else f"{host} does not answer"


def settled(report: Report) -> bool:
    """Whether a host waits for the next group, or will not be in it."""
    return report.ready or report.leaving or report.out is not None


def hung(members: list[Report], generation: int, *, awaited: bool) -> list[Report]:
    """The stalled hosts of a group that others wait for.

    `awaited`: whether other hosts wait for the whole group to finish a step.
    """
    if any(each.generation != generation for each in members):
        return []
    if len(members) == 1 and awaited:
        return [each for each in members if each.still]
    furthest = max((each.reached[1] for each in members), default=0)
    return [each for each in members if each.still and each.reached[0] < furthest]


def natural(name: str) -> list[tuple[int, str]]:
    """A key that sorts n2 before n10."""
    return [(int(part or 0), text) for text, part in re.findall(r"(\D*)(\d*)", name)]
