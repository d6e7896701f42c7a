"""Parsing of the output of `nvidia-smi`. Pure."""

from __future__ import annotations

import re


def listed_gpus(output: str) -> list[str]:
    """Return the UUIDs in the output of `nvidia-smi -L`.

    For a GPU with MIG enabled, return only its instances, because only these are usable.
    """
    found: list[str] = []
    for uuid in re.findall(r"UUID: ((?:GPU|MIG)-[^)]+)\)", output):
        if uuid.startswith("MIG-") and found[-1:] and found[-1].startswith("GPU-"):
            found.pop()
        found.append(uuid)
    return found
