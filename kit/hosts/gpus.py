"""Parsing of the output of `nvidia-smi`. Pure."""

from __future__ import annotations

import re

from kit.values import names_gpu

_UUID = re.compile(r"UUID: ([^)]+)\)")


def listed_gpus(output: str) -> list[str]:
    """Return the UUIDs in the output of `nvidia-smi -L`.

    For a GPU with MIG enabled, return only its instances, because only these are usable.
    """
    uuids: list[str] = []
    for uuid in filter(names_gpu, _UUID.findall(output)):
        if uuid.startswith("MIG-") and uuids and not uuids[-1].startswith("MIG-"):
            uuids.pop()
        uuids.append(uuid)
    return uuids


def other_lines(output: str) -> list[str]:
    """Return the lines of `nvidia-smi -L` that list no GPU: its errors and warnings.

    A GPU that is lost has a line such as `Unable to determine the device handle for
    GPU0000:41:00.0: Unknown Error`, and nvidia-smi may end with status 0.
    """
    lines = (line.strip() for line in output.splitlines())
    return [line for line in lines if line and not any(map(names_gpu, _UUID.findall(line)))]
