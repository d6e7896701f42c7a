"""`inventory.yaml`: the hosts of a cluster."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Mapping
from typing import Literal

from pydantic import ConfigDict, Field, field_validator, model_validator

from kit import addresses, ranges, values
from kit.config.data import DataSection, data_faults, to_data
from kit.config.duplicates import refuse_duplicates
from kit.config.fields import (
    Duration,
    Interface,
    Label,
    NcclVariables,
    Section,
    Speed,
    Subnet,
    wrong,
)
from kit.config.gpus import Gpus, index_faults, to_gpus
from kit.config.kubernetes import (
    KubernetesSection,
    NodesSection,
    hosts_or_nodes,
    node_faults,
    to_kubernetes,
    with_hosts,
)
from kit.config.monitoring import MonitoringSection, monitoring_faults, to_monitoring
from kit.config.notify import Notify, to_receivers
from kit.config.queue import LendSection, PoolSection, to_hours, to_sharing
from kit.config.registry import RegistrySection, registry_faults, to_registry
from kit.errors import INVENTORY, Fault, FaultsError, Loc
from kit.model import AUTO, EngineName, Host, Inventory, Network
from kit.platforms import of_gpus
from kit.values import WrongValueError

MOST_MANAGERS = 7
"""Docker's recommendation (Administer and maintain a swarm, "Add manager nodes for fault
tolerance")."""


class HostSection(Section):
    """One host, or several equal hosts if the name is a range (`gpu[001-512]`)."""

    address: str = Field(
        description="Address at which the other hosts reach it; for a range of hosts, a range of "
        "addresses",
        examples=["192.168.8.151", "10.0.0.[1-64]", "10.1.0.1-10.1.2.0"],
    )
    ssh: str | None = Field(
        None, description="kit's SSH login; default: the address", examples=["user1@pc1"]
    )
    roles: list[Literal["manager", "storage"]] = Field(
        [],
        examples=[["manager"]],
        description="`manager`: a manager of the Swarm, on one host or on three. `storage`: the "
        "host that stores the data sets of `kit data`",
    )
    gpus: Gpus = 0
    interface: Interface | None = Field(
        None, description="Overrides `network.interface`; may be `auto`", examples=["eth0"]
    )
    speed: Speed | None = Field(None, description="Overrides `network.speed`")
    architecture: Literal["amd64", "arm64"] | None = Field(
        None,
        examples=["arm64"],
        description="Its processor; default: `arm64` with a GPU of a Jetson, DGX Spark or Grace, "
        "else `amd64`. `kit discover` writes it",
    )
    lend: LendSection | None = Field(
        None,
        examples=[{"to": "pool", "weekdays": "19:00-08:00", "weekends": "all"}],
        description="When its owner lends it to the jobs of the queue; default: always",
    )

    @field_validator("ssh", mode="before")
    @classmethod
    def _text(cls, ssh: object) -> object:
        if isinstance(ssh, (int, float)) and not isinstance(ssh, bool):
            raise wrong(f"{ssh} is a number, not a text", f'write "{ssh}", in quotes')
        return ssh


class NetworkSection(Section):
    """The network between the hosts."""

    driver: Literal["overlay", "host"] = Field(
        "overlay", description="`host` for InfiniBand, or to avoid the overlay's overhead of 3 %"
    )
    interface: Interface = Field(
        AUTO,
        description="Interface for the training; `auto`: the interface of the route to the "
        "coordinator. NCCL uses several at a time; gloo and the coordinator use the first",
        examples=["auto", "ib0", ["enp1s0f0np0", "enp1s0f1np1"]],
    )
    speed: Speed = Field(10**9, description="Speed of each host's link")
    subnet: Subnet = Field(
        "10.200.0.0/16", description="Addresses of the overlay; each task gets one"
    )
    mtu: int = Field(1500, ge=576, le=65535, description="MTU of the hosts' network, in bytes")
    infiniband: bool = Field(
        False, description="Give containers the InfiniBand devices; needs `driver: host`"
    )
    encrypted: bool = Field(
        False,
        description="Encrypt the overlay (IPsec, AES-GCM). It costs processor time, and hosts must "
        "accept ESP (IP protocol 50) from each other",
    )
    nccl: NcclVariables = Field({}, description="`NCCL_…` variables for all jobs")


class SwarmSection(Section):
    """The settings of the Swarm, which `kit swarm up` applies."""

    heartbeat: Duration = Field(
        2,
        ge=1,
        le=60,
        description="Interval of the nodes' heartbeats. Swarm detects a dead node after 4 s with "
        "2s, after 14 s with Docker's default of 5s",
    )


