"""The limits of this target: faults with a place in a file and a correction. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kit.errors import INVENTORY, Fault
from kit.model import Host, Kubernetes, Mount
from kit.plan.types import Placement
from kit.plan.work import JobPlan, Plan, ServerPlan
from kit.targets.kubernetes.pods import by_uuid
from kit.values import count

MOST_CONFIG = 2**20
"""Kubernetes rejects a larger ConfigMap, in bytes."""
OTHERS = "`engine: swarm` or `engine: compose`"
BY_UUID = (
    "write `index:` in place of `uuid:`, or, for a cluster with NVIDIA's DRA driver, `kubernetes: "
    "{device_class: gpu.nvidia.com}`"
)
USER = '`user: "65534:65534"` (the image need not know the user)'


def refusals(plan: Plan) -> Iterator[Fault]:
    """Yield every part of a plan that this target does not support."""
    if plan.kubernetes is None:
        what = "engine kubernetes needs the namespace of the cluster"
        yield Fault(INVENTORY, ("engine",), what, "add `kubernetes: {namespace: training}`")
    yield from _of_inventory(plan)
    for host in plan.hosts:
        yield from _of_host(host)
    yield from _of_gpus(plan)
    yield from _of_kind(plan)
    for job in plan.jobs:
        yield from _of_job(job, plan.kubernetes)
        yield from _of_storage(plan, job)
    for server in plan.serving:
        yield from _of_server(server)


def _of_inventory(plan: Plan) -> Iterator[Fault]:
    network = plan.network
    if plan.monitoring:
        fix = "leave it out; for the cluster's own, `kubernetes: {prometheus_operator: true}`"
        yield Fault(INVENTORY, ("monitoring",), "kit starts no monitoring in Kubernetes", fix)
    if plan.registry and plan.registry.host:
        fix = "leave `host:` out, and name a registry that the nodes reach"
        what = "kit starts no registry in Kubernetes"
        yield Fault(INVENTORY, ("registry", "host"), what, fix)
    if plan.data and not any(job.job.data for job in plan.jobs):
        yield Fault(INVENTORY, ("data",), *_no_data_services("leave it out"))
    if network.driver == "host":
        what, fix = "pods have a network of their own", "leave it out"
        yield Fault(INVENTORY, ("network", "driver"), what, fix)
    if network.infiniband and not (plan.kubernetes and plan.kubernetes.rdma):
        what = "pods get InfiniBand from a device plugin, as a resource of their nodes"
        fix = "write `kubernetes: {rdma: rdma/…}`, see `kubectl describe node`; or leave it out"
        yield Fault(INVENTORY, ("network", "infiniband"), what, fix)
    if network.interface:
        what = "an interface of the host does not exist inside a pod"
        yield Fault(INVENTORY, ("network", "interface"), what, "leave it out")


def _of_kind(plan: Plan) -> Iterator[Fault]:
    """Reject jobs with unequal hosts, which a TrainJob cannot have."""
    if plan.kubernetes is None or plan.kubernetes.job_kind != "TrainJob":
        return
    for job in plan.jobs:
        sizes = sorted({len(each.gpus) for each in job.placements})
        if len(sizes) > 1:
            numbers = " or ".join(map(str, sizes))
            what = f"its hosts have {numbers} GPUs, and those of a TrainJob are alike"
            fix = "write `gpus_per_host: …`, or `kubernetes: {job_kind: JobSet}` in the inventory"
            yield Fault(job.name, ("hosts",), what, fix)
        elif plan.kubernetes.device_class and len({*map(by_uuid, job.placements)}) > 1:
            what = "it gets all GPUs of some hosts, and GPUs by UUID of others, which are not alike"
            fix = "write `kubernetes: {job_kind: JobSet}` in the inventory"
            yield Fault(job.name, ("hosts",), what, fix)


def _of_host(host: Host) -> Iterator[Fault]:
    if host.interface:
        what = "an interface of the host does not exist inside a pod"
        yield Fault(INVENTORY, (*host.loc, "interface"), what, "leave it out")
    if host.lend:
        what = "kit has no queue in Kubernetes, so no host can be lent to it"
        yield Fault(INVENTORY, (*host.loc, "lend"), what, f"leave it out, or set {OTHERS}")
    for index, gpu in enumerate(host.gpus):
        if gpu.instance:
            what = "a MIG instance is another resource than nvidia.com/gpu"
            fix = f"leave the host out, or set {OTHERS}"
            yield Fault(INVENTORY, (*host.loc, "gpus", index), what, fix)


def _of_gpus(plan: Plan) -> Iterator[Fault]:
    """Reject hosts whose GPUs a workload gets by name, unless a claim can name them."""
    by_claim = plan.kubernetes is not None and plan.kubernetes.device_class is not None
    works: list[Placement] = [each for job in plan.jobs for each in job.placements]
    works += [each for server in plan.serving for each in server.placements]
    for host in {each.host.name: each.host for each in works if not each.whole}.values():
        loc, known = (*host.loc, "gpus"), [gpu.known for gpu in host.gpus]
        if by_claim and any(known):  # All of a host's, or none.
            continue
        if len({(gpu.model, gpu.memory) for gpu in host.gpus}) > 1:
            what = f"a workload gets some GPUs of {host.name}, which differ, and Kubernetes chooses"
            fix = f"give all of its GPUs to one workload, or set {OTHERS}"
            yield Fault(INVENTORY, loc, what, fix)
        elif any(known):
            what = (
                f"a workload gets some GPUs of {host.name} by UUID, and Kubernetes gives a number "
                "of any GPUs"
            )
            yield Fault(INVENTORY, loc, what, BY_UUID)


def _of_job(plan: JobPlan, settings: Kubernetes | None) -> Iterator[Fault]:
    job, name = plan.job, plan.name
    if job.session:
        what = "kit starts no sessions in Kubernetes"
        yield Fault(name, ("session",), what, f"set {OTHERS} in the inventory")
    if job.queue:
        what = "kit has no queue in Kubernetes"
        yield Fault(name, ("queue",), what, "leave it out, and run `kit deploy`")
    if named := [each for each in job.data if each.name != _code_set(plan)]:
        what, fix = _no_data_services(f"mount a volume claim that has {named[0].title}")
        yield Fault(name, ("data",), what, f"{fix}: `mounts: [{{volume: …, to: /data}}]`")
    if job.package:
        what = "the data services send code, and kit does not start them in Kubernetes"
        yield Fault(name, ("code",), what, "put the code into the image, and leave `code` out")
    for spare in plan.spares:
        what = f"{spare.host.name} stands by, and kit keeps no spares in Kubernetes"
        fix = "leave `use: spare` out, and write `hosts: {min: …}` into the job"
        yield Fault(INVENTORY, (*spare.host.loc, "gpus"), what, fix)
    by_claim = settings is not None and settings.device_class is not None
    if job.hosts.gpus and not by_claim:
        what = "the job names GPUs, and Kubernetes gives a number of any GPUs"
        fix = "write `names: […]` and `gpus_per_host: …`"
        yield Fault(name, ("hosts", "gpus"), what, fix)
    for key, value in (("memlock", job.limits.memlock), ("stack", job.limits.stack)):
        if value is not None:
            what = "pods have the limit of the node's container runtime"
            yield Fault(name, ("limits", key), what, "leave it out")
    yield from _mounts(name, job.mounts)
    if not (job.session or (job.train and not job.user)):
        yield from _user(name, job.user)
    yield from _too_large(name, [(each.name, each.text) for each in job.code])


def _code_set(plan: JobPlan) -> str:
    return plan.job.package.data_set.name if plan.job.package else ""


def _no_data_services(fix: str) -> tuple[str, str]:
    return "kit starts no data services in Kubernetes", fix


def _of_storage(plan: Plan, job: JobPlan) -> Iterator[Fault]:
    if plan.kubernetes is None or plan.kubernetes.storage_access == "ReadWriteMany":
        return
    readers = [each for each in plan.serving if each.server.job == job.name]
    hosts = {each.host.name for each in job.placements}
    hosts |= {each.host.name for reader in readers for each in reader.placements}
    if len(hosts) > 1:
        what = f"{count(len(hosts), 'host')} share the checkpoints of {job.name}"
        fix = "write `ReadWriteMany`, with a storage class that has it"
        yield Fault(INVENTORY, ("kubernetes", "storage_access"), what, fix)


def _of_server(plan: ServerPlan) -> Iterator[Fault]:
    server, name = plan.server, plan.name
    if server.proxy:
        what = "kit starts no proxy in Kubernetes"
        fix = f"leave it out: the Service {name} is one address for all hosts"
        yield Fault(name, ("proxy",), what, fix)
    if server.own:
        yield from _mounts(name, server.own.mounts)
        yield from _user(name, server.user)
    elif server.user:
        yield from _user(name, server.user)
    yield from _too_large(name, [(each.name, each.text) for each in server.code])


def _mounts(name: str, mounts: Sequence[Mount]) -> Iterator[Fault]:
    for index, mount in enumerate(mounts):
        if mount.kind != "volume":
            what = f"Pod Security “restricted” admits no {mount.kind} mounts"
            fix = f"make a volume claim of it, and write `{{volume: <claim>, to: {mount.target}}}`"
            yield Fault(name, ("mounts", index, mount.kind), what, fix)


def _user(name: str, user: str | None) -> Iterator[Fault]:
    """Reject users that Pod Security “restricted” does not admit, and those it cannot check."""
    numbers = (user or "").split(":")
    if user is None:
        what = "Pod Security “restricted” admits no image that runs as root"
        yield Fault(name, ("image",), what, f"add {USER}")
    elif not all(number.isdecimal() for number in numbers):
        what = f"Kubernetes cannot check that {user} is not root"
        yield Fault(name, ("user",), what, f"write its numbers, for example {USER}")
    elif int(numbers[0]) == 0:
        what = "Pod Security “restricted” admits no root"
        yield Fault(name, ("user",), what, f"write {USER}")


def _too_large(name: str, files: Sequence[tuple[str, str]]) -> Iterator[Fault]:
    for file, text in files:
        if len(text.encode()) > MOST_CONFIG:
            what = f"{file} is larger than a ConfigMap of Kubernetes (1 MiB)"
            yield Fault(name, (), what, "put the code into the image")
