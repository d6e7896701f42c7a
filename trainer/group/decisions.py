"""Decides which hosts train together. Pure: its inputs are reports, lost hosts and the time.

The rules, in this order:

1. A halt ends all hosts. A host that is done does too: all have passed a barrier before. A host
   that is left out ends them only if too few others remain for the job.
2. A group lasts until one of its hosts is lost, one of its workers has left it, or one hangs: it
   stalls, and others have reached collectives that it has not, or it trains alone and others
   want to join it. Then the others are ordered to abort it. A host is never in two groups.
3. If a host is ready to join, or was asked to end, the group leaves at the end of a step:
   all of its workers agree on that step by themselves.
4. The next group is formed when every host of the last one waits for it, is lost, or restarts
   workers; the coordinator waits a few seconds for a silent host. The number of hosts is
   within the job's limits.
5. A job that ends by itself ends all hosts: its group leaves at the end of a step and saves, and
   no other is formed.
6. A spare takes a place that no other host takes, and keeps it: the host that comes back stands by.
   Each change of hosts is a pause for all, and a chance for another fault.

launcher/rounds.py has the rules of scripts, which differ in 1, 3 and 5.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from trainer.group.knowledge import Knowledge, hung, natural, settled
from trainer.group.messages import Group, Halt, Member, Order, Report

ABSENT = 10.0
"""Seconds without a host after which the coordinator of a run that is over ends."""


@dataclass(frozen=True)
class Times:
    """Seconds; the defaults are those of the built-in training."""

    last_call: float = 10.0  # For more hosts to come before the first group; torchrun has 30.
    warm_up: float = 30.0  # For present hosts to start their workers before the first group.
    gather: float = 0.5  # Collects further changes of a group, so that it pauses once.
    stuck: float = 5.0  # For a host to leave a group, until the others continue without it.
    returning: float = 5.0  # For the hosts of a running group to report to a new coordinator.
    # A host counts as hung only after this time: a host that waited for a slow one reports its next
    # collective later, but within `HOST_SILENT`.
    confirm: float = 2.0
    form: float = 20.0  # For a group to form, until it is given up.


TRAINING = Times()


@dataclass
class Decisions(Knowledge):
    """The coordinator's decisions."""

    times: Times = TRAINING
    _ended: frozenset[str] = frozenset()  # The hosts that were present at the end.
    _enough: float | None = None  # Since when there are enough hosts for a first group.
    _change: float | None = None  # Since when a host wants to join or to end.
    _seem: dict[str, float] = field(default_factory=dict)  # Agents that seem to hang; since when.

    @property
    def patience(self) -> float:
        """Seconds without a host after which the coordinator ends."""
        return ABSENT if self.finished or self.ends else float("inf")

    @property
    def finished(self) -> Order | None:
        """The end of the run, unless others are present: they start again, or have come late."""
        return None if self.hosts and self._ended.isdisjoint(self.hosts) else self.end

    def orders(self) -> dict[str, Order]:
        """Decide; return the present order for each host."""
        self._see_end()
        if end := self.finished:
            return {agent: end if agent in self._ended else Order() for agent in self.hosts}
        self._adopt()
        if self.group and self.over is None:
            self._see_fault(self.group)
        if self.group and self.over is None:
            self._see_change(self.group)
        if not self.ends and (self.group is None or self.over is not None):
            self._form()
        orders = {agent: self._order(report) for agent, report in self.hosts.items()}
        return {agent: replace(order, ends=self.ends) for agent, order in orders.items()}

    def timed(self, order: Order) -> Order:
        """Return an order with the time of the run, if its hosts report it."""
        ran, idle = self.spent.ran(), self.spent.idle(self.hosts.values())
        return replace(order, ran=ran, idle=idle) if ran or idle else order

    def report(self, report: Report) -> None:
        """Process a host's report."""
        if report.notice:
            self.notices.tell(report.notice)
            return
        super().report(report)
        if report.out:
            self.notices.left_out(report, report.out)

    def lose(self, agent: str, why: str) -> None:
        """Remove a host that is silent or has closed its connection."""
        report = self.hosts.get(agent)
        super().lose(agent, why)
        if report and not self._may_go(report):
            self.notices.host_lost(agent, report.host, self._lost[agent], self.group)

    def _may_go(self, report: Report) -> bool:
        """Whether the loss of a host is expected: it ends, or has never begun."""
        ends = report.asks or report.stops or report.done
        return bool(ends or self.end or report.halt or report.out)

    # ---- The end

    def _see_end(self) -> None:
        for report in () if self.finished else self.hosts.values():
            if halt := report.halt or self._last_out(report):
                end = Order("end", halt=replace(halt, host=report.host))
                self.say(f"stops the job on all hosts: {report.host}: {halt.message}")
                self.notices.failed(report, halt)
            elif report.done:
                end = Order("end")
                self.say(f"{report.host} has trained to the end")
                self.notices.completed(report.generation, "the training is complete", report)
            else:
                continue
            self.end, self._ended, self.group, self.over = end, frozenset(self.hosts), None, None
            return

    def _last_out(self, report: Report) -> Halt | None:
        """The reason that a host is left out for, if too few hosts remain for the job."""
        out = sum(each.out is not None for each in self.hosts.values())
        return report.out if self.most + self.spares - out < self.least else None

    # ---- The present group

    def _see_fault(self, group: Group) -> None:
        """End a group that cannot continue, or that has left at the end of a step as ordered."""
        if reason := next(self._faults_of(group), ""):
            self._tell_lost(group, self._may_return)
            self._end_group(group, reason)
        elif any(self._has_left(group, each) for each in self._present()):
            self.over = self.clock()

    def _tell_lost(self, group: Group, may_return: Callable[[str], bool] = lambda _: False) -> None:
        """Send notices of hosts that were lost together with the previous coordinator."""
        for each in group.members if self._adopted is not None else ():
            known = each.agent in self.hosts or each.agent in self._lost
            if not known and not may_return(each.agent):
                self.notices.host_lost(each.agent, each.host, f"{each.host} is lost", group)

    def _faults_of(self, group: Group) -> Iterator[str]:
        """Yield the reasons why a group cannot continue."""
        for member in group.members:
            if member.agent not in self.hosts and not self._may_return(member.agent):
                yield self._lost.get(member.agent, f"{member.host} is lost")
        for each in self._present():
            if each.out:
                yield f"{each.host} is left out"
            elif self._has_left(group, each) and (each.starting or not self.asked):
                yield self._describe_leaving(each)
        yield from self._hanging(group)
        late = self.clock() - self._formed > self.times.form
        for each in self._present() if late else ():
            if each.generation < group.generation and not each.starting:
                yield f"{each.host} did not join it"

    def _may_return(self, agent: str) -> bool:
        """Whether a member may still connect to this new coordinator."""
        if self._adopted is None or agent in self._lost:
            return False
        return self.clock() - self._adopted <= self.times.returning

    def _has_left(self, group: Group, report: Report) -> bool:
        """Whether a member has left the group, or already waits for another one."""
        waits = self._adopted is not None and report.ready
        return report.left >= group.generation or report.starting or waits

    def _describe_leaving(self, report: Report) -> str:
        return f"{report.host} has left it"

    def _hanging(self, group: Group) -> Iterator[str]:
        """Yield a reason for each member that has seemed to hang for long enough."""
        now = self.clock()
        seem = hung(self._present(), group.generation, awaited=self.asked)
        self._seem = {each.agent: self._seem.get(each.agent, now) for each in seem}
        sure = [each for each in seem if now - self._seem[each.agent] >= self.times.confirm]
        self._hung |= {each.agent for each in sure}
        yield from (f"{each.host} hangs" for each in sure)

    def _end_group(self, group: Group, reason: str) -> None:
        self.say(f"aborts {self._name(group)}: {reason}")
        self.over, self._reason = self.clock(), reason

    def _see_change(self, group: Group) -> None:
        """Order the group to leave after a step, if a host wants to join it or to end."""
        members = self._present()
        if self.asked or len(members) < len(group.members):
            return
        if any(each.generation < group.generation for each in members):
            return
        leaving = [each for each in members if each.leaving or self.ends]
        joining = self._candidates() if len(members) < self.most and not self.ends else []
        if not (leaving or joining):
            self._change = None
            return
        self._change = self._change or self.clock()
        complete = len(members) + len(joining) >= self.most or len(leaving) == len(members)
        if complete or self.clock() - self._change >= self.times.gather:
            self._change = None
            ends = f"{', '.join(each.host for each in leaving)} ends" if leaving else ""
            comes = f"{', '.join(each.host for each in joining)} joins" if joining else ""
            self._leave_group(group, "; ".join(filter(None, (ends, comes))))

    def _leave_group(self, group: Group, reason: str) -> None:
        """Order the group to leave at the end of a step."""
        self.asked = True
        self.say(f"{self._name(group)} stops at the end of a step: {reason}")

    # ---- The next group

    def _candidates(self) -> list[Report]:
        """The hosts that are ready and in no group that continues."""
        return [each for each in self.hosts.values() if each.ready and not each.leaving]

    def _form(self) -> None:
        """Form the next group, if it is time."""
        now, old, missing = self.clock(), self._members(), self._missing()
        if missing and self.over is not None and now - self.over < self.times.stuck:
            return
        self._judge()
        candidates = self._candidates()
        if len(candidates) < self.least:
            self._enough = None
            return
        self._enough = now if self._enough is None else self._enough
        if not old and self._waits_for_more(candidates, now - self._enough):
            return
        for each in missing:
            self.say(f"continues without {each.host}, which does not leave its {self.noun}")
        order = {agent: place for place, agent in enumerate(old)}
        candidates.sort(
            key=lambda each: (order.get(each.agent, len(order)), each.spare, natural(each.host))
        )
        self._begin(candidates[: self.most] if old else self._with_newest(candidates))

    def _missing(self) -> list[Report]:
        """The hosts of the last group that must still leave it."""
        old = (each for each in self._present() if each.agent not in self._hung)
        return [each for each in old if not (each.starting or settled(each))]

    def _judge(self) -> None:
        """Judge a group that all have left; does nothing here, as the agents judge failures."""

    def _begin(self, chosen: list[Report]) -> None:
        """Begin a group with some hosts, in the order of ranks."""
        if self.group:
            self._tell_lost(self.group)
        members = tuple(
            Member(each.agent, each.host, each.store, each.workers, each.port) for each in chosen
        )
        self.group, self.end = self._new_group(members), None
        self.over, self.asked, self._reason, self._formed = None, False, "", self.clock()
        self._enough, self._change, self._adopted = None, None, None
        for known in (self._lost, self._failed, self._hung):
            known.clear()
        why = f" ({self.group.why})" if self.group.why else ""
        self.say(f"begins {self._name(self.group)} with {self.group.names}{why}")

    def _new_group(self, members: tuple[Member, ...]) -> Group:
        # Unique even if a new coordinator lacks the last number and a host returns late: by the
        # time in milliseconds or, if the previous coordinator's clock was ahead, by chance.
        self._newest = 1 + max(self._newest + self.chance(), int(self.today() * 1000))
        return Group(self._newest, members, self._why(members))

    def _with_newest(self, candidates: list[Report]) -> list[Report]:
        """Choose the hosts that begin from a checkpoint; include one with the newest checkpoint.

        After a loss of all hosts, this may be a spare: only members search their checkpoints.
        """
        chosen, others = candidates[: self.most], candidates[self.most :]
        newest = max(others, key=lambda each: each.saved, default=None)
        if newest and newest.saved > max(each.saved for each in chosen):
            self.say(f"{newest.host} joins the group: it has the newest checkpoint")
            chosen[-1] = newest
        return chosen

    def _waits_for_more(self, candidates: list[Report], waited: float) -> bool:
        """Whether to wait for more hosts, or for one that has a newer checkpoint."""
        if not self._complete(candidates) and self._may_come(waited):
            return True
        coming = [each.saved for each in self.hosts.values() if not settled(each)]
        newest = max(each.saved for each in candidates)
        return waited < self.times.warm_up and max(coming, default=-1) > newest

    def _complete(self, candidates: list[Report]) -> bool:
        """Whether all hosts of a first group except spares are present.

        A new coordinator also waits for spares: one may train in the place of a candidate.
        """
        known = len(candidates) == self.most + self.spares
        known |= not self.spares or self.clock() - self._began >= self.times.returning
        return known and sum(not each.spare for each in candidates) >= self.most

    def _may_come(self, waited: float) -> bool:
        """Whether to wait for more hosts before a first group, after so many seconds."""
        coming = not all(map(settled, self.hosts.values()))
        unknown = self.clock() - self._began < self.times.returning
        unknown |= waited < self.times.last_call
        return unknown or (coming and waited < self.times.warm_up)

    # ---- Orders

    def _order(self, report: Report) -> Order:
        group = self.group
        if group is None or report.agent not in group.agents:
            busy = not report.ready and report.generation > report.left
            return Order("abort", report.generation) if busy else Order()
        if self.over is not None:
            return Order() if report.ready else Order("abort", group.generation, why=self._reason)
        if report.generation < group.generation:
            if self._adopted is not None:
                return Order()  # The previous coordinator has informed it.
            return Order("join", group.generation, group=group)
        if not self.asked:
            return Order()
        saves = bool(self.ends) or any(each.leaving for each in self._present())
        return Order("leave", group.generation, save=saves)
