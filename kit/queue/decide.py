"""Which job has which GPUs of the pool now. Pure: all that it knows is in the pool.

1. In their order, jobs get the least that they want, or wait. A later one may begin before one that
   does not fit: it gives way to that one as soon as it would fit.
2. What is left goes to jobs that can use more, the highest priority first; among equals, whoever
   has least of their share gets the next.
3. Jobs keep what they have where they can. A host that has just moved stays for a minute.

So a job that needs room first gets what is free, then what others have beyond their least, and only
then the GPUs of jobs that stand behind it, which stop with a checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from kit.queue.order import in_order
from kit.queue.pool import Gpus, Pool, PoolHost, QueuedJob, Wish

STILL = 60.0
"""Seconds in which a host that a job has got stays with it, unless its owner wants it."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What each job shall have, and for those that wait, why; `early` began before others."""

    gives: Mapping[str, Gpus]
    reasons: Mapping[str, str]
    early: frozenset[str]


def decide(pool: Pool) -> Decision:
    """Decide which job has which GPUs now."""
    ledger, ordered = _Ledger(pool), in_order(pool)
    waits, early, reasons = list[QueuedJob](), set[str](), dict[str, str]()
    for job in ordered:
        if ledger.grant(job):
            if waits and (job.began is None or job.early):
                early.add(job.name)
        else:
            waits.append(job)
    ledger.share_rest([job for job in ordered if job.name in ledger.gives])
    served = ", ".join(sorted(ledger.gives)[:3])
    for job in waits:
        reasons[job.name] = ledger.why(job, served)
    return Decision(ledger.gives, reasons, frozenset(early))


