"""The images that hosts run, and their pinned digests."""

from __future__ import annotations

from collections.abc import Sequence

from kit.jobs import Job
from kit.model import Inventory, Lock
from kit.servers import Server


def pinned(image: str, lock: Lock | None) -> str:
    """Return the image with its digest from the lock, if the lock has one."""
    locked = (lock or {}).get(image)
    return f"{image}@{locked.digest}" if locked else image


def images(inventory: Inventory, jobs: Sequence[Job], servers: Sequence[Server]) -> tuple[str, ...]:
    """Return the names of all images that hosts run and that carry no digest."""
    names = {job.image for job in jobs} | {server.image for server in servers}
    names |= {server.proxy.image for server in servers if server.proxy}
    if inventory.registry and inventory.registry.host:
        names.add(inventory.registry.image)
    if inventory.data and inventory.data.image:
        names.add(inventory.data.image)
    if inventory.monitoring:
        names |= set(inventory.monitoring.images)
    return tuple(sorted(name for name in names if "@" not in name))


def unlocked(names: Sequence[str], lock: Lock | None) -> tuple[str, ...]:
    """Return the images that the lock lacks. Without a lock, return none."""
    return () if lock is None else tuple(name for name in names if name not in lock)
