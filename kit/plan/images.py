"""The images that the rendered files name, and the digests that they are pinned to."""

from __future__ import annotations

from collections.abc import Sequence

from kit.model import EngineName, Inventory, Job, Lock, Server
from kit.plan.types import ServedRegistry

NETWORK = "hello-world:linux"
"""Of the service that holds the overlay network. It has no task: no host ever pulls the image."""


def pinned(image: str, lock: Lock | None) -> str:
    """Return the image with the digest that the lock has for it, if any."""
    digest = (lock or {}).get(image)
    return f"{image}@{digest}" if digest else image


def images(inventory: Inventory, jobs: Sequence[Job], servers: Sequence[Server]) -> tuple[str, ...]:
    """Return the names of the images that hosts run, without those that have a digest already."""
    if inventory.engine is EngineName.LOCAL:
        return ()
    names = {job.image for job in jobs} | {server.image for server in servers}
    if inventory.registry and inventory.registry.host:
        names.add(inventory.registry.image)
    return tuple(sorted(name for name in names if "@" not in name))


def unlocked(names: Sequence[str], lock: Lock | None) -> tuple[str, ...]:
    """Return the images that a lock leaves out; without a lock none is missed."""
    return () if lock is None else tuple(name for name in names if name not in lock)


def network_image(inventory: Inventory, lock: Lock | None) -> str | None:
    """Return the image of the service that holds the overlay; None where there is no overlay."""
    overlay = inventory.engine is EngineName.SWARM and inventory.network.driver == "overlay"
    return pinned(NETWORK, lock) if overlay else None


def served_registry(inventory: Inventory, lock: Lock | None) -> ServedRegistry | None:
    """Return the registry that kit serves, if it does."""
    registry = inventory.registry
    if registry is None or registry.host is None or inventory.engine is EngineName.LOCAL:
        return None
    port = int(registry.address.rpartition(":")[2])
    return ServedRegistry(registry.address, registry.host, port, pinned(registry.image, lock))
