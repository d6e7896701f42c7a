"""The plan as manifests of Kubernetes. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from kit.errors import FaultsError
from kit.model import EngineName, Kubernetes
from kit.plan.storage import DATA
from kit.plan.types import MountPoint
from kit.plan.work import Plan
from kit.runtime.endings import HOPELESS
from kit.targets.kubernetes.names import (
    MAKERS,
    NODE,
    claim_name,
    config_keys,
    extras,
    labels_of,
    name_faults,
    own_volume,
    queue_labels,
    rendezvous_name,
    service_names,
    shared_stack,
    title_faults,
)
from kit.targets.kubernetes.objects import Claim, Group, Manifest
from kit.targets.kubernetes.pods import alike, named_port, pod_of, quantity
from kit.targets.kubernetes.refusals import refusals
from kit.targets.lowered import Lowered, Output
from kit.workload.make import Parts
from kit.workload.monitoring import metrics_port
from kit.workload.settings import Config
from kit.workload.types import Kind, Part, Role, Workload

KUSTOMIZATION = "kustomization.yaml"
ROLE = "rbac.yaml"
"""The rights of those who run kit; only an administrator can grant them."""
FOLDER = "kubernetes"
"""The folder of the manifests in the tree."""
MONITORING = f"{FOLDER}/monitoring.yaml"


def lower(plan: Plan, parts: Parts) -> Lowered:
    """Lower the plan to manifests.

    Raises:
        FaultsError: The plan has parts that this target does not support, or too long names.
    """
    faults = list(refusals(plan))
    if faults or plan.kubernetes is None:
        raise FaultsError(faults)
    settings = plan.kubernetes
    workloads = tuple(_workload(each, settings) for each in parts.workloads)
    manifests = {each.name: _manifest(plan, settings, each) for each in workloads if each.parts}
    pods = {name: _longest_pod(each) for name, each in manifests.items()}
    titles = {name: tuple(_titles(each)) for name, each in manifests.items()}
    if faults := [*name_faults(workloads, pods), *title_faults(workloads, titles)]:
        raise FaultsError(faults)
    return Lowered(
        engine=EngineName.KUBERNETES,
        plan=plan,
        # kit reaches no pod: only Kubernetes checks the health of servers.
        workloads=tuple(replace(each, health="") for each in workloads),
        outputs=(
            *_outputs(plan.cluster, settings, workloads, manifests),
            _role(plan.cluster, settings),
        ),
        images=plan.images,
        own_notes=tuple(_data_notes(plan)),
        on_hosts=False,
    )


def _workload(workload: Workload, settings: Kubernetes) -> Workload:
    """Return a workload with equal hosts in one part, and the address of its Service."""
    working = alike(workload.working)
    parts = (*(each for each in workload.parts if not each.role.works), *working)
    urls: tuple[str, ...] = ()
    if workload.kind is Kind.SERVER and working:
        name, port = service_names(workload.stack, settings.namespace)[0], working[0].ports[0]
        urls = (f"http://{name}:{port.number}",)
    return replace(workload, parts=parts, urls=urls)


def _manifest(plan: Plan, settings: Kubernetes, workload: Workload) -> Manifest:
    helper = next((part for part in workload.parts if part.role is Role.RENDEZVOUS), None)
    kind = settings.job_kind if workload.kind is Kind.JOB else "Deployment"
    made = kind in MAKERS
    kept = any(
        own_volume(plan.cluster, each.source).endswith("-checkpoints") for each in _own(workload)
    )
    ports = dict.fromkeys(named_port(port) for part in workload.working for port in part.ports)
    return Manifest(
        workload=workload,
        labels=labels_of(plan.cluster, workload),
        annotations=(
            ("kit.inventory-hash", workload.inventory_hash),
            ("kit.job-hash", workload.job_hash),
        ),
        groups=tuple(_groups(plan, workload, NODE if made else workload.stack)),
        open_ports=tuple(ports),
        kind=kind,
        owner=f"{kind.lower()}/{workload.stack}" if made else "",
        coordinator=Group(rendezvous_name(workload.name), pod_of(plan, workload, helper), 1)
        if helper
        else None,
        claim=Claim(
            name=claim_name(workload.name),
            access=settings.storage_access,
            storage_class=settings.storage_class or "",
            size=quantity(settings.storage_size),
        )
        if kept and workload.kind is Kind.JOB
        else None,
        queued=queue_labels(settings),
        resizes=bool(settings.queue and settings.pool and kind == "Job" and not settings.topology),
        least=workload.needed if workload.needed < _total(workload) else 0,
    )


def _least(plan: Plan, workload: Workload) -> int:
    """Return `hosts.min` of a job, 0 for jobs that need all of their hosts, and for servers."""
    jobs = plan.jobs if workload.kind is Kind.JOB else ()
    return next((each.job.hosts.fewest or 0 for each in jobs if each.name == workload.name), 0)


def _total(workload: Workload) -> int:
    return sum(part.replicas for part in workload.working)


def _own(workload: Workload) -> Sequence[MountPoint]:
    return [mount for part in workload.working for mount in part.mounts]


def _groups(plan: Plan, workload: Workload, base: str) -> Iterator[Group]:
    """Yield the groups of equal pods; their names begin with `base`."""
    parts = workload.working
    spared, least = _total(workload) - workload.needed, _least(plan, workload)
    for part in parts:
        name = base if len(parts) == 1 else f"{base}-{_size(part)}"
        yield Group(
            name=name,
            pod=pod_of(plan, workload, part),
            replicas=part.replicas,
            most_failed=min(spared, part.replicas),
            # Of several Jobs, none knows how many pods of the others have completed. It is there
            # also where no pod can be spared: Kubernetes cannot add it when there are more.
            enough=least if len(parts) == 1 else 0,
            hopeless=tuple(sorted(HOPELESS)),
        )


def _size(part: Part) -> str:
    return part.name.removeprefix(f"{part.role}-")


def _longest_pod(manifest: Manifest) -> str:
    """Return the longest hostname of a Job's pods, which ends in the index, or the longest name."""
    jobs = manifest.workload.kind is Kind.JOB
    base = f"{manifest.workload.stack}-{{}}-0" if manifest.owner else "{}"
    names = (
        base.format(each.name) + (f"-{each.replicas - 1}" if jobs else "")
        for each in manifest.groups
    )
    return max(names, key=len)


