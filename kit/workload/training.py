"""A job as parts: the coordinator, and one part for each group of equal training hosts."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace

from kit.model import Limits
from kit.plan.data import stream_url
from kit.plan.queue import in_words
from kit.plan.storage import CHECKPOINTS
from kit.plan.types import MountPoint, Placement
from kit.plan.work import JobPlan, Plan
from kit.queue.words import OWNER
from kit.values import count
from kit.workload.addressing import JobAddresses
from kit.workload.documents import code_configs, code_documents, generated, job_json
from kit.workload.groups import groups
from kit.workload.names import stack_of_job
from kit.workload.notify import notify_secrets, notify_variables
from kit.workload.privileges import (
    NOBODY,
    capabilities,
    default_variables,
    unprivileged,
    user_of_training,
)
from kit.workload.settings import (
    Config,
    Environment,
    HealthCheck,
    Port,
    Restart,
    Update,
    Variable,
    Word,
)
from kit.workload.types import Document, Kind, Part, Role, Store, Workload
from kit.workload.variables import JOB_FILE, environment_of, hosts_variables, job_variables

RENDEZVOUS_PORT = 29400
"""torchrun's default port for the c10d rendezvous."""
PORTS = 1000
"""The number of ports from RENDEZVOUS_PORT on. On a host's network each job needs its own."""
METRICS_PORT = 9500
"""The port of the metrics of a job in a monitored cluster that names none. The launcher serves it
for all ranks of a host: Compose would have to publish a range of ports for the ranks. The images of
scripts lack prometheus_client, whose multiprocess mode keeps gauges of dead processes."""
IMAGE_LAUNCHER = "/opt/kit/trainer/launch.py"
MOUNTED_LAUNCHER = "/kit/launch.py"
LAUNCHER_FILE = "launch.py"
"""The launcher's path in the tree, for images that lack it. It contains no job's name: a new job
must not change the config of each rendezvous."""
KEEPER_FILE = "keeper.py"
MOUNTED_KEEPER = "/kit/keeper.py"
"""The keeper of a script's files, beside the launcher."""
RENDEZVOUS_LIMITS = Limits(0, 2 * 2**30, None, None, None)
LAST_WORDS = 10
"""Seconds for a coordinator to send the remaining notices after its hosts have ended."""
UPDATE = Update(at_once=True, pause=True)
"""A change of one host of a job changes all hosts."""


def own_port(plan: JobPlan) -> int:
    """Return the port of a job's rendezvous on a host's own network."""
    if plan.job.port is not None:
        return plan.job.port
    return RENDEZVOUS_PORT + zlib.crc32(plan.name.encode()) % PORTS


def metrics_port(plan: Plan, job: JobPlan, addresses: JobAddresses) -> int | None:
    """Return the port of a job's metrics on each of its hosts, or None if it has none."""
    if job.job.session:
        return None
    monitored = plan.monitoring is not None or addresses.monitored
    if job.job.metrics_port is not None or not monitored:
        return job.job.metrics_port
    return METRICS_PORT + (0 if addresses.own_addresses else zlib.crc32(job.name.encode()) % PORTS)