@dataclass
class _Ledger:
    """The GPUs that nobody has been given yet."""

    pool: Pool
    gives: dict[str, dict[str, tuple[str, ...]]] = field(default_factory=dict)

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
        self._keeps = {job.name: job.keeps for job in self.pool.jobs}
        self._owned: dict[str, int] = {}
        self._holders = {name: self._holding(name) for name in self._hosts}
        self._counts = dict[tuple[int | None, frozenset[str]], int]()
        # The least of those that had nothing and could not be served: nor can others like them.
        self._hopeless = set[tuple[int, int | None, frozenset[str]]]()

    # ---- The least of each

    def grant(self, job: QueuedJob) -> bool:
        """Give a job the least that it wants; return False, and nothing, if that cannot be."""
        least = (job.wish.least, job.wish.each, job.wish.hosts)
        if not job.has and least in self._hopeless:
            return False
        found = self._choose(job, job.wish.least)
        if found is None and not job.has:
            self._hopeless.add(least)
        if found is None or self._too_many(job, sum(map(len, found.values()))):
            return False
        self.gives[job.name] = {}
        for host, gpus in found.items():
            self._give(job, host, gpus)
        return True

    def _choose(self, job: QueuedJob, number: int) -> dict[str, tuple[str, ...]] | None:
        """Choose so many hosts, or GPUs, for a job, which as yet has been given none."""
        found, missing = dict[str, tuple[str, ...]](), number
        for host in self._offers(job):
            gpus = self._unit(job, host, missing)
            if gpus:
                found[host.name] = gpus
                missing -= 1 if job.wish.each != 0 else len(gpus)
            if not missing:
                return found
        return None

    def _offers(self, job: QueuedJob) -> Iterator[PoolHost]:
        """Yield the hosts that a job may get, those first that disturb least."""
        allowed = [
            host
            for host in self._hosts.values()
            if (not job.wish.hosts or host.name in job.wish.hosts)
            and host.name not in self.gives.get(job.name, {})
        ]
        keeps = self._keeps[job.name]

        def cost(host: PoolHost) -> tuple[bool, int, int]:
            others = self._holders[host.name]
            disturbed = max((one.priority for one in others if one.name != job.name), default=-1)
            return host.name not in keeps, disturbed, len(self._free[host.name])

        return iter(sorted(allowed, key=cost))

    def _holding(self, host: str) -> list[QueuedJob]:
        """Return the jobs that have GPUs of a host which nobody has been given yet."""
        found = (self._had.get((host, gpu)) for gpu in self._free[host])
        return list({job.name: job for job in found if job}.values())

    def _unit(self, job: QueuedJob, host: PoolHost, missing: int) -> tuple[str, ...]:
        """Return the GPUs that one host would give to a job; none if it cannot."""
        each, free = job.wish.each, self._free[host.name]
        needed = len(host.gpus) if each is None else each or 1
        if len(free) < needed:
            return ()
        if self._holders[host.name]:
            free = self._movable(job, host.name)
        if len(free) < needed:
            return ()
        return host.gpus if each is None else tuple(free[: each or missing])

    def _movable(self, job: QueuedJob, host: str) -> list[str]:
        """Return the GPUs of a host that a job may get: first its own, then those nobody has."""
        free = [gpu for gpu in self._free[host] if self._may_move(job, host, gpu)]
        own = self._keeps[job.name].get(host)
        mine = own.gpus if own else ()
        return sorted(free, key=lambda gpu: (gpu not in mine, (host, gpu) in self._had))

    def _may_move(self, job: QueuedJob, host: str, gpu: str) -> bool:
        """Return whether a job may get a GPU: another one has not just got it."""
        other = self._had.get((host, gpu))
        if other is None or other.name == job.name:
            return True
        had = other.has[host]
        return had.leaving or self.pool.now - had.since >= STILL

    def _too_many(self, job: QueuedJob, more: int) -> bool:
        most = self._people[job.owner].most
        return most is not None and self._owned.get(job.owner, 0) + more > most

    def _give(self, job: QueuedJob, host: str, gpus: Iterable[str]) -> None:
        given = tuple(gpus)
        before = self.gives[job.name].get(host, ())
        self.gives[job.name][host] = (*before, *given)
        self._free[host] = [gpu for gpu in self._free[host] if gpu not in given]
        self._holders[host] = self._holding(host)
        self._owned[job.owner] = self._owned.get(job.owner, 0) + len(given)

    # ---- The rest

    def share_rest(self, jobs: list[QueuedJob]) -> None:
        """Give what is left, one host or one GPU after the other, to jobs that can use it."""
        offers = {job.name: self._next(job) for job in jobs}
        while hungry := [(job, offer) for job in jobs if (offer := offers[job.name])]:
            turn, (host, gpus) = min(hungry, key=lambda each: self._turn(each[0], *each[1]))
            self._give(turn, host, gpus)
            for job, (offered, _) in hungry:
                if offered == host or job.owner == turn.owner:
                    offers[job.name] = self._next(job)

    def _next(self, job: QueuedJob) -> tuple[str, tuple[str, ...]] | None:
        """Return the next host of which a job could use GPUs, with these; None if there is none."""
        has = self.gives[job.name]
        number = len(has) if job.wish.each != 0 else sum(map(len, has.values()))
        if number >= job.wish.most:
            return None
        offers = self._offers(job)
        if job.wish.each == 0:
            offers = iter([*(self._hosts[name] for name in has), *offers])
        for host in offers:
            gpus = self._unit(job, host, 1)
            if gpus and not self._too_many(job, len(gpus)):
                return host.name, gpus
        return None

    def _turn(
        self, job: QueuedJob, host: str, gpus: tuple[str, ...]
    ) -> tuple[float, float, float, float, str]:
        """Return whose turn it is: the smallest is next.

        Whoever has a GPU already is half of one ahead, so that equals do not take turns with it.
        """
        person = self._people[job.owner]
        keeps = self._keeps[job.name].get(host)
        mine = len(gpus) / 2 if keeps and set(gpus) <= set(keeps.gpus) else 0.0
        held = (self._owned.get(job.owner, 0) + len(gpus) - mine) / person.share
        used = self.pool.used.get(job.owner, 0.0) / person.share
        return -job.priority, held, used, job.arrived, job.name

    # ---- Reasons

    def why(self, job: QueuedJob, served: str) -> str:
        """Return why a job waits, while the named ones are served."""
        wish, person = job.wish, self._people[job.owner]
        if person.most is not None and self._least_gpus(wish) > person.most:
            return f"{job.owner} may have {person.most} GPUs at once, and it wants more"
        if self._too_many(job, self._least_gpus(wish)):
            return f"{job.owner} has {self._owned[job.owner]} of at most {person.most} GPUs"
        noun = "GPU" if wish.each == 0 else "host"
        able = self._able(wish.each, wish.hosts)
        if able < wish.least:
            opens = self._opens(wish)
            later = f"; {opens}" if opens else ""
            return f"wants {wish.least} {noun}s, and the pool has {able} for it now{later}"
        return f"waits for {wish.least} {noun}s, which {served} have"

    def _least_gpus(self, wish: Wish) -> int:
        return wish.least * (1 if wish.each == 0 else wish.each or 1)

    def _able(self, each: int | None, hosts: frozenset[str]) -> int:
        """Return how many hosts, or GPUs, there are for such a wish."""
        if (each, hosts) not in self._counts:
            some = [host for host in self._hosts.values() if not hosts or host.name in hosts]
            gpus = [len(host.gpus) for host in some]
            number = sum(gpus) if each == 0 else sum(number >= (each or 1) for number in gpus)
            self._counts[each, hosts] = number
        return self._counts[each, hosts]

    def _opens(self, wish: Wish) -> str:
        closed = [
            host
            for host in self.pool.hosts
            if not host.open
            and host.until is not None
            and (not wish.hosts or host.name in wish.hosts)
        ]
        first = min(closed, key=lambda host: host.until or 0.0, default=None)
        return f"{first.name} is lent next" if first else ""
