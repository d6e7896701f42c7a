"""Groups of equal hosts: each group is one part. A split host is a group of its own."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable

from kit.plan.types import Placement
from kit.workload.types import Role


def groups(role: Role, placements: Iterable[Placement]) -> dict[str, list[Placement]]:
    """Group placements by the names of their parts, in the order of the inventory.

    Hosts whose GPUs are known by index share a part if they have the same number of GPUs. A host
    whose GPUs are pinned by UUID, or come and go with the queue, has a part of its own.
    """
    by_part: dict[str, list[Placement]] = {}
    for placement in placements:
        by_part.setdefault(_name(role, placement), []).append(placement)
    return by_part


def _name(role: Role, placement: Placement) -> str:
    prefix = f"{role}-spare" if placement.spare else role
    if placement.queued or not placement.by_index:
        return f"{prefix}-on-{placement.host.name}"
    if placement.whole:
        name = f"{prefix}-{len(placement.gpus)}gpu"
    else:
        name = f"{prefix}-gpu" + "-".join(gpu.id for gpu in placement.gpus)
    own = placement.host.interface
    return f"{name}-{_label(own)}" if own else name


def _label(interface: str) -> str:
    """Return an interface as part of a name; eth0.1, eth0-1 and eth0_1 give different names."""
    readable = re.sub("[^a-zA-Z0-9]+", "-", interface).strip("-")
    if re.fullmatch(r"[a-zA-Z0-9]+(\.[a-zA-Z0-9]+)*", interface):
        return readable
    return f"{readable}-{zlib.crc32(interface.encode()):08x}"
