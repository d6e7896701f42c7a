"""A server as parts: the inference containers, and the endpoints that offer checkpoints.

A host has one container, with a replica of the model on each GPU: two would need the same port, and
one queue for all replicas makes fuller batches. The host publishes the port: the routing mesh of
Swarm would send each request over the network once more.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence
from dataclasses import replace

from kit.addresses import endpoint
from kit.jobs import Job
from kit.model import Host, Limits, Secret
from kit.plan.servers import able_hosts
from kit.plan.types import MountPoint, Placement
from kit.plan.work import Checkpoints, Plan, ServerPlan
from kit.servers import Server
from kit.values import count
from kit.workload.addressing import ServerAddresses
from kit.workload.documents import (
    code_configs,
    code_documents,
    code_variables,
    generated,
    server_json,
)
from kit.workload.groups import groups
from kit.workload.own_server import OPEN_FILES, SERVER_UPDATE, own_serving
from kit.workload.privileges import NOBODY, default_variables, unprivileged
from kit.workload.proxy import proxy_host
from kit.workload.settings import Config, HealthCheck, Port, Symbol, Update, Variable, Word
from kit.workload.types import Document, Kind, Part, Role, Workload
from trainer.contract.bearer import KEY

MOST_ENDPOINTS = 4
"""All hosts of a job have its checkpoints; at most this number of them offers them."""
MOST_SOURCES = 16
"""Up to this number, all hosts that may train the job are listed as sources, also hosts without a
part: then a change of the job's hosts does not restart the server, nor does another host."""
SERVER_FILE = "/kit/server.json"
GRACE = 20
"""Seconds that a server has to answer the queued requests."""
ENDPOINT_LIMITS = Limits(0, 512 * 2**20, None, None, None)


def serving(
    plan: Plan,
    server: ServerPlan,
    endpoints: Sequence[Part],
    addresses: ServerAddresses,
) -> Workload:
    """Make the parts of a server; the built-in one fetches missing checkpoints from others."""
    own = server.server.own
    if own:
        return own_serving(server, own, host_network=addresses.host_network)
    return _built_in(plan, server, endpoints, addresses)


def _built_in(
    plan: Plan,
    server: ServerPlan,
    endpoints: Sequence[Part],
    addresses: ServerAddresses,
) -> Workload:
    settings, checkpoints, sources = server.server, server.checkpoints, addresses.sources
    assert checkpoints
    own = (host.address for host in _asked(plan, server))
    names = [name for name in (*own, *addresses.names) if not is_plain(name)]
    text = server_json(settings, checkpoints.job, names, generated(plan.file, settings.file))
    document = Document(f"serve/{settings.short_name}.json", text)
    parts = [
        _serve(server, checkpoints, document, name, members, sources)
        for name, members in groups(Role.SERVE, server.placements).items()
    ]
    hosts = [placement.host for placement in server.placements]
    return Workload(
        kind=Kind.SERVER,
        name=server.name,
        stack=server.name,
        file=settings.file,
        image=server.image,
        document=document,
        parts=(*parts, *endpoints),
        volumes=server.volumes,
        secrets=_secrets(server),
        needed=1,
        host_network=addresses.host_network,
        summary=_summary(server),
        inventory_hash=server.inventory_hash,
        job_hash=server.job_hash,
        reads=settings.job,
        urls=tuple(f"http://{endpoint(host.address, settings.port)}" for host in hosts),
        sources=sources,
        ready="/ready",
        code=code_documents(_coded(server, checkpoints)),
    )


def _asked(plan: Plan, server: ServerPlan) -> tuple[Host, ...]:
    """Return the hosts whose addresses clients use for a server.

    All that may serve are among them: a split changes neither the server's file nor the server.
    """
    proxy = server.server.proxy
    return (*server.able, *((proxy_host(plan, proxy),) if proxy else ()))


def _coded(server: ServerPlan, checkpoints: Checkpoints) -> Job | Server:
    """Return the owner of the user's Python: the server of a handler, or the job of a model."""
    return server.server if server.server.handler else checkpoints.job.job


def _serve(
    server: ServerPlan,
    checkpoints: Checkpoints,
    document: Document,
    name: str,
    members: Sequence[Placement],
    sources: Sequence[str],
) -> Part:
    settings = server.server
    return Part(
        role=Role.SERVE,
        name=name,
        hosts=tuple(member.host for member in members),
        placements=tuple(members),
        replicas=len(members),
        image=server.image,
        launch=("python3", "-m", "trainer.serve"),
        environment=_environment(server, checkpoints, members[0].processes, sources),
        keyed=bool(sources) and not server.server.token,
        mounts=_mounts(checkpoints),
        ports=(Port(settings.port, ("port",), public=True),),
        configs=(
            Config("server", document.path, SERVER_FILE),
            *code_configs(_coded(server, checkpoints)),
        ),
        secrets=_secrets(server),
        health=_health(settings.port),
        grace=GRACE,
        limits=Limits(0, settings.memory, settings.cpus, None, None),
        user=_user(server),
        unprivileged=unprivileged(_user(server)),
        read_only=True,
        update=SERVER_UPDATE,
        open_files=True,
        why={
            "user": "A server needs no capabilities, and writes only to /tmp.",
            "ulimits": OPEN_FILES,
            "volumes": "The job's checkpoints on this host.",
            "stop_grace_period": "Time to answer the queued requests.",
            "healthcheck": "Checks the server and its GPUs. /ready reports whether it has a "
            "checkpoint.",
        },
    )