def _titles(manifest: Manifest) -> Iterator[str]:
    """Yield the kinds and names of objects that another workload may have too."""
    coordinator = manifest.coordinator
    services = (manifest.workload.stack, *((coordinator.name,) if coordinator else ()))
    yield from (f"Service {name}" for name in services)
    if not manifest.owner:
        yield from (f"{manifest.kind} {group.name}" for group in manifest.groups)
        yield from (f"Job {name}" for name in services[1:])


def _outputs(
    cluster: str,
    settings: Kubernetes,
    workloads: Sequence[Workload],
    manifests: Mapping[str, Manifest],
) -> Iterator[Output]:
    files, stacks = [], []
    for workload in workloads:
        if workload.name not in manifests:
            continue
        manifest, configs = manifests[workload.name], configs_of(workload)
        kind = "train-{job}" if workload.kind is Kind.JOB else "serve-{server}"
        path = f"{FOLDER}/{workload.stack}.yaml"
        yield Output(
            path,
            f"{FOLDER}/{kind}.yaml.j2",
            {"manifest": manifest},
            (workload.file,),
            configs,
            workload.stack,
        )
        files.append(path)
        stacks.append((workload.stack, configs, manifest.labels))
    if settings.prometheus_operator:
        yield _monitoring(cluster, workloads)
        files.append(MONITORING)
    keys = {stack: config_keys(configs) for stack, configs, _ in stacks}
    labels = {stack: each for stack, _, each in stacks}
    yield Output(
        KUSTOMIZATION,
        f"{KUSTOMIZATION}.j2",
        {"settings": settings, "files": files, "keys": keys, "labels": labels},
        tuple(each.file for each in workloads if each.name in manifests),
        others=tuple((stack, configs) for stack, configs, _ in stacks),
    )


def _monitoring(cluster: str, workloads: Sequence[Workload]) -> Output:
    """Return the monitors of all workloads that have metrics; a custom server may have none."""
    servers = [each.stack for each in workloads if each.kind is Kind.SERVER and each.document]
    jobs = any(metrics_port(each) for each in workloads)
    values = {"cluster": cluster, "stack": shared_stack(cluster), "jobs": jobs, "servers": servers}
    return Output(MONITORING, f"{MONITORING}.j2", values)


def _role(cluster: str, settings: Kubernetes) -> Output:
    role, subjects = f"kit-{cluster}", settings.deployers
    others: dict[str, list[str]] = {}
    for resource in extras(settings):
        name, _, group = resource.partition(".")
        others.setdefault(group, []).append(name)
    values = {"role": role, "cluster": cluster, "settings": settings, "subjects": subjects}
    values["others"] = tuple(others.items())
    return Output(ROLE, f"{ROLE}.j2", values)


def configs_of(workload: Workload) -> tuple[Config, ...]:
    """Return the files of all parts of a workload, each once."""
    return tuple(dict.fromkeys(each for part in workload.parts for each in part.configs))


def _data_notes(plan: Plan) -> Iterator[str]:
    """Warn about jobs whose data folder is empty in each new pod."""
    for job in plan.jobs:
        train = job.job.train
        brought = any(mount.target == DATA for mount in job.job.mounts)
        if train and train.dataset != "digits" and not (train.download or train.url or brought):
            yield (
                f"{job.name}: {DATA} is empty in each pod: mount a volume claim with the data set "
                f"there, `mounts: [{{volume: …, to: {DATA}}}]`"
            )
