"""The processes of a training and what they tell each other besides gradients."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import distributed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import nn

T = TypeVar("T")

TIMEOUT = timedelta(seconds=60)
"""For any exchange. The defaults, 30 minutes of gloo and 10 of NCCL, are how long a host that went
silent would hold up all the others; the longest honest wait here is for a checkpoint's fsync."""


@dataclass(frozen=True)
class World:
    """This process among all."""

    rank: int
    """0 to size - 1, over all hosts."""
    local_rank: int
    """0 to processes on this host - 1."""
    size: int
    """Processes over all hosts."""
    host: str
    """This host's name in the log."""
    device: torch.device
    """Where this process computes."""
    control: distributed.ProcessGroup
    """A gloo group of all ranks: words on the CPU, which never wait for a GPU's queue."""

    @property
    def name(self) -> str:
        """Who this is, in messages."""
        return f"rank {self.rank} on {self.host} ({self.device})"

    def sums(self, values: Sequence[float]) -> list[float]:
        """Add up each value over all ranks, in float64: exact for counts up to 2^53."""
        total = torch.tensor(values, dtype=torch.float64)
        distributed.all_reduce(total, group=self.control)
        result: list[float] = total.tolist()
        return result

    def gather(self, value: T) -> list[T]:
        """A value that can be pickled, of each rank, in the order of ranks."""
        values: list[Any] = [None] * self.size
        distributed.all_gather_object(values, value, group=self.control)
        return values

    def broadcast(self, content: bytes, source: int) -> bytes:
        """Send the bytes that rank `source` has to all; what the others pass is not used."""
        size = torch.tensor([len(content)])
        distributed.broadcast(size, source, group=self.control)
        buffer = torch.zeros(int(size), dtype=torch.uint8)
        if self.rank == source:
            buffer = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        distributed.broadcast(buffer, source, group=self.control)
        return buffer.numpy().tobytes()

    def share_buffers(self, model: nn.Module) -> None:
        """Give all ranks rank 0's buffers: BatchNorm's running figures differ between ranks."""
        for buffer in model.buffers():
            distributed.broadcast(buffer, 0)


def join_world(environ: Mapping[str, str]) -> World:
    """Form the process group that torchrun's variables describe, or without them a world of one."""
    local_rank = int(environ.get("LOCAL_RANK", "0"))
    device = torch.device("cpu")
    if torch.cuda.is_available() and torch.cuda.device_count() > local_rank:
        device = torch.device("cuda", local_rank)
        torch.cuda.set_device(device)
    backend = "nccl" if device.type == "cuda" else "gloo"
    if "RANK" in environ:
        distributed.init_process_group(backend, timeout=TIMEOUT)
    else:
        alone = distributed.HashStore()  # type: ignore[attr-defined]
        distributed.init_process_group(backend, timeout=TIMEOUT, world_size=1, rank=0, store=alone)
    # Every rank must come to this call, also where the default group is gloo already.
    control = distributed.new_group(backend="gloo", timeout=TIMEOUT)
    return World(
        rank=distributed.get_rank(),
        local_rank=local_rank,
        size=distributed.get_world_size(),
        host=environ.get("KIT_HOST") or socket.gethostname(),
        device=device,
        control=control,
    )


def leave_world(world: World) -> None:
    """End the group when all ranks are done: rank 0 holds the store that the others still need."""
    world.sums([0])
    distributed.destroy_process_group()


def describe(world: World, environ: Mapping[str, str]) -> str:
    """One line on this process: who it is and what it computes on."""
    visible = environ.get("NVIDIA_VISIBLE_DEVICES", "not set")
    line = (
        f"rank {world.rank} of {world.size}, local rank {world.local_rank} on {world.host}, "
        f"{world.device}, NVIDIA_VISIBLE_DEVICES {visible}"
    )
    if world.device.type == "cuda":
        properties = torch.cuda.get_device_properties(world.device)
        # The UUID is there from torch 2.4 on.
        line += f", {properties.name} {getattr(properties, 'uuid', '')}".rstrip()
    return line


def is_lost_peer(error: RuntimeError) -> bool:
    """Whether an exchange failed because another rank is gone or silent."""
    # gloo has no exception of its own; its messages begin with a path in its source.
    return isinstance(error, distributed.DistError) or "gloo/transport" in str(error)
