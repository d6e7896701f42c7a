"""The type of the model's arithmetic; weights, gradients and optimizer stay in float32."""

from __future__ import annotations

from typing import Any

import torch

from trainer.parallel.world import World

TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def choose(wish: str, world: World) -> str:
    """Return the job's precision or, for auto, the one that the oldest GPU has tensor cores for.

    bf16 from Ampere (compute capability 8.0) on, fp16 from Volta (7.0) on; fp32 on CPUs.
    developer.nvidia.com/cuda-gpus lists the capabilities.
    """
    if wish != "auto":
        return wish
    own = torch.cuda.get_device_capability() if world.device.type == "cuda" else (0, 0)
    return fastest(min(world.gather(own)))


def fastest(capability: tuple[int, int]) -> str:
    """The type that a GPU of this compute capability has tensor cores for; (0, 0) is a CPU."""
    return "bf16" if capability >= (8, 0) else "fp16" if capability >= (7, 0) else "fp32"


def autocast(precision: str, device: torch.device) -> torch.autocast:
    """A context in which operations use the precision, if they tolerate it."""
    type_ = TYPES[precision]
    return torch.autocast(device.type, type_, enabled=type_ != torch.float32)


def loss_scaler(precision: str, device: torch.device) -> Any:
    """Return a GradScaler: small fp16 gradients would underflow (Micikevicius et al., 1710.03740).

    All ranks skip a step whose gradients overflow, as they have the same mean gradients.
    """
    enabled = precision == "fp16"
    if hasattr(torch.amp, "GradScaler"):
        return torch.amp.GradScaler(device.type, enabled=enabled)
    return torch.cuda.amp.GradScaler(enabled=enabled)  # Before torch 2.3.
