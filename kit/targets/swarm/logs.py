"""The logs of workloads' tasks, which Swarm collects from the nodes.

Existing lines are read task by task. Docker's log of a whole service often hangs when several of
its tasks have run on a node, and lacks lines of the newest (seen with Docker 26; see
https://github.com/moby/moby/issues/33183). New lines are followed by service, so that a new task's
lines come too; of a service's tasks on a node, only one prints.
"""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain

from kit.errors import KitError
from kit.hosts.docker import Docker, concurrently
from kit.runtime.event_log import Source, last_lines
from kit.runtime.lines import split, with_note
from kit.runtime.status import LogLine
from kit.runtime.streams import WINDOW, Readable, lines, merged
from kit.targets.swarm.state import OVER, Cluster, Task
from kit.targets.swarm.status import logged, working

SILENCE = 5.0
"""Seconds that a manager may take to collect the existing lines of a node."""
REQUESTED = 10.0
"""Seconds after which the end of the workloads no longer waits for a stream's connection."""
POLL = 1.0
"""Seconds between two checks whether the workloads have ended."""
OVERLAP = 60.0
"""Seconds that new lines and existing ones overlap: the clocks of the nodes may differ by less."""
MISSING = "kit: the lines of a task are missing"
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
    if since is not None:
        return _read(docker, hosts, name, path, since=f"{since:.9f}")
    return last_lines(lambda tail: _read(docker, hosts, name, path, tail=tail))


def _read(
    docker: Docker, hosts: Mapping[str, str], name: str, path: str, **asked: str
) -> list[LogLine]:
    """Return the existing lines of a task or service, sorted by time."""
    content = docker.read(path, SILENCE, **QUERY, **asked, follow="0")
    return sorted(_parsed(hosts, name, io.BytesIO(content)), key=_time)


def _parsed(hosts: Mapping[str, str], name: str, response: Readable) -> Iterator[LogLine]:
    """Parse lines with details: the first word contains their node."""
    for moment, text in lines(response):
        details, _, line = text.partition(" ")
        labels = dict(pair.partition("=")[::2] for pair in details.split(","))
        node = labels.get("com.docker.swarm.node.id", "")
        rank, line = split(line)
        yield LogLine(name, hosts.get(node, node), line, rank, moment)


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
        """Yield the existing lines, sorted by time, then a line for each task that sends none."""
        asked = {} if since is None else {"since": f"{since:.9f}"}
        tasks = [(name, task) for name in names for task in self._ran(name)]
        trains = {each.id for name in names for each in working(self._cluster, name)}

        def lines_of(source: tuple[str, Task]) -> list[LogLine]:
            name, task = source
            task_lines = _read(self._manager, self._hosts, name, f"/tasks/{task.id}/logs", **asked)
            whole = since is None and task.service in trains
            return [*with_note(task_lines)] if whole else task_lines

        results = concurrently(lines_of, tasks)
        yield from sorted(chain(*(each for each in results if isinstance(each, list))), key=_time)
        for (name, task), result in zip(tasks, results, strict=True):
            if isinstance(result, KitError):
                yield LogLine(name, self._hosts.get(task.node, task.node), f"{MISSING}: {result}")

    def _ran(self, name: str) -> Iterator[Task]:
        """Yield the tasks of a workload that have lines and whose node can be asked."""
        for task in self._cluster.tasks_of(logged(self._cluster, name)):
            if task.state in {"running", *OVER} and task.node and self._cluster.ready(task.node):
                yield task

    def follow(
        self, names: Sequence[str], since: float | None, ended: Callable[[], bool]
    ) -> Iterator[LogLine]:
        """Yield existing and new lines until the workloads have `ended`.

        `ended` is called after all streams were requested, so that no later line is missed.
        """
        begin = time.time() - OVERLAP if since is None else since
        before = list(self.read(names, None)) if since is None else []
        known = {(line.host, line.time) for line in before}
        try:
            yield from before
            for line in self._stream(names, begin, ended):
                if (line.host, line.time) not in known:
                    yield line
        finally:
            self._disconnect()

    def _stream(
        self, names: Sequence[str], begin: float, ended: Callable[[], bool]
    ) -> Iterator[LogLine]:
        streams = [
            self._lines(name, f"/services/{service.id}/logs", f"{begin:.0f}")
            for name in names
            for service in logged(self._cluster, name)
        ]
        threading.Thread(target=self._end_with, args=(ended, len(streams)), daemon=True).start()
        return merged(streams, _time, WINDOW)

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

    def _lines(self, name: str, path: str, since: str) -> Iterator[LogLine]:
        query = {**QUERY, "follow": "1", "since": since}
        try:
            with self._manager.stream(path, self._requested.release, **query) as response:
                if self._over.is_set():  # It was closed while this stream was opened.
                    return
                yield from _parsed(self._hosts, name, response)
        except KitError:
            if not self._over.is_set():  # Otherwise kit closed the connection.
                raise
