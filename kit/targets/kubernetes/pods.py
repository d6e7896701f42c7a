"""From parts to pods: one container each, as Pod Security “restricted” requires it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from kit.plan.storage import CHECKPOINTS, DATA
from kit.plan.types import MountPoint, Placement
from kit.plan.work import Plan
from kit.targets.kubernetes.names import NODE, claim_name, own_volume, secret_name
from kit.targets.kubernetes.objects import (
    DeviceClaim,
    EnvVariable,
    Mounted,
    NamedPort,
    Pod,
    PodVolume,
    Probe,
    literal,
)
from kit.targets.lowered import digest
from kit.values import show_size
from kit.workload.privileges import NOBODY
from kit.workload.settings import Port, Symbol, Variable
from kit.workload.types import Kind, Part, Role, Workload
from kit.workload.variables import SECRETS

GPUS = "nvidia.com/gpu"
"""The resource of NVIDIA's device plugin."""
SMALL = (("cpu", "50m"), ("memory", "128Mi"))
"""The requests of a coordinator: a request of its memory limit would waste a node's memory."""
START = 300
"""Seconds that the built-in server has to answer; it imports PyTorch first."""
START_PERIOD = 5
"""Seconds between two checks whether a server has started."""
TOPOLOGY = "kueue.x-k8s.io/podset-preferred-topology"
LINGER = 5
"""Seconds until all nodes know that a pod leaves its Service. Requests reach it meanwhile."""


def pod_of(plan: Plan, workload: Workload, part: Part) -> Pod:
    """Return the template of a part's pods."""
    user, _, group = (part.user or NOBODY).partition(":")
    volumes, mounts = _files(plan, workload, part)
    limits = part.limits
    gpus = part.gpus if part.placements else 0
    pool = plan.kubernetes is not None and plan.kubernetes.pool
    linger = LINGER if part.role is Role.SERVE else 0
    devices, settings = _devices(plan, workload, part), plan.kubernetes
    # Also one pod of a pool: with more of them, the template stays the same.
    apart = bool(part.placements) and (part.replicas > 1 or pool)
    near = settings.topology if settings and apart and part.role is Role.TRAIN else None
    rdma = (settings and settings.rdma) if part.infiniband else None
    bounds = (
        *(((GPUS, str(gpus)),) if gpus and not devices else ()),
        *(((rdma, "1"),) if rdma else ()),
        *((("memory", quantity(limits.memory)),) if limits and limits.memory else ()),
        *((("cpu", _plain(limits.cpus)),) if limits and limits.cpus else ()),
    )
    return Pod(
        part=part,
        component=str(part.role),
        container=_container(plan, part),
        hosts=tuple(host.name for host in part.hosts) if part.placements and not pool else (),
        gpus=gpus,
        user=user,
        group=group,
        environment=tuple(_environment(workload, part)),
        volumes=volumes,
        mounts=mounts,
        ports=tuple(map(named_port, part.ports)),
        probes=tuple(_probes(workload, part)),
        limits=bounds,
        requests=SMALL if part.role is Role.RENDEZVOUS else (),
        pull_secret=(plan.kubernetes and plan.kubernetes.image_pull_secret) or "",
        product=((plan.kubernetes and plan.kubernetes.product) or "") if gpus else "",
        apart=apart,
        linger=linger,
        grace=None if part.grace is None else part.grace + linger,
        devices=devices,
        near="" if settings is None or not near or settings.queue else near,
        capabilities=("IPC_LOCK",) if rdma else (),
        annotations=((TOPOLOGY, near),) if settings and settings.queue and near else (),
    )


def _devices(plan: Plan, workload: Workload, part: Part) -> DeviceClaim | None:
    """Return the claim of a part's GPUs, None if a number of them suffices.

    The name has the hash of the UUIDs: a template of claims cannot be changed.
    """
    settings = plan.kubernetes
    if settings is None or settings.device_class is None or not any(map(by_uuid, part.placements)):
        return None
    uuids = tuple(sorted(gpu.id for each in part.placements for gpu in each.gpus))
    name = f"{workload.stack}-gpus-{digest(' '.join(uuids))}"
    return DeviceClaim(name, settings.device_class, part.gpus, uuids)


def by_uuid(placement: Placement) -> bool:
    """Return whether a workload gets only some GPUs of a host, which are named by UUID."""
    return not placement.whole and all(gpu.known for gpu in placement.gpus)


def _container(plan: Plan, part: Part) -> str:
    """Return the name of a part's container: Kubeflow Trainer looks for that of the hosts."""
    by_trainer = plan.kubernetes is not None and plan.kubernetes.job_kind == "TrainJob"
    return NODE if by_trainer and part.role is Role.TRAIN else str(part.role)


def named_port(port: Port) -> NamedPort:
    """Return a port with its name: of clients, of the metrics, or of the coordinator."""
    name = "http" if port.public else str(port.loc[0])
    return NamedPort(name, port.inside or port.number)


def quantity(size: int) -> str:
    """Return bytes as Kubernetes writes them: `16Gi`."""
    return show_size(size).removesuffix("B")


def _plain(number: float) -> str:
    return f"{number:.3f}".rstrip("0").rstrip(".")


def _environment(workload: Workload, part: Part) -> Iterator[EnvVariable]:
    if part.role is Role.RENDEZVOUS:
        why = "It listens at this address: the pod does not have the address of its Service."
        yield EnvVariable("KIT_ADDRESS", field="status.podIP", why=why)
    for each in part.environment:
        if (variable := _variable(each)) is not None:
            yield variable
    for secret in part.secrets:
        yield EnvVariable(secret.name, secret=secret_name(workload))


