"""The logs of pods. A dead node never answers, so every read has a time limit."""

from __future__ import annotations

import queue
import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import TypeAlias

from kit.errors import KitError
from kit.hosts.docker import concurrently
from kit.runtime.event_log import Source, last_lines
from kit.runtime.lines import split
from kit.runtime.status import LogLine
from kit.runtime.streams import stamped
from kit.targets.kubernetes.kubectl import Kubectl
from kit.targets.kubernetes.state import Namespace, Pod

ANSWER = 5.0
"""Seconds that a node may take for the lines of a pod."""
STEP = 0.2
"""Seconds between two checks whether the lines of all pods have ended."""
POLL = 1.0
"""Seconds between two checks for new pods, and whether the workloads have ended."""

_STAMP = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z ")


def sources(kubectl: Kubectl, found: Namespace, stack: str, name: str) -> dict[str, Source]:
    """Return the readers of a workload's logs by pod: of those that have run."""
    return {
        pod.name: partial(_new_lines, kubectl, name, pod)
        for pod in found.pods_of(stack)
        if pod.began
    }


def _new_lines(kubectl: Kubectl, name: str, pod: Pod, since: float | None) -> list[LogLine]:
    """Return the lines after a time; for None the last lines."""
    if since is not None:
        return read_pod_log(kubectl, name, pod, *_from(since))
    return last_lines(lambda tail: read_pod_log(kubectl, name, pod, f"--tail={tail}"))


def _stamp(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def read_pod_log(kubectl: Kubectl, name: str, pod: Pod, *words: str) -> list[LogLine]:
    """Return the lines of a pod that its node has."""
    text = kubectl.run("logs", pod.name, "--timestamps", *words, seconds=ANSWER)
    return [line for each in text.splitlines() if (line := parse(name, pod, each))]


def parse(name: str, pod: Pod, text: str) -> LogLine | None:
    """Return a line with its time; None for a line of the node itself about missing lines."""
    if not _STAMP.match(text):
        return None
    moment, line = stamped(text.encode())
    rank, line = split(line)
    return LogLine(name, pod.node, line, rank, moment)


Look = Callable[[], Namespace]
Arrivals: TypeAlias = "queue.SimpleQueue[LogLine]"


def _from(since: float | None) -> tuple[str, ...]:
    return () if since is None else (f"--since-time={_stamp(since)}",)


class _Follower:
    """Puts the lines of a pod into a queue, as they come."""

    def __init__(
        self, process: subprocess.Popen[str], name: str, pod: Pod, arrived: Arrivals
    ) -> None:
        self._process, self._name, self._pod, self._arrived = process, name, pod, arrived
        self._thread = threading.Thread(target=self._pass_on, daemon=True)
        self._thread.start()

    @property
    def lives(self) -> bool:
        """Whether lines may come."""
        return self._thread.is_alive()

    def _pass_on(self) -> None:
        assert self._process.stdout is not None
        for text in self._process.stdout:
            if line := parse(self._name, self._pod, text.rstrip("\n")):
                self._arrived.put(line)

    def end(self) -> None:
        """End the process; that of a dead node's pod would not end by itself."""
        self._process.terminate()
        self._process.wait()
        self._thread.join()


def _come(
    arrived: Arrivals, followers: Mapping[str, _Follower], seconds: float, *, over: bool
) -> Iterator[LogLine]:
    """Yield lines that arrive within some seconds; if all is `over`, end with the last line."""
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        done = over and not any(each.lives for each in followers.values())
        try:
            yield arrived.get(timeout=min(left, STEP))
        except queue.Empty:
            if done:
                return


class Logs:
    """Reads the logs of workloads; `stacks` are their stacks by name."""

    def __init__(self, kubectl: Kubectl, stacks: Mapping[str, str], look: Look) -> None:
        self._kubectl = kubectl
        self._stacks = stacks
        self._look = look

    def read(self, since: float | None) -> Iterator[LogLine]:
        """Yield the existing lines of all pods, sorted by time.

        Raises:
            KitError: A node does not answer; after the lines of the others.
        """
        pods = list(self._pods(self._look()))
        words = _from(since)
        reads = [partial(read_pod_log, self._kubectl, name, pod, *words) for name, pod in pods]
        found = concurrently(lambda read: read(), reads)
        lines = [line for each in found if not isinstance(each, KitError) for line in each]
        yield from sorted(lines, key=lambda line: line.time or 0.0)
        if failed := [each for each in found if isinstance(each, KitError)]:
            raise failed[0]

    def follow(self, since: float | None, ended: Callable[[], bool]) -> Iterator[LogLine]:
        """Yield lines as they come, also those of new pods, until the workloads have ended."""
        followers: dict[str, _Follower] = {}
        arrived: Arrivals = queue.SimpleQueue()
        try:
            while True:
                over = ended()  # First: so the lines of the last pods are still read.
                for name, pod in self._pods(self._look()):
                    if pod.name not in followers:
                        words = ("logs", pod.name, "--timestamps", "--follow", *_from(since))
                        process = self._kubectl.start(*words)
                        followers[pod.name] = _Follower(process, name, pod, arrived)
                yield from _come(arrived, followers, ANSWER if over else POLL, over=over)
                if over:
                    return
        finally:
            for each in followers.values():
                each.end()

    def _pods(self, found: Namespace) -> Iterator[tuple[str, Pod]]:
        for name, stack in self._stacks.items():
            for pod in found.pods_of(stack):
                if pod.began:
                    yield name, pod
