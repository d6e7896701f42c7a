"""Rounds: which hosts of a script run it together.

Each change of the hosts is a new round: torchrun and the workers restart on all of them.
torchrun runs with a fixed number of hosts and without restarts of its own: it would count the
loss of a host as a restart, and notice a silent one only by the timeouts of the script.

A round is a group that ends at once if a host joins or ends, that has ended well once the script
has on all of its hosts, and that may end by a failure of the script: too many end those hosts.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from trainer.group.decisions import ABSENT, Decisions, Times
from trainer.group.knowledge import natural
from trainer.group.messages import Group, Halt, Member, Order, Report
from trainer.launcher.errors import FAILURE, MISTAKE
from trainer.launcher.failures import KILLS

# The import of PyTorch is a part of a round; what ends one may be a script that saves.
ROUND_TIMES = Times(last_call=2.0, warm_up=0.0, gather=0.0, stuck=30.0)
# Seconds without a host after which the rendezvous ends if it has given up hosts: Docker waits up
# to a minute before it starts a container again.
REMEMBERED = 120.0
# More would only repeat a mistake in a script. A round that ends because a host is lost, joins or
# leaves counts for none.
MAX_RESTARTS = 3
WINDOW = 3600.0  # Seconds within which they count.
# A failure at the same place, so often without a checkpoint between, is a fault of the program.
SAME = 3
SAME_KILLS = 10  # People and kernels also kill processes that are well.
VERSIONS = 1000  # Number of checkpoints that are known again.
CORRECT = "correct the script, then run `kit deploy`"
CLOSED = Halt("rendezvous", "another host has closed this run: see what others say", FAILURE)


class Faults:
    """Counts the failures of a script at the same place, since it has saved something new."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._times: dict[str, list[float]] = {}
        self._saved: dict[str, None] = {}

    def note(self, saved: str | None) -> None:
        """Note the content of a checkpoint: one that was never there is progress."""
        if saved and saved not in self._saved:
            self._saved = dict.fromkeys([*self._saved, saved][-VERSIONS:])
            self._times.clear()

    def count(self, faults: Collection[str], *, watched: bool) -> str:
        """Count the faults of a round; return one that was there too often, or "".

        Without `watched` checkpoints, the script may have saved something between two failures:
        they count within WINDOW.
        """
        now = self._clock()
        for fault in faults:
            known = self._times.get(fault, [])
            self._times[fault] = [at for at in known if watched or now - at < WINDOW] + [now]
        return next((each for each in faults if len(self._times[each]) >= most(each)), "")


def most(fault: str) -> int:
    """How often a failure at the same place may be there before no restart helps."""
    return SAME_KILLS if fault in KILLS else SAME


