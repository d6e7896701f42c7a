"""The lines of ended containers, which the hosts' log collectors keep.

A collector writes the lines of each container to /logs/<container>/<day>.log, each with its time
(templates/monitoring/syslog-ng.conf.j2). A large file becomes <day>-<time>.log. Gaps, which are
times with missing lines, are in /logs/.gaps (keep-logs.sh.j2 beside it). kit reads the files in the
collector's container.
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
from kit.runtime.lines import split
from kit.runtime.status import LogLine
from kit.runtime.streams import seconds
from kit.workload.names import project_of, stack_of_job
from kit.workload.types import Role

FOLDER = "\x1e"
"""Before the name of a container: ASCII's record separator, which no log line begins with."""
GAPS, ROOM = ".gaps", ".room"
"""Other sections in the output of the program, in place of a container's name."""
FULL = 1024
"""KiB: a disk with less free space is full."""
SCRIPT = """\
cd /logs || exit 0
printf '\\n\\036.room\\n'
df -Pk . | awk 'NR == 2 { print $4 }'
printf '\\n\\036.gaps\\n'
cat .gaps 2>/dev/null
for folder in $(printf '%s\\n' $2 | sort -u); do
    printf '\\n\\036%s\\n' "$folder"
    for file in "$folder"/*.log; do
        if [ -f "$file" ] && ! [ "${file##*/}" \\< "$1" ]; then cat "$file"; fi
    done | if [ "$3" ]; then grep -aF '@kit {' | awk "$3"; else cat; fi
done
"""
"""Prints the files of containers that match $2, of the day $1 and later, through the filter $3."""
EVENTS = r"""
function flush(  key) { for (key in last) print last[key]; split("", last) }
{
    kind = substr($0, index($0, "\"event\": \"") + 10)
    kind = substr(kind, 1, index(kind, "\"") - 1)
    if (kind ~ /^(progress|pace|member|fetch|alone|silent|unmoved|left_out|serving|session)$/) {
        match($0, /"rank": [0-9]+/)
        last[kind substr($0, RSTART, RLENGTH)] = $0
    } else {
        flush()
        print
    }
}
END { flush() }
"""
"""A filter for events: of kinds that repeat, only the last events before one of the other kinds."""


@dataclass(frozen=True, slots=True)
class Span:
    """A time from `begin` to before `end`, in seconds since the epoch.

    `of_begin`: it selects containers by their first line, with all of their lines.
    """

    begin: float
    end: float
    of_begin: bool = False

    def has(self, line: LogLine) -> bool:
        """Return whether a line is in it."""
        return line.time is not None and self.begin <= line.time < self.end

    @property
    def day(self) -> str:
        """The first day that may have lines; containers begin to write before midnight."""
        first = datetime.fromtimestamp(max(self.begin, 86400.0), UTC) - timedelta(days=1)
        return f"{first:%Y-%m-%d}"


@dataclass(frozen=True, slots=True)
class ContainerLog:
    """The kept lines of one container of a workload, by time."""

    container: str
    lines: tuple[LogLine, ...]


@dataclass(frozen=True, slots=True)
class Gap:
    """A time without lines on a host: it deleted them to free space, or its disk was full."""

    host: str
    begin: float
    end: float
    disk: bool


@dataclass(frozen=True, slots=True)
class Kept:
    """Lines that hosts have kept; `without` says which hosts give no lines, and why."""

    logs: tuple[ContainerLog, ...] = ()
    gaps: tuple[Gap, ...] = ()
    without: tuple[str, ...] = ()

    def lines(self, span: Span) -> list[LogLine]:
        """Return the lines in a span, by time."""
        lines = list[LogLine]()
        for log in self.logs:
            # Each task of a Swarm has another name; Compose uses a container's name again.
            if span.of_begin and "." in log.container:
                lines += log.lines if log.lines and span.has(log.lines[0]) else ()
            else:
                lines += filter(span.has, log.lines)
        return sorted(lines, key=_time)

    def missing(self, span: Span) -> Iterator[str]:
        """Yield messages about the missing lines of a span."""
        yield from self.without
        for host in dict.fromkeys(gap.host for gap in self.gaps):
            for disk in (False, True):
                alike = [gap for gap in self.gaps if (gap.host, gap.disk) == (host, disk)]
                gaps = [gap for gap in alike if gap.begin < span.end and gap.end >= span.begin]
                if gaps:
                    yield _gap_words(gaps)


