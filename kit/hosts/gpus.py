"""What `nvidia-smi` says of a host's GPUs. Pure."""

from __future__ import annotations

import re


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