@dataclass
class Rounds(Decisions):
    """Decides which hosts run a script together; how many, their reports say."""

    least: int = 1
    most: int = 1
    times: Times = ROUND_TIMES
    given_up: dict[str, Halt] = field(default_factory=dict)  # By host; "": of all.
    _number: int = 0  # Of the last round.
    _finished: int = 0  # Generation of the last round that has ended well.
    _told: dict[str, Order] = field(default_factory=dict)  # Agents that must end, and how.
    _culprits: dict[str, Report] = field(default_factory=dict)  # Of the last round, by agent.
    _counts: bool = False  # Whether that ended by a failure of the script, not yet counted.
    _failure: Halt | None = None  # That failure.
    _failures: list[float] = field(default_factory=list)  # Times.

    noun: ClassVar[str] = "round"

    def __post_init__(self) -> None:
        """Begin to count."""
        super().__post_init__()
        self._faults = Faults(self.clock)

    @property
    def patience(self) -> float:
        """Seconds without a host after which the rendezvous ends; the engine restarts it."""
        counts = self.spent.known and not self.ends  # A container may be started again.
        return REMEMBERED if self.given_up or counts else ABSENT

    @property
    def final(self) -> bool:
        """Whether no host comes again: after other failures, engines restart them."""
        done = bool(self._finished and self.group is None)
        return bool(self.ends or done or "" in self.given_up)

    def report(self, report: Report) -> None:
        """Take the report of a host."""
        super().report(report)
        if report.notice:
            return
        self._number = max(self._number, report.number)
        self.least, self.most, self.spares = report.bounds or (self.least, self.most, self.spares)
        if self._has_failed(report):
            self._culprits.setdefault(report.agent, report)
        # Engines start containers again, for any reason of their end.
        if halt := self._for_good(report.host):
            self._told[report.agent] = Order("end", halt=halt)
        elif 0 < report.generation <= self._finished:
            self._told[report.agent] = Order("end")
        self._faults.note(report.content)

    def lose(self, agent: str, why: str) -> None:
        """Take note that a host is silent or has closed its connection."""
        super().lose(agent, why)
        self._told.pop(agent, None)

    def _may_go(self, report: Report) -> bool:
        return report.agent in self._told or super()._may_go(report)

    def _for_good(self, host: str) -> Halt | None:
        """The failure after which a host does not begin again."""
        return self.given_up.get(host) or self.given_up.get("")

    # ---- Where the rules of Decisions differ

    def _see_end(self) -> None:
        """End all hosts once the script has ended well on all of a round; others may be lost."""
        group, here = self.group, self._present()
        if not group or not here or self.over is not None or not all(each.done for each in here):
            return
        if not any(map(self._may_return, group.agents - self.hosts.keys())):
            self.say(f"{self._name(group)} has ended well")
            self.notices.completed(group.generation, "the script has ended well", here[0])
            self._told |= dict.fromkeys(self.hosts, Order("end"))
            self.group, self._failure, self._finished = None, None, group.generation

    def _describe_leaving(self, report: Report) -> str:
        if self._has_failed(report):
            return f"the script has failed on {report.host}"
        return super()._describe_leaving(report)

    def _has_failed(self, report: Report) -> bool:
        """Whether the script has failed on a host in the present or the last round."""
        last = self.group.generation if self.group else 0
        return report.failure is not None and report.left == last

    def _end_group(self, group: Group, reason: str) -> None:
        super()._end_group(group, reason)
        lost = len(self._members()) < len(group.members)
        failed = [each for each in self._present() if self._has_failed(each)]
        self._counts, self._failure = bool(failed and not lost), None
        if self._counts:
            ran = round(self.clock() - self._formed, 1)
            self._failure = replace(failure_of(failed[0]), ran=ran)

    def _leave_group(self, group: Group, reason: str) -> None:
        if not self.ends:  # Each host ends its script by itself, which may take its grace to save.
            self._end_group(group, reason)

    def _running(self) -> list[Report]:
        return [each for each in super()._running() if each.agent not in self._told]

    def _candidates(self) -> list[Report]:
        return [each for each in super()._candidates() if each.agent not in self._told]

    def _begin(self, chosen: list[Report]) -> None:
        # By name, not by address as torchrun: in an overlay network, addresses change with each
        # start, and the host of rank 0 is the one that keeps what a script saves.
        super()._begin(sorted(chosen, key=lambda each: (each.spare, natural(each.host))))
        self._culprits.clear()

    def _new_group(self, members: tuple[Member, ...]) -> Group:
        self._number += 1
        return replace(super()._new_group(members), number=self._number)

    def _order(self, report: Report) -> Order:
        if told := self._told.get(report.agent):
            return told
        return replace(super()._order(report), failure=self._failure)

    # ---- Failures of the script

    def _judge(self) -> None:
        """Count a round that ended by the script alone; too many end those that failed."""
        if not self._counts or not self.group:
            return
        now, ready = self.clock(), {each.agent for each in self._candidates()}
        alone = self.group.agents <= ready
        self._failures = [at for at in self._failures if now - at < WINDOW] + [now] * alone
        failed = [*self._culprits.values()]
        if wrong := [each for each in failed if failure_of(each).code == MISTAKE]:
            self._give_up(wrong)
        elif fault := self._repeated(failed) if alone else "":
            note = f"; {most(fault)} times at the same place without a checkpoint between"
            wrong = [each for each in failed if failure_of(each).fault == fault]
            self._give_up(wrong, f"{note}: {CORRECT}")
        elif len(self._failures) > MAX_RESTARTS:
            self._end_failed(failed)
        self._culprits, self._counts = {}, False

    def _end_failed(self, failed: Sequence[Report]) -> None:
        """End the hosts on which the script has failed; the engine starts them again."""
        ends = {agent: CLOSED for agent, each in self.hosts.items() if each.once}
        ends |= {each.agent: failure_of(each) for each in failed}
        self.notices.failed(failed[0], failure_of(failed[0]))
        self._told |= {agent: Order("end", halt=halt) for agent, halt in ends.items()}
        self._failures = []

    def _repeated(self, failed: Sequence[Report]) -> str:
        faults = dict.fromkeys(filter(None, (failure_of(each).fault for each in failed)))
        watched = any(each.content is not None for each in self.hosts.values())
        return self._faults.count(faults, watched=watched)

    def _give_up(self, wrong: Sequence[Report], note: str = "") -> None:
        """End the hosts on which no restart helps, and all if too few are left."""
        names = {each.host for each in wrong}
        # Without those that start: they have run no script yet.
        left = [each for each in self._candidates() if each.host not in names]
        every = len(left) < self.least or any(each.once for each in self.hosts.values())
        first = failure_of(wrong[0])
        halt = replace(first, message=first.message + note, code=MISTAKE)
        self.given_up |= dict.fromkeys([""] if every else names, halt)
        if every:
            self.notices.failed(wrong[0], halt)
        for each in () if every else wrong:
            self.notices.left_out(each, halt)
        for agent, each in self.hosts.items():
            if known := self._for_good(each.host):
                self._told[agent] = Order("end", halt=known)
        self.say(
            f"ends the script on {'all hosts' if every else ', '.join(names)}: no restart helps"
        )


def failure_of(report: Report) -> Halt:
    """The failure of a host, as other hosts tell it."""
    assert report.failure
    return replace(report.failure, host=report.host)
