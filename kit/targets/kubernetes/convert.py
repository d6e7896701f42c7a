"""The conversion of an inventory for Kubernetes: which values are kept, and which change. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from kit.errors import INVENTORY, Loc
from kit.model import EngineName, Gpu, Host, Inventory, Kubernetes
from kit.plan.work import JobPlan, Plan, ServerPlan
from kit.targets.kubernetes.names import claim_name, service_names
from kit.values import count, show_size


class Verdict(StrEnum):
    """The effect of the conversion on a line."""

    SAME = "is kept"
    CHANGES = "changes"
    CANNOT = "is not supported"


@dataclass(frozen=True, slots=True)
class Note:
    """The effect of the conversion on the value at `loc` of the document `source`."""

    source: str
    loc: Loc
    verdict: Verdict
    what: str


def converted(inventory: Inventory, plan: Plan, settings: Kubernetes) -> Inventory:
    """Return the inventory for Kubernetes: pods get a number of GPUs of a divided host."""
    divided = _divided(plan)
    hosts = tuple(
        replace(host, gpus=tuple(_by_index(host))) if host.name in divided else host
        for host in inventory.hosts
    )
    return replace(inventory, engine=EngineName.KUBERNETES, kubernetes=settings, hosts=hosts)


def _divided(plan: Plan) -> frozenset[str]:
    """Return the hosts of which a workload gets some GPUs by UUID; MIG instances stay refused."""
    works = [each for job in plan.jobs for each in job.placements]
    works += [each for server in plan.serving for each in server.placements]
    some = {each.host.name: each.host for each in works if not each.whole}
    return frozenset(name for name, host in some.items() if any(map(_by_uuid, host.gpus)))


def _by_uuid(gpu: Gpu) -> bool:
    return gpu.known and not gpu.instance


def _by_index(host: Host) -> Iterator[Gpu]:
    for index, gpu in enumerate(host.gpus):
        yield replace(gpu, id=str(index), known=False) if _by_uuid(gpu) else gpu


def notes(plan: Plan, settings: Kubernetes) -> Iterator[Note]:
    """Yield the effects on hosts, jobs and servers, without values that Kubernetes lacks."""
    yield Note(INVENTORY, ("engine",), Verdict.CHANGES, "kubernetes, with a section of this name")
    divided, seen = _divided(plan), set[Loc]()
    for host in plan.hosts:
        if host.loc not in seen:
            seen.add(host.loc)
            yield from _of_host(host, divided=host.name in divided)
    for job in plan.jobs:
        yield from _of_job(job, settings)
    for server in plan.servers:
        yield from _of_server(server, settings)


def _of_host(host: Host, *, divided: bool) -> Iterator[Note]:
    what = f"a node with this kubernetes.io/hostname, {count(len(host.gpus), 'GPU')}; kit reaches "
    what += "no hosts there: `address`, `ssh` and `roles` are without effect"
    yield Note(INVENTORY, host.loc, Verdict.SAME, what)
    if divided:
        what = "`index:` in place of `uuid:`: pods get a number of GPUs, which the node chooses"
        yield Note(INVENTORY, (*host.loc, "gpus"), Verdict.CHANGES, what)


def _of_job(plan: JobPlan, settings: Kubernetes) -> Iterator[Note]:
    hosts = count(len(plan.placements), "pod")
    yield Note(plan.name, (), Verdict.SAME, f"an Indexed Job of {hosts}, one on each of its hosts")
    what = f"the nodes must be able to pull {plan.image}"
    yield Note(plan.name, ("image",), Verdict.SAME, what)
    if plan.job.checkpoint:
        what = (
            f"one volume claim of {show_size(settings.storage_size)} for all hosts, "
            f"{claim_name(plan.name)}; the present checkpoints stay on the hosts: copy them with "
            "kubectl cp, or begin again without them"
        )
        yield Note(plan.name, ("checkpoint",), Verdict.CHANGES, what)
    if plan.job.secrets:
        what = "variables from a Secret, not files in /run/secrets"
        yield Note(plan.name, ("secrets",), Verdict.CHANGES, what)


def _of_server(plan: ServerPlan, settings: Kubernetes) -> Iterator[Note]:
    what = f"a Deployment of {len(plan.placements)}" if plan.placements else "idle: it has no GPU"
    yield Note(plan.name, (), Verdict.SAME, what)
    url = f"http://{service_names(plan.name, settings.namespace)[0]}:{plan.server.port}"
    what = f"one address in the cluster for all hosts, {url}; clients outside need an Ingress"
    yield Note(plan.name, ("port",), Verdict.CHANGES, what)


def section_of(settings: Kubernetes) -> str:
    """Return the new section of the inventory."""
    context = f"context: {_scalar(settings.context)}, " if settings.context else ""
    return f"kubernetes: {{{context}namespace: {_scalar(settings.namespace)}}}"


def _scalar(text: str) -> str:
    """Return a text as YAML; `on` and `12` need quotes."""
    return text if re.fullmatch(r"[a-z][a-z0-9]*-[a-z0-9-]*|[a-z]{6,}", text) else json.dumps(text)


def numbered(plan: Plan) -> tuple[Loc, ...]:
    """Return the sections of hosts that name GPUs by index in Kubernetes."""
    divided = _divided(plan)
    return tuple(dict.fromkeys(host.loc for host in plan.hosts if host.name in divided))
