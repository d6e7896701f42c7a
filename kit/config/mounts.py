"""The mounts of a job or a server."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

from pydantic import AfterValidator, Tag

from kit.config.fields import (
    AbsolutePath,
    Label,
    MountTarget,
    NfsExport,
    Section,
    only_key,
    tagged,
    wrong,
)
from kit.model import Mount


class BindMount(Section):
    """A folder of the host."""

    bind: AbsolutePath
    to: MountTarget
    read_only: bool = False


class VolumeMount(Section):
    """A named volume of the host's Docker."""

    volume: Label
    to: MountTarget
    read_only: bool = False


class NfsMount(Section):
    """An NFS export, mounted by each host's Docker."""

    nfs: NfsExport
    to: MountTarget
    read_only: bool = False


def _mount_kind(value: object) -> str | None:
    return only_key(value, ("bind", "volume", "nfs"))


MountSection = Annotated[
    Annotated[BindMount, Tag("<bind>")]
    | Annotated[VolumeMount, Tag("<volume>")]
    | Annotated[NfsMount, Tag("<nfs>")],
    tagged(
        _mount_kind,
        "a mount is exactly one of bind, volume and nfs",
        "write for example `- {bind: /srv/data, to: /data}`",
    ),
]


def _targets(mounts: list[Any]) -> list[Any]:
    targets = [mount.to for mount in mounts]
    for index, target in enumerate(targets):
        if target in targets[:index]:
            raise wrong(f"two mounts at {target}", "give each its own folder", index, "to")
    return mounts


Mounts = Annotated[list[MountSection], AfterValidator(_targets)]


def to_mounts(sections: Iterable[BindMount | VolumeMount | NfsMount]) -> tuple[Mount, ...]:
    """Convert the mounts of a job or a server."""
    return tuple(map(_mount, sections))


def _mount(section: BindMount | VolumeMount | NfsMount) -> Mount:
    if isinstance(section, BindMount):
        return Mount("bind", section.bind, section.to, section.read_only)
    if isinstance(section, VolumeMount):
        return Mount("volume", section.volume, section.to, section.read_only)
    return Mount("nfs", section.nfs, section.to, section.read_only)