def endpoints(server: ServerPlan) -> tuple[Part, ...]:
    """Make the parts that offer the job's checkpoints, if a host has to fetch them."""
    parts: list[Part] = []
    checkpoints = server.checkpoints
    if checkpoints is None or not checkpoints.travels:
        return ()
    left = MOST_ENDPOINTS
    for name, members in groups(Role.TRAIN, checkpoints.job.containers).items():
        replicas = min(left, len(members))
        left -= replicas
        if replicas:
            group = name.removeprefix(f"{Role.TRAIN}-")
            parts.append(_endpoint(server, checkpoints.mount, group, members, replicas))
    return tuple(parts)


def _endpoint(
    server: ServerPlan,
    mount: MountPoint,
    group: str,
    members: Sequence[Placement],
    replicas: int,
) -> Part:
    port = server.server.transfer_port
    return Part(
        role=Role.CHECKPOINTS,
        name=f"{Role.CHECKPOINTS}-{group}",
        hosts=tuple(member.host for member in members),
        placements=(),
        replicas=replicas,
        image=server.image,
        launch=("python3", "-m", "trainer.serve.checkpoints"),
        environment=(
            Variable("KIT_CHECKPOINT_PORT", str(port)),
            _token_variable(server),
            Variable("KIT_HOST", Symbol.HOST),
            Variable("NVIDIA_VISIBLE_DEVICES", Word("void")),
            *default_variables(_user(server), ()),
        ),
        user=_user(server),
        unprivileged=unprivileged(_user(server)),
        read_only=True,
        mounts=(replace(mount, read_only=True),),
        ports=(Port(port, ("transfer_port",), public=False),),
        secrets=_secrets(server),
        keyed=not server.server.token,
        limits=ENDPOINT_LIMITS,
        update=Update(at_once=True),
        own_address=True,
        about=("Offers the job's checkpoints, read-only, to servers on other hosts.",),
    )


def source_hosts(plan: Plan, server: ServerPlan, offering: Iterable[Host]) -> tuple[Host, ...]:
    """Return the hosts that a server lists as sources; `offering` run an endpoint."""
    assert server.checkpoints
    hosts = able_hosts(plan.hosts, server.checkpoints.job.job.hosts)
    return hosts if len(hosts) <= MOST_SOURCES else tuple(offering)


def _environment(
    server: ServerPlan, checkpoints: Checkpoints, processes: int, sources: Sequence[str]
) -> tuple[Variable, ...]:
    set_by_kit = [
        Variable("KIT_SERVER", Word(SERVER_FILE)),
        Variable("KIT_HOST", Symbol.HOST),
        Variable("KIT_REPLICAS", str(processes), own=True),
        Variable("NVIDIA_VISIBLE_DEVICES", Symbol.GPUS, own=True),
        *code_variables(_coded(server, checkpoints)),
    ]
    if sources:
        why = "The addresses of checkpoints on other hosts. Each checkpoint is verified before use."
        set_by_kit.append(Variable("KIT_CHECKPOINT_SOURCES", ",".join(sources), why))
        set_by_kit.append(_token_variable(server))
    variables = dict(server.server.environment)
    set_by_kit += default_variables(_user(server), variables)
    return (*set_by_kit, *(Variable(name, value) for name, value in variables.items()))


def _user(server: ServerPlan) -> str:
    return server.server.user or NOBODY


def _mounts(checkpoints: Checkpoints) -> tuple[MountPoint, ...]:
    # The folder may be missing on a host that has no part in the job.
    present = checkpoints.mount.kind != "bind" or checkpoints.everywhere
    return (checkpoints.mount,) if present else ()


def _secrets(server: ServerPlan) -> tuple[Secret, ...]:
    return (server.server.token,) if server.server.token else ()


def _token_variable(server: ServerPlan) -> Variable:
    """The model's token is also the token of its checkpoints; without one, the cluster's key is."""
    token = server.server.token
    return Variable("KIT_CHECKPOINT_TOKEN", token.name if token else Word(KEY))


def is_plain(address: str) -> bool:
    """Return whether servers accept a host's address by default: no website can have it."""
    if "." not in address:
        return True
    try:
        ipaddress.ip_address(address)
    except ValueError:
        return False
    return True


def _health(port: int) -> HealthCheck:
    url = f"http://127.0.0.1:{port}/health"
    code = f"import urllib.request as u; u.urlopen('{url}', timeout=15)"
    return HealthCheck(("python3", "-c", code))


def _summary(server: ServerPlan) -> str:
    size = f"{count(len(server.placements), 'host')}, {count(server.replicas, 'GPU')}"
    return f"{size}: the {server.server.checkpoint} checkpoint of job {server.server.job}."
