"""Keys of other programs' files, and what says the same in kit's."""

from __future__ import annotations

from collections.abc import Collection

_SAME = {
    "args": "command",
    "batch": "batch_size",
    "entrypoint": "command",
    "env": "environment",
    "ip": "address",
    "lr": "learning_rate",
    "script": "command",
    "user": "ssh",
    "volumes": "mounts",
}
_WRITTEN = {
    "env_file": ("environment", "write `environment: {NAME: value}`, or `secrets:`"),
    "gpus": ("hosts", "write `hosts: {gpus_per_host: 1}`"),
    "name": ("image", "leave it out: the name is that of the file"),
    "nnodes": ("hosts", "write `hosts: {names: [pc1, pc2]}`"),
    "nodes": ("hosts", "write `hosts: {names: [pc1, pc2]}`"),
    "nproc_per_node": ("hosts", "write `hosts: {gpus_per_host: 1}`"),
    "ports": ("port", "write `port:`, the one on which it listens"),
    "replicas": ("hosts", "write `hosts: {names: [pc1, pc2]}`"),
    "shm_size": ("limits", "write `limits: {shared_memory: 16GiB}`"),
    "workers": ("hosts", "write `hosts: {names: [pc1, pc2]}`"),
}


def elsewhere(key: str, known: Collection[str]) -> str:
    """Return what to write in place of a key of Compose, torchrun and others, or ""."""
    if _SAME.get(key) in known:
        return f"write `{_SAME[key]}:`"
    needed, fix = _WRITTEN.get(key, ("", ""))
    return fix if needed in known else ""
