"""The container of a measurement on a host: its command."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from kit.hosts import ssh
from kit.model import Gpu, Host
from kit.plan.types import MountPoint

LABEL = "kit.bench"
"""The label of the containers."""


def command(
    host: Host,
    image: str,
    program: Sequence[str],
    *,
    gpus: Sequence[Gpu] = (),
    mounts: Sequence[MountPoint] = (),
    environment: Mapping[str, str] | None = None,
    shared_memory: int = 2**30,
    infiniband: bool = False,
) -> list[str]:
    """Return the ssh command that runs a Python program in a container on the host's network.

    The container ends with its standard input and is removed. A mount whose folder or volume is
    missing is left out: Docker would not start the container, or create an empty volume.
    """
    words = ["docker", "run", "--rm", "--interactive", "--init", "--network=host"]
    words += [f"--label={LABEL}={host.name}", f"--shm-size={shared_memory}"]
    if gpus:
        words.append(f'--gpus="device={",".join(gpu.id for gpu in gpus)}"')
    variables = {**({} if gpus else {"NVIDIA_VISIBLE_DEVICES": "void"}), **(environment or {})}
    words += [f"--env={name}={value}" for name, value in variables.items()]
    words.append("--entrypoint=python3")
    # Settings of NCCL for InfiniBand; without the devices it uses sockets.
    verbs = ["--device=/dev/infiniband", "--cap-add=IPC_LOCK", "--ulimit=memlock=-1"]
    # A tag may have moved since the host pulled it. Without the registry, the host's image is used.
    pull = f"docker pull --quiet {shlex.quote(image)} >/dev/null 2>&1"
    lines = ["set --", *([] if "@" in image else [pull])]
    if infiniband:
        lines.append(f'[ -e /dev/infiniband ] && set -- "$@" {shlex.join(verbs)}')
    for mount in mounts:
        option = f"--mount=type={mount.kind},source={mount.source},target={mount.target},readonly"
        source = shlex.quote(mount.source)
        exists = f"[ -e {source} ]" if mount.kind == "bind" else f"docker volume inspect {source}"
        lines.append(f'{exists} >/dev/null 2>&1 && set -- "$@" {shlex.quote(option)}')
    lines.append(f'exec {shlex.join(words)} "$@" {shlex.join([image, *program])}')
    return [*ssh.command(host.ssh), f"exec sh -c {shlex.quote(chr(10).join(lines))}"]
