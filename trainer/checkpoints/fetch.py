"""Copies a checkpoint to the hosts that lack it, in pieces from all hosts that have it.

The ranks' processes send the pieces over the existing connections of gloo's group: this needs no
other port and no other service. The hosts that have the checkpoint take turns to send a piece, and
the hosts that lack it take turns to receive it first; from there it passes through all others. So
each link carries the checkpoint once in each direction at most, for any number of hosts:
MPICH broadcasts long messages by a scatter and a ring for the same reason (Thakur, Rabenseifner,
Gropp: Optimization of Collective Communication Operations in MPICH, 2005).

    .fetching-step-00000123/    the checkpoint as it arrives; renamed when it is complete

The pieces of an interrupted fetch are kept: the next one requests only the missing ones.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import torch
from torch import Tensor

from trainer.checkpoints import format as checkpoints
from trainer.checkpoints.format import FETCHING, Saved
from trainer.checkpoints.layout import COMPLETE, MANIFEST, STATE, folder_name
from trainer.checkpoints.manifest import UnusableError, check, parse
from trainer.contract.job import TrainJob
from trainer.output import say, say_error
from trainer.parallel.world import World
from trainer.store.files import sync, write_file

PIECE = 2**20  # Bytes.
BATCH = 64
"""Pieces between two collectives. Ranks that only wait must not time out meanwhile: by default
after 60 s, in which a link of 10 Mbit/s carries one batch."""
REPEAT = 10.0  # Seconds between two lines of progress.
SUM = hashlib.sha256().digest_size


class Draft:
    """A checkpoint of this host as it arrives."""

    def __init__(self, folder: Path, saved: Saved, sums: Sequence[bytes]) -> None:
        """Continue an interrupted fetch of the same checkpoint; delete those of others.

        Raises OSError, also if the pieces do not fit on the disk.
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
        """Return a piece; if it is lacking, fewer or arbitrary bytes."""
        with self._state.open("rb") as stream:
            stream.seek(piece * PIECE)
            return stream.read(PIECE)

    def length(self, piece: int) -> int:
        """The bytes of a piece: the last one may be shorter."""
        return min(PIECE, self.size - piece * PIECE)

    def put(self, piece: int, content: bytearray, sender: int) -> bool:
        """Write a piece that arrived from a rank; return False if it is damaged."""
        if hashlib.sha256(content).digest() != self._sums[piece]:
            return False
        with self._state.open("r+b") as stream:
            stream.seek(piece * PIECE)
            stream.write(content)
        self.came[sender] += len(content)
        return True

    def finish(self, folder: Path, job: TrainJob) -> Saved:
        """Verify the complete checkpoint, give it its name, and return it; raises OSError."""
        sync(self._state)
        saved = Saved(self._manifest, self._state.read_bytes())
        try:
            checkpoints.verify(saved, self.name)
        except UnusableError as error:
            shutil.rmtree(self._path)
            raise OSError(f"{folder}: {self.name} was fetched, but {error}") from error
        write_file(self._path / MANIFEST, self._manifest)
        write_file(self._path / COMPLETE, b"")
        checkpoints.publish(folder, self._path, self.name, job, job.checkpoint.keep)
        return saved


