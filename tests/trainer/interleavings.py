"""A simulation of hosts that train together: the real decisions, any order of messages and faults.

    python -m tests.trainer.interleavings [--seeds 20000]

Each host is an agent with one worker. A worker takes part in exchanges, of which the first forms
the group, the second agrees on a state, and each later one is a step. An exchange is not atomic: a
rank may complete it once all members have entered it, also if one of them has died since, and it
may fail as long as a member is missing. A worker may hang between two exchanges: then it follows no
order until it is killed. Reports and orders arrive late, in order for each host.

`Cluster` is the built-in training, `Scripts` the rounds of a script: its workers begin each round
without memory, end a while after they are told to, and have not ended well until all have.

Checked after every event:

- Of one generation there is one list of members.
- Ranks of a group that have completed as many exchanges have the same state.
- No agreement has a state of fewer steps than one of its ranks brings.

Checked at the end, when no more faults happen: as many hosts as the job wants, or all that are
there and do not hang, train together within a minute, a host that was asked to end has left, and
steps are taken. A script then ends on all hosts, and on none before it has ended well on all.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

from trainer.core.divided import Claim, elect
from trainer.group.decisions import Decisions
from trainer.group.messages import Group, Halt, Order, Report, decode, encode
from trainer.launcher.coordinator import CHANCES
from trainer.launcher.rounds import Rounds

FORM, AGREE = 0, 1
STILL = 3.0
"""Seconds after which an agent reports that its worker stands still; here it may also be slow."""
State = tuple[int, ...]
"""The steps that a rank has taken: the generation of each."""


class WrongError(AssertionError):
    """A property does not hold."""


@dataclass
class Entry:
    """What a member brings to an exchange."""

    claim: Claim | None
    state: State
    asked: bool


@dataclass
class Meeting:
    """A group's exchanges: who has entered each of them, and who has completed it."""

    group: Group
    entered: list[dict[str, Entry]] = field(default_factory=lambda: [{}])
    completed: list[dict[str, State]] = field(default_factory=lambda: [{}])


@dataclass
class Host:
    """An agent and its worker."""

    name: str
    agent: str
    alive: bool = True
    cut: bool = False  # From the coordinator.
    starting: bool = False
    leaving: bool = False
    spare: bool = False
    generation: int = 0
    left: int = 0
    heard: int = 0
    told: int = 0  # The newest group that it was told to join.
    members: tuple[str, ...] = ()
    state: State | None = None  # In memory.
    lineage: int = 0
    meeting: Meeting | None = None
    at: int = 0  # The exchange that it has entered.
    asked: bool = False
    hangs: bool = False  # From the end of the present exchange on.
    moved: float = 0.0  # Time of its last exchange.
    reports: list[bytes] = field(default_factory=list)
    orders: list[bytes] = field(default_factory=list)
    sent: Order | None = None
    # Of a script:
    last: Order | None = None
    number: int = 0  # Of its last round.
    failure: Halt | None = None
    stops: bool = False  # Its workers end.
    done: bool = False

    @property
    def entered(self) -> bool:
        """Whether it waits in an exchange."""
        if self.meeting is None or len(self.meeting.entered) <= self.at:
            return False
        return self.agent in self.meeting.entered[self.at]

    def report(self, now: float) -> Report:
        """Its present report, as the agent's."""
        ready = self.meeting is None and not self.starting
        return Report(
            agent=self.agent,
            host=self.name,
            workers=1,
            generation=self.generation,
            members=self.members,
            left=self.left,
            reached=(self.at + self.entered,) * 2,
            still=self.meeting is not None and now - self.moved > STILL,
            heard=self.heard,
            ready=ready,
            starting=self.starting,
            leaving=self.leaving,
            spare=self.spare,
        )


