"""The controller of the queue: once a second it observes the pool, decides, and acts.

It keeps no state that it cannot observe again, so it may be killed at any time. It acts only while
its manager is the leader: if the leader is lost, the controller of the next leader takes over.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from kit.errors import KitError
from kit.queue.carrier import Queue, RefusedError, Seen
from kit.queue.document import Rules
from kit.queue.moves import Begin, Release
from kit.queue.pool import Pool
from kit.queue.record import Record, Spent, going
from kit.queue.see import AVOIDED_FOR
from kit.queue.turn import Turn, turn
from kit.values import Say, show_age

TURN = 1.0
"""Seconds between two turns."""
HANDOVER = 2.0
"""Seconds for which a controller only observes after its manager has become the leader: changes
of the previous controller must become visible."""
NOTED = 60.0
"""Seconds between two writes of the GPU-hours that people have used; hours since the last write
are lost with the controller."""
_AVOIDED = show_age(AVOIDED_FOR)


class Controller:
    """Runs a queue; `say` reports what it does."""

    def __init__(self, carrier: Queue, say: Say, clock: Callable[[], float] = time.time) -> None:
        self._carrier = carrier
        self._say = say
        self._clock = clock
        self._leads_since: float | None = None
        self._spent: Spent | None = None
        self._noted = 0.0
        self._silent = frozenset[str]()

    def run(self) -> None:
        """Run for ever. Report failures, and try again."""
        fault = ""
        while True:
            began = time.monotonic()
            try:
                self.step()
                fault = ""
            except KitError as error:
                if str(error) != fault:
                    self._say(f"{error}; tries again")
                fault = str(error)
            time.sleep(max(0.0, TURN - (time.monotonic() - began)))

    def step(self) -> None:
        """Take one turn, if this controller's manager leads."""
        if not self._carrier.leads():
            if self._leads_since is not None:
                self._say("another controller decides")
            self._leads_since = self._spent = None
            return
        if self._leads_since is None:
            self._leads_since = time.monotonic()
            self._say("this controller decides")
        if (rules := self._carrier.rules()) is None:
            return
        now, records = self._clock(), self._carrier.records()
        spent = self._spent or self._carrier.spent()
        half_life = rules.sharing.half_life
        present = list(going(records).values())
        seen = self._carrier.look(rules, present, spent.until(now, half_life), now)
        if time.monotonic() - self._leads_since < HANDOVER:
            return
        for host in seen.silent.keys() - self._silent:
            self._say(seen.silent[host])
        self._silent = frozenset(seen.silent)
        for job, state in seen.ended.items():
            self._end(records[job], str(state), now)
        self._count(rules, seen.pool, spent, now)
        self._carry_out(seen, turn(seen.pool), records)

    def _end(self, record: Record, state: str, now: float) -> None:
        self._say(f"{record.job} of {record.owner} has {state}")
        self._carrier.coordinate(record.job, on=False)
        self._carrier.update(replace(record, ended=now, state=state, waits=None, reason=""))

    def _count(self, rules: Rules, pool: Pool, spent: Spent, now: float) -> None:
        """Count the GPU-hours of people, and store them once a minute."""
        gpus = {
            (job.owner, job.name): sum(len(had.gpus) for had in job.has.values())
            for job in pool.jobs
        }
        known = spent if spent.at else Spent(now)
        self._spent = known.more(now, rules.sharing.half_life, gpus)
        if time.monotonic() - self._noted >= NOTED:
            self._carrier.set_spent(self._spent)
            self._noted = time.monotonic()

    def _carry_out(self, seen: Seen, now: Turn, records: Mapping[str, Record]) -> None:
        known = seen.avoided.keys() | seen.reclaimed.keys()
        for host in sorted({each.host for each in seen.interrupted} - known):
            self._say(f"a job on {host} was ended by hand: jobs avoid it for {_AVOIDED}")
            self._carrier.avoid(host, seen.pool.now)
        # A release may be in several of these at once.
        releases = dict.fromkeys((*seen.interrupted, *seen.lost, *now.moves.releases))
        for release in releases:
            self._say(f"{release.job} leaves {release.host}")
        for release in (*releases, *_leaving(seen.pool)):
            self._carrier.release(release)
        noted = {
            job.name: records[job.name].noted(job, now.reasons.get(job.name, ""))
            for job in now.jobs
        }
        runs = {each.job for each in now.moves.begins} | {job.name for job in now.jobs if job.has}
        for job in now.jobs:
            if (job.name in runs) != (job.name in seen.coordinators):
                self._carrier.coordinate(job.name, on=job.name in runs)
        for begin in now.moves.begins:
            self._begin(begin, seen.pool.now, noted[begin.job].waited)
        for name, record in noted.items():
            if record != records[name]:
                self._carrier.update(record)

    def _begin(self, begin: Begin, now: float, waited: float) -> None:
        """Start a job on a host. If the host's engine refuses, jobs avoid the host for a while."""
        self._say(f"{begin.job} gets {', '.join(begin.gpus)} of {begin.host}")
        try:
            self._carrier.begin(begin, now, waited)
        except RefusedError as error:
            self._say(
                f"{begin.job} cannot start there: {error}; jobs avoid the host for {_AVOIDED}"
            )
            self._carrier.avoid(begin.host, now)


def _leaving(pool: Pool) -> Iterator[Release]:
    """Yield the requested releases again: a previous controller may have died in a request."""
    for job in pool.jobs:
        for host, had in job.has.items():
            if had.leaving:
                yield Release(job.name, host)
