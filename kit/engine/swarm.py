"""The engine that brings stacks onto a Swarm, by its managers; all that it knows it asks them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from kit.docker import Docker
from kit.engine import (
    ENDED,
    Deployment,
    JobStatus,
    LogLine,
    Say,
    State,
    Step,
    deployment,
    left_alone,
)
from kit.engine.printed import Printed
from kit.engine.rendered import rendered
from kit.errors import InputError, KitError, nearest
from kit.model import Host
from kit.plan.work import Work, stack_of
from kit.render import file_version
from kit.secrets import fingerprint, read_secrets
from kit.swarm import registers
from kit.swarm.carry import Carrier
from kit.swarm.deploy import secret_name, steps_deploy
from kit.swarm.logs import Logs
from kit.swarm.seen import Cluster, Service, see_cluster
from kit.swarm.steps import DeployStack
from kit.swarm.tasks import (
    fewest_of,
    host_statuses,
    job_state,
    jobs_of,
    state_of,
    training,
)
from kit.swarm.wait import wait_until_up


class SwarmEngine:
    """Carries jobs out as stacks, from the rendered files as they are."""

    tied_to_terminal: ClassVar[bool] = False

    def __init__(self, cluster: str, tree: Path) -> None:
        self._cluster = cluster
        self._tree = tree
        hosts = rendered(tree).hosts
        self._managers = [host for host in hosts if "manager" in host.roles] or hosts
        self._answering: tuple[Host, Docker] | None = None

    def _manager(self) -> tuple[Host, Docker]:
        """Return the first manager that answers as one, and the one connection to it."""
        if self._answering is None:
            self._answering = _first_answer(self._managers)
        return self._answering

    def _docker(self) -> Docker:
        return self._manager()[1]

    def _see(self) -> Cluster:
        return see_cluster(self._docker())

    def preview(self, jobs: Sequence[Work], *, fresh: bool) -> tuple[Step, ...]:
        """Return the steps from what runs now; see `Engine.preview`."""
        secrets = {job.name: read_secrets(job) for job in jobs if job.placements}
        return self._steps(jobs, secrets, fresh=fresh)

    def _steps(
        self, jobs: Sequence[Work], secrets: Mapping[str, Mapping[str, str]], *, fresh: bool
    ) -> tuple[Step, ...]:
        self._require_stacks(jobs)
        stacks = self._tree.glob("*.stack.yaml")
        versions = {path.name: file_version(path.read_text(encoding="utf-8")) for path in stacks}
        hashed = {
            job: {name: fingerprint(job, name, value) for name, value in values.items()}
            for job, values in secrets.items()
        }
        return tuple(steps_deploy(self._cluster, jobs, self._see(), versions, hashed, fresh=fresh))

    def _require_stacks(self, jobs: Sequence[Work]) -> None:
        for job in jobs:
            path = self._tree / f"{job.stack}.stack.yaml"
            if job.placements and not path.is_file():
                what = f"{path} is not there: the files are for another engine"
                raise InputError(what, "write `engine: swarm` in the inventory, run `kit render`")

    def deploy(self, jobs: Sequence[Work], *, fresh: bool, say: Say) -> None:
        """Take the steps, and return when the tasks run; see `Engine.deploy`."""
        self._require_stacks(jobs)
        secrets = {job.name: read_secrets(job) for job in jobs if job.placements}
        named = {
            secret_name(job, name, fingerprint(job.name, name, value)): value
            for job in jobs
            for name, value in secrets.get(job.name, {}).items()
        }
        hosts = rendered(self._tree).hosts
        carrier = Carrier(self._cluster, *self._manager(), self._tree, say, named, hosts)
        with registers.locked(carrier.manager):
            steps = self._steps(jobs, secrets, fresh=fresh)
            carrier.take(steps)
            deployed = {step.stack for step in steps if isinstance(step, DeployStack)}
            for job in jobs:
                if job.stack in deployed:
                    registers.write_down(carrier.manager, deployment(job, time.time()))
                else:
                    say(left_alone(job))
        wait_until_up(carrier.manager, [job.name for job in jobs if job.placements], say)
        for job in jobs:
            carrier.drop_secrets(job.name)

    def break_lock(self) -> None:
        """Take the lock from whoever holds it."""
        registers.break_lock(self._docker())

    def status(self) -> tuple[JobStatus, ...]:
        """Return what tasks and logs tell; see `Engine.status`."""
        cluster = self._see()
        urls = rendered(self._tree).urls
        return tuple(
            replace(_status(self._docker(), cluster, job), urls=urls.get(job, ()))
            for job in jobs_of(cluster)
        )

    def known(self) -> dict[str, tuple[str, ...]]:
        """Return the jobs that have stacks; see `Engine.known`."""
        cluster = self._see()
        return {
            job: tuple(host.host for host in host_statuses(cluster, job))
            for job in jobs_of(cluster)
        }

    def logs(
        self, jobs: Sequence[str], *, follow: bool, since: float | None = None
    ) -> Iterator[LogLine]:
        """Yield the lines of all tasks in the order of time; see `Engine.logs`."""
        cluster = self._see()
        for job in jobs:
            _require(cluster, job)
        logs = Logs(self._docker(), cluster)
        if not follow:
            return logs.read(jobs, since)
        return logs.follow(jobs, since, lambda: self._ended(jobs))

    def _ended(self, jobs: Sequence[str]) -> bool:
        cluster = self._see()
        return all(state_of(cluster, job) in {None, *ENDED} for job in jobs)

    def stop(self, job: str) -> JobStatus:
        """Let the training end and save, then remove the stack; see `Engine.stop`."""
        carrier = Carrier(self._cluster, *self._manager(), self._tree, lambda _: None)
        docker = carrier.manager
        cluster = see_cluster(docker)
        _require(cluster, job)
        status = _status(docker, cluster, job)
        if status.state not in ENDED:
            status = _end(docker, cluster, status)
        carrier.remove(stack_of(job))
        carrier.drop_secrets(job)
        return status

    def history(self) -> tuple[Deployment, ...]:
        """Return what the managers remember; see `Engine.history`."""
        return registers.history(self._docker())


def _status(docker: Docker, cluster: Cluster, job: str) -> JobStatus:
    services = training(cluster, job)
    hosts = host_statuses(cluster, job)
    state, message = job_state(hosts, fewest_of(cluster, job))
    printed = Logs(docker, cluster).printed(job)
    ended = max((task.at for task in cluster.tasks_of(services)), default=None)
    return JobStatus(
        job=job,
        state=state,
        message=message,
        started=min(service.changed for service in services),
        ended=ended if state in ENDED else None,
        hosts=tuple(
            replace(
                host,
                ranks=printed.ranks.get(host.host, ()),
                seen=printed.seen.get(host.host, ()),
            )
            for host in hosts
        ),
        progress=printed.progress,
        checkpoint=printed.checkpoint,
    )


def _end(docker: Docker, cluster: Cluster, status: JobStatus) -> JobStatus:
    """End a job's training but not its rendezvous, by which the hosts agree on a last checkpoint.

    Its lines are read meanwhile: with the tasks Swarm forgets what they have said.
    """
    services = training(cluster, status.job)
    printed = Printed(status.progress, status.checkpoint)
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
        printed.read(line)
    return replace(
        status,
        state=State.STOPPED,
        message="",
        ended=time.time(),
        hosts=tuple(replace(host, state=State.STOPPED, message="") for host in status.hosts),
        progress=printed.progress,
        checkpoint=printed.checkpoint,
    )


def _living(docker: Docker, services: Sequence[Service]) -> bool:
    """Whether tasks still run, on nodes that are there."""
    cluster = see_cluster(docker)
    tasks = cluster.tasks_of(services)
    return any(task.state == "running" and cluster.ready(task.node) for task in tasks)


def _require(cluster: Cluster, job: str) -> None:
    known = jobs_of(cluster)
    if job not in known:
        raise InputError(
            f"{job} is not deployed on this swarm",
            nearest(job, known) if known else "nothing is: kit deploy",
        )


def _first_answer(managers: Sequence[Host]) -> tuple[Host, Docker]:
    """Return the first host that is a manager and answers.

    Raises:
        KitError: None does; it says what each of them said.
    """
    said = []
    for host in managers:
        docker = Docker.of(host)
        try:
            if docker.get("/info")["Swarm"]["ControlAvailable"]:
                return host, docker
            said.append(f"{host.name}: is no manager of a swarm; kit swarm up")
        except KitError as error:
            said.append(str(error))
        docker.close()
    raise KitError("\n".join(said))
