"""The user's own server as parts: one container with any image and command on each host. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from kit.addresses import endpoint
from kit.model import Limits
from kit.plan.types import Placement
from kit.plan.work import ServerPlan
from kit.servers import OwnServer
from kit.values import count
from kit.workload.groups import groups
from kit.workload.privileges import unprivileged
from kit.workload.settings import Port, Symbol, Update, Variable, Word
from kit.workload.types import Kind, Part, Role, Workload

SERVER_UPDATE = Update(pause=True)
"""One host at a time, while the others answer."""
OPEN_FILES = "Each connection is an open file; Docker 29 allows 1,024 by default."


def own_serving(server: ServerPlan, own: OwnServer, *, host_network: bool) -> Workload:
    """Make the parts of a custom server."""
    settings = server.server
    parts = tuple(
        _part(server, own, name, members)
        for name, members in groups(Role.SERVE, server.placements).items()
    )
    hosts = [placement.host for placement in server.placements]
    return Workload(
        kind=Kind.SERVER,
        name=server.name,
        stack=server.name,
        file=settings.file,
        image=server.image,
        document=None,
        parts=parts,
        volumes=server.volumes,
        secrets=own.secrets,
        needed=1,
        host_network=host_network,
        summary=f"{_size(server)}: {_program(own.command[0])}.",
        inventory_hash=server.inventory_hash,
        job_hash=server.job_hash,
        urls=tuple(f"http://{endpoint(host.address, settings.port)}" for host in hosts),
        health=own.health,
        ready=own.health,
        start_timeout=own.start_timeout,
    )


def _part(server: ServerPlan, own: OwnServer, name: str, members: Sequence[Placement]) -> Part:
    settings, user = server.server, server.server.user or ""
    return Part(
        role=Role.SERVE,
        name=name,
        hosts=tuple(member.host for member in members),
        placements=tuple(members),
        replicas=len(members),
        image=server.image,
        launch=own.command,
        environment=(
            Variable("KIT_HOST", Symbol.HOST),
            Variable("KIT_PORT", str(settings.port)),
            Variable("KIT_REPLICAS", str(members[0].processes), own=True),
            Variable("KIT_GPUS", Word(str(len(members[0].gpus))), own=True),
            Variable("NVIDIA_VISIBLE_DEVICES", Symbol.GPUS, own=True),
            *(Variable(name, value) for name, value in settings.environment),
        ),
        working_dir=own.working_dir,
        mounts=server.mounts,
        ports=(Port(settings.port, ("port",), public=True),),
        secrets=own.secrets,
        grace=own.grace,
        limits=Limits(own.shared_memory, settings.memory, settings.cpus, None, None),
        user=user,
        unprivileged=unprivileged(user),
        update=SERVER_UPDATE,
        open_files=True,
        why={
            "ulimits": OPEN_FILES,
            "stop_grace_period": "Time to answer the queued requests.",
            "healthcheck": f"`kit deploy` and `kit status` ask {own.health} at the published "
            "port: the image may lack a program for a check here.",
        },
    )


def _program(word: str) -> str:
    """Return a program's name for a comment, where no other text of the user's may stand."""
    return word if re.fullmatch(r"[\w./+-]{1,100}", word) else "a server of your own"


def _size(server: ServerPlan) -> str:
    gpus = sum(len(placement.gpus) for placement in server.placements)
    return f"{count(len(server.placements), 'host')}, {count(gpus, 'GPU')}"
