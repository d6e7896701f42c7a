"""The assignment of this machine's GPUs to the plan's. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import islice

from kit.plan.types import Placement
from kit.values import meant_gpus
from kit.workload.types import Workload


def visible_devices(job: Workload, present: Sequence[str]) -> dict[str, str]:
    """Return CUDA_VISIBLE_DEVICES for each host of the job, empty for the CPU.

    Use the plan's GPUs if this machine has all of them, otherwise any GPUs if there are enough.
    """
    wanted = {each.host.name: _present_gpus(each, present) for each in job.placements}
    if all(each in present for gpus in wanted.values() for each in gpus):
        return {host: ",".join(gpus) for host, gpus in wanted.items()}
    if len(present) < sum(map(len, wanted.values())):
        return dict.fromkeys(wanted, "")
    free = iter(present)
    return {host: ",".join(islice(free, len(gpus))) for host, gpus in wanted.items()}


def serving_devices(server: Workload, present: Sequence[str], taken: Collection[str]) -> str:
    """Return CUDA_VISIBLE_DEVICES for a server, empty for the CPU.

    Use the plan's GPUs if this machine has all of them, otherwise any GPUs that are not `taken` if
    there are enough.
    """
    wanted = [each for placement in server.placements for each in _present_gpus(placement, present)]
    if all(gpu in present for gpu in wanted):
        return ",".join(wanted)
    free = [gpu for gpu in present if gpu not in taken]
    return ",".join(free[: len(wanted)]) if len(free) >= len(wanted) else ""


def _present_gpus(placement: Placement, present: Sequence[str]) -> list[str]:
    """Return the planned GPUs as this machine writes their UUIDs; others stay as they are."""
    meant = [(gpu.id, meant_gpus(gpu.id, present) if gpu.known else []) for gpu in placement.gpus]
    return [indexes[0] if len(indexes) == 1 else uuid for uuid, indexes in meant]
