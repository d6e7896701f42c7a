"""The mounts of a training container."""

from __future__ import annotations

import re
import zlib
from collections.abc import Collection, Iterable

from kit.jobs import Framework, Job
from kit.model import Mount
from kit.plan.types import MountPoint, Volume

DATA = "/data"
DATA_SETS = "/datasets"
"""The folder of the data sets that the host's agent has fetched."""
CHECKPOINTS = "/checkpoints"
DUMPS = "/dumps"
"""The folder in which PyTorch's flight recorder writes the pending operation of each rank."""


def volume_name(cluster: str, name: str) -> str:
    """Return the name of a volume that kit creates. It is unique per cluster on a host."""
    return f"kit-{cluster}_{name}"


def mounts(cluster: str, job: Job) -> tuple[Mount, ...]:
    """Return the job's mounts, with kit's own volumes for the standard paths that it leaves free.

    All jobs of a host share the data volume. The other volumes belong to the job.
    """
    own = {"data": DATA}
    if job.session:
        own[f"{job.name}-home"] = job.session.home
    else:
        own[f"{job.name}-checkpoints"] = CHECKPOINTS
    if job.framework is Framework.PYTORCH:
        own[f"{job.name}-dumps"] = DUMPS
    defaults = [
        Mount("volume", volume_name(cluster, name), target, read_only=False)
        for name, target in own.items()
    ]
    if job.fetched:
        sets = volume_name(cluster, "datasets")
        defaults.append(Mount("volume", sets, DATA_SETS, read_only=True))
    taken = {mount.target for mount in job.mounts}
    return (*(mount for mount in defaults if mount.target not in taken), *job.mounts)


def checkpoints_volume(cluster: str, job: str) -> MountPoint:
    """Return the mount of a job's checkpoints, unless the job has its own."""
    return MountPoint("volume", volume_name(cluster, f"{job}-checkpoints"), CHECKPOINTS, False)


def mount_points(wanted: Iterable[Mount]) -> tuple[MountPoint, ...]:
    """Return the mounts of each container."""
    return tuple(
        MountPoint(
            "bind" if mount.kind == "bind" else "volume", _key(mount), mount.target, mount.read_only
        )
        for mount in wanted
    )


def volumes(wanted: Iterable[Mount], users: Collection[Mount]) -> tuple[Volume, ...]:
    """Return the named volumes that mounts need, without duplicates; some are the user's own."""
    named = {_key(mount): _volume(mount, users) for mount in wanted if mount.kind != "bind"}
    return tuple(named.values())


def shared_checkpoints(wanted: Iterable[Mount]) -> bool:
    """Return whether all hosts share one checkpoint folder."""
    return any(mount.kind == "nfs" and mount.target == CHECKPOINTS for mount in wanted)


def read_only(mount: MountPoint) -> MountPoint:
    """Return the mount as read-only."""
    return MountPoint(mount.kind, mount.source, mount.target, True)


def _key(mount: Mount) -> str:
    """Return the volume's name. It contains the export: Docker fixes an NFS volume's options."""
    if mount.kind != "nfs":
        return mount.source
    readable = re.sub("[^a-z0-9]+", "-", mount.source.lower()).strip("-")
    return f"nfs-{readable}-{zlib.crc32(mount.source.encode()):08x}"


def _volume(mount: Mount, users: Collection[Mount]) -> Volume:
    owned = mount not in users
    if mount.kind == "nfs":
        server, path = mount.source.split(":/", 1)
        address = server.removeprefix("[").removesuffix("]")
        return Volume(_key(mount), _key(mount), address, f"/{path}", owned)
    return Volume(mount.source, mount.source, None, None, owned)