def _variable(each: Variable) -> EnvVariable | None:
    if each.value is Symbol.GPUS or each.name == SECRETS:
        # The device plugin names the GPUs; secrets are variables already, not files.
        return None
    if each.value is Symbol.HOST:
        why = "The name of the node, as in the inventory."
        return EnvVariable(each.name, field="spec.nodeName", why=why)
    assert isinstance(each.value, str)
    if each.name == "NVIDIA_VISIBLE_DEVICES":
        why = "Images of CUDA ask for all GPUs of the node, without a limit of nvidia.com/gpu."
        return EnvVariable(each.name, str(each.value), why=why)
    return EnvVariable(each.name, literal(each.value), why=each.why)


def _files(
    plan: Plan, workload: Workload, part: Part
) -> tuple[tuple[PodVolume, ...], tuple[Mounted, ...]]:
    """Return the volumes of a pod, and where its container mounts them."""
    pairs = [*_scratch(part), *_configs(part)]
    pairs += [_mounted(plan, workload, mount) for mount in part.mounts]
    volumes = {volume.name: volume for volume, _ in pairs}
    return tuple(volumes.values()), tuple(mounted for _, mounted in pairs)


def _scratch(part: Part) -> Iterator[tuple[PodVolume, Mounted]]:
    if part.limits and part.limits.shared_memory:
        why = "/dev/shm for DataLoader workers and NCCL. What it holds counts as memory of the pod."
        size = quantity(part.limits.shared_memory)
        yield (
            PodVolume("shared-memory", "memory", size=size, why=why),
            Mounted("shared-memory", "/dev/shm", read_only=False),
        )
    if part.read_only:
        yield PodVolume("tmp", "empty"), Mounted("tmp", "/tmp", read_only=False)


def _configs(part: Part) -> Iterator[tuple[PodVolume, Mounted]]:
    for config in part.configs:
        name = f"file-{config.key}"
        key = config.target.rpartition("/")[2]
        yield (
            PodVolume(name, "config", config.key),
            Mounted(name, config.target, read_only=True, key=key),
        )


def _mounted(plan: Plan, workload: Workload, mount: MountPoint) -> tuple[PodVolume, Mounted]:
    """Return the volume of a mount: a claim, or an empty folder for what may be lost."""
    own = own_volume(plan.cluster, mount.source)
    name = mount.target.strip("/").replace("/", "-").lower() if own else mount.source
    at = Mounted(name, mount.target, mount.read_only)
    if not own:
        return PodVolume(name, "claim", mount.source, read_only=mount.read_only), at
    if mount.target == CHECKPOINTS:
        job = workload.name if workload.kind is Kind.JOB else workload.reads
        serves = workload.kind is Kind.SERVER
        at = replace(at, read_only=at.read_only or serves)
        return PodVolume(name, "claim", claim_name(job), read_only=at.read_only), at
    lost = "The pod's own, and lost with it"
    why = f"{lost}: to keep data sets, mount a claim at {DATA}." if mount.target == DATA else ""
    return PodVolume(name, "empty", why=why or f"{lost}."), at


def _probes(workload: Workload, part: Part) -> Iterator[Probe]:
    if part.role is Role.SERVE:
        yield from _server_probes(workload)
    elif part.health:
        health = part.health
        yield Probe(
            "liveness",
            command=health.command,
            period=health.interval,
            timeout=health.timeout,
            failures=health.retries,
            delay=health.start_period,
            why="Fails if the container has lost its GPUs: the Job then replaces the pod.",
        )


def _server_probes(workload: Workload) -> Iterator[Probe]:
    own = bool(workload.health)
    alive, start = (workload.health, workload.start_timeout) if own else ("/health", START)
    yield Probe(
        "startup",
        path=alive,
        port="http",
        period=START_PERIOD,
        failures=max(1, -(-start // START_PERIOD)),
    )
    yield Probe("liveness", path=alive, port="http", period=30, timeout=20)
    why = "" if own else "It answers as soon as it has a checkpoint."
    yield Probe("readiness", path=workload.ready, port="http", period=5, why=why)


def alike(parts: Sequence[Part]) -> list[Part]:
    """Join parts that differ only in their hosts and in the GPUs there.

    Their names then contain the number of GPUs. A claim by UUID names the GPUs of all hosts: on
    each host, a pod finds only its own among them.
    """
    groups: list[tuple[tuple[Part, bool], list[Part]]] = []
    for part in parts:
        named = any(map(by_uuid, part.placements))
        key = (replace(part, name="", hosts=(), placements=(), replicas=0), named)
        group = next((found for other, found in groups if other == key), None)
        if group is None:
            groups.append((key, group := []))
        group.append(part)
    sizes = [group[0].gpus for _, group in groups]
    return [
        _joined(group, "-by-uuid" if named and sizes.count(group[0].gpus) > 1 else "")
        for (_, named), group in groups
    ]


def _joined(parts: Sequence[Part], ending: str) -> Part:
    first = parts[0]
    return replace(
        first,
        name=f"{first.role}-{first.gpus}gpu{ending}",
        hosts=tuple(host for part in parts for host in part.hosts),
        placements=tuple(each for part in parts for each in part.placements),
        replicas=sum(part.replicas for part in parts),
    )
