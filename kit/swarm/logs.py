"""What a job's tasks have printed, as Swarm collects it from the nodes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence

from kit.docker import Docker, SilentError
from kit.engine import LogLine
from kit.engine.printed import Printed, split
from kit.engine.streams import WINDOW, lines, merged
from kit.errors import KitError
from kit.swarm.seen import Cluster
from kit.swarm.tasks import training

SILENCE = 5.0
"""Seconds that a manager may take to collect what is there from a node."""
OPEN = 10.0
"""Seconds after which the jobs' end no longer waits for a stream that does not open."""
POLL = 1.0
"""Seconds between two looks at whether the jobs have ended."""
DELAY = 1.0
"""Seconds that the last lines of an ended task may take to arrive."""
MOST_TASKS = 32
"""Beyond, a service's tasks are asked together."""
FEW = "300"
"""Lines of a task that are read for the newest figures."""
MOST = 2000
"""Lines in which a job's beginning must be found."""


def _time(line: LogLine) -> float:
    return line.time or 0.0


class Logs:
    """Reads the logs of one look at the cluster's services."""

    def __init__(self, manager: Docker, cluster: Cluster) -> None:
        # A connection of their own, which is cut at the end.
        self._manager = Docker(manager.name, manager.url)
        self._cluster = cluster
        self._hosts = {node.id: node.name for node in cluster.nodes}
        self._over = threading.Event()
        self._open = threading.Semaphore(0)

    def read(
        self, jobs: Sequence[str], since: float | None, tail: str = "all"
    ) -> Iterator[LogLine]:
        """Yield what is there, in the order of time."""
        # Within a service Docker tells one task after the other, and the newest not always last.
        found = self._merged(jobs, since, tail, follow=False, window=None)
        return iter(sorted(found, key=_time))

    def follow(
        self, jobs: Sequence[str], since: float | None, ended: Callable[[], bool]
    ) -> Iterator[LogLine]:
        """Yield what is there and what comes, until the jobs have `ended`.

        That is asked only when all streams are open: what is printed from then on is not missed.
        """
        number = sum(len(training(self._cluster, job)) for job in jobs)
        threading.Thread(target=self._end_with, args=(ended, number), daemon=True).start()
        try:
            yield from self._merged(jobs, since, "all", follow=True, window=WINDOW)
        finally:
            self._hang_up()

    def _end_with(self, ended: Callable[[], bool], streams: int) -> None:
        for _ in range(streams):
            self._open.acquire(timeout=OPEN)
        while not self._over.wait(POLL):
            if ended():
                self._over.wait(DELAY)
                self._hang_up()

    def _hang_up(self) -> None:
        self._over.set()
        self._manager.close()

    def _merged(
        self,
        jobs: Sequence[str],
        since: float | None,
        tail: str,
        *,
        follow: bool,
        window: float | None,
    ) -> Iterator[LogLine]:
        query = {"tail": tail, "follow": str(int(follow))}
        if since is not None:
            query["since"] = f"{since:.0f}"
        sources = [
            self._lines(job, f"/services/{service.id}/logs", query)
            for job in jobs
            for service in training(self._cluster, job)
        ]
        return merged(sources, _time, window)

    def _lines(self, job: str, path: str, query: dict[str, str]) -> Iterator[LogLine]:
        try:
            yield from self._all_lines(job, path, query)
        except SilentError:
            return  # Swarm waits for the logs of a node that has just gone.
        except KitError:
            if not self._over.is_set():  # Else it was we who hung up.
                raise

    def _all_lines(self, job: str, path: str, query: dict[str, str]) -> Iterator[LogLine]:
        wanted = {"stdout": "1", "stderr": "1", "timestamps": "1", "details": "1", **query}
        patience = None if query["follow"] == "1" else SILENCE
        with self._manager.stream(path, patience, **wanted) as response:
            self._open.release()
            if self._over.is_set():  # Hung up while this stream was still being opened.
                return
            for moment, text in lines(response):
                details, _, said = text.partition(" ")
                labels = dict(pair.partition("=")[::2] for pair in details.split(","))
                node = labels.get("com.docker.swarm.node.id", "")
                rank, said = split(said)
                yield LogLine(job, self._hosts.get(node, node), said, rank, moment)

    def printed(self, job: str) -> Printed:
        """Return what the lines at the beginning and at the end tell of a job."""
        printed = Printed()
        for number, line in enumerate(self._present(job, "all")):
            printed.read(line)
            if number > MOST or printed.begun:
                self._hang_up()
                break
        self._over.clear()
        for line in sorted(self._present(job, FEW), key=_time):
            printed.read(line)
        return printed

    def _present(self, job: str, tail: str) -> Iterator[LogLine]:
        """Yield the lines of the newest tasks alone, where those are not too many to be asked.

        Of tasks before them Docker may tell nothing for seconds, as their containers are gone.
        """
        query = {"tail": tail, "follow": "0"}
        services = training(self._cluster, job)
        newest = {(t.service, t.slot): t.id for t in self._cluster.tasks_of(services) if t.node}
        paths = [f"/tasks/{task}/logs" for task in newest.values()]
        if len(paths) > MOST_TASKS:
            paths = [f"/services/{service.id}/logs" for service in services]
        return merged([self._lines(job, path, query) for path in paths], _time, None)
