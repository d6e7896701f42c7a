"""The data services as parts: the server of the storage host, and an agent on each host.

The server offers the stored data sets over HTTP, read-only, to those who have the cluster's key.
Its network must be trusted all the same: nothing is encrypted. The agents fetch what the jobs of
their host need, and exchange pieces with each other.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from kit.addresses import endpoint
from kit.model import DataSet, Host, Limits
from kit.plan.data import DataPlan
from kit.plan.types import MountPoint
from kit.workload.addressing import DataAddresses
from kit.workload.privileges import NOBODY, default_variables
from kit.workload.settings import HealthCheck, Port, Update, Variable, Word
from kit.workload.types import Part, Role
from trainer.contract.bearer import KEY

STORE = "/store"
CACHE = "/cache"
SOCKET = "agent.sock"
"""The agent's Unix socket, in the folder of the data sets."""
ROOT = "0:0"
"""The user of the agents. Volumes belong to root, who needs no capability for own files."""
LIMITS = Limits(0, 2 * 2**30, None, None, None)
"""The limits of each service. The kernel's file cache counts too, and is freed before the limit."""
VOLUME = "datasets"
"""The key of the volume in the rendered files."""
STORING = "The agent of the host that stores the data sets: it offers their pieces to other agents."
FETCHING = (
    "The agent fetches the data sets that its host's jobs name, checks them, and offers their "
    "pieces to other agents."
)
MOST_PEERS = 64
"""Peers that an agent gets from kit: connected agents send each other the rest."""


def data_sets_json(sets: Sequence[DataSet]) -> str:
    """Return the value of KIT_DATA_SETS: the data sets that the launcher requests."""
    return json.dumps(
        [{"name": each.name} | ({"version": each.version} if each.version else {}) for each in sets]
    )


def data_parts(cluster: str, data: DataPlan, addresses: DataAddresses) -> tuple[Part, ...]:
    """Make the parts: the server, the agent beside it, and the agents of the other hosts."""
    others = () if addresses.alone else tuple(h for h in data.agents if h is not data.storage)
    seeder = _agent(cluster, data, addresses, "data-storage", (data.storage,), ("--store", CACHE))
    server = _server(data, addresses)
    if not others:
        return (server, seeder)
    size = ("--size", str(data.cache)) if data.cache is not None else ()
    # Each address gives another command.
    groups = [(host,) for host in others] if addresses.own else [others]
    agents = (_agent(cluster, data, addresses, Role.DATA_AGENT, hosts, size) for hosts in groups)
    return (server, seeder, *agents)


def _server(data: DataPlan, addresses: DataAddresses) -> Part:
    own = data.storage.address if addresses.own else ""
    url = f"http://{endpoint(own or '127.0.0.1', data.port)}/healthz"
    code = f"import urllib.request as u; u.urlopen('{url}', timeout=15)"
    return Part(
        role=Role.DATA_SERVER,
        name=Role.DATA_SERVER,
        hosts=(data.storage,),
        placements=(),
        replicas=1,
        image=data.image,
        launch=("python3", "-m", "trainer.datasets.server"),
        arguments=(
            *("--store", STORE, "--port", str(data.port)),
            *(("--address", own) if own else ()),
        ),
        environment=_environment(NOBODY),
        mounts=(MountPoint("volume", VOLUME, STORE, read_only=True),),
        ports=(Port(data.port, ("data", "port"), public=True),),
        health=HealthCheck(("python3", "-c", code)),
        limits=LIMITS,
        user=NOBODY,
        unprivileged=True,
        read_only=True,
        keyed=True,
        update=Update(at_once=True),
        own_address=True,
        about=(
            f"The data sets of {data.storage.name}, for people, programs and the agents: "
            f"http://{endpoint(data.storage.address, data.port)}/",
            "It is read-only and wants the cluster's key. It has no certificate: use it only in a "
            "trusted network.",
        ),
    )


def _agent(
    cluster: str,
    data: DataPlan,
    addresses: DataAddresses,
    name: str,
    hosts: tuple[Host, ...],
    more: tuple[str, ...],
) -> Part:
    peers = ("--peers", ",".join(addresses.peers))
    own = ("--address", hosts[0].address) if addresses.own else ()
    code = f"import socket as s; s.socket(s.AF_UNIX).connect('{CACHE}/{SOCKET}')"
    return Part(
        role=Role.DATA_AGENT,
        name=name,
        hosts=hosts,
        placements=(),
        replicas=len(hosts),
        image=data.image,
        launch=("python3", "-m", "trainer.datasets.agent"),
        arguments=(
            *("--cache", CACHE, "--server", addresses.server),
            *(peers if addresses.peers else ()),
            *("--port", str(data.peer_port), *own, *more),
        ),
        environment=_environment(ROOT),
        mounts=(MountPoint("volume", VOLUME, CACHE, read_only=False),),
        ports=tuple(Port(port, ("data", "peer_port"), public=False) for port in data.peer_ports),
        health=HealthCheck(("python3", "-c", code)),
        limits=LIMITS,
        user=ROOT,
        unprivileged=True,
        read_only=True,
        keyed=True,
        update=Update(at_once=True),
        own_address=True,
        everywhere=name == Role.DATA_AGENT,
        labels=(("kit.data", cluster),),
        about=(STORING if name == "data-storage" else FETCHING,),
        why={
            "user": "The volume's files belong to root, so it runs as root, but without "
            "capabilities."
        },
    )


def _environment(user: str) -> tuple[Variable, ...]:
    return (
        Variable("NVIDIA_VISIBLE_DEVICES", Word("void")),
        Variable("KIT_KEY", Word(KEY)),
        *default_variables(user, ()),
    )


def some_peers(data: DataPlan, addresses: Sequence[str]) -> tuple[str, ...]:
    """Return the peers that each agent gets, the storage host's first."""
    order = {host.name: address for host, address in zip(data.agents, addresses, strict=True)}
    first = order.pop(data.storage.name)
    return (first, *order.values())[:MOST_PEERS]
