"""Rounds of a script: decides which hosts run it together.

Each change of the hosts is a new round: torchrun and the workers restart on all of them.
torchrun runs with a fixed number of hosts and without restarts of its own: it would count the
loss of a host as a restart, and detect a silent one only by the timeouts of the script.

A round is a group that ends at once if a host joins or ends. It succeeds once the script has
succeeded on all of its hosts. It ends if the script fails: too many failures end those hosts.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from trainer.group.decisions import ABSENT, Decisions, Times
from trainer.group.knowledge import natural
from trainer.group.messages import Group, Halt, Member, Order, Report
from trainer.launcher.errors import FAILURE, MISTAKE
from trainer.launcher.failures import KILLS

# A round includes the import of PyTorch; at its end, a script may save.
ROUND_TIMES = Times(last_call=2.0, warm_up=0.0, gather=0.0, stuck=30.0)
# Seconds without a host after which the coordinator ends if it has given up hosts: Docker waits up
# to a minute before it starts a container again.
REMEMBERED = 120.0
# More would only repeat a mistake in a script. A round that ends because a host is lost, joins or
# leaves does not count.
MAX_RESTARTS = 3
WINDOW = 3600.0  # Seconds within which they count.
# After so many failures at the same place without a new checkpoint, the program is at fault.
SAME = 3
SAME_KILLS = 10  # People and kernels also kill healthy processes.
VERSIONS = 1000  # Number of checkpoints that are remembered.
CORRECT = "correct the script, then run `kit deploy`"
CLOSED = Halt(
    "rendezvous",
    "the script has failed too often on another host: see the logs of the other hosts",
    FAILURE,
)


class Faults:
    """Counts the failures of a script at the same place since its last new checkpoint."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._times: dict[str, list[float]] = {}
        self._saved: dict[str, None] = {}

    def note(self, saved: str | None) -> None:
        """Process the content of a checkpoint: a new content is progress."""
        if saved and saved not in self._saved:
            self._saved = dict.fromkeys([*self._saved, saved][-VERSIONS:])
            self._times.clear()

    def count(self, faults: Collection[str], *, watched: bool) -> str:
        """Count the faults of a round; return one that occurred too often, or "".

        Without `watched` checkpoints, the script may have saved between two failures: they count
        only within WINDOW.
        """
        now = self._clock()
        for fault in faults:
            known = self._times.get(fault, [])
            self._times[fault] = [at for at in known if watched or now - at < WINDOW] + [now]
        return next((each for each in faults if len(self._times[each]) >= most(each)), "")


def most(fault: str) -> int:
    """The number of failures at the same place after which no restart helps."""
    return SAME_KILLS if fault in KILLS else SAME


@dataclass
class Rounds(Decisions):
    """Decides which hosts run a script together; the reports have the numbers of hosts."""

    least: int = 1
    most: int = 1
    times: Times = ROUND_TIMES
    given_up: dict[str, Halt] = field(default_factory=dict)  # By host; "" for all hosts.
    _number: int = 0  # Of the last round.
    _finished: int = 0  # Generation of the last round that has succeeded.
    _told: dict[str, Order] = field(default_factory=dict)  # Orders to end, by agent.
    _culprits: dict[str, Report] = field(default_factory=dict)  # Failed reports, by agent.
    _counts: bool = False  # Whether the script's failure in the last round is not yet counted.
    _failure: Halt | None = None  # The failure of the last round.
    _failures: list[float] = field(default_factory=list)  # Times.

    noun: ClassVar[str] = "round"

    def __post_init__(self) -> None:
        """Create the counter of failures."""
        super().__post_init__()
        self._faults = Faults(self.clock)

    @property
    def patience(self) -> float:
        """Seconds without a host after which the coordinator ends; the engine restarts it."""
        counts = self.spent.known and not self.ends  # A container may be started again.
        return REMEMBERED if self.given_up or counts else ABSENT

    @property
    def final(self) -> bool:
        """Whether no host returns: after other failures, engines restart them."""
        done = bool(self._finished and self.group is None)
        return bool(self.ends or done or "" in self.given_up)

    def report(self, report: Report) -> None:
        """Process a host's report."""
        super().report(report)
        if report.notice:
            return
        self._number = max(self._number, report.number)
        self.least, self.most, self.spares = report.bounds or (self.least, self.most, self.spares)
        if self._has_failed(report):
            self._culprits.setdefault(report.agent, report)
        # Engines restart containers after any end.
        if halt := self._for_good(report.host):
            self._told[report.agent] = Order("end", halt=halt)
        elif 0 < report.generation <= self._finished:
            self._told[report.agent] = Order("end")
        self._faults.note(report.content)

    def lose(self, agent: str, why: str) -> None:
        """Remove a host that is silent or has closed its connection."""
        super().lose(agent, why)
        self._told.pop(agent, None)

    def _may_go(self, report: Report) -> bool:
        return report.agent in self._told or super()._may_go(report)

    def _for_good(self, host: str) -> Halt | None:
        """The failure after which a host must not run again, if any."""
        return self.given_up.get(host) or self.given_up.get("")

    # ---- Where the rules of Decisions differ

    def _see_end(self) -> None:
        """End all hosts once the script has succeeded on all present hosts of a round."""
        group, here = self.group, self._present()
        if not group or not here or self.over is not None or not all(each.done for each in here):
            return
        if not any(map(self._may_return, group.agents - self.hosts.keys())):
            self.say(f"{self._name(group)} has succeeded")
            self.notices.completed(group.generation, "the script has succeeded", here[0])
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
        if not self.ends:  # Each host ends its script by itself, within its grace period.
            self._end_group(group, reason)

    def _running(self) -> list[Report]:
        return [each for each in super()._running() if each.agent not in self._told]

    def _candidates(self) -> list[Report]:
        return [each for each in super()._candidates() if each.agent not in self._told]

    def _begin(self, chosen: list[Report]) -> None:
        # By name, not by address as in torchrun: in an overlay network, addresses change with each
        # start, and the host of rank 0 must stay the same, as it has the script's files.
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
        """Count a round that ended only by the script's failure; too many end the failed hosts."""
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
        """End the hosts on which the script has failed; the engine restarts them."""
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
        # Exclude starting hosts: they have not run the script yet.
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
        where = "any host" if every else ", ".join(names)
        self.say(f"does not restart the script on {where}: it would fail again")


def failure_of(report: Report) -> Halt:
    """The failure of a host, with its name, for other hosts."""
    assert report.failure
    return replace(report.failure, host=report.host)