class InventorySection(Section):
    """The hosts of one cluster."""

    model_config = Section.model_config | ConfigDict(json_schema_extra=hosts_or_nodes)
    cluster: Label
    engine: Literal["local", "compose", "swarm", "kubernetes"] = Field(
        "local", description="Engine that runs the plan: this machine, Compose, Swarm or Kubernetes"
    )
    hosts: dict[str, HostSection] = Field(
        min_length=1, examples=[{"pc1": {"address": "192.168.8.151", "gpus": 1}}]
    )
    network: NetworkSection = Field(NetworkSection(), examples=[{"speed": "1Gbit"}])
    swarm: SwarmSection = Field(SwarmSection(), examples=[{"heartbeat": "2s"}])
    kubernetes: KubernetesSection | None = Field(None, examples=[{"namespace": "training"}])
    nodes: NodesSection | None = Field(None, examples=[{"count": 4, "gpus": 8}])
    registry: RegistrySection | None = Field(None, examples=[{"address": "registry.lab:5000"}])
    data: DataSection | None = Field(None, examples=[{"cache": "100GiB"}])
    monitoring: MonitoringSection | None = Field(None, examples=[{"retention": "30d"}])
    notify: Notify = Field([], description="Receivers of all jobs")
    queue: PoolSection | None = Field(
        None, examples=[{"people": {"anna": {"share": 2}, "ben": {}}, "zone": "Europe/Berlin"}]
    )

    _of_nodes = model_validator(mode="before")(with_hosts)

    @field_validator("hosts", mode="before")
    @classmethod
    def _named(cls, hosts: object) -> object:
        if isinstance(hosts, list):
            raise wrong("is a list", "make it a mapping: `hosts: {pc1: {address: …}}`")
        return hosts


def expand_hosts(
    sections: Mapping[str, HostSection], defaults: NetworkSection, zone: str = "UTC"
) -> tuple[list[Host], list[Fault]]:
    """Expand ranges and find duplicates; `defaults` and `zone` are for hosts without own values."""
    faults: list[Fault] = []
    hosts: list[Host] = []
    for name, section in sections.items():
        hosts += _expand(name, section, defaults, zone, faults)
    refuse_duplicates(hosts, faults)
    return hosts, faults


def to_inventory(section: InventorySection, file: str) -> Inventory:
    """Convert the validated file to the inventory, with expanded ranges.

    Raises:
        FaultsError: Mistakes that concern several sections: names, ranges, duplicates.
    """
    zone = (section.queue or PoolSection()).zone
    hosts, faults = expand_hosts(section.hosts, section.network, zone)
    _check_cluster(section, hosts, faults)
    if faults:
        raise FaultsError(faults)
    network = section.network
    return Inventory(
        file=file,
        cluster=section.cluster,
        engine=EngineName(section.engine),
        hosts=tuple(hosts),
        network=Network(
            driver=network.driver,
            interface=None if network.interface == AUTO else network.interface,
            subnet=network.subnet,
            mtu=network.mtu,
            infiniband=network.infiniband,
            encrypted=network.encrypted,
            nccl=tuple(network.nccl.items()),
        ),
        heartbeat=section.swarm.heartbeat,
        registry=to_registry(section.registry),
        data=to_data(section.data),
        monitoring=to_monitoring(section.monitoring),
        notify=to_receivers(section.notify, "NOTIFY_ALL"),
        sharing=to_sharing(section.queue),
        kubernetes=to_kubernetes(section.kubernetes, section.nodes),
    )


def _expand(
    name: str, section: HostSection, defaults: NetworkSection, zone: str, faults: list[Fault]
) -> list[Host]:
    loc: Loc = ("hosts", name)
    try:
        names = ranges.expand(name) if ranges.is_range(name) else [name]
        for one in {names[0], names[-1]}:
            values.dns_label(one)
    except WrongValueError as error:
        faults.append(Fault(INVENTORY, loc, error.what, error.fix))
        return []
    several = len(names) > 1
    if several and isinstance(section.gpus, list) and any(gpu.uuid for gpu in section.gpus):
        what = f"a UUID belongs to one GPU, but {name} is {len(names)} hosts"
        fix = f"write `gpus: {len(section.gpus)}`, or describe the hosts one by one"
        faults.append(Fault(INVENTORY, (*loc, "gpus"), what, fix))
        return []
    if isinstance(section.gpus, list):
        faults += index_faults(loc, section.gpus)
    ranged = ranges.is_range(name)
    addresses = _addresses(loc, section.address, names, faults, name_is_range=ranged)
    ssh = _ssh(loc, section.ssh, names, faults, name_is_range=ranged)
    if section.ssh is None:
        ssh = [f"[{each}]" if ":" in each else each for each in addresses]
    if not addresses or not ssh:
        return []
    gpus, own_speed = to_gpus(section.gpus), section.speed or defaults.speed
    roles = tuple(section.roles)
    # Naming the network's own interface changes nothing.
    interface = None if section.interface == defaults.interface else section.interface
    hours = to_hours(section.lend, zone)
    processor = section.architecture or of_gpus(gpu.model for gpu in gpus)
    return [
        Host(one, address, login, roles, gpus, interface, own_speed, loc, hours, processor)
        for one, address, login in zip(names, addresses, ssh, strict=True)
    ]


