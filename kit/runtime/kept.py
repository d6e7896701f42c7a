"""The lines of containers that have ended, as the hosts' log collectors keep them.

A collector writes the lines of each container to /logs/<container>/<day>.log, each with its time
(templates/monitoring/syslog-ng.conf.j2). They are read in its container.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial

from kit.errors import KitError, joined
from kit.hosts.docker import Docker, concurrently
from kit.model import Host
from kit.runtime.events import split
from kit.runtime.status import LogLine
from kit.runtime.streams import seconds
from kit.workload.names import project_of, stack_of_job
from kit.workload.types import Role

FOLDER = "\x1e"
"""Before the name of a container: ASCII's record separator, which no log line begins with."""
SCRIPT = """\
cd /logs || exit 0
for folder in $2; do
    printf '\\036%s\\n' "$folder"
    for file in "$folder"/*.log; do
        if [ -f "$file" ] && ! [ "${file##*/}" \\< "$1" ]; then cat "$file"; fi
    done
done
"""
"""Prints the files from the day $1 on of the containers that match $2."""


@dataclass(frozen=True, slots=True)
class Span:
    """A time from `begin` to before `end`, in seconds since the epoch.

    `of_begin`: it is that in which containers have begun, whose lines are all in it.
    """

    begin: float
    end: float
    of_begin: bool = False

    def has(self, line: LogLine) -> bool:
        """Return whether a line is in it."""
        return line.time is not None and self.begin <= line.time < self.end

    @property
    def day(self) -> str:
        """The first file that may have lines; containers begin to write before midnight."""
        first = datetime.fromtimestamp(max(self.begin, 86400.0), UTC) - timedelta(days=1)
        return f"{first:%Y-%m-%d}.log"


def kept_lines(
    hosts: Sequence[Host], cluster: str, names: Sequence[str], span: Span
) -> tuple[list[LogLine], list[KitError]]:
    """Return the kept lines of workloads, by time, and the hosts whose lines are missing.

    Raises:
        KitError: No host has a collector, or none can be reached.
    """
    results = concurrently(partial(_of_host, cluster, names, span), hosts)
    failed = [each for each in results if isinstance(each, KitError)]
    found = [each for each in results if not isinstance(each, KitError) and each is not None]
    if not found and failed:
        raise joined(failed)
    if not found:
        what = "no host has a log collector, and Docker keeps only the lines of containers"
        raise KitError(what, "write `monitoring: {logs: 30d}`, then render and `kit swarm up`")
    lines = [line for each in found for line in each]
    return sorted(lines, key=lambda line: line.time or 0.0), failed


def _of_host(cluster: str, names: Sequence[str], span: Span, host: Host) -> list[LogLine] | None:
    """Return a host's kept lines, or None without a collector."""
    with closing(Docker.of(host)) as docker:
        listed = docker.get("/containers/json", filters={"name": [Role.LOG_COLLECTOR]})
        stacks = (f"/{cluster}-monitoring", f"/{cluster}_monitoring")
        own = [each["Id"] for each in listed if each["Names"][0].startswith(stacks)]
        if not own:
            return None
        lines = list[LogLine]()
        for name in names:
            words = ("exec", own[0], "sh", "-c", SCRIPT, "sh", span.day, f"*{stack_of(name)}*")
            text = docker.command("read the kept lines", *words)
            lines += parsed(text, cluster, name, host.name, span)
        return lines


def parsed(text: str, cluster: str, name: str, host: str, span: Span) -> Iterator[LogLine]:
    """Yield the lines of a workload's working containers in a span."""
    for part in re.split(f"^{FOLDER}", text, flags=re.MULTILINE)[1:]:
        container, _, content = part.partition("\n")
        if not is_of(container, cluster, name):
            continue
        lines = list(_lines(content, name, host))
        # Tasks of a Swarm have names of their own; Compose uses a container's name again.
        if span.of_begin and "." in container:
            yield from lines if lines and span.has(lines[0]) else ()
        else:
            yield from filter(span.has, lines)


def _lines(content: str, name: str, host: str) -> Iterator[LogLine]:
    for line in content.split("\n"):
        stamp, _, rest = line.partition(" ")
        with suppress(ValueError):  # A part of a longer line has no time.
            moment = seconds(stamp)
            rank, said = split(rest)
            yield LogLine(name, host, said, rank, moment)


def stack_of(name: str) -> str:
    """Return the stack of a job or a server."""
    return name if name.startswith("serve-") else stack_of_job(name)


def is_of(container: str, cluster: str, name: str) -> bool:
    """Return whether a container trained or answered for a workload, in a Swarm or by Compose."""
    roles = "|".join(role for role in Role if role.works)
    stack = re.escape(stack_of(name))
    project = re.escape(project_of(cluster, stack_of(name)))
    swarm = rf"{stack}_({roles})(-on-[a-z0-9-]+)?\.[\w.]+"
    compose = rf"{project}-({roles})-\d+"
    return re.fullmatch(f"{swarm}|{compose}", container) is not None