def fetch(
    folder: Path,
    saved: Saved,
    holders: Sequence[int],
    receivers: Sequence[int],
    job: TrainJob,
    world: World,
) -> Saved:
    """Copy a checkpoint from the ranks `holders` to the hosts of `receivers`; all must call it.

    `saved` has the state only on the holders, the returned value on the receivers too. A rank that
    has sent a damaged piece is avoided until a restart.

    Raises OSError: a disk refuses the checkpoint, or all holders have sent damaged pieces.
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
    width = len(holders) * len(receivers)  # In so many pieces, each pair of them has one turn.
    lacking, doubtful = world.gather(draft.lacking if draft else set[int]()), set[int]()
    while batch := sorted(set().union(*lacking))[:BATCH]:
        paths = {piece: path(piece, [*holders, *receivers], lacking, doubtful) for piece in batch}
        failed = world.gather(exchange(paths, width, read, draft, world))
        doubtful |= senders_of(failed, paths)
        for rank in receivers:
            lacking[rank] -= set(batch) - failed[rank]
        if any(lacking) and set(holders) <= doubtful:
            what = f"{folder_name(saved.step)}: all ranks that have it have sent damaged pieces"
            raise OSError(f"{what}: check the memory and links of the hosts in the warnings")
        if draft and time.monotonic() - told > REPEAT:
            told = time.monotonic()
            say(f"{world.host}: {draft.name}: {1 - len(lacking[world.rank]) / len(sums):.0%}")
    if draft:
        saved = draft.finish(folder, job)
        conclude(draft, time.monotonic() - began, world)
    world.gather(None)  # From here on, all ranks of a host can read its copy.
    return saved


def sums_of(state: bytes) -> list[bytes]:
    """The SHA-256 of each piece."""
    view, starts = memoryview(state), range(0, len(state), PIECE)
    return [hashlib.sha256(view[start : start + PIECE]).digest() for start in starts]


def path(
    piece: int, ranks: Sequence[int], lacking: Sequence[set[int]], doubtful: Collection[int]
) -> list[int]:
    """Return the ranks on the path of a piece: one that has it, then all that lack it.

    `lacking` has the pieces that each rank lacks. Doubtful ranks come last.
    """
    have = [rank for rank in ranks if piece not in lacking[rank] and rank not in doubtful]
    lack = [rank for rank in ranks if piece in lacking[rank] and rank not in doubtful]
    last = [rank for rank in ranks if piece in lacking[rank] and rank in doubtful]
    start = piece // len(have) % (len(lack) or 1)
    return [have[piece % len(have)], *lack[start:], *lack[:start], *last]


def senders_of(failed: Sequence[Collection[int]], paths: dict[int, list[int]]) -> set[int]:
    """The ranks that damaged pieces; `failed` has the pieces that arrived damaged at each rank."""
    wrong = {
        piece: next((place for place, rank in enumerate(ranks) if piece in failed[rank]), 0)
        for piece, ranks in paths.items()
    }
    return {paths[piece][place - 1] for piece, place in wrong.items() if place}


def exchange(
    paths: dict[int, list[int]],
    width: int,
    read: Callable[[int], bytes],
    draft: Draft | None,
    world: World,
) -> set[int]:
    """Send pieces along their paths; return those that arrived damaged at this rank.

    Of `width` pieces, each rank first handles those that come from ranks that had them, then those
    that have passed one other rank, and so on: all links are in use at the same time, as in a ring
    all-gather. Ranks cannot wait for each other in a circle: in this order, the sender of a piece
    handles it earlier than its receiver.
    """
    mine = {piece: ranks for piece, ranks in paths.items() if world.rank in ranks}
    order = sorted(mine, key=lambda piece: (piece // width, mine[piece].index(world.rank), piece))
    arriving, leaving, damaged = {}, [], set()
    for piece, ranks in mine.items():
        place = ranks.index(world.rank)
        if draft and place:
            content = bytearray(draft.length(piece))
            work = world.receive(shared(content), ranks[place - 1], piece)
            arriving[piece] = content, work, ranks[place - 1]
    for piece in order:
        if piece in arriving:
            content, work, sender = arriving.pop(piece)
            work.wait()
        else:
            content, sender = bytearray(read(piece)), None
        if after := mine[piece][mine[piece].index(world.rank) + 1 :]:
            leaving.append((content, world.send(shared(content), after[0], piece)))
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
    """Log which checkpoint is fetched, and from which ranks."""
    kept = (pieces - len(draft.lacking)) * PIECE
    already = f", {kept / 1e6:.1f} MB of it are there from before" if kept else ""
    who = ", ".join(world.names[rank] for rank in holders)
    size = f"{draft.size / 1e6:.1f} MB"
    say(f"{world.host}: fetches {draft.name} ({size}{already}) from {who}")


def conclude(draft: Draft, seconds: float, world: World) -> None:
    """Log the size of the parts by the ranks that sent them."""
    shares = (
        f"{size / 1e6:.1f} MB from {world.names[rank]}" for rank, size in sorted(draft.came.items())
    )
    say(f"{world.host}: has {draft.name} after {seconds:.1f} s: {', '.join(shares)}")
