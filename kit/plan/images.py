"""The images that hosts run, and the digests that they are pinned to."""

from __future__ import annotations

from collections.abc import Sequence

from kit.model import Inventory, Job, Lock, Server


def pinned(image: str, lock: Lock | None) -> str:
    """Return the image with the digest that the lock has for it, if any."""
    digest = (lock or {}).get(image)
    return f"{image}@{digest}" if digest else image


def images(inventory: Inventory, jobs: Sequence[Job], servers: Sequence[Server]) -> tuple[str, ...]:
    """Return the names of the images that hosts run, without those that have a digest already."""
    names = {job.image for job in jobs} | {server.image for server in servers}
    if inventory.registry and inventory.registry.host:
        names.add(inventory.registry.image)
    return tuple(sorted(name for name in names if "@" not in name))


def unlocked(names: Sequence[str], lock: Lock | None) -> tuple[str, ...]:
    """Return the images that a lock leaves out; without a lock none is missed."""
    return () if lock is None else tuple(name for name in names if name not in lock)