class Cluster:
    """Hosts, and a coordinator that may be replaced."""

    def __init__(self, draw: random.Random, hosts: int, least: int, spares: int = 0) -> None:
        self.draw, self.now, self.number = draw, 0.0, 0
        self.least, self.most, self.spares = least, hosts, spares
        names = [f"n{each}" for each in range(1, hosts + 1)]
        self.hosts = [self.new_host(each) for each in names]
        self.hosts += [self.new_host(f"s{each}") for each in range(1, spares + 1)]
        self.meetings: dict[int, Meeting] = {}
        self.steps = 0
        self.coordinator = self.new_coordinator()

    def new_host(self, name: str) -> Host:
        """A host whose processes have just started."""
        self.number += 1
        return Host(name, f"{name}-{self.number}", spare=name.startswith("s"))

    def new_coordinator(self) -> Decisions:
        """A coordinator without memory."""
        bounds = self.least, self.most, self.spares
        return Decisions(lambda: self.now, *bounds, self.new_calendar(), self.new_chance())

    def new_calendar(self) -> Callable[[], float]:
        """The clock of a host, which may be wrong by an hour."""
        begins = 10000 + self.draw.choice((0, -3600, 3600))
        return lambda: begins + self.now

    def new_chance(self) -> Callable[[], int]:
        """The chance of a coordinator."""
        draw = random.Random(self.draw.random())
        return lambda: draw.randrange(CHANCES)

    def report(self, host: Host) -> Report:
        """The present report of a host."""
        return host.report(self.now)

    # ---- What may happen next

    def events(self) -> list[Callable[[], None]]:
        """All events that are possible, besides faults."""
        found: list[Callable[[], None]] = [self.tick]
        for host in self.hosts:
            if not host.alive:
                continue
            if not host.cut:
                found += [lambda host=host: self.send(host)]  # type: ignore[misc]
                found += [lambda host=host: self.hear(host)] * bool(host.reports)  # type: ignore[misc]
                found += [lambda host=host: self.obey(host)] * bool(host.orders)  # type: ignore[misc]
            if host.starting:
                found.append(lambda host=host: self.start_worker(host))  # type: ignore[misc]
            if host.meeting and self.can_complete(host):
                found.append(lambda host=host: self.complete(host))  # type: ignore[misc]
            if host.meeting and self.can_fail(host):
                found.append(lambda host=host: self.fail(host))  # type: ignore[misc]
        return found

    def tick(self) -> None:
        """Let time pass."""
        self.now += 0.3
        self.tell()

    def send(self, host: Host) -> None:
        """A host sends its report; the newest of those that wait are enough."""
        host.reports = [*host.reports[-2:], encode(self.report(host))]

    def hear(self, host: Host) -> None:
        """The coordinator reads a report."""
        self.coordinator.report(decode(Report, host.reports.pop(0)))
        self.tell()

    def tell(self) -> None:
        """The coordinator decides, and sends what is new."""
        for agent, order in self.coordinator.orders().items():
            host = next((each for each in self.hosts if each.agent == agent), None)
            if host and host.alive and not host.cut and order != host.sent:
                host.sent = order
                host.orders.append(encode(order))

    def obey(self, host: Host) -> None:
        """A host reads an order, as membership.py does."""
        order = decode(Order, host.orders.pop(0))
        newest = max(host.generation, host.left)
        host.heard = max(host.heard, order.generation)
        if order.kind == "join" and order.group and not host.starting:
            host.told = max(host.told, order.generation)
            if order.generation > newest and not host.meeting:
                self.enter_group(host, order.group)
        elif order.kind == "leave":
            host.asked |= bool(host.meeting) and host.generation == order.generation
        elif order.kind == "abort" and host.meeting and not self.stuck(host):
            self.abort(host, host.meeting, order)

    def abort(self, host: Host, meeting: Meeting, order: Order) -> None:
        """A worker leaves its group if that is the newest one that it was told of."""
        if order.generation == max(host.told, meeting.group.generation):
            self.leave(host)

    def stuck(self, host: Host) -> bool:
        """Whether a host's worker hangs already."""
        return host.hangs and host.meeting is not None and not host.entered

    def start_worker(self, host: Host) -> None:
        """A worker that was killed is there again."""
        host.starting = False

    # ---- Exchanges

    def enter_group(self, host: Host, group: Group) -> None:
        """A host begins to form a group."""
        meeting = self.meetings.setdefault(group.generation, Meeting(group))
        if meeting.group != group:
            raise WrongError(f"two groups are {group.generation}: {meeting.group} and {group}")
        host.meeting, host.at, host.asked = meeting, FORM, False
        self.enter(host)

    def enter(self, host: Host) -> None:
        """A host begins its next exchange."""
        meeting, host.moved = host.meeting, self.now
        assert meeting
        while len(meeting.entered) <= host.at:
            meeting.entered.append({})
            meeting.completed.append({})
        claim = None
        if host.state is not None:
            claim = Claim(len(host.state), host.lineage, 0)
        meeting.entered[host.at][host.agent] = Entry(claim, host.state or (), host.asked)

    def can_complete(self, host: Host) -> bool:
        """Whether all members have entered a host's exchange."""
        assert host.meeting
        if not host.entered:
            return False
        entered = host.meeting.entered[host.at]
        return all(member.agent in entered for member in host.meeting.group.members)

    def can_fail(self, host: Host) -> bool:
        """Whether a member is gone or has left the group."""
        assert host.meeting
        if self.stuck(host):
            return False
        here = {each.agent for each in self.hosts if each.alive and each.meeting is host.meeting}
        return any(member.agent not in here for member in host.meeting.group.members)

    def complete(self, host: Host) -> None:
        """A host completes its exchange, and begins the next one unless it leaves."""
        meeting = host.meeting
        assert meeting
        group, at = meeting.group, host.at
        entries = [meeting.entered[at][member.agent] for member in group.members]
        if at == FORM:
            host.generation = group.generation
            host.members = tuple(member.agent for member in group.members)
        elif at == AGREE:
            first = elect([entry.claim for entry in entries])
            own = meeting.entered[at][host.agent]
            if first is None:
                host.state = ()
            elif own.claim != entries[first].claim:
                host.state = entries[first].state
            host.lineage = group.generation
            self.check_kept(entries, host.state or ())
        else:
            host.state = (*(host.state or ()), group.generation)
            self.steps += 1
        self.check_equal(meeting, host)
        if at > AGREE and any(entry.asked for entry in entries):
            self.leave(host)
        else:
            host.at, host.moved = host.at + 1, self.now
            if not host.hangs:
                self.enter(host)

    def check_equal(self, meeting: Meeting, host: Host) -> None:
        """Check that all that have completed an exchange have the same state."""
        if host.at < AGREE:
            return
        done = meeting.completed[host.at]
        done[host.agent] = host.state or ()
        if len(set(done.values())) > 1:
            raise WrongError(f"ranks differ after exchange {host.at}: {done}")

    def check_kept(self, entries: list[Entry], state: State) -> None:
        """Check that no step is lost that one of the ranks has."""
        most = max((len(entry.state) for entry in entries if entry.claim), default=0)
        if len(state) < most:
            raise WrongError(f"a step is lost: {len(state)} of {most}")

    def leave(self, host: Host) -> None:
        """A host's worker leaves its group, whole or broken."""
        assert host.meeting
        host.left = max(host.left, host.meeting.group.generation)
        host.meeting, host.asked, host.hangs = None, False, False

    def fail(self, host: Host) -> None:
        """A host's worker sees that another one is gone."""
        self.leave(host)

    # ---- Faults

    def faults(self) -> list[Callable[[Host], None]]:
        """What may happen to a host that is there."""
        return [self.kill_worker, self.lose_host, self.cut, self.end, self.hang]

    def fault(self) -> None:
        """One fault, or the end of one."""
        host = self.draw.choice(self.hosts)
        back = [self.replace_host] if not host.alive else [self.mend] if host.cut else []
        back += [self.kill_worker] if host.hangs else []
        kind = self.draw.choice(
            [*back * 3, *(self.faults() if host.alive else []), self.lose_coordinator]
        )
        kind(host)

    def kill_worker(self, host: Host) -> None:
        """A worker dies, with its memory."""
        if host.meeting:
            self.leave(host)
        host.starting, host.state, host.lineage, host.generation = True, None, 0, 0

    def hang(self, host: Host) -> None:
        """A worker takes part in no exchange after the present one."""
        host.hangs = host.meeting is not None

    def lose_host(self, host: Host) -> None:
        """A host dies; the coordinator hears of it at once or later."""
        host.alive, host.meeting = False, None
        self.coordinator.lose(host.agent, "is lost")

    def replace_host(self, host: Host) -> None:
        """A host is there again, with nothing in memory."""
        new = self.new_host(host.name)
        self.hosts[self.hosts.index(host)] = new

    def cut(self, host: Host) -> None:
        """The coordinator and a host do not hear each other; its group may go on."""
        host.cut, host.reports, host.orders, host.sent = True, [], [], None
        self.coordinator.lose(host.agent, "is silent")

    def mend(self, host: Host) -> None:
        """They hear each other again."""
        host.cut = False

    def end(self, host: Host) -> None:
        """A host is asked to end; rarely, as it does not come back."""
        host.leaving |= self.draw.random() < 0.2

    def lose_coordinator(self, host: Host) -> None:  # noqa: ARG002
        """The coordinator is replaced by one that knows nothing."""
        for each in self.hosts:
            each.reports, each.orders, each.sent = [], [], None
        self.coordinator = self.new_coordinator()

    # ---- Runs

    def settle(self) -> None:
        """End all faults and check that training goes on."""
        for host in [*self.hosts]:
            if not host.alive:
                self.replace_host(host)
            host.cut = False
        self.go_on()
        for host in self.hosts:
            if host.hangs:
                self.kill_worker(host)
        self.go_on()

    def go_on(self) -> None:
        """Check that those that do not hang go on."""
        began, steps = self.now, 0
        while self.now < began + 60:
            self.fair_turn()
            if self.now > began + 50 and not steps:
                steps = self.steps
        if len([host for host in self.hosts if not (host.leaving or host.hangs)]) >= self.least:
            self.check_together()
            if self.steps <= steps:
                raise WrongError("no steps are taken")

    def check_together(self) -> None:
        """Check that as many hosts as possible are in one group, and no others in any."""
        stay = {host.agent for host in self.hosts if not (host.leaving or host.hangs)}
        together = {host.agent for host in self.hosts if host.meeting and not host.hangs}
        if len(together & stay) != min(len(stay), self.most):
            raise WrongError(f"{sorted(together)} of {sorted(stay)} train")
        for host in self.hosts:
            if host.leaving and host.meeting and not host.hangs:
                raise WrongError(f"{host.name} should have left its group")
            if host.meeting and not host.hangs and {*host.members} != together:
                raise WrongError(f"{host.name} does not train with the others: {host}")

    def fair_turn(self) -> None:
        """Everything that can happen does, once, in some order."""
        alive = [host for host in self.hosts if host.alive]
        for host in alive:
            self.send(host)
        events = self.events()
        self.draw.shuffle(events)
        for host in alive:
            while host.reports:
                self.hear(host)
            while host.orders:
                self.obey(host)
            if host.starting:
                self.start_worker(host)
        for host in self.draw.sample(self.hosts, len(self.hosts)):
            if host.meeting and self.can_complete(host):
                self.complete(host)
            elif host.meeting and self.can_fail(host):
                self.fail(host)
        self.tick()


