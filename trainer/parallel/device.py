"""The device of a process, and the reason why PyTorch cannot use a GPU of its container."""

from __future__ import annotations

from collections.abc import Mapping

import torch

CPU = "cpu"
"""The value of KIT_DEVICE for training without a GPU."""


def own_device(environ: Mapping[str, str]) -> torch.device:
    """The device on which this process computes."""
    local_rank = int(environ.get("LOCAL_RANK", "0"))
    if usable_gpus(environ) > local_rank:
        return torch.device("cuda", local_rank)
    return torch.device("cpu")


def usable_gpus(environ: Mapping[str, str]) -> int:
    """The number of GPUs that PyTorch can use, and is allowed to."""
    if environ.get("KIT_DEVICE") == CPU or not torch.cuda.is_available():
        return 0
    return torch.cuda.device_count()


def cuda_fault(environ: Mapping[str, str], given: int, needed: int) -> str:
    """Return why fewer than `needed` of the `given` GPUs can be used; "" if enough can.

    Without this a training would continue on the CPU, a hundred times as slow.
    """
    usable = usable_gpus(environ)
    if not given or usable >= needed or environ.get("KIT_DEVICE") == CPU:
        return ""
    what = f"this container has {given} GPU{'s' if given > 1 else ''}, and PyTorch can use {usable}"
    return f"{what}: {_reason()}; `kit doctor --active` looks at it"


def _reason() -> str:
    """The driver's own error line, or what the image lacks."""
    if torch.version.cuda is None and torch.version.hip is None:
        return f"PyTorch {torch.__version__} in this image is a build for CPUs"
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except (RuntimeError, AssertionError) as error:
        return str(error).splitlines()[0]
    return "CUDA does not see the others"