def training(plan: Plan, job: JobPlan, addresses: JobAddresses, data_server: str) -> Workload:
    """Make the parts of a job whose hosts meet at `addresses`.

    `data_server` is the URL of the data server, as the containers reach it, or "".
    """
    rendezvous, host_network = addresses.rendezvous, addresses.host_network
    job = replace(job, shared_checkpoints=job.shared_checkpoints or addresses.shared_checkpoints)
    port = metrics_port(plan, job, addresses)
    urls = {each.name: stream_url(data_server, each) for each in job.job.streamed}
    url = next(iter(urls.values()), None)  # A built-in training streams one.
    text = job_json(job, generated(plan.file, job.job.file), port, url)
    document = Document(f"jobs/{job.name}.json", text)
    variables = job_variables(plan, job, addresses.defaults)
    notified = notify_variables(plan, job)
    parts = []
    if job.meets:
        parts.append(_rendezvous(job, addresses, notified))
    for name, members in groups(Role.TRAIN, job.containers).items():
        environment = environment_of(
            job, rendezvous, members, variables, urls, data_server, host_network=host_network
        )
        part = _train(plan, job, document, name, members, environment, _metrics(port))
        parts.append(part)
    return Workload(
        kind=Kind.JOB,
        name=job.name,
        stack=stack_of_job(job.name),
        file=job.job.file,
        image=job.image,
        document=document,
        parts=tuple(parts),
        volumes=job.volumes,
        secrets=tuple(dict.fromkeys((*job.job.secrets, *notify_secrets(job)))),
        needed=job.nodes[0],
        host_network=host_network,
        summary=_summary(job),
        inventory_hash=job.inventory_hash,
        job_hash=job.job_hash,
        rendezvous=rendezvous if job.meets else None,
        store=None if job.job.session else _store(job),
        precision=job.precision,
        data=job.job.data,
        code=code_documents(job.job),
        package=job.job.package,
        session=job.job.session is not None,
        queue=job.job.queue,
        each=job.job.hosts.gpus_per_host,
        roams=job.shared_checkpoints,
    )


def checkpoints_mount(workload: Workload) -> MountPoint:
    """Return the mount of a job's checkpoints: a volume of kit, or storage of the user."""
    mounts = workload.working[0].mounts
    return next(mount for mount in mounts if mount.target == CHECKPOINTS)


def _launcher(job: JobPlan) -> tuple[str, tuple[Config, ...]]:
    """Return the launcher's path in the container, and the configs that it needs.

    The trainer's image contains the launcher. In any other image it is mounted.
    """
    if job.job.train:
        return IMAGE_LAUNCHER, ()
    return MOUNTED_LAUNCHER, (Config("launcher", LAUNCHER_FILE, MOUNTED_LAUNCHER),)


def _keeper(job: JobPlan) -> tuple[Config, ...]:
    """Return the config of the program that keeps a script's files, if it has any."""
    kept = job.job.command and job.job.checkpoint.files
    return (Config("keeper", KEEPER_FILE, MOUNTED_KEEPER),) if kept else ()


def _rendezvous(job: JobPlan, addresses: JobAddresses, notified: Environment) -> Part:
    """Make the coordinator. It does not read the job file: a changed job does not restart it.

    It has no health check: Swarm resolves a service's name only when its task is healthy, and in a
    test no host found it for 30 s. It ends if it cannot serve, so that a check would add nothing.
    """
    user, rendezvous = job.job.user or NOBODY, addresses.rendezvous
    launcher, mounted = _launcher(job)
    return Part(
        role=Role.RENDEZVOUS,
        name=Role.RENDEZVOUS,
        hosts=(rendezvous.host,),
        placements=(),
        replicas=1,
        waits=job.job.queue is not None,
        image=job.image,
        launch=("python3", launcher),
        arguments=("rendezvous" if job.job.command else "coordinator",),
        environment=(
            Variable("KIT_RENDEZVOUS", rendezvous.endpoint),
            *(() if job.job.command else hosts_variables(job)),
            *notified,
            Variable("NVIDIA_VISIBLE_DEVICES", Word("void")),
            *default_variables(user, ()),
        ),
        user=user,
        unprivileged=unprivileged(user),
        read_only=True,
        ports=(Port(rendezvous.port, ("rendezvous", "port"), public=False),),
        configs=mounted,
        secrets=notify_secrets(job),
        limits=RENDEZVOUS_LIMITS,
        grace=job.job.stop_grace + LAST_WORDS,
        update=UPDATE,
        about=tuple(_about(job, addresses)),
        why={
            "user": "It needs only a port of its host.",
            "stop_grace_period": "When all end at once, it serves the hosts until they have saved.",
        },
    )


