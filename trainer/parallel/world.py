"""The processes of a training, and their communication except for gradients."""

from __future__ import annotations

import pickle
import re
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed
from torch.futures import Future

from trainer.parallel.device import own_device
from trainer.parallel.pending import GIVEN_UP, Pending, end_of

T = TypeVar("T")

ALONE: Any = object()
"""Stands for a store of a process that has no others."""
PIECE = 4 * 2**20
"""Bytes of one broadcast: a rank that has a piece passes it on while the next one arrives. Each one
that arrives is progress, which distinguishes a slow link from a worker that hangs."""
ROLL_CALL = timedelta(seconds=10)
"""Time for the remaining ranks to answer each other: their exchange has timed out together."""


@dataclass(frozen=True)
class World:
    """This process and its place among all processes of the training."""

    rank: int  # 0 to size - 1, over all hosts.
    local_rank: int  # 0 to processes on this host - 1.
    size: int  # Processes over all hosts.
    host: str  # This host's name in the log.
    device: torch.device  # On which this process computes.
    control: distributed.ProcessGroup
    """A gloo group of all ranks: messages on the CPU, which do not wait for a GPU's queue."""
    alarm: distributed.ProcessGroup
    """Another gloo group, for use after a failed exchange, which breaks the other groups."""
    names: tuple[str, ...] = ()  # The name of each rank, for messages.
    hosts: tuple[str, ...] = ()  # The host of each rank.
    generation: int = 0  # Of the group, in a training whose group changes (elastic/).
    why: str = ""  # How the group differs from the one before.
    pending: Pending = field(default_factory=Pending)  # Exchanges on the CPU.

    @property
    def name(self) -> str:
        """The name of this process, for messages."""
        return f"rank {self.rank} on {self.host} ({self.device})"

    def sums(self, values: Sequence[float]) -> list[float]:
        """Sum each value over all ranks, in float64: exact for counts up to 2^53."""
        if self.size == 1:  # Each step calls it: an exchange with nobody takes a millisecond.
            return [float(value) for value in values]
        total = torch.tensor(values, dtype=torch.float64)
        self._exchange(distributed.all_reduce, total)
        result: list[float] = total.tolist()
        return result

    def gather(self, value: T) -> list[T]:
        """Return a picklable value of each rank, in the order of ranks."""
        own = torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8)
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        self._exchange(distributed.all_gather, sizes, torch.tensor([len(own)]))
        lengths = [int(size) for size in sizes]
        padded = torch.zeros(max(lengths), dtype=torch.uint8)
        padded[: len(own)] = own
        all_of_them = [torch.empty_like(padded) for _ in range(self.size)]
        self._exchange(distributed.all_gather, all_of_them, padded)
        found = zip(all_of_them, lengths, strict=True)
        return [pickle.loads(each[:length].numpy().tobytes()) for each, length in found]

    def broadcast(self, content: bytes, source: int) -> bytes:
        """Send the bytes of rank `source` to all ranks; `content` of the others is ignored."""
        size = torch.tensor([len(content)])
        self._exchange(distributed.broadcast, size, source)
        buffer = torch.zeros(int(size), dtype=torch.uint8)
        if self.rank == source and content:  # `frombuffer` takes no empty one.
            buffer = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        for piece in torch.split(buffer, PIECE):
            self._exchange(distributed.broadcast, piece, source)
        return buffer.numpy().tobytes()

    def wait(self, work: distributed.Work) -> None:
        """Wait for an exchange on this process's device; raises RuntimeError if a rank is lost."""
        if self.device.type == "cuda":
            work.wait()  # NCCL's own abort ends it.
        else:
            self.guard(work.get_future()).wait()

    def guard(self, future: Future[T]) -> Future[T]:
        """Return the result of an exchange on the CPU, which does not outlast the group."""
        return self.pending.guard(future)

    def _exchange(self, act: Callable[..., Any], *arguments: object) -> None:
        """Take part in an exchange of all ranks on the CPU."""
        self.pending.reach()
        work = act(*arguments, group=self.control, async_op=True)
        self.guard(work.get_future()).wait()

    def send(self, content: Tensor, rank: int, tag: int) -> Future[bool]:
        """Begin to send a tensor to a rank that receives one with this tag."""
        work: Any = distributed.isend(content, rank, group=self.control, tag=tag)
        return self.guard(end_of(work))

    def receive(self, content: Tensor, rank: int, tag: int) -> Future[bool]:
        """Begin to receive a tensor from a rank that sends one with this tag."""
        work: Any = distributed.irecv(content, rank, group=self.control, tag=tag)
        return self.guard(end_of(work))

    def silent_ranks(self) -> str:
        """Name the ranks that do not answer after a failed exchange, as far as this one knows."""
        try:
            distributed.monitored_barrier(self.alarm, ROLL_CALL, wait_all_ranks=True)
        except RuntimeError as error:
            # Rank 0 asks and knows the hung ranks, unless others are dead: their hosts report why.
            # The others only know whether rank 0 answers.
            found = re.search(r"Ranks? ([\d, ]+) failed to pass", str(error))
            if found:
                return ", ".join(self.names[int(rank)] for rank in found[1].split(","))
            if self.rank:
                return f"{self.names[0]} or others, which it names if it is left"
        return "another rank"


