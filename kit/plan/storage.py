"""What a training container sees of the host's disks."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable

from kit.model import Job, Mount
from kit.plan.types import MountPoint, Volume

DATA = "/data"
CHECKPOINTS = "/checkpoints"
DUMPS = "/dumps"
"""Where NCCL's flight recorder writes what each rank waited for."""


def volume_name(cluster: str, name: str) -> str:
    """Return the name of a volume of kit's own: a host may belong to two clusters."""
    return f"kit-{cluster}_{name}"


def mounts(cluster: str, job: Job) -> tuple[Mount, ...]:
    """Return the job's mounts, with volumes of kit's own where it has none at these places.

    The data volume is shared by all jobs of a host; the others are the job's own.
    """
    defaults = [
        Mount("volume", volume_name(cluster, name), target, read_only=False)
        for name, target in (
            ("data", DATA),
            (f"{job.name}-checkpoints", CHECKPOINTS),
            (f"{job.name}-dumps", DUMPS),
        )
    ]
    taken = {mount.target for mount in job.mounts}
    return (*(mount for mount in defaults if mount.target not in taken), *job.mounts)


def mount_points(wanted: Iterable[Mount]) -> tuple[MountPoint, ...]:
    """Return what each container mounts where."""
    return tuple(
        MountPoint(
            "bind" if mount.kind == "bind" else "volume", _key(mount), mount.target, mount.read_only
        )
        for mount in wanted
    )


def volumes(wanted: Iterable[Mount], job: Job) -> tuple[Volume, ...]:
    """Return the named volumes that the job's mounts need, each once."""
    named = {_key(mount): _volume(mount, job) for mount in wanted if mount.kind != "bind"}
    return tuple(named.values())


def shared_checkpoints(wanted: Iterable[Mount]) -> bool:
    """Whether all hosts see one and the same checkpoint folder."""
    return any(mount.kind == "nfs" and mount.target == CHECKPOINTS for mount in wanted)


def read_only(mount: MountPoint) -> MountPoint:
    """Return the mount as somebody has it who only reads."""
    return MountPoint(mount.kind, mount.source, mount.target, True)


def _key(mount: Mount) -> str:
    """Docker fixes an NFS volume's options when it is made: another export needs another name."""
    if mount.kind != "nfs":
        return mount.source
    readable = re.sub("[^a-z0-9]+", "-", mount.source.lower()).strip("-")
    return f"nfs-{readable}-{zlib.crc32(mount.source.encode()):08x}"


def _volume(mount: Mount, job: Job) -> Volume:
    owned = mount not in job.mounts
    if mount.kind == "nfs":
        address, _, path = mount.source.partition(":")
        return Volume(_key(mount), _key(mount), address, path, owned)
    return Volume(mount.source, mount.source, None, None, owned)
