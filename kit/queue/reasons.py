"""Why a job of the queue waits, in words. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from kit.queue.pool import Gpus, Pool, QueuedJob, Wish
from kit.values import count


class Reasons:
    """The reasons why jobs wait; `owned` is the number of GPUs that each owner gets."""

    def __init__(self, pool: Pool, gives: Mapping[str, Gpus], owned: Mapping[str, int]) -> None:
        self._pool, self._owned = pool, owned
        self._gives = gives
        self._served = dict[frozenset[str], str]()
        self._people = {job.owner: pool.person(job.owner) for job in pool.jobs}
        self._counts = dict[tuple[int | None, frozenset[str]], int]()

    def why(self, job: QueuedJob) -> str:
        """Return why a job waits."""
        wish, person = job.wish, self._people[job.owner]
        needs, owned = _gpus(wish), self._owned.get(job.owner, 0)
        if person.most is not None and needs > person.most:
            return f"{job.owner} may have {person.most} GPUs at once, and it wants more"
        if person.most is not None and owned + needs > person.most:
            return f"{job.owner} has {owned} of at most {person.most} GPUs"
        if job.anchors and not any(h.usable and h.name in job.home for h in self._pool.hosts):
            return f"waits for {', '.join(sorted(job.home)[:3])}, where its checkpoints are"
        noun = "GPU" if wish.each == 0 else "host"
        able = self._able(wish)
        if able < wish.least:
            opens = self._opens(wish)
            later = f"; {opens}" if opens else ""
            return f"wants {count(wish.least, noun)}, and the pool has {able} for it now{later}"
        served, wanted = self._names(wish.hosts), count(wish.least, noun)
        if not served:
            return f"waits for {wanted}, which others release"
        return f"waits for {wanted}, which {served} {'have' if ', ' in served else 'has'}"

    def _names(self, hosts: frozenset[str]) -> str:
        """Return the names of some jobs that have hosts of a request."""
        if hosts not in self._served:
            names = [name for name, has in self._gives.items() if not hosts or hosts & has.keys()]
            self._served[hosts] = ", ".join(sorted(names)[:3])
        return self._served[hosts]

    def _able(self, wish: Wish) -> int:
        """Return how many hosts, or GPUs, the pool has now for a request."""
        each, hosts = wish.each, wish.hosts
        if (each, hosts) not in self._counts:
            gpus = [
                len(host.gpus)
                for host in self._pool.hosts
                if host.usable and (not hosts or host.name in hosts)
            ]
            able = sum(gpus) if each == 0 else sum(number >= (each or 1) for number in gpus)
            self._counts[each, hosts] = able
        return self._counts[each, hosts]

    def _opens(self, wish: Wish) -> str:
        closed = [
            host
            for host in self._pool.hosts
            if not host.open
            and host.until is not None
            and (not wish.hosts or host.name in wish.hosts)
        ]
        first = min(closed, key=lambda host: host.until or 0.0, default=None)
        return f"{first.name} is lent next" if first else ""


def _gpus(wish: Wish) -> int:
    """Return the smallest number of GPUs for a request."""
    return wish.least * (1 if wish.each == 0 else wish.each or 1)
