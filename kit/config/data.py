"""The sections `data` of the inventory (the data services) and of a job (its data sets)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated

from pydantic import BeforeValidator, Field, Tag, WithJsonSchema

from kit import values
from kit.addresses import split_endpoint
from kit.config.fields import Image, Section, Size, tagged, validator_of
from kit.config.registry import RegistrySection
from kit.errors import INVENTORY, Fault, Loc
from kit.model import DataService, DataSet, Host
from kit.values import WrongValueError
from trainer.contract.code import PREFIX

PORT = 8090
PEER_PORT = 6881
"""The first port of BitTorrent (bittorrent.org, BEP 3), which libtorrent listens on by default."""


def data_name(value: object) -> str:
    """Check the name of a data set of the user's."""
    name = values.data_set(value)
    if name.startswith(PREFIX):
        raise WrongValueError(f"names with {PREFIX} are those of code", "write `code: FOLDER`")
    return name


DataName = Annotated[
    str,
    BeforeValidator(validator_of(data_name)),
    WithJsonSchema(
        {
            "type": "string",
            "pattern": "^[a-z0-9][a-z0-9._-]{0,62}$",
            "description": "The name in `kit data add`",
            "examples": ["cifar10"],
        }
    ),
]


class DataSection(Section):
    """The data services: a server on the storage host, and an agent on each host."""

    port: int = Field(PORT, ge=1024, le=65535, description="Port of the data server (HTTP)")
    peer_port: int = Field(
        PEER_PORT,
        ge=1024,
        le=65534,
        description="Port on which the agents exchange pieces; they use the next port too",
    )
    cache: Size | None = Field(
        None,
        description="Maximum size of the data sets on a host, except the storage host; kit deletes "
        "the least recently used ones first. Default: no limit",
        examples=["100GiB"],
    )
    image: Image | None = Field(
        None,
        description="Image with the trainer; default: the image of the first job with `train:`",
        examples=["registry.lab:5000/trainer:0.2.0"],
    )


class DataSetSection(Section):
    """A data set and its version."""

    name: DataName
    version: int | None = Field(None, ge=1, examples=[3], description="Default: the newest")
    stream: bool = Field(
        False,
        description="Read it from the data server during the training instead of fetching it "
        "first; for `dataset: shards`, and for scripts that read from an address",
    )


def _kind(value: object) -> str | None:
    if isinstance(value, str):
        return "<text>"
    return "<name>" if isinstance(value, dict) else None


DataSets = Annotated[
    list[
        Annotated[
            Annotated[DataName, Tag("<text>")] | Annotated[DataSetSection, Tag("<name>")],
            tagged(
                _kind,
                "is not a data set",
                "write its name, or `{name: imagenet, version: 3}`",
            ),
        ]
    ],
    Field(
        description="Data sets of `kit data add`: each host fetches them before the job starts, or "
        "streams them",
        examples=[["cifar10", {"name": "imagenet", "version": 3}]],
    ),
]


def to_data(section: DataSection | None) -> DataService | None:
    """Convert the inventory's section to a value."""
    if section is None:
        return None
    return DataService(section.port, section.peer_port, section.cache, section.image)


def to_data_sets(sections: Iterable[str | DataSetSection]) -> tuple[DataSet, ...]:
    """Convert a job's list to values."""
    return tuple(
        DataSet(each, None)
        if isinstance(each, str)
        else DataSet(each.name, each.version, each.stream)
        for each in sections
    )


def streams(sections: object) -> bool:
    """Return whether a job's list, valid or not, has a data set that is streamed."""
    listed = sections if isinstance(sections, list) else ()
    return any(isinstance(each, dict) and each.get("stream") is True for each in listed)


def data_faults(
    section: DataSection | None, registry: RegistrySection | None, hosts: Sequence[Host]
) -> Iterable[Fault]:
    """Check the inventory's section against the hosts and the registry."""

    def fault(key: str, what: str, fix: str) -> Fault:
        loc: Loc = ("data", key)
        return Fault(INVENTORY, loc, what, fix)

    if section is None:
        return
    if section.port in {section.peer_port, section.peer_port + 1}:
        what = f"{section.port} is a port of the agents: they use {section.peer_port} and the next"
        yield fault("port", what, f"write for example {section.peer_port + 2}")
    stores = [host.name for host in hosts if "storage" in host.roles] or [hosts[0].name]
    served = split_endpoint(registry.address)[1] if registry and registry.host in stores else ""
    ports = {"port": (section.port,), "peer_port": (section.peer_port, section.peer_port + 1)}
    for key, used in ports.items():
        if served in map(str, used):
            what = f"{served} is the port of the registry on {stores[0]}"
            yield fault(key, what, f"write for example {used[-1] % 65000 + 1}")
