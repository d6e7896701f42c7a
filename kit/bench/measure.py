"""The measurements of hosts and of the links between them."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from kit.bench.rounds import group_sizes, rounds
from kit.errors import KitError
from kit.hosts.programs import Program, RefusedError, aborted
from kit.measurements import GpuRates, HostRates, Link, Measurements, Reduction
from kit.model import Host
from kit.values import Say, count

PATIENCE = 900.0
"""Seconds until a container runs; the host may have to pull the image."""
STREAM_SECONDS = 0.5
"""Long beside TCP's slow start on a local network."""
PINGS = 50
REDUCE_SECONDS = 0.15
"""The target time of one all-reduce; the speed of the links gives its size."""
REDUCE_TIMES = 3
REDUCE_BYTES = (2**20, 64 * 2**20)
"""The fewest and the most bytes of an all-reduce. DDP's own buckets have 25 MiB."""
DISK_SECONDS = 2.0
COMPUTE_SECONDS = 1.5
MANY_STREAMS = 20 * 10**9
"""Bits per second from which one TCP stream of one core does not fill the link."""
STREAMS = 8
DATA = "/data"
ROUND_SECONDS = 1.5
MANY_ROUNDS = 60
"""From this number of rounds on, kit reports their expected time."""

Pair = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Results:
    """The measurements, and messages about failures."""

    measurements: Measurements
    failures: tuple[str, ...]


def measure(
    hosts: Sequence[Host],
    agents: Mapping[str, Program],
    say: Say,
    ports: Mapping[str, Sequence[str]] | None = None,
) -> Results:
    """Measure all hosts and all pairs of them; report and skip failed measurements.

    `agents` are the running programs on the hosts. `ports` are the interfaces of hosts with
    several for the training.
    """
    with ThreadPoolExecutor(max(len(hosts), 1)) as pool, aborted(agents.values()):
        return _Bench(hosts, agents, pool, say, ports or {}).run()


def start(commands: Mapping[str, Sequence[str]], stack: ExitStack) -> dict[str, Program | KitError]:
    """Start the program on all hosts at once; return the program, or its error, by host."""
    agents = [stack.enter_context(Program(name, words)) for name, words in commands.items()]

    def begin(agent: Program) -> Program | KitError:
        try:
            agent.ask("hello", patience=PATIENCE)
        except KitError as error:
            return error
        return agent

    with ThreadPoolExecutor(max(len(agents), 1)) as pool, aborted(agents):
        return dict(zip(commands, pool.map(begin, agents), strict=True))


