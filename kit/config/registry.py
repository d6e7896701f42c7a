"""The inventory's section `registry`: the registry's address, and whether kit runs it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pydantic import Field

from kit.addresses import endpoint, same_address, split_endpoint
from kit.config.fields import Image, Label, RegistryAddress, Section
from kit.errors import INVENTORY, Fault, Loc
from kit.model import Host, Registry
from trainer.contract.words import nearest

IMAGE = "registry:2"
"""The registry of the CNCF project distribution. It listens on port 5000."""


class RegistrySection(Section):
    """The registry for the trainer's image: `kit image` pushes to it, hosts pull from it."""

    address: RegistryAddress = Field(
        description="Prefix of the image names; all hosts must reach the registry by it",
        examples=["registry.lab:5000"],
    )
    host: Label | None = Field(
        None,
        description="kit runs the registry on this host, without certificate and passwords",
        examples=["pc1"],
    )
    image: Image | None = Field(
        None, description=f"The image of this registry; default: {IMAGE}", examples=[IMAGE]
    )


def to_registry(section: RegistrySection | None) -> Registry | None:
    """Convert the validated section to a value."""
    if section is None:
        return None
    return Registry(section.address, section.host, section.image or IMAGE)


def registry_faults(section: RegistrySection | None, hosts: Sequence[Host]) -> Iterable[Fault]:
    """Check the section against the hosts."""

    def fault(key: str, what: str, fix: str) -> Fault:
        loc: Loc = ("registry", key)
        return Fault(INVENTORY, loc, what, fix)

    if section is None:
        return
    name, port = split_endpoint(section.address)
    if len(hosts) > 1 and (name in {"localhost", "::1"} or name.startswith("127.")):
        what = f"{section.address} is a different machine on each host"
        yield fault("address", what, "write a name that all hosts know, or an address")
    if section.host is None:
        if section.image:
            what = "has no effect, because kit does not serve the registry"
            yield fault("image", what, "add `host: …`, or leave it out")
        return
    names = [host.name for host in hosts]
    if section.host not in names:
        yield fault("host", f"{section.host} is not in the inventory", nearest(section.host, names))
    if not port:
        what = f"{section.address} has no port, which kit needs to serve the registry"
        yield fault(
            "address",
            what,
            f'write "{endpoint(name, 5000)}"' if ":" in name else f"write {name}:5000",
        )
    other = next(
        (host for host in hosts if name == host.name or same_address(name, host.address)), None
    )
    if other is not None and other.name != section.host:
        what = f"{name} is {other.name}, but the registry is to be served on {section.host}"
        yield fault(
            "address", what, f"write `host: {other.name}`, or the address of {section.host}"
        )
    if section.image and section.image.startswith(f"{section.address}/"):
        what = f"{section.image} is stored in the registry that it should serve"
        yield fault("image", what, f"name an image from elsewhere, as {IMAGE}")
