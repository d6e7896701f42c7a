"""The GPUs of this machine, and which of them stand in for the plan's."""

from __future__ import annotations

import re
import subprocess

from kit.plan.work import JobPlan, ServerPlan


def local_gpus() -> list[str]:
    """Return the UUIDs that `nvidia-smi -L` lists; none where there is no driver."""
    try:
        listed = subprocess.run(
            ["nvidia-smi", "-L"], capture_output=True, text=True, timeout=30, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return listed_gpus(listed.stdout)


def listed_gpus(output: str) -> list[str]:
    """Return the UUIDs in the output of `nvidia-smi -L`.

    Of a GPU that is split by MIG only the instances can be used.
    """
    found: list[str] = []
    for uuid in re.findall(r"UUID: ((?:GPU|MIG)-[^)]+)\)", output):
        if uuid.startswith("MIG-") and found[-1:] and found[-1].startswith("GPU-"):
            found.pop()
        found.append(uuid)
    return found


def visible_devices(job: JobPlan, present: list[str]) -> dict[str, str]:
    """Return CUDA_VISIBLE_DEVICES for each host of the job, empty for the CPU.

    The plan's own GPUs where this machine has them all; any others where there are enough.
    """
    wanted = {placement.host.name: placement.devices for placement in job.placements}
    if all(device in present for devices in wanted.values() for device in devices):
        return {host: ",".join(devices) for host, devices in wanted.items()}
    if len(present) < job.world_size:
        return dict.fromkeys(wanted, "")
    return {
        placement.host.name: ",".join(
            present[placement.first_rank : placement.first_rank + placement.processes]
        )
        for placement in job.placements
    }


def serving_devices(server: ServerPlan, present: list[str], taken: set[str]) -> str:
    """Return CUDA_VISIBLE_DEVICES for a server, empty for the CPU.

    The plan's own GPUs where this machine has them all; any that are not `taken` where there are
    enough.
    """
    wanted = [device for placement in server.placements for device in placement.devices]
    if all(device in present for device in wanted):
        return ",".join(wanted)
    free = [device for device in present if device not in taken]
    return ",".join(free[: len(wanted)]) if len(free) >= len(wanted) else ""
