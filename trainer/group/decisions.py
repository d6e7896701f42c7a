"""Decides which hosts train together. Pure: its input are reports, losses and the time.

The rules, in this order:

1. A halt ends all hosts. So does a host that is done: all have passed a barrier before. A host that
   is left out ends them only if too few others can ever come.
2. A group goes on until one of its hosts is lost, one of its workers has left it, or one hangs: it
   stands still, and others have reached exchanges that it has not, or it trains alone and others
   want to join it. Then the others are told to abort it. Nobody is ever in two groups.
3. A host that is ready to join, and one that was asked to end, let the group leave at the end of a
   step: all of its workers agree on that step by themselves.
4. The next group is formed when every host of the last one waits for it, is lost, or starts workers
   anew; who does not answer is waited for a few seconds. It has at least as many hosts as the job
   wants, and at most as many.
5. A spare takes a place that no other host takes, and keeps it: the host that comes back stands by.
   Each exchange of hosts is a pause for all, and a chance for another fault.

A new coordinator learns the present group from the reports: it has no state of its own to lose.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from trainer.group.messages import Group, Halt, Member, Order, Report, host_of

LAST_CALL = 10.0
"""Seconds in which more hosts may come before the first group; torchrun waits 30 (last_call)."""
WARM_UP = 30.0
"""Seconds in which hosts that are there may start their workers before the first group."""
GATHER = 0.5
"""Seconds in which further changes of a running group are collected, so that it pauses once."""
STUCK = 5.0
"""Seconds in which a host must leave an aborted group before the others go on without it."""
RETURN = 5.0
"""Seconds in which the hosts of a running group report to a coordinator that is new."""
CONFIRM = 2.0
"""Seconds for which a host must seem to hang: whoever waited for a slow one reports its own next
exchange later, but within `SILENT`."""
FORM = 20.0
"""Seconds in which a group must form before it is given up."""
ABSENT = 10.0
"""Seconds without a host after which the coordinator of a run that is over ends."""


@dataclass
class Decisions:
    """The coordinator's knowledge, and its decisions."""

    clock: Callable[[], float]  # In seconds; never goes back.
    least: int  # Hosts with which the job trains.
    most: int
    spares: int = 0
    today: Callable[[], float] = lambda: 0.0  # Seconds since 1970.
    chance: Callable[[], int] = lambda: 0  # Any number from 0 on.
    say: Callable[[str], None] = lambda _: None
    hosts: dict[str, Report] = field(default_factory=dict)
    group: Group | None = None  # The present or the last one, even if it is over.
    over: float | None = None  # Time at which the group ended; None while it goes on.
    asked: bool = False  # Whether its workers shall leave at the end of a step.
    end: Order | None = None
    _ended: frozenset[str] = frozenset()  # The hosts that were there at the end.
    _began: float = 0.0
    _formed: float = 0.0
    _adopted: float | None = None
    _enough: float | None = None  # Since when there are enough hosts for a first group.
    _change: float | None = None  # Since when a host wants to join or to end.
    _newest: int = 0  # Generation.
    _seem: dict[str, float] = field(default_factory=dict)  # Agents that seem to hang; since when.
    _hung: set[str] = field(default_factory=set)  # Agents of the group; nobody waits for them.
    _failed: set[str] = field(default_factory=set)  # Hosts of the group that start workers again.

    def __post_init__(self) -> None:
        """Note the time: hosts that train already need a while to report to a new coordinator."""
        self._began = self.clock()

    def report(self, report: Report) -> None:
        """Take a host's report; a new agent of the same host replaces the old one."""
        for agent in [agent for agent, old in self.hosts.items() if old.host == report.host]:
            if agent != report.agent:
                del self.hosts[agent]
        if report.agent not in self.hosts:
            self.say(f"{report.host} is here")
        self.hosts[report.agent] = report
        if report.starting and report.agent in self._members():
            self._failed.add(report.host)
        self._newest = max(self._newest, report.generation, report.left, report.heard)

    def lose(self, agent: str, why: str) -> None:
        """Take note that a host is silent or has closed its connection."""
        if report := self.hosts.pop(agent, None):
            self.say(f"{report.host} {why}")

    @property
    def patience(self) -> float:
        """Seconds without a host after which the coordinator ends."""
        return ABSENT if self.end else float("inf")

    def orders(self) -> dict[str, Order]:
        """Decide; return the present order for each host."""
        if self.end and self.hosts and not self._ended & self.hosts.keys():
            self.end, self.group, self.over = None, None, None  # Others begin anew.
        self._see_end()
        if self.end:
            return {agent: self.end if agent in self._ended else Order() for agent in self.hosts}
        self._adopt()
        if self.group and self.over is None:
            self._see_fault(self.group)
        if self.group and self.over is None:
            self._see_change(self.group)
        if self.group is None or self.over is not None:
            self._form()
        return {agent: self._order(report) for agent, report in self.hosts.items()}

    def _see_end(self) -> None:
        for report in () if self.end else self.hosts.values():
            if halt := report.halt or self._last_out(report):
                self.end = Order("end", halt=replace(halt, host=report.host))
                self.say(f"ends all: {report.host}: {halt.message}")
            elif report.done:
                self.end = Order("end")
                self.say(f"{report.host} has trained to the end")
            if self.end:
                self._ended = frozenset(self.hosts)
                return

    def _last_out(self, report: Report) -> Halt | None:
        """The reason why a host is left out, if too few hosts remain for the job."""
        out = sum(each.out is not None for each in self.hosts.values())
        return report.out if self.most + self.spares - out < self.least else None

    def _adopt(self) -> None:
        """Learn the group of hosts that train already."""
        running = [each for each in self.hosts.values() if each.generation > each.left]
        if not running or (self.group and self.group.generation >= self._newest):
            return
        first = max(running, key=lambda each: each.generation)
        if self.group and first.generation <= self.group.generation:
            return
        members = tuple(Member(agent, host_of(agent), "", 0) for agent in first.members)
        self.group, self.over, self.asked = Group(first.generation, members), None, False
        self._adopted = self._formed = self.clock()
        self.say(f"group {first.generation} trains already")

    def _see_fault(self, group: Group) -> None:
        now, reason = self.clock(), ""
        for member in group.members:
            report = self.hosts.get(member.agent)
            if report is None:
                if self._adopted is None or now - self._adopted > RETURN:
                    reason = f"{member.host} is lost"
            elif report.out:
                reason = f"{report.host} is left out"
            elif report.left >= group.generation or report.starting or self._waits(report):
                planned = self.asked and not report.starting
                reason = "" if planned else f"{report.host} has left it"
                self.over = now
        members = [self.hosts[agent] for agent in self._members()]
        slow = [each for each in members if each.generation < group.generation]
        seem = hung(members, group.generation, awaited=self.asked)
        self._seem = {each.agent: self._seem.get(each.agent, now) for each in seem}
        for each in seem:
            if now - self._seem[each.agent] >= CONFIRM:
                self._hung.add(each.agent)
                reason = f"{each.host} hangs"
        late = [each.host for each in slow if not each.starting]
        if late and now - self._formed > FORM:
            reason = f"{late[0]} did not join it"
        if reason:
            self.say(f"group {group.generation} is over: {reason}")
            self.over = now

    def _waits(self, report: Report) -> bool:
        """Whether a member of a group that trained already waits for another one."""
        return self._adopted is not None and report.ready

    def _see_change(self, group: Group) -> None:
        """Let the group leave at the end of a step, if a host wants to join it or to end."""
        members = [self.hosts[agent] for agent in self._members()]
        if self.asked or len(members) < len(group.members):
            return
        if any(each.generation < group.generation for each in members):
            return
        leaving = [each for each in members if each.leaving]
        joining = self._candidates() if len(members) < self.most else []
        wanted = [each.host for each in (*leaving, *joining)]
        if not wanted:
            self._change = None
            return
        self._change = self._change or self.clock()
        complete = len(members) + len(joining) >= self.most or len(leaving) == len(members)
        if complete or self.clock() - self._change >= GATHER:
            self.asked, self._change = True, None
            ends = f"{', '.join(each.host for each in leaving)} ends" if leaving else ""
            comes = f"{', '.join(each.host for each in joining)} joins" if joining else ""
            texts = "; ".join(filter(None, (ends, comes)))
            self.say(f"group {group.generation} leaves after a step: {texts}")

    def _candidates(self) -> list[Report]:
        """The hosts that are ready and in no group that goes on."""
        return [each for each in self.hosts.values() if each.ready and not each.leaving]

    def _members(self) -> list[str]:
        """The ids of the present hosts of the group."""
        members = self.group.members if self.group else ()
        return [member.agent for member in members if member.agent in self.hosts]

    def _form(self) -> None:
        """Form the next group, if it is time."""
        now, candidates = self.clock(), self._candidates()
        if len(candidates) < self.least:
            self._enough = None
            return
        self._enough = now if self._enough is None else self._enough
        old = [self.hosts[agent] for agent in self._members()]
        if old:
            waited = [each for each in old if each.agent not in self._hung]
            missing = [each for each in waited if not (each.starting or settled(each))]
            if missing and self.over is not None and now - self.over < STUCK:
                return
            for each in missing:
                self.say(f"goes on without {each.host}, which does not leave its group")
        elif self._waits_for_more(candidates, now - self._enough):
            return
        order = {agent: place for place, agent in enumerate(self._members())}
        candidates.sort(
            key=lambda each: (order.get(each.agent, len(order)), each.spare, natural(each.host))
        )
        # Unique even if a coordinator forgets and a host returns late: by the time in milliseconds
        # or, if the clock of the coordinator before was ahead, by chance.
        self._newest = 1 + max(self._newest + self.chance(), int(self.today() * 1000))
        chosen = candidates[: self.most] if old else self._with_newest(candidates)
        members = tuple(Member(each.agent, each.host, each.store, each.workers) for each in chosen)
        why = self._why(members)
        self.group, self.over, self.asked = Group(self._newest, members, why), None, False
        self._formed, self._enough, self._change, self._adopted = now, None, None, None
        names = ", ".join(member.host for member in members)
        self.say(f"group {self._newest}: {names}{f' ({why})' if why else ''}")

    def _with_newest(self, candidates: list[Report]) -> list[Report]:
        """Choose the hosts that begin from a checkpoint: one that has the newest is among them.

        After all were lost, that may be a spare: only members of the group are asked for theirs.
        """
        chosen, others = candidates[: self.most], candidates[self.most :]
        newest = max(others, key=lambda each: each.saved, default=None)
        if newest and newest.saved > max(each.saved for each in chosen):
            self.say(f"{newest.host} takes part: it has the newest checkpoint")
            chosen[-1] = newest
        return chosen

    def _waits_for_more(self, candidates: list[Report], waited: float) -> bool:
        """Whether to wait for more hosts, or for one that has a newer checkpoint."""
        if not self._complete(candidates) and self._may_come(waited):
            return True
        coming = [each.saved for each in self.hosts.values() if not settled(each)]
        newest = max(each.saved for each in candidates)
        return waited < WARM_UP and max(coming, default=-1) > newest

    def _complete(self, candidates: list[Report]) -> bool:
        """Whether a first group lacks no host but spares.

        A coordinator that is new waits for all: a spare may train in the place of a candidate.
        """
        known = len(candidates) == self.most + self.spares
        known |= not self.spares or self.clock() - self._began >= RETURN
        return known and sum(not each.spare for each in candidates) >= self.most

    def _may_come(self, waited: float) -> bool:
        """Whether to wait for more hosts before a first group, after so many seconds."""
        coming = not all(map(settled, self.hosts.values()))
        unknown = waited < LAST_CALL or self.clock() - self._began < RETURN
        return unknown or (coming and waited < WARM_UP)

    def _why(self, members: tuple[Member, ...]) -> str:
        """Describe how the next group differs from the last one, if that is known."""
        before = {each.agent: each.host for each in (self.group.members if self.group else ())}
        after = {each.agent: each.host for each in members}
        words = [self._fate(agent, host) for agent, host in before.items() if agent not in after]
        stay = [host for agent, host in after.items() if agent in before and host in self._failed]
        words += [f"a worker of {host} failed" for host in stay]
        words += [f"{host} joins" for agent, host in after.items() if agent not in before]
        self._failed.clear()
        self._hung.clear()
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

    def _order(self, report: Report) -> Order:
        group = self.group
        if group is None or not report.agent or report.agent not in self._members():
            busy = not report.ready and report.generation > report.left
            return Order("abort", report.generation) if busy else Order()
        if self.over is not None:
            return Order() if report.ready else Order("abort", group.generation)
        if report.generation < group.generation:
            if self._adopted is not None:
                return Order()  # It was told by the coordinator before this one.
            return Order("join", group.generation, group=group)
        if not self.asked:
            return Order()
        saves = any(self.hosts[agent].leaving for agent in self._members())
        return Order("leave", group.generation, save=saves)


def settled(report: Report) -> bool:
    """Whether a host waits for the next group, or will not be in it."""
    return report.ready or report.leaving or report.out is not None


def hung(members: list[Report], generation: int, *, awaited: bool) -> list[Report]:
    """The hosts of a group that others wait for, and that do not come nearer.

    `awaited`: whether others wait for the end of a step of the whole group.
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
