"""Brings a checkpoint to the hosts that lack it, in pieces from all hosts that have it.

The pieces travel between the ranks' processes, over the connections that gloo's group has anyway:
no other port, no other service. Each piece leaves one of the hosts that have it, in turns, for one
of the hosts that lack it, in turns too; from there it passes through all others that lack it. So
each link carries the checkpoint once in each direction at most, whatever the number of hosts:
MPICH broadcasts long messages by a scatter and a ring for the same reason (Thakur, Rabenseifner,
Gropp: Optimization of Collective Communication Operations in MPICH, 2005).

    .fetching-step-00000123/    the checkpoint as it arrives; renamed when it is complete

The pieces of an interrupted fetch are kept: the next one asks for the others alone.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from trainer.checkpoints import format as checkpoints
from trainer.checkpoints.format import FETCHING, Saved
from trainer.checkpoints.layout import COMPLETE, MANIFEST, STATE, folder_name
from trainer.checkpoints.manifest import check, parse
from trainer.contract.job import TrainJob
from trainer.output import say, say_error
from trainer.parallel.world import World

PIECE = 2**20  # Bytes.
BATCH = 64
"""Pieces between two exchanges of all ranks. Ranks that only wait must not time out meanwhile: by
default after 60 s, in which a link of 10 Mbit/s carries one batch."""
TRIES = 3  # Batches with damaged pieces before the fetch fails.
REPEAT = 10.0  # Seconds between two lines about the progress.
SUM = hashlib.sha256().digest_size


class Draft:
    """A checkpoint of this host as it arrives."""

    def __init__(self, folder: Path, saved: Saved, sums: Sequence[bytes]) -> None:
        """Continue an interrupted fetch of the same checkpoint; delete what is left of others.

        Raises OSError, also if the disk has no room for the pieces.
        """
        self.name = folder_name(saved.step)
        self.size = check(parse(saved.manifest)).size
        self.came: Counter[int] = Counter()
        """Bytes by the rank that sent them to this one."""
        self._path, self._manifest, self._sums = (
            folder / (FETCHING + self.name),
            saved.manifest,
            sums,
        )
        for other in set(folder.glob(f"{FETCHING}*")) - {self._path}:
            shutil.rmtree(other)
        self._path.mkdir(parents=True, exist_ok=True)
        self._state = self._path / STATE
        self._state.touch()
        self.lacking = {piece for piece in range(len(sums)) if not self._is_whole(piece)}
        needed, free = len(self.lacking) * PIECE, shutil.disk_usage(folder).free
        if free < needed:
            room = f"{free / 1e6:.1f} MB are free, it needs {needed / 1e6:.1f} MB"
            raise OSError(f"{folder}: {self.name} cannot be fetched: {room}; make room there")
        os.truncate(self._state, self.size)

    def _is_whole(self, piece: int) -> bool:
        return hashlib.sha256(self.read(piece)).digest() == self._sums[piece]

    def read(self, piece: int) -> bytes:
        """Return a piece; less or other bytes if it is lacking."""
        with self._state.open("rb") as stream:
            stream.seek(piece * PIECE)
            return stream.read(PIECE)

    def put(self, piece: int, content: bytearray, sender: int) -> bool:
        """Write a piece that arrived from a rank; return False if it is damaged."""
        if hashlib.sha256(content).digest() != self._sums[piece]:
            return False
        with self._state.open("r+b") as stream:
            stream.seek(piece * PIECE)
            stream.write(content)
        self.came[sender] += len(content)
        return True

    def finish(self, folder: Path, job: TrainJob) -> None:
        """Give the complete checkpoint its name."""
        with self._state.open("rb") as stream:
            os.fsync(stream.fileno())
        checkpoints.write_file(self._path / MANIFEST, self._manifest)
        checkpoints.write_file(self._path / COMPLETE, b"")
        checkpoints.publish(folder, self._path, self.name, job, job.checkpoint.keep)


def fetch(
    folder: Path,
    saved: Saved,
    holders: Sequence[int],
    receivers: Sequence[int],
    job: TrainJob,
    world: World,
) -> None:
    """Bring a checkpoint from the ranks `holders` to the hosts of `receivers`; all must call it.

    `saved` has the state on the holders alone. Raises OSError: a disk refuses it, or pieces arrive
    damaged again and again.
    """
    first = holders[0]
    joined = b"".join(sums_of(saved.state)) if world.rank == first else b""
    joined = world.broadcast(joined, first)
    sums = [joined[start : start + SUM] for start in range(0, len(joined), SUM)]
    draft = Draft(folder, saved, sums) if world.rank in receivers else None
    began = told = time.monotonic()
    if draft:
        announce(draft, len(sums), holders, world)
    read = draft.read if draft else lambda piece: saved.state[piece * PIECE : (piece + 1) * PIECE]
    width = len(holders) * len(receivers)  # In so many pieces, all pairs of them take their turn.
    lacking, turn = world.gather(draft.lacking if draft else set[int]()), 0
    while batch := sorted(set().union(*lacking))[:BATCH]:
        paths = {piece: path(piece, turn, [*holders, *receivers], lacking) for piece in batch}
        failed = world.gather(exchange(paths, width, read, draft, world))
        for rank in receivers:
            lacking[rank] -= set(batch) - failed[rank]
        if any(failed):
            turn += 1
        if turn == TRIES:
            what = f"pieces of {folder_name(saved.step)} arrived damaged {TRIES} times"
            raise OSError(f"{what}: the warnings name their senders; check their memory and links")
        if draft and time.monotonic() - told > REPEAT:
            told = time.monotonic()
            say(f"{world.host}: {draft.name}: {1 - len(lacking[world.rank]) / len(sums):.0%}")
    if draft:
        draft.finish(folder, job)
        conclude(draft, time.monotonic() - began, world)
    world.gather(None)  # From here on, all ranks of a host can read its copy.


def sums_of(state: bytes) -> list[bytes]:
    """The SHA-256 of each piece."""
    view, starts = memoryview(state), range(0, len(state), PIECE)
    return [hashlib.sha256(view[start : start + PIECE]).digest() for start in starts]


def path(piece: int, turn: int, ranks: Sequence[int], lacking: Sequence[set[int]]) -> list[int]:
    """Return the ranks that a piece passes: one that has it, then all that lack it.

    `lacking` has the pieces that each rank lacks. With another `turn` it comes from another rank.
    """
    have = [rank for rank in ranks if piece not in lacking[rank]]
    lack = [rank for rank in ranks if piece in lacking[rank]]
    start = piece // len(have) % len(lack)
    return [have[(piece + turn) % len(have)], *lack[start:], *lack[:start]]


def exchange(
    paths: dict[int, list[int]],
    width: int,
    read: Callable[[int], bytes],
    draft: Draft | None,
    world: World,
) -> set[int]:
    """Pass pieces along their paths; return those that arrived here damaged.

    Of `width` pieces, each rank first handles those that come from ranks that had them, then those
    that have passed one other rank, and so on: all links are in use at the same time, as in a ring
    all-gather. Ranks cannot wait for each other in a circle: in this order, the sender of a piece
    handles it earlier than its receiver.
    """
    mine = {piece: ranks for piece, ranks in paths.items() if world.rank in ranks}
    order = sorted(mine, key=lambda piece: (piece // width, mine[piece].index(world.rank), piece))
    arriving = {}
    for piece, ranks in mine.items():
        if place := ranks.index(world.rank):
            content = bytearray(PIECE if not draft else min(PIECE, draft.size - piece * PIECE))
            work = world.receive(shared(content), ranks[place - 1], piece)
            arriving[piece] = content, work, ranks[place - 1]
    leaving, damaged = [], set()
    for piece in order:
        ranks = mine[piece]
        if piece in arriving:
            content, work, sender = arriving.pop(piece)
            work.wait()
        else:
            content, sender = bytearray(read(piece)), None
        for target in ranks[ranks.index(world.rank) + 1 :][:1]:
            leaving.append((content, world.send(shared(content), target, piece)))
        if draft and sender is not None and not draft.put(piece, content, sender):
            damaged.add(piece)
            who = f"piece {piece} of {draft.name} from {world.names[sender]}"
            say_error(f"trainer {world.host}: warning: {who} is damaged: it is asked for again")
    for _, work in leaving:
        work.wait()
    return damaged


def shared(content: bytearray) -> Tensor:
    """A tensor that uses the memory of bytes."""
    return torch.frombuffer(content, dtype=torch.uint8)


def announce(draft: Draft, pieces: int, holders: Sequence[int], world: World) -> None:
    """Say what is fetched, and from which ranks."""
    kept = (pieces - len(draft.lacking)) * PIECE
    already = f", {kept / 1e6:.1f} MB of it are there from before" if kept else ""
    who = ", ".join(world.names[rank] for rank in holders)
    size = f"{draft.size / 1e6:.1f} MB"
    say(f"{world.host}: fetches {draft.name} ({size}{already}) from {who}")


def conclude(draft: Draft, seconds: float, world: World) -> None:
    """Say how much came from which ranks."""
    shares = (
        f"{size / 1e6:.1f} MB from {world.names[rank]}" for rank, size in sorted(draft.came.items())
    )
    say(f"{world.host}: has {draft.name} after {seconds:.1f} s: {', '.join(shares)}")
