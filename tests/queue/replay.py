"""A trace of jobs carried out in order of arrival, and by the queue's decisions."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from kit.queue.decide import decide
from kit.queue.moves import moves
from kit.queue.order import level
from kit.queue.pool import Had, Pool, PoolHost, QueuedJob, Wish
from kit.sharing import Person
from tests.queue.simulator import LEAVES
from tests.queue.trace import TraceJob

GPUS = 8
"""The GPUs of a host."""
EVERY = 60.0
"""Seconds after which the queue decides again when nothing has happened."""
HALF_LIFE = 7 * 24 * 3600.0
"""Seconds after which use counts half, as by default in Slurm."""
CHANGE = 1.0
"""Seconds in which a job does no work when its hosts change: the bound for elastic jobs."""
RESTART = 30.0
"""Seconds for a checkpoint, its end, and to begin again: containers, PyTorch, the first step."""
CHECKPOINT = 1800.0
"""Seconds between the checkpoints of a job that is killed without a warning."""


@dataclass
class Result:
    """What became of a trace. Times are by job; `spans` are from, until, and GPUs that work."""

    name: str
    waits: dict[str, float] = field(default_factory=dict)
    ends: dict[str, float] = field(default_factory=dict)
    spans: list[tuple[float, float, float]] = field(default_factory=list)
    lost: float | None = None
    killed: float = 0.0
    killed_without_checkpoints: float = 0.0
    changes: int = 0
    stops: int = 0
    note: str = ""

    def used(self, until: float) -> float:
        """Return the GPU-seconds of work before a time."""
        return sum(gpus * (min(end, until) - min(begin, until)) for begin, end, gpus in self.spans)


def hosts_of(job: TraceJob) -> tuple[int, int]:
    """Return the number of hosts of a job with a fixed size, and the GPUs that it has on each."""
    return -(-job.gpus // GPUS), min(job.gpus, GPUS)


def in_order_of_arrival(trace: Iterable[TraceJob], hosts: int) -> Result:
    """Begin each job when the ones before it have begun, and it fits."""
    result, free = Result("order of arrival"), dict.fromkeys(range(hosts), GPUS)
    waiting, arrivals = deque[TraceJob](), deque(trace)
    running: list[tuple[float, str, dict[int, int]]] = []
    while waiting or arrivals or running:
        now = min([job.arrived for job in list(arrivals)[:1]] + [end for end, _, _ in running])
        for ended in [each for each in running if each[0] <= now]:
            running.remove(ended)
            for host, gpus in ended[2].items():
                free[host] += gpus
        while arrivals and arrivals[0].arrived <= now:
            waiting.append(arrivals.popleft())
        while waiting and (places := _places(waiting[0], free)):
            job = waiting.popleft()
            for host, gpus in places.items():
                free[host] -= gpus
            running.append((now + job.seconds, job.name, places))
            result.waits[job.name], result.ends[job.name] = now - job.arrived, now + job.seconds
            result.spans.append((now, now + job.seconds, job.gpus))
    return result


def _places(job: TraceJob, free: dict[int, int]) -> dict[int, int]:
    """Return the GPUs of each host for a job, on the fullest hosts; none if it does not fit."""
    number, each = hosts_of(job)
    fullest = sorted(free, key=lambda host: free[host])
    if not job.elastic:
        able = [host for host in fullest if free[host] >= each][:number]
        return dict.fromkeys(able, each) if len(able) == number else {}
    found, missing = dict[int, int](), job.gpus
    for host in reversed(fullest):
        if gpus := min(free[host], missing):
            found[host] = gpus
            missing -= gpus
    return {} if missing else found


def by_the_queue(trace: Iterable[TraceJob], hosts: int, *, elastic: bool) -> Result:
    """Carry out what the queue decides."""
    replay = _Replay(deque(trace), hosts, elastic)
    replay.run()
    return replay.result


class _Replay:
    """The pool of a trace: its jobs arrive, begin, change, and end."""

    def __init__(self, trace: deque[TraceJob], hosts: int, elastic: bool) -> None:
        self.result = Result("kit's queue" if elastic else "kit's queue, no elastic job", lost=0.0)
        self._arrivals, self._elastic = trace, elastic
        self._trace = {job.name: job for job in trace}
        gpus = tuple(f"g{gpu}" for gpu in range(GPUS))
        made = tuple(PoolHost(f"h{host}", gpus) for host in range(hosts))
        people = tuple(Person(owner) for owner in sorted({job.owner for job in trace}))
        self._pool = Pool(0.0, made, people, ())
        self._left = {job.name: job.work for job in trace}
        self._since = dict[str, float]()
        self._work = Counter[str]()
        self._ends = dict[tuple[str, str], float]()

    def run(self) -> None:
        while self._arrivals or self._pool.jobs:
            self._pass(self._next())
            while self._arrivals and self._arrivals[0].arrived <= self._pool.now:
                self._submit(self._arrivals.popleft())
            self._act()

    def _next(self) -> float:
        """Return when something happens next."""
        now = self._pool.now
        times = [now + EVERY] if self._pool.jobs else []
        times += [job.arrived for job in list(self._arrivals)[:1]]
        times += [end for end in self._ends.values() if end > now]
        for job in self._pool.jobs:
            if gpus := _working(job):
                times.append(now + max(0.001, self._left[job.name] / gpus))
        return max(now, min(times))

    def _pass(self, until: float) -> None:
        """Let jobs work until then, and end; hosts are released."""
        seconds, used = until - self._pool.now, dict(self._pool.used)
        for job in self._pool.jobs:
            if gpus := _working(job):
                self._left[job.name] -= gpus * seconds
                self._work[job.name] += gpus * seconds  # type: ignore[assignment]
                self.result.spans.append((self._pool.now, until, gpus))
                used[job.owner] = used.get(job.owner, 0.0) + gpus * seconds / 3600
            else:
                self.result.waits[job.name] = self.result.waits.get(job.name, 0.0) + seconds
        fades = 0.5 ** (seconds / HALF_LIFE)
        used = {owner: hours * fades for owner, hours in used.items()}
        self._pool = replace(self._pool, now=until, used=used)
        jobs = []
        for job in self._pool.jobs:
            gone = {
                host
                for (name, host), end in self._ends.items()
                if name == job.name and end <= until
            }
            if self._left[job.name] <= 1e-6:
                self.result.ends[job.name] = until
                gone = set(job.has)
            else:
                jobs.append(
                    replace(job, has={h: had for h, had in job.has.items() if h not in gone})
                )
            for host in gone:
                self._ends.pop((job.name, host), None)
        self._pool = replace(self._pool, jobs=tuple(jobs))

    def _submit(self, job: TraceJob) -> None:
        if job.elastic:
            few, many = (job.gpus // 2, job.gpus * 2) if self._elastic else (job.gpus, job.gpus)
            wish = Wish(few, many, 0)
        else:
            number, each = hosts_of(job)
            wish = Wish(number, number, each)
        made = QueuedJob(job.name, job.owner, 50, job.arrived, wish, waits=self._pool.now)
        self._pool = replace(self._pool, jobs=(*self._pool.jobs, made))
        self.result.waits[job.name] = 0.0

    def _act(self) -> None:
        """Decide, and carry it out."""
        now, decision = self._pool.now, decide(self._pool)
        what = moves(self._pool, decision)
        jobs = {job.name: job for job in self._pool.jobs}
        for job in self._pool.jobs:
            left = {each.host for each in what.releases if each.job == job.name}
            begun = {each.host: Had(each.gpus, now) for each in what.begins if each.job == job.name}
            stops = job.began is not None and job.name not in decision.gives
            if job.began is not None and (left or begun or stops):
                self._count(job, left, stops)
            for host in left:
                self._ends[job.name, host] = now + LEAVES
            has = {
                host: replace(had, leaving=had.leaving or host in left)
                for host, had in job.has.items()
            }
            job = replace(job, has={**has, **begun}, early=job.name in decision.early)
            if stops:
                job = replace(job, began=None, waits=now, level=0.0, early=False)
            elif begun and job.began is None:
                job = replace(job, began=now, waits=None, level=level(job, now))
                self._since[job.name] = now
            jobs[job.name] = job
        self._pool = replace(self._pool, jobs=tuple(jobs.values()))

    def _count(self, job: QueuedJob, left: set[str], stops: bool) -> None:
        """Count what a change costs, and what it would cost if the job were killed for it."""
        result, gpus = self.result, _working(job)
        pause = gpus * (RESTART if stops else CHANGE)
        self._left[job.name] += pause
        result.lost = (result.lost or 0.0) + pause
        result.stops += stops
        result.changes += not stops
        if left or stops:
            since = self._pool.now - self._since[job.name]
            result.killed += gpus * (since % CHECKPOINT)
            result.killed_without_checkpoints += self._work[job.name]
            self._since[job.name] = self._pool.now
            self._work[job.name] = 0


def _working(job: QueuedJob) -> int:
    """Return the GPUs with which a job works."""
    return sum(len(had.gpus) for had in job.keeps.values()) if job.began is not None else 0