def join_world(environ: Mapping[str, str], timeout: timedelta) -> World:
    """Form the process group of torchrun's variables; without them, a world of size 1."""
    if "RANK" not in environ:
        return form_world(environ, timeout)
    return form_world(environ, timeout, int(environ["RANK"]), int(environ["WORLD_SIZE"]), None)


def form_world(
    environ: Mapping[str, str],
    timeout: timedelta,
    rank: int = 0,
    size: int = 1,
    store: Any = ALONE,
    pending: Pending | None = None,
) -> World:
    """Form a process group at a store, or at torchrun's if `store` is None; by default alone."""
    device = own_device(environ)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    backend = "nccl" if device.type == "cuda" else "gloo"
    # NCCL's watchdog aborts the process, with a dump of its flight recorder but no names. So the
    # control group, which every step uses at its end, must time out first.
    patience = timeout + 2 * ROLL_CALL if backend == "nccl" else timeout
    if store is ALONE:
        store = distributed.HashStore()  # type: ignore[attr-defined]
    distributed.init_process_group(
        backend, timeout=patience, world_size=size, rank=rank, store=store
    )
    # Every rank must make these calls, even if the default group uses gloo.
    control, alarm = (distributed.new_group(backend="gloo", timeout=timeout) for _ in range(2))
    host = environ.get("KIT_HOST") or socket.gethostname()
    local_rank = int(environ.get("LOCAL_RANK", "0"))
    world = World(rank, local_rank, size, host, device, control, alarm)
    world = replace(world, pending=pending or world.pending)
    names, hosts = zip(*world.gather((world.name, host)), strict=True)
    return replace(world, names=names, hosts=hosts)


_HELD: list[tuple[Pending, object]] = []


def hold_groups(world: World) -> None:
    """Keep the groups of a lost world while threads of gloo wait in them: their end waits too."""
    _HELD[:] = [each for each in _HELD if each[0].unfinished]
    if world.pending.unfinished:
        _HELD.append((world.pending, (distributed.group.WORLD, world.control, world.alarm)))


def leave_world(world: World | None) -> None:
    """End the group after all ranks are done: rank 0 holds the store, which the others need.

    Without a world this does not wait for the others.
    """
    if world:
        world.sums([0])
    distributed.destroy_process_group()


def describe(world: World, environ: Mapping[str, str]) -> str:
    """Describe this process in one line: its rank and its device."""
    visible = environ.get("NVIDIA_VISIBLE_DEVICES", "not set")
    line = (
        f"rank {world.rank} of {world.size}, local rank {world.local_rank} on {world.host}, "
        f"{world.device}, NVIDIA_VISIBLE_DEVICES {visible}"
    )
    if world.device.type == "cuda":
        properties = torch.cuda.get_device_properties(world.device)
        # torch has the UUID since 2.4.
        line += f", {properties.name} {getattr(properties, 'uuid', '')}".rstrip()
    return line


def is_lost_peer(error: RuntimeError) -> bool:
    """Whether an exchange failed because another rank is dead or hung."""
    # gloo has no exception class; its messages begin with a path in its source.
    text = str(error)
    return isinstance(error, distributed.DistError) or "gloo/transport" in text or GIVEN_UP in text
