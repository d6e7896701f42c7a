"""Rounds: which hosts of a script run it together.

Each change of the hosts is a new round: torchrun and the workers are started anew on all of them.
torchrun runs with a fixed number of hosts and without restarts of its own: it would count the
loss of a host as a restart, and notice a silent one only by the timeouts of the script.
"""

import re
import secrets
from collections.abc import Callable, Collection, Sequence
from typing import Any

from trainer.launcher.failures import KILLS
from trainer.launcher.output import say
from trainer.launcher.reports import HOST_SILENT, Report, Round
from trainer.launcher.settings import endpoint_text

RETURN = 5.0  # Seconds in which the hosts of a round find a new rendezvous; LOST, and more.
STUCK = 30.0  # Seconds after which nobody waits for a host whose workers do not end.
LAST_CALL = 2.0  # Seconds in which hosts above the minimum may come before the first round.
# More would only repeat a mistake in a script. A round that ends because a host is lost, joins or
# leaves counts for none.
MAX_RESTARTS = 3
WINDOW = 3600.0  # Seconds within which they count.
# A failure at the same place, so often without a checkpoint between, is a fault of the program.
SAME = 3
SAME_KILLS = 10  # People and kernels also kill processes that are well.
VERSIONS = 1000  # Number of checkpoints that are known again.


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


