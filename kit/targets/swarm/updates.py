"""The steps that update or move a server while other hosts answer. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kit.runtime.steps import Step
from kit.targets.swarm.state import Cluster, Service
from kit.targets.swarm.steps import DeployStack, UpdateService
from kit.workload.types import Kind, Part, Workload


def new_parts(work: Workload, cluster: Cluster) -> list[Part]:
    """Return the parts of a workload that answer or train and are not deployed yet."""
    deployed = {service.part for service in cluster.stack(work.stack)}
    return [part for part in work.working if part.name not in deployed]


def move(
    job: Workload, cluster: Cluster, deploy: DeployStack, ends: Sequence[Step]
) -> Iterator[Step]:
    """Yield the steps that start a server on its new hosts, then those that end the former ones."""
    if not ends:
        return
    parts, others = new_parts(job, cluster), (f"{job.urls[-1]}{job.ready}",)
    for part, urls in zip(parts, _answers(job, parts), strict=True):
        what, cause = f"start {job.stack}_{part.name}", "its former hosts answer until it does"
        yield _update(job, part, deploy, what, cause, urls, others)
    yield from ends


def one_by_one(
    job: Workload, services: Sequence[Service], deploy: DeployStack, *, runs: bool
) -> Iterator[Step]:
    """Yield the steps that update the services of a server that runs, each while others answer.

    `docker stack deploy` would update all of them at once.
    """
    deployed = {service.part for service in services}
    parts = [part for part in job.working if part.name in deployed]
    if not runs or job.kind is not Kind.SERVER or len(parts) < 2:
        return
    answers = _answers(job, parts)
    for number, part in enumerate(parts):
        others = tuple(url for after in answers[number + 1 :] for url in after)
        what = f"update {job.stack}_{part.name}"
        yield _update(job, part, deploy, what, deploy.cause, answers[number], others)


def _update(
    job: Workload,
    part: Part,
    deploy: DeployStack,
    what: str,
    cause: str,
    urls: tuple[str, ...],
    others: tuple[str, ...],
) -> UpdateService:
    """Return the step that updates one service of a server, while `others` answer."""
    return UpdateService(
        where="swarm",
        what=what,
        cause=cause,
        stack=deploy.stack,
        file=deploy.file,
        variables=deploy.variables,
        part=part.name,
        urls=urls,
        others=others,
        timeout=job.start_timeout,
    )


def _answers(job: Workload, parts: Sequence[Part]) -> list[tuple[str, ...]]:
    """Return the URLs at which each part of a server answers as soon as it can work."""
    urls = dict(zip((each.host.name for each in job.placements), job.urls, strict=False))
    return [
        tuple(f"{urls[each.host.name]}{job.ready}" for each in part.placements) for part in parts
    ]