def _addresses(
    loc: Loc, address: str, names: list[str], faults: list[Fault], *, name_is_range: bool
) -> list[str]:
    try:
        if len(names) == 1 and not (name_is_range and ranges.is_range(address)):
            return [addresses.address(address)]
        return [addresses.address(one) for one in ranges.expand_addresses(address, len(names))]
    except WrongValueError as error:
        faults.append(Fault(INVENTORY, (*loc, "address"), error.what, error.fix))
        return []


def _ssh(
    loc: Loc, ssh: str | None, names: list[str], faults: list[Fault], *, name_is_range: bool
) -> list[str]:
    if ssh is None:
        return []
    try:
        several = len(names) > 1 or (name_is_range and ranges.is_range(ssh))
        logins = ranges.expand_addresses(ssh, len(names)) if several else [ssh]
        return [addresses.login(one) for one in logins]
    except WrongValueError as error:
        faults.append(Fault(INVENTORY, (*loc, "ssh"), error.what, error.fix))
        return []


def _check_cluster(section: InventorySection, hosts: list[Host], faults: list[Fault]) -> None:
    def fault(loc: Loc, what: str, fix: str) -> None:
        faults.append(Fault(INVENTORY, loc, what, fix))

    network = section.network
    if not hosts:
        return
    managers = [host for host in hosts if "manager" in host.roles]
    # A cluster of Kubernetes has control planes of its own.
    if section.engine != "kubernetes" and len(hosts) > 1 and not managers:
        fix = f"give one host the role: `{hosts[0].loc[1]}: {{roles: [manager], …}}`"
        fault(("hosts",), "no host is a manager", fix)
    here = next((host for host in hosts if _only_here(host.address)), None)
    if len(hosts) > 1 and here is not None:
        what = f"{here.address} is not an address at which other hosts reach {here.name}"
        fault((*here.loc, "address"), what, "write its address in the network that they share")
    if section.engine == "swarm" and len(hosts) > 1:
        for host in (host for host in hosts if ":" in host.address):
            what = f"{host.address} is an IPv6 address, but kit's Swarms need IPv4"
            fix = "write its IPv4 address, or `engine: compose`"
            fault((*host.loc, "address"), what, fix)
    if section.engine == "swarm" and network.driver == "overlay":
        _check_overlay(network, hosts, fault)
    elif network.encrypted and section.engine != "local":
        fix = "leave it out, and use a network that you trust, or a VPN between the hosts"
        fault(("network", "encrypted"), "only the overlay of a Swarm can be encrypted", fix)
    faults += node_faults(section.nodes, section.engine, section.hosts)
    faults += registry_faults(section.registry, hosts)
    faults += data_faults(section.data, section.registry, hosts)
    faults += monitoring_faults(section.monitoring, hosts)
    if len(managers) > MOST_MANAGERS:
        what = f"{len(managers)} hosts are managers"
        fault((*managers[-1].loc, "roles"), what, "a Swarm takes 1, 3, 5 or 7: leave some out")


def _check_overlay(
    network: NetworkSection, hosts: list[Host], fault: Callable[[Loc, str, str], None]
) -> None:
    if network.infiniband:
        fault(
            ("network", "infiniband"),
            "InfiniBand does not reach into an overlay network",
            "write `driver: host`",
        )
    named = [("network",)] if network.interface != AUTO else []
    for loc in [*named, *dict.fromkeys(host.loc for host in hosts if host.interface)]:
        fault(
            (*loc, "interface"),
            "an interface of the host does not exist inside an overlay network",
            "leave it out (the launcher finds the right one), or write `driver: host`",
        )
    pool = ipaddress.IPv4Network(network.subnet)
    needed = 3 * len(hosts) + 16
    if pool.num_addresses < needed:
        what = f"{network.subnet} has {pool.num_addresses} addresses for {len(hosts)} hosts"
        fix = f"make it larger: at least {needed}, one for each task and each host's end"
        fault(("network", "subnet"), what, fix)
    overlapping = next((host for host in hosts if _within(host.address, pool)), None)
    if overlapping is not None:
        what = f"{network.subnet} contains {overlapping.address}, the address of {overlapping.name}"
        fault(("network", "subnet"), what, "choose a range that no machine uses")


def _only_here(address: str) -> bool:
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address == "localhost"
    return parsed.is_loopback or parsed.is_unspecified or parsed.is_multicast


def _within(address: str, pool: ipaddress.IPv4Network) -> bool:
    try:
        return ipaddress.IPv4Address(address) in pool
    except ValueError:
        return False
