"""The processor architectures of hosts and images, by Docker's names. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

AMD64 = "amd64"
ARM64 = "arm64"
ARCHITECTURES = (AMD64, ARM64)
"""The architectures for which PyTorch has builds."""
_KERNELS = {"x86_64": AMD64, "aarch64": ARM64}
_IN_ARM = re.compile(
    r"(?<![\w-])(Xavier|Orin|Thor|GB10|GH200|GB[23]00)(?![A-Za-z0-9])", re.IGNORECASE
)
"""GPUs that are built together with an ARM processor: Jetson, DGX Spark, Grace."""


def of_kernel(machine: str) -> str:
    """Return Docker's name of an architecture that `uname -m` prints."""
    return _KERNELS.get(machine, machine)


def of_gpus(models: Iterable[str | None]) -> str:
    """Return the architecture of a host: arm64 if a GPU is part of an ARM system, else amd64."""
    return ARM64 if any(model and _IN_ARM.search(model) for model in models) else AMD64


def platform(architecture: str) -> str:
    """Return the platform of images for an architecture, such as `linux/arm64`."""
    return f"linux/{architecture}"


def lacks(platforms: Sequence[str], architecture: str) -> bool:
    """Return whether an image lacks an architecture; False if its platforms are unknown."""
    wanted = platform(architecture)
    return bool(platforms) and not any(f"{each}/".startswith(f"{wanted}/") for each in platforms)
