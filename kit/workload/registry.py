"""The registry that kit runs, as a part. It has no certificate: the network must be trusted.

It uses the bridge of its host: a stack's default network would take addresses from 10.0.0.0/8. It
has no health check, as another image may have no client in it.
"""

from __future__ import annotations

from kit.plan.images import pinned
from kit.plan.types import MountPoint
from kit.plan.work import Plan
from kit.workload.settings import Net, Port, Variable, Word
from kit.workload.types import Part, Role

PORT = 5000
"""The port of the registry's image."""
FOLDER = "/var/lib/registry"
VOLUME = "registry"


def registry_part(plan: Plan) -> Part | None:
    """Return the registry's part, or None if kit does not run the registry."""
    registry = plan.registry
    if registry is None or registry.host is None:
        return None
    host = next(host for host in plan.hosts if host.name == registry.host)
    published = int(registry.address.rpartition(":")[2])
    return Part(
        role=Role.REGISTRY,
        name=Role.REGISTRY,
        hosts=(host,),
        placements=(),
        replicas=1,
        image=pinned(registry.image, plan.lock),
        launch=(),
        environment=(Variable("NVIDIA_VISIBLE_DEVICES", Word("void")),),
        mounts=(MountPoint("volume", VOLUME, FOLDER, read_only=False),),
        # Its files belong to root, so it drops capabilities and keeps its user.
        unprivileged=True,
        read_only=True,
        network=Net.ALONE,
        about=(
            f"The jobs' images, {registry.address}: kept in a volume of {host.name}. It has no "
            "certificate and no",
            "passwords, so use it only in a trusted network. Every engine that pulls or pushes "
            'needs "insecure-registries":',
            "see hosts/<host>/daemon.json; the build machine needs it too.",
        ),
        why={"user": "Its files belong to root, so it runs as root, but without capabilities."},
        ports=(Port(published, ("registry", "address"), public=True, inside=PORT),),
    )