class Scripts(Cluster):
    """The hosts of a script, and a coordinator that may be replaced."""

    finishing = False  # Whether the script ends well, host by host.

    def new_coordinator(self) -> Decisions:
        """A coordinator without memory."""
        return Rounds(lambda: self.now, today=self.new_calendar(), chance=self.new_chance())

    def report(self, host: Host) -> Report:
        """The present report of a host, as the agent's."""
        return replace(
            super().report(host),
            still=False,
            number=host.number,
            failure=host.failure,
            done=host.done,
            bounds=(self.least, self.most, self.spares),
        )

    def events(self) -> list[Callable[[], None]]:
        """The workers of a host may also have ended."""
        ends = [host for host in self.hosts if host.stops and host.alive]
        return [*super().events(), *(partial(self.leave, host) for host in ends)]

    def obey(self, host: Host) -> None:
        """A host reads an order, as launcher/agent.py does."""
        order = decode(Order, host.orders.pop(0))
        host.heard, host.last = max(host.heard, order.generation), order
        self.follow(host, order)

    def follow(self, host: Host, order: Order) -> None:
        """A host does what it is told to."""
        if order.kind == "end":
            self.end_agent(host, again=order.halt is not None)
        elif order.kind == "join" and order.group and order.generation > host.generation:
            if host.meeting:
                host.stops = True
            else:
                self.enter_group(host, order.group)
        elif order.kind == "abort" and host.meeting and host.generation <= order.generation:
            host.stops, host.done = True, False

    def enter_group(self, host: Host, group: Group) -> None:
        """A host begins a round: its workers know nothing yet."""
        host.state, host.failure, host.number = None, None, group.number
        host.generation = group.generation
        host.members = tuple(member.agent for member in group.members)
        super().enter_group(host, group)

    def can_complete(self, host: Host) -> bool:
        """Workers that end, or have, take no steps."""
        return not (host.stops or host.done) and super().can_complete(host)

    def can_fail(self, host: Host) -> bool:
        """Nor do they fail; others fail once a peer is gone that was there."""
        assert host.meeting
        here = {each.agent for each in self.hosts if each.alive and each.meeting is host.meeting}
        return not (host.stops or host.done) and bool(host.meeting.entered[FORM].keys() - here)

    def fail(self, host: Host) -> None:
        """The script fails on a host."""
        host.failure = Halt("worker", "a peer is gone", 1)
        self.leave(host)

    def leave(self, host: Host) -> None:
        """The workers of a host have ended."""
        super().leave(host)
        host.stops = False
        if host.last:
            self.follow(host, host.last)

    def end_agent(self, host: Host, *, again: bool) -> None:
        """An agent ends; the engine starts it again unless the script has ended well."""
        busy = [each for each in self.hosts if each.alive and each.meeting and not each.done]
        if busy and not again:
            raise WrongError(f"the script has not ended on {busy[0].name}")
        host.reports, host.orders = [], []
        self.lose_host(host)
        if again:
            self.replace_host(host)

    def faults(self) -> list[Callable[[Host], None]]:
        """Nobody looks whether a script hangs; one that ends a host is lost."""
        return [self.kill_worker, self.lose_host, self.cut]

    def kill_worker(self, host: Host) -> None:
        """A worker dies: the script has failed there."""
        if host.meeting and not host.stops:
            self.fail(host)

    def settle(self) -> None:
        """Check also that the script ends well."""
        super().settle()
        self.finishing, began = True, self.now
        while any(host.alive for host in self.hosts):
            self.fair_turn()
            if self.now > began + 60:
                raise WrongError(f"{[each.name for each in self.hosts if each.alive]} do not end")

    def fair_turn(self) -> None:
        """Workers that were told to end have; at last the script ends well, host by host."""
        super().fair_turn()
        for host in self.hosts:
            if host.stops:
                self.leave(host)
            elif self.finishing and host.meeting:
                host.done |= self.draw.random() < 0.5


