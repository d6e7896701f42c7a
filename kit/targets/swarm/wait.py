"""Waiting until a job's tasks run, with reports of the reasons for delays, or have ended."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from kit.errors import KitError
from kit.hosts.docker import Docker
from kit.runtime.endings import HOPELESS
from kit.runtime.events import Reader
from kit.runtime.status import ENDED, HostStatus, JobStatus, State
from kit.targets.swarm.logs import Logs
from kit.targets.swarm.observe import observe_cluster
from kit.targets.swarm.pulls import Pulls
from kit.targets.swarm.state import Cluster, Service
from kit.targets.swarm.status import PULLING, RELEASING, fewest_of, working
from kit.values import Say, count

POLL = 0.5
"""Seconds between two queries of the tasks."""
STUCK = 10.0
"""Seconds until a task that cannot be placed, fails repeatedly or was stopped counts as stuck."""
LONGEST = 3600.0
"""Seconds for an image to come, a container to become healthy, or a GPU to be released."""
SPELLED_OUT = 16
"""With more hosts, only their numbers are reported."""


class NotUpError(KitError):
    """A job does not start; `mistake`: a restart is useless."""

    def __init__(self, job: str, message: str, reason: str, *, mistake: bool) -> None:
        super().__init__(message, f"`kit stop {job}` removes it")
        self.job, self.reason, self.mistake = job, reason, mistake


class Watch:
    """Reports changes, and records how long a host has waited for the same reason."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._reported: dict[str, str] = {}
        self._since: dict[tuple[str, str], tuple[str, float]] = {}

    def look(self, job: str, hosts: Sequence[HostStatus]) -> list[HostStatus]:
        """Report changes, and return the hosts that have waited too long for the same reason."""
        if len(hosts) <= SPELLED_OUT:
            for host in hosts:
                self._tell(f"{job}/{host.host}", _doing(host))
        else:
            states = Counter(_doing(host) for host in hosts)
            states_text = "; ".join(
                f"{number:,} × {doing}" for doing, number in states.most_common(4)
            )
            self._tell(job, f"of {count(len(hosts), 'host')} {states_text}")
        return [host for host in hosts if self._stuck(job, host)]

    def _tell(self, who: str, text: str) -> None:
        if self._reported.get(who) != text:
            self._reported[who] = text
            self._say(f"{who}: {text}")

    def _stuck(self, job: str, host: HostStatus) -> bool:
        if host.state is State.FAILED or host.exit_status in HOPELESS:
            return True
        if host.state not in {State.WAITING, State.STOPPED}:
            self._since.pop((job, host.host), None)
            return False
        kind = f"{host.state} {host.message.partition(';')[0]}"
        was, since = self._since.setdefault((job, host.host), (kind, time.monotonic()))
        if was != kind:
            self._since[job, host.host] = (kind, time.monotonic())
        return was == kind and time.monotonic() - since > _patience(host)


def _patience(host: HostStatus) -> float:
    """Return the seconds after which a host that waits for the same reason is stuck."""
    works = not host.message or host.message.startswith((PULLING, RELEASING))
    return LONGEST if works and host.state is State.WAITING else STUCK


def _doing(host: HostStatus) -> str:
    return f"{host.state}, {host.message}" if host.message else str(host.state)


def wait_until_up(manager: Docker, jobs: Sequence[str], say: Say) -> None:
    """Wait until the required number of hosts of each job run or have completed.

    Raises:
        NotUpError: Too few hosts can run; the message has the reasons and the other hosts.
    """
    watch, pulls = Watch(say), Pulls(manager)
    waiting = list(jobs)
    while True:
        cluster = observe_cluster(manager)
        waiting = [
            job for job in waiting if not _is_up(cluster, job, watch, pulls.explain(cluster, job))
        ]
        if not waiting:
            return
        time.sleep(POLL)


def _is_up(cluster: Cluster, job: str, watch: Watch, hosts: Sequence[HostStatus]) -> bool:
    stuck = watch.look(job, hosts)
    fewest = fewest_of(cluster, job)
    doing = [host for host in hosts if host.state in {State.RUNNING, State.COMPLETED}]
    undecided = [host for host in hosts if host not in doing and host not in stuck]
    if not undecided and len(doing) >= fewest and not _updating(cluster, job):
        return True
    if len(hosts) - len(stuck) < fewest:
        mistake = any(host.exit_status in HOPELESS for host in stuck)
        reasons = [f"{host.host}: {host.message or host.state}" for host in stuck]
        message = _failure(job, hosts, stuck, reasons)
        raise NotUpError(job, message, "; ".join(reasons), mistake=mistake)
    return False


def _updating(cluster: Cluster, job: str) -> bool:
    return any(s.update in {"updating", "rollback_started"} for s in cluster.of(job))


def _failure(
    job: str, hosts: Sequence[HostStatus], stuck: Sequence[HostStatus], reasons: Sequence[str]
) -> str:
    others = [host.host for host in hosts if host not in stuck and host.state not in ENDED]
    rest = f"; {', '.join(others)} wait for it" if others else ""
    return "\n".join([f"{job} does not come up{rest}", *(f"  {each}" for each in reasons)])


def end_training(docker: Docker, cluster: Cluster, status: JobStatus, reader: Reader) -> JobStatus:
    """End a job's training but not its rendezvous, which the hosts need for a last checkpoint.

    Read its logs meanwhile: Swarm deletes them with the tasks.
    """
    services = working(cluster, status.job)
    none = [f"{service.name}=0" for service in services]
    asked = False

    def ended() -> bool:
        nonlocal asked
        if asked:
            return not _living(docker, services)
        docker.command(f"end {status.job}", "service", "scale", "--detach", *none)
        asked = True
        return False

    for line in Logs(docker, cluster).follow([status.job], time.time(), ended):
        reader.read(line)
    return replace(
        status,
        state=State.STOPPED,
        message="",
        ended=time.time(),
        hosts=tuple(replace(host, state=State.STOPPED, message="") for host in status.hosts),
        progress=reader.progress,
        checkpoint=reader.checkpoint,
    )


def _living(docker: Docker, services: Sequence[Service]) -> bool:
    """Return whether tasks still run on nodes that are ready."""
    cluster = observe_cluster(docker)
    tasks = cluster.tasks_of(services)
    return any(task.state == "running" and cluster.ready(task.node) for task in tasks)
