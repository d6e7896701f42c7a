"""The logs of workloads' tasks, which Swarm collects from the nodes."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from kit.errors import KitError
from kit.hosts.docker import Docker, NoAnswerError
from kit.runtime.event_log import Source, last_lines
from kit.runtime.events import split
from kit.runtime.status import LogLine
from kit.runtime.streams import WINDOW, Readable, lines, merged
from kit.targets.swarm.state import OVER, Cluster
from kit.targets.swarm.status import logged, working

SILENCE = 5.0
"""Seconds that a manager may take to collect the existing lines of a node."""
REQUESTED = 10.0
"""Seconds after which the end of the workloads no longer waits for a stream's connection."""
POLL = 1.0
"""Seconds between two checks whether the workloads have ended."""
DELAY = 1.0
"""Seconds to wait for the last lines of an ended task."""
MOST_TASKS = 16
"""With more tasks, a service's tasks are queried together."""
QUERY = {"stdout": "1", "stderr": "1", "timestamps": "1", "details": "1"}


def _time(line: LogLine) -> float:
    return line.time or 0.0


def sources(docker: Docker, cluster: Cluster, name: str) -> dict[str, Source]:
    """Return the readers of a workload's logs, one for each of the newest tasks if they are few.

    A task that has not run has no lines; the task before it has the error. Docker may search for
    seconds for older tasks, because their containers are removed. Nodes that are down cannot be
    queried.
    """
    services = working(cluster, name)
    ran = (task for task in cluster.tasks_of(services) if task.state in {"running", *OVER})
    newest = {(task.service, task.slot): task for task in ran if task.node}
    tasks = [task for task in newest.values() if cluster.ready(task.node)]
    if len(tasks) <= MOST_TASKS:
        paths = {task.id: f"/tasks/{task.id}/logs" for task in tasks}
    else:
        paths = {service.id: f"/services/{service.id}/logs" for service in services}
    hosts = {node.id: node.name for node in cluster.nodes}
    return {key: partial(_new_lines, docker, hosts, name, path) for key, path in paths.items()}


def _new_lines(
    docker: Docker, hosts: Mapping[str, str], name: str, path: str, since: float | None
) -> list[LogLine]:
    """Return the lines after a time; for None the last lines."""

    def read(**asked: str) -> list[LogLine]:
        content = docker.read(path, SILENCE, **QUERY, **asked, follow="0")
        return sorted(_parsed(hosts, name, io.BytesIO(content)), key=_time)

    if since is not None:
        return read(since=f"{since:.9f}")
    return last_lines(lambda tail: read(tail=tail))


def _parsed(hosts: Mapping[str, str], name: str, response: Readable) -> Iterator[LogLine]:
    """Parse lines with details: the first word contains their node."""
    for moment, text in lines(response):
        details, _, said = text.partition(" ")
        labels = dict(pair.partition("=")[::2] for pair in details.split(","))
        node = labels.get("com.docker.swarm.node.id", "")
        rank, said = split(said)
        yield LogLine(name, hosts.get(node, node), said, rank, moment)


class Logs:
    """Reads the logs of the services of one cluster state."""

    def __init__(self, manager: Docker, cluster: Cluster) -> None:
        # Use a separate connection: it is closed at the end.
        self._manager = Docker(manager.name, manager.url)
        self._cluster = cluster
        self._hosts = {node.id: node.name for node in cluster.nodes}
        self._over = threading.Event()
        self._requested = threading.Semaphore(0)

    def read(self, names: Sequence[str], since: float | None) -> Iterator[LogLine]:
        """Yield the existing lines, sorted by time."""
        # Docker sends the tasks of a service one after the other, not always the newest last.
        found = self._merged(names, since, follow=False, window=None)
        return iter(sorted(found, key=_time))

    def follow(
        self, names: Sequence[str], since: float | None, ended: Callable[[], bool]
    ) -> Iterator[LogLine]:
        """Yield existing and new lines until the workloads have `ended`.

        `ended` is called after all streams were requested, so that no later line is missed.
        """
        number = sum(len(logged(self._cluster, name)) for name in names)
        threading.Thread(target=self._end_with, args=(ended, number), daemon=True).start()
        try:
            yield from self._merged(names, since, follow=True, window=WINDOW)
        finally:
            self._disconnect()

    def _end_with(self, ended: Callable[[], bool], streams: int) -> None:
        for _ in range(streams):
            self._requested.acquire(timeout=REQUESTED)
        while not self._over.wait(POLL):
            if ended():
                self._over.wait(DELAY)
                self._disconnect()

    def _disconnect(self) -> None:
        self._over.set()
        self._manager.close()

    def _merged(
        self, names: Sequence[str], since: float | None, *, follow: bool, window: float | None
    ) -> Iterator[LogLine]:
        query = {"follow": str(int(follow))}
        if since is not None:
            query["since"] = f"{since:.0f}"
        streams = [
            self._lines(name, f"/services/{service.id}/logs", query)
            for name in names
            for service in logged(self._cluster, name)
        ]
        return merged(streams, _time, window)

    def _lines(self, name: str, path: str, query: dict[str, str]) -> Iterator[LogLine]:
        try:
            patience = None if query["follow"] == "1" else SILENCE
            sent = self._requested.release
            with self._manager.stream(path, patience, sent, **QUERY, **query) as response:
                if self._over.is_set():  # It was closed while this stream was opened.
                    return
                yield from _parsed(self._hosts, name, response)
        except NoAnswerError:
            return  # Swarm waits for the logs of a node that is down.
        except KitError:
            if not self._over.is_set():  # Otherwise kit closed the connection.
                raise