def _gap_words(gaps: Sequence[Gap]) -> str:
    """Describe gaps in one sentence: several gaps have the first and the last time."""
    begin, end = min(gap.begin for gap in gaps), max(gap.end for gap in gaps)
    lines = f"{gaps[0].host}: lines from {_when(begin)} to {_when(end)}"
    if gaps[0].disk:
        return f"{lines} may be missing: its disk was full"
    return f"{lines} are missing: there were more than `monitoring: {{logs: {{size: …}}}}` allows"


def _when(moment: float) -> str:
    return datetime.fromtimestamp(moment).astimezone().isoformat(" ", "minutes")


def _time(line: LogLine) -> float:
    return line.time or 0.0


def kept_logs(
    hosts: Sequence[Host], cluster: str, names: Sequence[str], day: str, *, events: bool = False
) -> Kept:
    """Return the lines of workloads that the hosts have kept, from a `day` on.

    With `events`, only events: of kinds that repeat, only the last before one of the other kinds.

    Raises:
        KitError: No host has a collector, or none can be reached.
    """
    results = concurrently(partial(_of_host, cluster, names, day, events), hosts)
    failed = [each for each in results if isinstance(each, KitError)]
    found = [each for each in results if isinstance(each, Kept)]
    if not found and failed:
        raise joined(failed)
    if not found:
        what = "no host has a log collector, and Docker keeps only the lines of containers"
        raise KitError(what, "write `monitoring: {logs: 30d}`, then render and `kit swarm up`")
    without = [f"lines of a host are missing: {each.message}" for each in failed]
    for host, result in zip(hosts, results, strict=True):
        if result is None:
            without.append(f"lines of a host are missing: {host.name}: no log collector runs there")
    return Kept(
        tuple(log for each in found for log in each.logs),
        tuple(gap for each in found for gap in each.gaps),
        (*without, *(words for each in found for words in each.without)),
    )


def _of_host(cluster: str, names: Sequence[str], day: str, events: bool, host: Host) -> Kept | None:
    """Return the kept lines of a host, or None without a collector."""
    with closing(Docker.of(host)) as docker:
        listed = docker.get("/containers/json", filters={"name": [Role.LOG_COLLECTOR]})
        stacks = (f"/{cluster}-monitoring", f"/{cluster}_monitoring")
        own = [each["Id"] for each in listed if each["Names"][0].startswith(stacks)]
        if not own:
            return None
        patterns = " ".join(f"*{stack_of(name)}*" for name in names)
        words = ("sh", "-c", SCRIPT, "sh", day, patterns, EVENTS if events else "")
        text = docker.command("read the kept lines", "exec", own[0], *words)
        return parsed(text, cluster, names, host.name)


def parsed(text: str, cluster: str, names: Sequence[str], host: str) -> Kept:
    """Parse the output of the program on a host."""
    logs, gaps, without = list[ContainerLog](), tuple[Gap, ...](), tuple[str, ...]()
    for part in re.split(f"^{FOLDER}", text, flags=re.MULTILINE)[1:]:
        container, _, content = part.partition("\n")
        if container == GAPS:
            gaps = tuple(_gaps(content, host))
        elif container == ROOM:
            known = content.split()
            if known and known[0].isdecimal() and int(known[0]) < FULL:
                without = (f"{host}: its disk is full: newer lines are missing",)
        else:
            name = next((each for each in names if is_of(container, cluster, each)), None)
            if name is not None:
                lines = sorted(_lines(content, name, host), key=_time)
                logs.append(ContainerLog(container, tuple(lines)))
    return Kept(tuple(logs), gaps, without)


def _lines(content: str, name: str, host: str) -> Iterator[LogLine]:
    for line in content.split("\n"):
        stamp, _, rest = line.partition(" ")
        with suppress(ValueError):  # A part of a longer line has no time.
            moment = seconds(stamp)
            rank, said = split(rest)
            yield LogLine(name, host, said, rank, moment)


def _gaps(content: str, host: str) -> Iterator[Gap]:
    for line in content.splitlines():
        with suppress(ValueError):  # A full disk may leave a part of a line.
            begin, end, why = line.split()
            yield Gap(host, seconds(begin), seconds(end), disk=why == "disk")


def stack_of(name: str) -> str:
    """Return the stack of a job or a server."""
    return name if name.startswith("serve-") else stack_of_job(name)


def is_of(container: str, cluster: str, name: str) -> bool:
    """Return whether a container trains or serves for a workload, in a Swarm or by Compose."""
    roles = "|".join(role for role in Role if role.works)
    stack = re.escape(stack_of(name))
    project = re.escape(project_of(cluster, stack_of(name)))
    swarm = rf"{stack}_({roles})(-on-[a-z0-9-]+)?\.[\w.]+"
    compose = rf"{project}-({roles})-\d+"
    return re.fullmatch(f"{swarm}|{compose}", container) is not None
