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
"""Stands for the store of a process that trains alone."""
PIECE = 4 * 2**20
"""Bytes of one broadcast: a rank passes a piece on while the next one arrives. Each piece counts as
progress, which distinguishes a slow link from a hung worker."""
ROLL_CALL = timedelta(seconds=10)
"""Time for the remaining ranks to answer each other: their collective times out at one time."""


@dataclass(frozen=True)
class World:
    """This process and its place among all processes of the training."""

    rank: int  # 0 to size - 1, over all hosts.
    local_rank: int  # 0 to processes on this host - 1.
    size: int  # Processes over all hosts.
    host: str  # This host's name in the log.
    device: torch.device  # The device of this process.
    control: distributed.ProcessGroup
    """A gloo group of all ranks: messages on the CPU, which do not wait for a GPU's queue."""
    alarm: distributed.ProcessGroup
    """Another gloo group, for use after a failed collective, which breaks the other groups."""
    names: tuple[str, ...] = ()  # The name of each rank, for messages.
    hosts: tuple[str, ...] = ()  # The host of each rank.
    generation: int = 0  # Of the group, in a training whose group changes (elastic/).
    why: str = ""  # The change since the previous group.
    pending: Pending = field(default_factory=Pending)  # Operations of gloo.

    @property
    def name(self) -> str:
        """The name of this process, for messages."""
        return f"rank {self.rank} on {self.host} ({self.device})"

    def sums(self, values: Sequence[float]) -> list[float]:
        """Sum each value over all ranks, in float64: exact for counts up to 2^53."""
        if self.size == 1:  # Each step calls it: an all-reduce of one rank takes a millisecond.
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
        """Send the bytes of rank `source` to all ranks; the others' `content` is ignored."""
        size = torch.tensor([len(content)])
        self._exchange(distributed.broadcast, size, source)
        buffer = torch.zeros(int(size), dtype=torch.uint8)
        if self.rank == source and content:  # `frombuffer` rejects an empty buffer.
            buffer = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        for piece in torch.split(buffer, PIECE):
            self._exchange(distributed.broadcast, piece, source)
        return buffer.numpy().tobytes()

    def wait(self, work: distributed.Work) -> None:
        """Wait for a collective on this process's device; raises RuntimeError if a rank is lost."""
        if self.device.type == "cuda":
            work.wait()  # NCCL's own abort ends it.
        else:
            self.guard(work.get_future()).wait()

    def guard(self, future: Future[T]) -> Future[T]:
        """Return a future for a gloo operation, which fails once the group is given up."""
        return self.pending.guard(future)

    def _exchange(self, act: Callable[..., Any], *arguments: object) -> None:
        """Run a collective of all ranks on the CPU."""
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
        """Name the ranks that do not answer after a failed collective, as far as known here."""
        try:
            distributed.monitored_barrier(self.alarm, ROLL_CALL, wait_all_ranks=True)
        except RuntimeError as error:
            # Rank 0 probes all ranks and finds the hung ones; the hosts of dead ranks report them.
            # The other ranks only know whether rank 0 answers.
            found = re.search(r"Ranks? ([\d, ]+) failed to pass", str(error))
            if found:
                return ", ".join(self.names[int(rank)] for rank in found[1].split(","))
            if self.rank:
                return f"{self.names[0]} or others, which it names if it is left"
        return "another rank"


def join_world(environ: Mapping[str, str], timeout: timedelta) -> World:
    """Form the process group of torchrun's variables or, without them, a world of size 1."""
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
    """Form a process group by a store, or torchrun's if `store` is None; by default of size 1."""
    device = own_device(environ)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    backend = "nccl" if device.type == "cuda" else "gloo"
    # NCCL's watchdog aborts the process, with a dump of its flight recorder but no names. So the
    # control group, which each step uses at its end, must time out first.
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
    """Keep a lost world's groups while gloo's threads wait: their destructors would block."""
    _HELD[:] = [each for each in _HELD if each[0].unfinished]
    if world.pending.unfinished:
        _HELD.append((world.pending, (distributed.group.WORLD, world.control, world.alarm)))


def leave_world(world: World | None) -> None:
    """Destroy the group after all ranks are done: rank 0 holds the store that the others need.

    Without a world, do not wait for the others.
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
    """Whether a collective failed because another rank is dead or hung."""
    # gloo has no exception class; its messages begin with a path in its source.
    text = str(error)
    return isinstance(error, distributed.DistError) or "gloo/transport" in text or GIVEN_UP in text