class _Bench:
    def __init__(
        self,
        hosts: Sequence[Host],
        agents: Mapping[str, Program],
        pool: ThreadPoolExecutor,
        say: Say,
        ports: Mapping[str, Sequence[str]],
    ) -> None:
        self.ports = ports
        self.hosts = {host.name: host for host in hosts}
        self.agents = agents
        self.pool = pool
        self.say = say
        self.failures: list[str] = []

    def run(self) -> Results:
        links = self._links() if len(self.hosts) > 1 else []
        self.say("disks")
        disks = self._all(lambda name: self._ask(name, "disk", folder=DATA, seconds=DISK_SECONDS))
        self.say("importing PyTorch in the containers")
        ready = self._all(lambda name: self._ask(name, "warm"))
        reductions: list[Reduction] = []
        if len(self.hosts) > 1 and all(ready.values()):
            reductions = self._reductions(links)
        self.say("GPUs and CPUs")
        computed = self._all(
            lambda name: self._ask(name, "compute", seconds=COMPUTE_SECONDS) if ready[name] else {}
        )
        rates = tuple(
            _rates(host, disks[name] or {}, computed[name] or {})
            for name, host in self.hosts.items()
        )
        order = list(self.hosts)
        links.sort(key=lambda link: (order.index(link.one), order.index(link.other)))
        measurements = Measurements(hosts=rates, links=tuple(links), reductions=tuple(reductions))
        return Results(measurements, tuple(self.failures))

    def _all(
        self, work: Callable[[str], dict[str, Any] | None]
    ) -> dict[str, dict[str, Any] | None]:
        return dict(zip(self.hosts, self.pool.map(work, self.hosts), strict=True))

    def _ask(self, host: str, do: str, **arguments: Any) -> dict[str, Any] | None:
        """Return the answer, or None after noting the failure."""
        try:
            return self.agents[host].ask(do, **arguments)
        except KitError as error:
            self.failures.append(error.message)
            return None

    def _links(self) -> list[Link]:
        def serve(name: str) -> dict[str, Any] | None:
            ports = list(self.ports.get(name, ()))
            return self._ask(name, "serve", address=self._address(name), interfaces=ports)

        serving = self._all(serve)
        places = {name: answer["places"] for name, answer in serving.items() if answer}
        names = [name for name in self.hosts if name in places]
        return self._by_pairs("links", names, lambda pair: self._link(pair, places))

    def _by_pairs(self, what: str, names: Sequence[str], work: Callable[[Pair], Any]) -> list[Any]:
        """Return the results for all pairs without failures; no host is in two pairs at once."""
        turns, results = rounds(names), []
        if len(turns) > MANY_ROUNDS:
            minutes = len(turns) * ROUND_SECONDS / 60
            self.say(f"{what}: {len(turns)} rounds, about {minutes:.0f} min; --host: only some")
        for number, pairs in enumerate(turns, start=1):
            self.say(f"{what}: round {number} of {len(turns)}, {count(len(pairs), 'pair')}")
            results += [each for each in self.pool.map(work, pairs) if each is not None]
        return results

    def _link(self, pair: Pair, places: Mapping[str, list[list[Any]]]) -> Link | None:
        """Measure a pair: each port alone, then all ports together."""
        one, other = pair
        streams = STREAMS if self._speed(pair) >= MANY_STREAMS else 1
        target = ""
        try:
            for place in places[other]:
                target = f"{other} at {place[0]}"
                trip = self.agents[one].ask("ping", to=place, count=PINGS)
            target = ""
            speeds = [
                self.agents[name].ask(
                    "stream",
                    to=places[to],
                    seconds=STREAM_SECONDS,
                    streams=max(streams, len(places[to])),
                )
                for name, to in ((one, other), (other, one))
            ]
        except RefusedError as error:
            to = other if error.name == one else one
            ats = " and ".join(place[0] for place in places[to])
            target = target or f"{to} at {ats}"
            self.failures.append(f"{error.name} does not reach {target}: {error.what}")
            return None
        except KitError as error:
            self.failures.append(error.message)
            return None
        return Link(one, other, speeds[0]["speed"], speeds[1]["speed"], trip["round_trip"])

    def _reductions(self, links: Sequence[Link]) -> list[Reduction]:
        names = list(self.hosts)
        address = self._address(names[0])
        served = self._ask(names[0], "store", address=address)
        if served is None or {frozenset((each.one, each.other)) for each in links} != {
            frozenset(pair) for pair in combinations(names, 2)
        }:
            return []  # Some hosts do not reach each other, which has been noted.
        at = [address, served["port"]]
        speeds = {frozenset((each.one, each.other)): each.speed for each in links}

        def together(group: Sequence[str]) -> Reduction | None:
            slowest = min(speeds[frozenset(pair)] for pair in combinations(group, 2))
            return self._reduction(group, at, slowest)

        reductions = self._by_pairs("all-reduce", names, together)
        for size in group_sizes(len(names)):
            self.say(f"all-reduce: {size} hosts")
            # Not in the pool: each member of the group needs one of its threads.
            reductions += filter(None, [together(names[:size])])
        return reductions

    def _reduction(self, group: Sequence[str], at: list[Any], speed: float) -> Reduction | None:
        fewest, most = REDUCE_BYTES
        size = int(min(max(speed * REDUCE_SECONDS / 8 / 2, fewest), most)) // 4 * 4
        name = uuid.uuid4().hex
        with ThreadPoolExecutor(len(group)) as pool:
            answers = list(
                pool.map(
                    lambda rank: self._ask(
                        group[rank],
                        "reduce",
                        at=at,
                        name=name,
                        rank=rank,
                        size=len(group),
                        address=self._address(group[rank]),
                        length=size,
                        times=REDUCE_TIMES,
                    ),
                    range(len(group)),
                )
            )
        whole = [answer for answer in answers if answer]
        if len(whole) < len(group):
            return None
        seconds = max(answer["seconds"] for answer in whole)
        return Reduction(tuple(group), whole[0]["library"], whole[0]["bytes"], seconds)

    def _address(self, name: str) -> str:
        return self.hosts[name].address

    def _speed(self, pair: Pair) -> int:
        return min(self.hosts[name].speed for name in pair)


def _rates(host: Host, disk: dict[str, Any], computed: dict[str, Any]) -> HostRates:
    return HostRates(
        host.name,
        host.address,
        disk.get("read"),
        disk.get("write"),
        disk.get("of", ""),
        computed.get("cpu_steps"),
        tuple(GpuRates(**gpu) for gpu in computed.get("gpus", ())),
    )
