"""A pool of hosts, people and jobs, with a seed: what the queue decides is carried out and checked.

Nothing is remembered but what the pool says: a controller that starts again goes on the same way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from random import Random

from kit.queue.decide import STILL, Decision
from kit.queue.order import in_order
from kit.queue.pool import Had, Pool, PoolHost, QueuedJob, Wish
from kit.queue.turn import turn
from kit.sharing import Person

LEAVES = 4.0
"""Seconds at most until a job has released a host."""
ROUNDS = 12
"""How many minutes a pool has to come to rest."""


@dataclass
class World:
    """The pool, what is left of each job in GPU-seconds, and what went wrong."""

    pool: Pool
    left: dict[str, float] = field(default_factory=dict)
    ends: dict[tuple[str, str], float] = field(default_factory=dict)
    moved: dict[tuple[str, str], tuple[float, str]] = field(default_factory=dict)
    spent: Counter[str] = field(default_factory=Counter)
    finished: dict[str, float] = field(default_factory=dict)
    stops: Counter[str] = field(default_factory=Counter)
    longest: dict[str, float] = field(default_factory=dict)
    left_hosts: Counter[tuple[str, str]] = field(default_factory=Counter)
    saved: dict[str, set[str]] = field(default_factory=dict)
    decided: int = 0
    rested: bool = False

    # ---- Events

    def add(self, job: QueuedJob, seconds: float) -> None:
        """Submit a job that needs so many GPU-seconds."""
        self.left[job.name] = seconds
        self.pool = replace(self.pool, jobs=(*self.pool.jobs, job))

    def host(self, name: str, **values: object) -> None:
        """Change a host; jobs lose one that does not answer at once."""
        hosts = tuple(
            replace(each, **values) if each.name == name else each  # type: ignore[arg-type]
            for each in self.pool.hosts
        )
        self.pool = replace(self.pool, hosts=hosts)
        self.moved.clear()
        if values.get("there") is False:
            for job in self.pool.jobs:
                if name in job.has:
                    self._drop(job, name)

    def wait(self, seconds: float) -> None:
        """Let time go by: jobs compute and end, hosts are released."""
        until = self.pool.now + seconds
        while self.pool.now < until:
            step = min([until, *(end for end in self.ends.values() if end > self.pool.now)])
            self._work(step - self.pool.now)
            self.pool = replace(self.pool, now=step)
            for job, host in [key for key, end in self.ends.items() if end <= step]:
                self._drop(self._job(job), host)
            self.act()

    def jump(self, seconds: float) -> None:
        """Put the clock forward, or back: how long ago a GPU has moved is then not known."""
        self.pool = replace(self.pool, now=self.pool.now + seconds)
        self.moved.clear()

    def _work(self, seconds: float) -> None:
        used = dict(self.pool.used)
        for job in self.pool.jobs:
            number = sum(len(had.gpus) for had in job.keeps.values())
            if job.began is None:
                waited = self.pool.now + seconds - (job.waits or self.pool.now)
                self.longest[job.name] = max(self.longest.get(job.name, 0.0), waited)
                continue
            self.left[job.name] -= number * seconds
            self.spent[job.owner] += number * seconds  # type: ignore[assignment]
            used[job.owner] = used.get(job.owner, 0.0) + number * seconds / 3600
        self.pool = replace(self.pool, used=used)
        done = {job.name for job in self.pool.jobs if self.left[job.name] <= 0}
        for name in done:
            self.finished[name] = self.pool.now + seconds
            self.moved.clear()
        jobs = tuple(job for job in self.pool.jobs if job.name not in done)
        self.pool = replace(self.pool, jobs=jobs)
        self.ends = {key: end for key, end in self.ends.items() if key[0] not in done}

    # ---- Decisions

    def act(self) -> Decision:
        """Decide, and carry out what can be done now."""
        self.decided += 1
        self._save()
        turned = turn(self.pool)
        decision, now = turned.decision, turned.moves
        self._check(decision)
        jobs = {job.name: job for job in turned.jobs}
        for before in self.pool.jobs:
            if before.began is not None and jobs[before.name].began is None:
                self.stops[before.name] += 1
        for release in now.releases:
            job = jobs[release.job]
            has = {**job.has, release.host: replace(job.has[release.host], leaving=True)}
            jobs[job.name] = replace(job, has=has)
            self.ends[release.job, release.host] = self.pool.now + LEAVES
            self.left_hosts[release.job, release.host] += not job.early
        for job in self.pool.jobs:
            begun = {begin.host for begin in now.begins if begin.job == job.name}
            stays = job.keeps.keys() - {each.host for each in now.releases if each.job == job.name}
            home = self.saved.get(job.name)
            # A host that stays has got the checkpoint from those that were there before.
            assert not (begun and home) or home & begun or stays, "a job begins without its home"
        for begin in now.begins:
            job = jobs[begin.job]
            has = {**job.has, begin.host: Had(begin.gpus, self.pool.now)}
            jobs[job.name] = replace(job, has=has)
            for gpu in begin.gpus:
                self._require_still(begin.job, begin.host, gpu)
                self.moved[begin.host, gpu] = self.pool.now, begin.job
        self.pool = replace(self.pool, jobs=tuple(jobs.values()))
        self._require_owners()
        self._require_whole(jobs[name] for name in {each.job for each in now.begins})
        return decision

    def _save(self) -> None:
        """Note which hosts have the checkpoints: those that have trained for a while."""
        for job in self.pool.jobs:
            up = {h for h, had in job.keeps.items() if self.pool.now - had.since >= STILL}
            if up and not job.wish.roams:
                self.saved[job.name] = up

    def _check(self, decision: Decision) -> None:
        given = Counter(
            (host, gpu)
            for gives in decision.gives.values()
            for host, gpus in gives.items()
            for gpu in gpus
        )
        assert not [gpu for gpu, number in given.items() if number > 1], "two jobs get one GPU"
        usable = {host.name for host in self.pool.hosts if host.usable}
        assert {host for host, _ in given} <= usable, "a host that is not lent is given"
        people = Counter[str]()
        for job in self.pool.jobs:
            gives = decision.gives.get(job.name)
            if gives is None:
                assert decision.reasons[job.name]
                continue
            number = units(job.wish, gives)
            assert job.wish.least <= number <= job.wish.most, (job, gives)
            assert not job.wish.hosts or gives.keys() <= job.wish.hosts
            people[job.owner] += sum(map(len, gives.values()))
        for owner, number in people.items():
            most = self.pool.person(owner).most
            assert most is None or number <= most, (owner, number)
        for job in self.pool.jobs:
            for host, had in job.keeps.items():
                kept = decision.gives.get(job.name, {}).get(host, ())
                young = self.pool.now - had.since < STILL
                if host in usable and young and set(kept) != set(had.gpus):
                    others = {
                        gpu
                        for name, gives in decision.gives.items()
                        if name != job.name
                        for gpu in gives.get(host, ())
                    }
                    assert not others & set(had.gpus), "a host moves twice within a minute"

    def _require_owners(self) -> None:
        has = Counter(
            (host, gpu)
            for job in self.pool.jobs
            for host, had in job.has.items()
            for gpu in had.gpus
        )
        assert not [gpu for gpu, number in has.items() if number > 1], "a GPU has two owners"
        closed = {host.name for host in self.pool.hosts if not host.open}
        stays = [job.name for job in self.pool.jobs if closed & job.keeps.keys()]
        assert not stays, "a job stays on a host that its owner wants"

    def _require_whole(self, began: Iterable[QueuedJob]) -> None:
        for job in began:
            gpus = {host: had.gpus for host, had in job.keeps.items()}
            assert units(job.wish, gpus) >= job.wish.least, "a group has begun in part"

    def _require_still(self, job: str, host: str, gpu: str) -> None:
        """Check that a GPU has not just moved from another job.

        One may move at once when an owner wants a host, when a job ends, and when a job gives way
        to another of the same person, who may not have more.
        """
        when, other = self.moved.get((host, gpu), (0.0, job))
        still = other != job and 0 <= self.pool.now - when < STILL
        limits = any(person.most is not None for person in self.pool.people)
        assert limits or not still, f"{host} moves twice within a minute"

    def idle(self) -> None:
        """Let the pool come to rest. Then no job waits that would fit.

        That is with the GPUs that nobody has, and those of later jobs that began early. A large
        pool, where some job always ends, does not rest; but only early jobs come and go there.
        """
        self.left_hosts.clear()
        for _ in range(ROUNDS):
            self.wait(STILL + LEAVES)
            if not self.ends and not self._young():
                self.rested = True
                self._require_nobody_fits()
                return
        often = [key for key, number in self.left_hosts.items() if number > 3]
        assert not often, f"the pool does not come to rest: {often}"

    def _young(self) -> bool:
        since = [had.since for job in self.pool.jobs for had in job.has.values()]
        return any(self.pool.now - each < STILL for each in since)

    def _require_nobody_fits(self) -> None:
        ordered = in_order(self.pool)
        for place, job in enumerate(ordered):
            if job.began is None:
                later = {one.name for one in ordered[place:] if one.early}
                assert not self._fits(job, later), f"{job.name} waits, and would fit"

    def _fits(self, job: QueuedJob, stopped: set[str]) -> bool:
        """Return whether a job could begin if others stopped."""
        others = [one for one in self.pool.jobs if one.name not in stopped]
        taken = {(host, gpu) for one in others for host, had in one.has.items() for gpu in had.gpus}
        free, needs = list[int](), list[int]()
        for host in self.pool.hosts:
            if host.usable and (not job.wish.hosts or host.name in job.wish.hosts):
                free.append(sum((host.name, gpu) not in taken for gpu in host.gpus))
                needs.append(len(host.gpus) if job.wish.each is None else job.wish.each)
        if job.anchors and not self._home_is_free(job, taken):
            return False
        able = sorted(need for gpus, need in zip(free, needs, strict=True) if gpus >= need)
        least = job.wish.least
        fits = sum(free) >= least if job.wish.each == 0 else len(able) >= least
        gpus = least if job.wish.each == 0 else sum(able[:least])
        most = self.pool.person(job.owner).most
        owned = sum(
            len(had.gpus)
            for one in self.pool.jobs
            if one.owner == job.owner
            for had in one.keeps.values()
        )
        return fits and (most is None or owned + gpus <= most)

    def _home_is_free(self, job: QueuedJob, taken: set[tuple[str, str]]) -> bool:
        needs = {
            host: len(host.gpus) if job.wish.each is None else job.wish.each or 1
            for host in self.pool.hosts
            if host.usable and host.name in job.home
        }
        return any(
            sum((host.name, gpu) not in taken for gpu in host.gpus) >= need
            for host, need in needs.items()
        )

    # ---- Jobs

    def _job(self, name: str) -> QueuedJob:
        return next(job for job in self.pool.jobs if job.name == name)

    def _put(self, job: QueuedJob) -> None:
        jobs = tuple(job if each.name == job.name else each for each in self.pool.jobs)
        self.pool = replace(self.pool, jobs=jobs)

    def _drop(self, job: QueuedJob, host: str) -> None:
        has = {name: had for name, had in job.has.items() if name != host}
        self._put(replace(job, has=has))
        self.ends.pop((job.name, host), None)


def units(wish: Wish, gives: object) -> int:
    """Return how much of a wish that is."""
    assert isinstance(gives, dict)
    return len(gives) if wish.each != 0 else sum(map(len, gives.values()))


def random_world(random: Random, *, hosts: int, jobs: int) -> World:
    """Return a pool of at most so many hosts, whose jobs come later."""
    made = tuple(
        PoolHost(f"h{number}", tuple(f"g{gpu}" for gpu in range(random.choice((1, 1, 2, 4, 8)))))
        for number in range(random.randint(1, hosts))
    )
    total = sum(len(host.gpus) for host in made)
    limits = (None, None, total // 2 or 1)
    people = tuple(
        Person(f"p{number}", random.choice((1.0, 1.0, 2.0)), random.choice(limits))
        for number in range(random.randint(1, 5))
    )
    return World(Pool(1e9, made, people, ()))


def random_job(random: Random, world: World, number: int) -> QueuedJob:
    """Return a job that may or may not fit the pool."""
    hosts = world.pool.hosts
    owner = random.choice([each.name for each in world.pool.people])
    each = random.choice((None, 0, 1, 1, 2))
    least = random.randint(1, max(1, len(hosts) // 2))
    most = least + random.randint(0, len(hosts))
    some = frozenset(random.sample([h.name for h in hosts], random.randint(1, len(hosts))))
    allowed = some if random.random() < 0.2 else frozenset()
    now = world.pool.now
    wish = Wish(least, most, each, allowed, roams=random.random() < 0.5)
    priority = random.choice((0, 50, 50, 50, 90))
    return QueuedJob(f"j{number:04}", owner, priority, now, wish, waits=now)


def run(seed: int, *, hosts: int = 12, jobs: int = 30, steps: int = 60) -> World:
    """Run a random pool for a while, and check it all the time."""
    random = Random(seed)
    world = random_world(random, hosts=hosts, jobs=jobs)
    number = 0
    for _ in range(steps):
        event = random.random()
        host = random.choice(world.pool.hosts)
        if event < 0.5 and number < jobs:
            for _ in range(min(jobs - number, max(1, 2 * jobs // steps))):
                world.add(random_job(random, world, number), random.choice((60, 600, 6000, 60_000)))
                number += 1
        elif event < 0.6:
            world.host(host.name, there=not host.there)
        elif event < 0.75:
            world.host(host.name, open=not host.open)
        elif event < 0.8:  # The clock is put back, or jumps.
            world.jump(random.choice((-30.0, 3600.0)))
        world.act()
        world.wait(random.choice((1.0, 5.0, 61.0, 900.0)))
    world.idle()
    return world
