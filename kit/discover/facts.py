"""The facts about a host, as values."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from kit.discover.engines import StandIn
from kit.model import Host

FAST = 25 * 10**9
"""Bits per second from which a link counts as a cluster network."""


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """One GPU, or one MIG instance; `memory` is in bytes, None if the driver does not report it.

    `uuid` is "" for the GPU of a Jetson whose driver has no nvidia-smi. `index` is that of the card
    in `nvidia-smi -L`; `card` is the UUID of an instance's card, `bus`
    the card's PCI address, "" if it has none. `shared`: it has no memory of its own, `memory` is
    the host's. `split`: MIG is on.
    """

    uuid: str
    index: int
    model: str
    memory: int | None
    compute: str = ""
    ecc: bool | None = None
    card: str = ""
    bus: str = ""
    shared: bool = False
    split: bool = False


@dataclass(frozen=True, slots=True)
class PciDevice:
    """A device of NVIDIA on the PCI bus; `driver` is "" if it has none.

    `kind` is its class in sysfs, such as `0x030200`.
    """

    address: str
    kind: str
    driver: str

    @property
    def gpu(self) -> bool:
        """Whether it is a GPU: a display or 3D controller, not its audio or USB function."""
        return self.kind.startswith("0x03")

    @property
    def title(self) -> str:
        """Its name in messages, with its driver: a virtual machine's GPU has `vfio-pci`."""
        return f"{self.address} ({f'driver {self.driver}' if self.driver else 'no driver'})"

    @property
    def switch(self) -> bool:
        """Whether it is an NVSwitch, which is a bridge of another kind."""
        return self.kind.startswith("0x0680")


@dataclass(frozen=True, slots=True)
class Disk:
    """A local file system; sizes in bytes."""

    mount: str
    kind: str
    size: int
    free: int


@dataclass(frozen=True, slots=True)
class InterfaceFacts:
    """A network interface; `speed` is in bits per second, None if the driver does not report it.

    `device`: it is a network card, not a bridge, a tunnel or a veth.
    """

    name: str
    device: bool
    up: bool
    mtu: int
    speed: int | None
    addresses: tuple[str, ...] = ()

    @property
    def ipv4(self) -> tuple[ipaddress.IPv4Interface, ...]:
        """The IPv4 addresses with their networks."""
        interfaces = (ipaddress.ip_interface(each) for each in self.addresses)
        return tuple(each for each in interfaces if isinstance(each, ipaddress.IPv4Interface))


@dataclass(frozen=True, slots=True)
class Rdma:
    """A port of an InfiniBand or RoCE card; `link` is `InfiniBand` or `Ethernet`."""

    device: str
    interface: str
    link: str
    active: bool
    rate: str


@dataclass(frozen=True, slots=True)
class DockerFacts:
    """The Docker engine; `fault` is the error if it cannot be used, else "".

    `stand_in` answers in its place, if it is not None; that is a fault, too. `runtimes` are the
    names of the OCI runtimes, `swarm` is the node's state in a Swarm, `generic` are the generic
    resources that daemon.json names for Swarm.
    """

    version: str
    containerd: str
    fault: str
    runtimes: tuple[str, ...] = ()
    default_runtime: str = ""
    cdi: bool = False
    swarm: str = ""
    generic: tuple[str, ...] = ()
    stand_in: StandIn | None = None


@dataclass(frozen=True, slots=True)
class HostFacts:
    """One host. Memory in bytes; `clock_offset` in seconds, positive if its clock is ahead.

    `reached` is the address that SSH connected to, "" if the server has none (ProxyCommand with
    `sshd -i`, vsock); `reached_by` is the interface of a link-local one. `route` is the interface
    of the default route, `topology` the table of `nvidia-smi topo -m`, `gpu_fault` the error of
    nvidia-smi if it lists no GPU. `gpu_errors` are its errors beside the GPUs that it lists, `pci`
    NVIDIA's PCI devices.
    """

    hostname: str
    os: str
    kernel: str
    architecture: str
    cpu: str
    cores: int
    memory: int
    swap: int
    disks: tuple[Disk, ...]
    cgroup: int
    gpus: tuple[GpuFacts, ...]
    gpu_fault: str
    driver: str
    cuda: str
    topology: str
    docker: DockerFacts
    toolkit: str
    hook: bool
    groups: tuple[str, ...]
    interfaces: tuple[InterfaceFacts, ...]
    rdma: tuple[Rdma, ...]
    reached: str
    route: str
    reached_by: str = ""
    clock_offset: float = 0.0
    gpu_errors: tuple[str, ...] = ()
    pci: tuple[PciDevice, ...] = ()

    @property
    def cards(self) -> int:
        """The number of cards that nvidia-smi lists; several MIG instances are one."""
        return len({gpu.card or gpu.uuid for gpu in self.gpus})

    @property
    def unlisted(self) -> tuple[PciDevice, ...]:
        """GPUs of the PCI bus that nvidia-smi does not list.

        If listed GPUs have no known address, only the number of missing ones is known. GPUs with
        another driver, or without one, then come first.
        """
        placed = {gpu.bus for gpu in self.gpus if gpu.bus}
        left = [each for each in self.pci if each.gpu and each.address not in placed]
        missing = max(len(left) - (self.cards - len(placed)), 0)
        return tuple(sorted(left, key=lambda each: each.driver == "nvidia")[:missing])

    def interface_of(self, address: str) -> InterfaceFacts | None:
        """Return the interface with this address."""
        return next(
            (
                each
                for each in self.interfaces
                if address in {str(one.ip) for one in each.ipv4}
                or address in {one.partition("/")[0] for one in each.addresses}
            ),
            None,
        )

    @property
    def fast(self) -> tuple[InterfaceFacts, ...]:
        """Network cards with an IPv4 address and a link as fast as a cluster network."""
        return tuple(
            each
            for each in self.interfaces
            if each.device and each.up and each.ipv4 and (each.speed or 0) >= FAST
        )


@dataclass(frozen=True, slots=True)
class DiscoveredHost:
    """A host that has answered: its name in the inventory, its login and its facts.

    `address` is the address for other hosts; `known` is its entry in the inventory, None for a new
    host.
    """

    name: str
    login: str
    address: str
    facts: HostFacts
    known: Host | None = None

    @property
    def speed(self) -> int | None:
        """The speed of the link at its address, None if the driver does not report it."""
        interface = self.facts.interface_of(self.address)
        return interface.speed if interface else None
