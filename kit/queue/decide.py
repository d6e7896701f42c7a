"""The assignment of the pool's GPUs to jobs. Pure: it depends only on the pool.

1. Jobs get their minimum in their order, or wait. A later job may begin before one that does not
   fit; it gives way as soon as that one fits.
2. The remaining GPUs go to jobs that can use more, the highest priority first; among equal
   priorities, the owner with the smallest part of their share is next.
3. Jobs keep their GPUs where possible. A host that was just assigned stays for a minute.

A job that needs GPUs first gets free ones, then those that other jobs have beyond their minimum,
from the lowest priority and the largest surplus on. At last it gets GPUs of the last jobs in the
order, which stop with a checkpoint.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from kit.queue.order import in_order, slices
from kit.queue.pool import Gpus, Pool, PoolHost, QueuedJob
from kit.queue.reasons import Reasons

STILL = 60.0
"""Seconds for which a job keeps a new host, unless the host's owner reclaims it."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The GPUs of each job, and the reasons why jobs wait; `early` jobs began before others."""

    gives: Mapping[str, Gpus]
    reasons: Mapping[str, str]
    early: frozenset[str]


def decide(pool: Pool) -> Decision:
    """Decide which job has which GPUs now. GPUs that a job is leaving count as free."""
    pool = replace(pool, jobs=tuple(replace(job, has=job.keeps) for job in pool.jobs))
    ordered = in_order(pool)
    ledger = _Ledger(pool, {job.name: place for place, job in enumerate(ordered)})
    waits, early = list[QueuedJob](), set[str]()
    for job in ordered:
        if ledger.grant(job):
            if waits and (job.began is None or job.early):
                early.add(job.name)
        else:
            waits.append(job)
    ledger.share_rest([job for job in ordered if job.name in ledger.gives])
    reasons = Reasons(pool, ledger.gives, ledger.owned)
    return Decision(ledger.gives, {job.name: reasons.why(job) for job in waits}, frozenset(early))


Loss = tuple[bool, int, int]
"""What another job loses, the smallest loss first. First: whether it has to stop. Of jobs that
stop, the last in the order comes first; of others, the lowest priority, then the largest surplus.
"""
NONE: Loss = (False, -1, 0)
Cost = tuple[bool, Loss, bool, int]
"""The cost of a unit, the smallest first: the job's own units; then by the loss of other jobs (none
for free GPUs); then hosts where the job is or was; then hosts with the fewest unassigned GPUs.
"""


@dataclass(frozen=True, slots=True)
class _Unit:
    """GPUs of a host that a job gets together: a smaller cost disturbs other jobs less."""

    cost: Cost
    host: str
    gpus: tuple[str, ...]

    @property
    def mine(self) -> bool:
        """Whether the job has it already."""
        return not self.cost[0]


def _least(job: QueuedJob, units: list[_Unit]) -> list[_Unit]:
    """Return the first units for a job's minimum, one of them an anchor; none if it must wait."""
    chosen, anchors = units[: job.wish.least], job.anchors
    if len(chosen) < job.wish.least:
        return []
    if anchors and all(unit.host not in anchors for unit in chosen):
        own = next((unit for unit in units if unit.host in anchors), None)
        return [*chosen[:-1], own] if own else []
    return chosen