class Rounds:
    """Decides which hosts run a script together, from their reports and from their silence.

    It keeps nothing: after its restart, the reports of a round that runs tell all.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock, self._first = clock, clock() + RETURN  # Before it, a round needs all hosts.
        self.hosts: dict[str, Report] = {}  # The last report of each agent, in order of arrival.
        self._seen: dict[str, float] = {}
        self._round: Round | None = None
        self._why = ""  # The reason for which the last round has ended.
        self._number = self._done = 0  # Of the last round, and of the last that has ended well.
        self._adopted = self._enough = float("-inf")
        self._since = self._clock()  # The end of the last round.
        self._lost: dict[str, str] = {}  # Agents, and how they were lost.
        self._waits = False  # For the hosts above the minimum.
        self._members: set[str] = set()  # Of the round that ended by a failure of the script.
        self._culprits: dict[str, Report] = {}  # Of the last round, by agent.
        self._failures: list[float] = []
        self._faults = Faults(clock)
        self._failure: dict[str, Any] | None = None  # The reason for which the last round ended.
        self._began = 0.0  # The begin of the last round.
        self._told: dict[str, str] = {}  # Agents that must end, and how.
        self.given_up: dict[str, dict[str, Any]] = {}  # Failures for good, by host; "": of all.

    def report(self, report: Report) -> None:
        """Process the report of a host."""
        agent, now = report.agent, self._clock()
        self.hosts[agent], self._seen[agent] = report, now
        if report.round:
            known = self._number > 0
            self._number = max(self._number, report.round.number)
            if not known and report.state != "failed":
                say(f"finds round {report.round.number} with {', '.join(report.round.hosts)}")
                self._round, self._adopted = report.round, now
            if report.round.number <= self._done:
                self._told[agent] = "end"
        if report.state == "failed":
            self._culprits.setdefault(agent, report)
        # Engines start containers again, whatever they ended for.
        if self._for_good(report.host):
            self._told[agent] = "fail"
        self._faults.note(report.saved)
        self.decide()

    def lose(self, agent: str, why: str) -> None:
        """Process the loss of a host."""
        report = self.hosts.pop(agent, None)
        self._seen.pop(agent, None)
        self._told.pop(agent, None)
        if report:
            self._lost[agent] = f"{report.host} {why}"
        self.decide()

    def silent(self) -> list[tuple[str, str]]:
        """The hosts that have not reported for too long, each with that time."""
        now = self._clock()
        return [
            (agent, f"is silent for {now - seen:.1f} s")
            for agent, seen in self._seen.items()
            if now - seen > HOST_SILENT
        ]

    def excuse(self) -> None:
        """This process stood still, not the hosts."""
        self._seen = dict.fromkeys(self._seen, self._clock())

    def order(self, agent: str) -> dict[str, Any]:
        """What an agent must do."""
        if agent in self._told:
            return {"do": self._told[agent], "failure": self._for_good(self.hosts[agent].host)}
        if self._round and agent in self._round.agents:
            return {"do": "run", "round": self._round, "failure": self._failure}
        return {"do": "wait", "why": self._why, "failure": self._failure}

    def _for_good(self, host: str) -> dict[str, Any] | None:
        """The failure after which a host does not begin again."""
        return self.given_up.get(host) or self.given_up.get("")

    def decide(self) -> None:
        """End the round if it must, and begin the next if it can."""
        if self._round:
            self._look_at(self._round)
        if not self._round:
            self._try_to_begin()

    def _look_at(self, around: Round) -> None:
        here = [self.hosts[agent] for agent in around.agents if agent in self.hosts]
        missing = [agent for agent in around.agents if agent not in self.hosts]
        lost = [self._lost[agent] for agent in missing if agent in self._lost]
        if len(lost) < len(missing) and self._clock() - self._adopted < RETURN:
            return  # This is a new rendezvous: they may still find it.
        if here and all(report.state == "done" for report in here):
            say(f"round {around.number} has ended well")
            self._told |= dict.fromkeys(self.hosts, "end")
            self._round, self._why, self._done = None, "", around.number
            return
        if missing:
            self._end_round(", ".join(lost) or "hosts have not come back")
        elif failed := [report for report in here if report.state == "failed"]:
            self._members = {*around.agents}
            self._end_round(f"the script has failed on {failed[0].host}", failed[0])
        joins = [each.host for each in self._ready() if each.agent not in around.agents]
        if self._round and joins and len(around.agents) < self._bounds()[1]:
            self._end_round(f"{', '.join(joins)} joins")

    def _end_round(self, why: str, failed: Report | None = None) -> None:
        assert self._round
        say(f"ends round {self._round.number}: {why}")
        self._round, self._why, self._since = None, why, self._clock()
        ran = round(self._since - self._began, 1)
        self._failure = {**described(failed), "ran": ran} if failed else None

    def _candidates(self) -> list[Report]:
        """The hosts that may take part in the next round."""
        here = (each for each in self.hosts.values() if each.agent not in self._told)
        return [each for each in here if not each.leaving and each.state != "starts"]

    def _ready(self) -> list[Report]:
        return [each for each in self._candidates() if each.state == "idle"]

    def _bounds(self) -> tuple[int, int, int]:
        """The least and the most hosts, and the spares, as the host knows that has come last."""
        last = next(reversed(self.hosts.values()))
        return last.least, last.most, last.spares

    def _try_to_begin(self) -> None:
        ready = self._ready()
        late = self._clock() - self._since > STUCK
        if not ready or (len(ready) < len(self._candidates()) and not late):
            return  # The others are still ending their workers.
        least, most, spares = self._bounds()
        # Before, a spare of a round that runs may still be on its way to a new rendezvous.
        known = not spares or len(ready) == most + spares or self._clock() > self._first
        complete = known and sum(not each.spare for each in ready) >= most
        if self._members:
            self._count_failure({report.agent for report in ready})
        elif len(ready) < least:
            self._waits = False
        elif not self._waits:
            # To a new rendezvous, the hosts of a round that runs may still be on their way.
            self._waits, self._enough = True, max(self._clock(), self._first - LAST_CALL)
        elif complete or self._why or self._clock() > self._enough + LAST_CALL:
            self._begin(sorted(ready, key=lambda each: each.spare)[:most])

    def _count_failure(self, ready: set[str]) -> None:
        """Count a round that ended by the script alone; too many end those that failed."""
        now = self._clock()
        alone = self._members <= ready
        self._failures = [at for at in self._failures if now - at < WINDOW] + [now] * alone
        failed = [*self._culprits.values()]
        if wrong := [each for each in failed if each.hopeless]:
            self._give_up(wrong)
        elif fault := self._repeated(failed) if alone else "":
            note = f"{most(fault)} times at the same place without a checkpoint between"
            self._give_up([each for each in failed if each.fault == fault], f"; {note}: {CORRECT}")
        elif len(self._failures) > MAX_RESTARTS:
            once = {agent for agent, each in self.hosts.items() if each.once}
            self._told |= dict.fromkeys([*self._culprits, *once], "fail")
            self._failures = []
        self._members, self._culprits = set(), {}

    def _repeated(self, failed: Sequence[Report]) -> str:
        faults = dict.fromkeys(each.fault for each in failed if each.fault)
        watched = any(each.saved is not None for each in self.hosts.values())
        return self._faults.count(faults, watched=watched)

    def _give_up(self, wrong: Sequence[Report], note: str = "") -> None:
        """End the hosts on which no restart helps, and all if too few are left."""
        names = {each.host for each in wrong}
        left = [each for each in self._candidates() if each.host not in names]
        every = len(left) < self._bounds()[0] or any(each.once for each in self.hosts.values())
        failure = described(wrong[0])
        failure["message"] += note
        self.given_up |= dict.fromkeys([""] if every else names, failure)
        ends = (agent for agent, each in self.hosts.items() if self._for_good(each.host))
        self._told |= dict.fromkeys(ends, "fail")
        say(f"ends the script on {'all hosts' if every else ', '.join(names)}: no restart helps")

    def _begin(self, chosen: list[Report]) -> None:
        # By name, not by address as torchrun: in an overlay network, addresses change with each
        # start, and the host of rank 0 is the one that keeps what a script saves.
        chosen = sorted(chosen, key=lambda each: (each.spare, natural(each.host)))
        self._number += 1
        name, first, self._waits = f"{self._number}-{secrets.token_hex(4)}", chosen[0], False
        agents, hosts = [each.agent for each in chosen], [each.host for each in chosen]
        ends = [endpoint_text((each.address, each.ports[1])) for each in chosen]
        self._round = Round(self._number, name, agents, hosts, first.address, first.ports, ends)
        self._culprits, self._lost, self._began = {}, {}, self._clock()
        say(f"begins round {self._number} with {', '.join(hosts)}")


CORRECT = "correct the script, then run `kit deploy`"


def described(report: Report) -> dict[str, Any]:
    """The failure of a host, as other hosts tell it."""
    unknown = {"kind": "worker", "message": "the script has failed"}
    return {**unknown, **(report.failure or {}), "host": report.host}


def natural(name: str) -> list[tuple[int, str]]:
    """A key that sorts n2 before n10."""
    return [(int(part or 0), text) for text, part in re.findall(r"(\D*)(\d*)", name)]
