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
from kit.queue.pool import Gpus, Person, Pool, PoolHost, QueuedJob, Wish

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
    for job in waits:
        reasons[job.name] = ledger.why(job)
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
        self._owned: dict[str, int] = {}

    # ---- The least of each

    def grant(self, job: QueuedJob) -> bool:
        """Give a job the least that it wants; return False, and nothing, if that cannot be."""
        found = self._choose(job, job.wish.least)
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
        keeps = job.keeps

        def cost(host: PoolHost) -> tuple[bool, int, int]:
            free = self._free[host.name]
            others = {
                (one.priority, one.name)
                for gpu in free
                if (one := self._had.get((host.name, gpu))) and one.name != job.name
            }
            disturbed = max((priority for priority, _ in others), default=-1)
            return host.name not in keeps, disturbed, len(free)

        return iter(sorted(allowed, key=cost))

    def _unit(self, job: QueuedJob, host: PoolHost, missing: int) -> tuple[str, ...]:
        """Return the GPUs that one host would give to a job; none if it cannot."""
        free = [gpu for gpu in self._free[host.name] if self._may_move(job, host.name, gpu)]
        own = job.keeps.get(host.name)
        mine = [gpu for gpu in free if own and gpu in own.gpus]
        rest = [gpu for gpu in free if gpu not in mine]
        # Those that nobody has come first.
        rest.sort(key=lambda gpu: (host.name, gpu) in self._had)
        each = job.wish.each
        if each is None:
            return host.gpus if len(free) == len(host.gpus) else ()
        if each:
            return tuple([*mine, *rest][:each]) if len(free) >= each else ()
        return tuple([*mine, *rest][:missing])

    def _may_move(self, job: QueuedJob, host: str, gpu: str) -> bool:
        """Return whether a job may get a GPU: another one has not just got it."""
        other = self._had.get((host, gpu))
        if other is None or other.name == job.name:
            return True
        had = other.has[host]
        return had.leaving or self.pool.now - had.since >= STILL

    def _too_many(self, job: QueuedJob, more: int) -> bool:
        most = self.pool.person(job.owner).most
        return most is not None and self._owned.get(job.owner, 0) + more > most

    def _give(self, job: QueuedJob, host: str, gpus: Iterable[str]) -> None:
        given = tuple(gpus)
        before = self.gives[job.name].get(host, ())
        self.gives[job.name][host] = (*before, *given)
        self._free[host] = [gpu for gpu in self._free[host] if gpu not in given]
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
        person: Person = self.pool.person(job.owner)
        keeps = job.keeps.get(host)
        mine = len(gpus) / 2 if keeps and set(gpus) <= set(keeps.gpus) else 0.0
        held = (self._owned.get(job.owner, 0) + len(gpus) - mine) / person.share
        used = self.pool.used.get(job.owner, 0.0) / person.share
        return -job.priority, held, used, job.arrived, job.name

    # ---- Reasons

    def why(self, job: QueuedJob) -> str:
        """Return why a job waits."""
        wish, person = job.wish, self.pool.person(job.owner)
        if person.most is not None and self._least_gpus(wish) > person.most:
            return f"{job.owner} may have {person.most} GPUs at once, and it wants more"
        if self._too_many(job, self._least_gpus(wish)):
            return f"{job.owner} has {self._owned[job.owner]} of at most {person.most} GPUs"
        noun = "GPU" if wish.each == 0 else "host"
        able = self._able(wish)
        if able < wish.least:
            opens = self._opens(wish)
            later = f"; {opens}" if opens else ""
            return f"wants {wish.least} {noun}s, and the pool has {able} for it now{later}"
        ahead = [each for each in self.pool.jobs if each.name in self.gives]
        names = ", ".join(sorted(each.name for each in ahead)[:3])
        return f"waits for {wish.least} {noun}s, which {names} have"

    def _least_gpus(self, wish: Wish) -> int:
        return wish.least * (1 if wish.each == 0 else wish.each or 1)

    def _able(self, wish: Wish) -> int:
        hosts = [host for host in self._hosts.values() if not wish.hosts or host.name in wish.hosts]
        if wish.each == 0:
            return sum(len(host.gpus) for host in hosts)
        return sum(len(host.gpus) >= (wish.each or 1) for host in hosts)

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