@dataclass
class _Ledger:
    """The GPUs that are not assigned yet. `places` are the positions of the jobs in their order."""

    pool: Pool
    places: Mapping[str, int]
    gives: dict[str, dict[str, tuple[str, ...]]] = field(default_factory=dict)
    owned: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    def __post_init__(self) -> None:
        self._hosts = {each.name: each for each in self.pool.hosts if each.usable}
        self._free = {each.name: list(each.gpus) for each in self._hosts.values()}
        self._had = {
            (host, gpu): job
            for job in self.pool.jobs
            for host, had in job.has.items()
            for gpu in had.gpus
        }
        owners = {job.owner for job in self.pool.jobs}
        self._people = {owner: self.pool.person(owner) for owner in owners}
        self._slices = slices(self.pool)
        self._holders = {name: self._holding(name) for name in self._hosts}
        self._spare = dict[str, int]()
        # The GPUs of each host that jobs have just received, and these jobs.
        self._stays, self._young = dict[str, set[str]](), set[str]()
        for job in self.pool.jobs:
            for host, had in job.keeps.items():
                if not self._old(had.since):
                    self._stays.setdefault(host, set()).update(had.gpus)
                    self._young.add(job.name)
        # The smallest number that was not available for jobs without GPUs, and for similar jobs.
        self._hopeless = dict[tuple[int | None, frozenset[str]], int]()

    # ---- The minimum of each job

    def grant(self, job: QueuedJob) -> bool:
        """Give a job its minimum; return False, and give nothing, if that is not possible."""
        wish = job.wish
        alike = (wish.each, wish.hosts)
        if not job.has and wish.least >= self._hopeless.get(alike, wish.least + 1):
            return False
        found = self._units(job, wish.least)
        units = _least(job, found)
        if not units:
            if not job.has and len(found) < wish.least:
                self._hopeless[alike] = wish.least
            if self._young:
                self._reserve(job)
            return False
        if self._too_many(job, sum(len(unit.gpus) for unit in units)):
            return False
        self.gives[job.name] = {}
        for unit in units:
            self._give(job, unit)
        return True

    def _reserve(self, job: QueuedJob) -> None:
        """Reserve free GPUs for a job that waits only for GPUs assigned less than a minute ago.

        Otherwise a sequence of short jobs could keep a large one waiting for ever.
        """
        stays, young = self._stays, self._young
        self._stays, self._young = {}, set()
        units = _least(job, sorted(self._units(job, job.wish.least), key=self._latest))
        self._stays, self._young = stays, young
        number = sum(len(unit.gpus) for unit in units)
        if not self._too_many(job, number):
            for unit in units:
                gpus = [gpu for gpu in unit.gpus if (unit.host, gpu) not in self._had]
                self._take(unit.host, gpus)

    def _latest(self, unit: _Unit) -> float:
        """Return the newest time at which a job that has GPUs of a unit received a host."""
        jobs = (self._had.get((unit.host, gpu)) for gpu in unit.gpus)
        times = (had.since for job in jobs if job for had in job.keeps.values())
        return max(times, default=0.0)

    def _too_many(self, job: QueuedJob, more: int) -> bool:
        most = self._people[job.owner].most
        return most is not None and self.owned[job.owner] + more > most

    def _give(self, job: QueuedJob, unit: _Unit) -> None:
        gives, host = self.gives[job.name], unit.host
        gives[host] = (*gives.get(host, ()), *unit.gpus)
        for one in (job, *self._holders[host]):
            self._spare.pop(one.name, None)
        self._take(host, unit.gpus)
        self.owned[job.owner] += len(unit.gpus)

    def _take(self, host: str, gpus: Collection[str]) -> None:
        self._free[host] = [gpu for gpu in self._free[host] if gpu not in gpus]
        self._holders[host] = self._holding(host)

    def _holding(self, host: str) -> list[QueuedJob]:
        """Return the jobs that have GPUs of a host that are not assigned yet."""
        found = (self._had.get((host, gpu)) for gpu in self._free[host])
        return list({job.name: job for job in found if job}.values())

    # ---- The units that a job could get next

    def _units(self, job: QueuedJob, number: int) -> list[_Unit]:
        """Return the units that a job could get, the cheapest first: only its own, if enough."""
        if job.has:
            hosts = [host for host in self._hosts.values() if host.name in job.has]
            mine = [unit for unit in self._units_of(job, hosts) if unit.mine]
            if len(mine) >= number:
                return mine
        return self._units_of(job, self._hosts.values())

    def _units_of(self, job: QueuedJob, hosts: Iterable[PoolHost]) -> list[_Unit]:
        wish, given = job.wish, self.gives.get(job.name, {})
        lost: dict[str, dict[str, int]] = defaultdict(dict)
        found = []
        for host in hosts:
            allowed = not wish.hosts or host.name in wish.hosts
            if self._free[host.name] and allowed and (wish.each == 0 or host.name not in given):
                for gpus in self._split(job, host):
                    if cost := self._cost(job, host.name, gpus, lost):
                        found.append(_Unit(cost, host.name, gpus))
        return sorted(found, key=lambda unit: unit.cost)

    def _split(self, job: QueuedJob, host: PoolHost) -> list[tuple[str, ...]]:
        """Return the units of one host: one, or one per GPU; none without enough GPUs."""
        each, free = job.wish.each, self._free[host.name]
        needed = len(host.gpus) if each is None else each or 1
        if len(free) < needed:
            return []
        if self._holders[host.name] or host.name in job.has:
            free = self._movable(job, host.name)
            if len(free) < needed:
                return []
        if each is None:
            return [host.gpus]
        return [tuple(free[:each])] if each else [(gpu,) for gpu in free]

    def _movable(self, job: QueuedJob, host: str) -> list[str]:
        """Return the GPUs of a host that a job may get: first its own, then free ones."""
        had, stays = job.has.get(host), self._stays.get(host, ())
        mine = had.gpus if had else ()
        free = [gpu for gpu in self._free[host] if gpu in mine or gpu not in stays]
        if had and job.name in self.gives and not self._old(had.since):
            # To get more GPUs of a host, a job leaves it and begins there again.
            free = [gpu for gpu in free if gpu in mine]
        return sorted(free, key=lambda gpu: (gpu not in mine, (host, gpu) in self._had))

    def _old(self, since: float) -> bool:
        return self.pool.now - since >= STILL

    def _cost(
        self, job: QueuedJob, host: str, gpus: tuple[str, ...], lost: dict[str, dict[str, int]]
    ) -> Cost | None:
        """Return the cost of giving these GPUs to a job; None if another job must keep them."""
        had = job.has.get(host)
        mine = had is not None and set(gpus) <= set(had.gpus)
        again = had is not None and not mine and not self._old(had.since)
        worst = (False, job.priority, 0) if again else NONE
        for other in self._holders[host]:
            number = sum(gpu in other.has[host].gpus for gpu in gpus)
            if number and other.name != job.name:
                loss = self._loss(other, host, number, lost[other.name])
                if loss is None:
                    return None
                worst = max(worst, loss)
        gives = self.gives.get(job.name, {})
        # A job that leaves a host to begin there with other GPUs comes back to it.
        there = had is not None or host in gives or (not job.keeps and host in job.home)
        return not mine, worst, not there, len(self._free[host])

    def _loss(self, job: QueuedJob, host: str, gpus: int, lost: dict[str, int]) -> Loss | None:
        """Return the loss of a job that gives up GPUs of a host in addition to those in `lost`.

        None: it would stop, and has just received a host.
        """
        lost[host] = lost.get(host, 0) + gpus if job.wish.each == 0 else 1
        left = self._spare_of(job) - sum(lost.values())
        if left >= 0:
            return False, job.priority, -left
        if job.name in self._young:
            return None
        return True, -self.places[job.name], 0

    def _spare_of(self, job: QueuedJob) -> int:
        """Return how many hosts, or GPUs, a job could lose without stopping."""
        if job.name not in self._spare:
            free = [
                sum(gpu in self._free.get(host, ()) for gpu in had.gpus)
                for host, had in job.has.items()
            ]
            units = sum(free) if job.wish.each == 0 else sum(map(bool, free))
            served = job.name in self.gives
            self._spare[job.name] = units - (0 if served else job.wish.least)
        return self._spare[job.name]

    # ---- The remaining GPUs

    def share_rest(self, jobs: list[QueuedJob]) -> None:
        """Give the remaining hosts or GPUs, one by one, to jobs that can use them."""
        lowest = min((self._slices[job.owner] for job in jobs), default=0)
        offers = {job.name: self._next(job) for job in jobs}
        while hungry := [(job, offer) for job in jobs if (offer := offers[job.name])]:
            turn, given = min(hungry, key=lambda each: self._turn(each[0], each[1], lowest))
            self._give(turn, given)
            limited = self._people[turn.owner].most is not None
            for job, offer in hungry:
                same = job.owner == turn.owner and limited
                if job is turn or same or offer.host == given.host:
                    offers[job.name] = self._next(job)

    def _next(self, job: QueuedJob) -> _Unit | None:
        """Return the next GPUs that a job could use; None if there are none."""
        has = self.gives[job.name]
        number = len(has) if job.wish.each != 0 else sum(map(len, has.values()))
        if number >= job.wish.most:
            return None
        units = self._units(job, 1)
        return next((unit for unit in units if not self._too_many(job, len(unit.gpus))), None)

    def _turn(
        self, job: QueuedJob, unit: _Unit, lowest: int
    ) -> tuple[float, float, float, float, str]:
        """Return the sort key of a job: the smallest is next.

        A unit that the job already has counts half: otherwise equal owners would pass it back and
        forth. An owner who has used a slice more gets three quarters of a unit added: in time,
        equal owners alternate.
        """
        share, number = self._people[job.owner].share, len(unit.gpus)
        had = job.has.get(unit.host)
        held = float(self.owned[job.owner] + number)
        if had and set(unit.gpus) <= set(had.gpus):
            held -= number / 2
        if self._slices[job.owner] > lowest:
            held += number * 3 / 4
        used = self.pool.used.get(job.owner, 0.0) / share
        return -job.priority, held / share, used, job.arrived, job.name