def _about(job: JobPlan, addresses: JobAddresses) -> Iterator[str]:
    """Describe the coordinator, and the effect of its loss."""
    tied = addresses.host_network
    where = f", at an address of {addresses.rendezvous.host.name}," if tied else ""
    if job.job.session:
        yield f"The coordinator{where} notifies people of the session's end."
        return
    if job.job.command:
        lost = " If that host is down, the run waits until it is back." if tied else ""
        yield f"The coordinator{where} decides which hosts run the script together.{lost}"
    else:
        lost = " If that host is down, no host joins; if it trains, all wait." if tied else ""
        yield f"The coordinator{where} decides which hosts train together.{lost}"
    yield "It ends with each run. It needs no healthcheck: it ends if it cannot serve."
    if not job.job.command and addresses.resizes:
        yield (
            "A change of KIT_NNODES, the least and most hosts, restarts only this: the hosts "
            "continue."
        )


def _train(
    plan: Plan,
    job: JobPlan,
    document: Document,
    name: str,
    members: Sequence[Placement],
    environment: Environment,
    ports: tuple[Port, ...],
) -> Part:
    launcher, mounted = _launcher(job)
    user, built_in = user_of_training(job.job), job.job.train is not None
    return Part(
        role=Role.TRAIN,
        name=name,
        hosts=tuple(member.host for member in members),
        placements=tuple(members),
        replicas=len(members),
        waits=job.job.queue is not None,
        image=job.image,
        launch=("python3", launcher),
        environment=environment,
        # The launcher makes the folder of a job's code, and goes there.
        working_dir=None if job.job.package else job.job.working_dir,
        ports=ports,
        mounts=job.mounts,
        configs=(
            Config("job", document.path, JOB_FILE),
            *mounted,
            *_keeper(job),
            *(() if job.job.package else code_configs(job.job)),
        ),
        secrets=job.job.secrets,
        health=HealthCheck(("python3", launcher, "health")),
        grace=job.job.stop_grace,
        limits=replace(job.job.limits, memlock=job.memlock, stack=job.stack_limit),
        infiniband=plan.network.infiniband,
        user=user,
        # A custom script may install packages, need sudo, or write beside itself.
        unprivileged=unprivileged(user) or (built_in and not user),
        keyed=bool(job.job.streamed),
        capabilities=capabilities(job.job, infiniband=plan.network.infiniband),
        read_only=built_in and not _caches_shards(job),
        restart=Restart(always=False, most=10),
        update=UPDATE,
        open_files=True,
        runs_tmp=True,
        labels=((OWNER, job.job.queue.owner),) if job.job.queue else (),
        why={
            "ulimits": "Sockets and shared tensors are open files; Docker 29 allows 1,024 by "
            "default.",
            "healthcheck": "Fails if the container has lost its GPUs, for example after "
            "`systemctl daemon-reload`.",
        },
    )


def _caches_shards(job: JobPlan) -> bool:
    """Return whether the job keeps the shards that it streams in its container."""
    return bool(job.job.streamed or (job.job.train and job.job.train.url))


def _metrics(port: int | None) -> tuple[Port, ...]:
    return () if port is None else (Port(port, ("metrics", "port"), public=False),)


def _summary(job: JobPlan) -> str:
    if job.job.queue:
        return f"For the queue: {in_words(job.job.queue)}. `kit submit` deploys it without tasks."
    gpus = sum(len(placement.gpus) for placement in job.placements)
    size = f"{count(len(job.placements), 'host')}, {count(gpus, 'GPU')}"
    if job.job.session:
        return f"{size}: a session, in which people work."
    total = f", global batch {job.batch.total}" if job.batch.total else ""
    spares = f", {count(len(job.spares), 'spare')}" if job.spares else ""
    return f"{size}: world size {job.world_size}{total}{spares}."


def _store(job: JobPlan) -> Store:
    mount = next(mount for mount in job.mounts if mount.target == CHECKPOINTS)
    volume = next((each for each in job.volumes if each.key == mount.source), None)
    if mount.kind == "bind" or volume is None:
        return Store("", f"{mount.source}, a folder of yours")
    if volume.owned:
        return Store(volume.name, volume.name)
    if volume.nfs_address:
        return Store("", f"{volume.nfs_address}:{volume.nfs_path}, a folder of yours")
    return Store("", f"{volume.name}, a volume of yours")