def walk(
    seed: int, events: int = 250, rate: float = 0.04, protocol: type[Cluster] = Cluster
) -> int:
    """One random run; return the number of steps that ranks took. Raises WrongError."""
    draw = random.Random(seed)
    hosts, least, spares = draw.choice((2, 3, 4)), draw.choice((1, 2)), draw.choice((0, 0, 1, 2))
    cluster = protocol(draw, hosts, least, spares)
    for _ in range(20):
        cluster.fair_turn()
    for _ in range(events):
        if draw.random() < rate:
            cluster.fault()
        draw.choice(cluster.events())()
    cluster.settle()
    return cluster.steps


def place(
    turns: int, kind: str, seed: int, around: int = 40, protocol: type[Cluster] = Cluster
) -> None:
    """A run with one fault after so many quiet turns, and any order of events around it."""
    draw = random.Random(seed)
    cluster = protocol(draw, hosts=3, least=1)
    for _ in range(turns):
        cluster.fair_turn()
    for _ in range(around // 2):
        draw.choice(cluster.events())()
    getattr(cluster, kind)(draw.choice(cluster.hosts))
    for _ in range(around):
        draw.choice(cluster.events())()
    cluster.settle()


def main() -> None:
    """Walk as often as asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=20000)
    seeds = parser.parse_args().seeds
    for protocol in (Cluster, Scripts):
        steps = 0
        for seed in range(seeds):
            try:
                steps += walk(seed, protocol=protocol)
            except WrongError as error:
                raise SystemExit(f"{protocol.__name__}, seed {seed}: {error}") from error
        print(f"{protocol.__name__}: {seeds} random runs, {steps} steps of ranks: nothing wrong")


if __name__ == "__main__":
    main()
