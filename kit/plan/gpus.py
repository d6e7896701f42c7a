"""The properties of a GPU model: its generation and its data types."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache

from kit.jobs import Job
from kit.model import Gpu
from kit.plan.types import Placement, Precision

CAPABILITIES = (
    ("Volta", (7, 0), r"TITAN V|V100S?|GV100"),
    ("Volta", (7, 2), r"Xavier"),
    ("Turing", (7, 5), r"TITAN RTX|Quadro RTX [3-8]000|RTX 8000|RTX 20[678]0|T4|GTX 16[356]0"),
    ("Ampere", (8, 0), r"A100X?|A30"),
    ("Ampere", (8, 6), r"RTX A[1-6][05]00|A40|A10G?|A16|A2|RTX 30[5-9]0"),
    ("Ampere", (8, 7), r"Orin"),
    ("Ada", (8, 9), r"RTX [2-6]\d00 (SFF )?Ada|L4|L40S?|RTX 40[5-9]0"),
    ("Hopper", (9, 0), r"H100|H200|GH200"),
    ("Blackwell", (10, 0), r"B200|GB200|B300|GB300"),
    ("Blackwell", (11, 0), r"Thor"),
    ("Blackwell", (12, 0), r"RTX PRO [2-6][05]00|RTX 50[5-9]0"),
    ("Blackwell", (12, 1), r"GB10"),
)
"""Generations by compute capability, with the names that NVIDIA lists for each
(https://developer.nvidia.com/cuda-gpus). A name that two generations share, such as RTX 6000, is
missing."""
SHARING = frozenset({(7, 2), (8, 7), (11, 0), (12, 1)})
"""Compute capabilities of GPUs inside a processor, whose memory they use (Jetson, DGX Spark)."""
BF16 = (8, 0)
"""The lowest compute capability with bf16 arithmetic (CUDA C++ Programming Guide, "Compute
Capabilities")."""

_NAMES = [
    (generation, capability, re.compile(rf"(?<![\w-])({names})(?![A-Za-z0-9])", re.IGNORECASE))
    for generation, capability, names in CAPABILITIES
]


@cache
def capability(model: str) -> tuple[str, tuple[int, int]] | None:
    """Return the generation and the compute capability of a model, or None if it is unknown."""
    for generation, number, names in _NAMES:
        if names.search(model):
            return generation, number
    return None


def shares_memory(model: str) -> bool:
    """Return whether a model has no memory of its own: it uses that of its host."""
    known = capability(model)
    return known is not None and known[1] in SHARING


def room_on(gpu: Gpu, shared_memory: int) -> int | None:
    """Return the memory that a GPU has for computing, None if it is not known.

    If it uses its host's memory, /dev/shm is in there too, and may grow to `shared_memory`.
    """
    if gpu.memory is None or not shares_memory(gpu.model or ""):
        return gpu.memory
    return max(gpu.memory - shared_memory, 0)


def chosen(placements: Sequence[Placement]) -> Iterator[tuple[Placement, Gpu]]:
    """Return the GPUs of a job, in the order of its ranks."""
    for placement in placements:
        for gpu in placement.gpus:
            yield placement, gpu


def precision(job: Job, placements: Sequence[Placement]) -> Precision | None:
    """Return the type that `precision: auto` selects, or None if a GPU's model is unknown.

    The oldest GPU decides, because all ranks must use the same type.
    """
    if job.train is None or job.train.precision != "auto":
        return None
    known_gpus = []
    for placement, gpu in chosen(placements):
        known = capability(gpu.model or "")
        if gpu.model is None or known is None:
            return None
        known_gpus.append((known[1], gpu.model, placement.host.name))
    number, model, host = min(known_gpus, key=lambda each: each[0])
    older = "fp32" if job.parallel.used else "fp16"
    return Precision("bf16" if number >= BF16 else older, model, host)


def without_bf16(placements: Sequence[Placement]) -> dict[str, list[str]]:
    """Return the models without bf16, each with its hosts."""
    by_model: dict[str, list[str]] = {}
    for placement, gpu in chosen(placements):
        known = capability(gpu.model or "")
        if gpu.model is not None and known is not None and known[1] < BF16:
            hosts = by_model.setdefault(gpu.model, [])
            if placement.host.name not in hosts:
                hosts.append(placement.host.name)
    return by_model
