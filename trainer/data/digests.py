"""Digests of the files that a training reads, cached so that later starts need not read them."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from trainer.output import say
from trainer.store.files import replace_file
from trainer.store.locks import locked

MOST = 8 * 2**30
"""The most bytes that are read of all files: about a minute at 1 Gbit/s, the first time."""
LEAST = 2**16
"""The fewest bytes that are read of each file, and the size of one read."""
TOLD = 2**30
"""If more bytes are to be read, this is logged, because it takes seconds."""
THREADS = 8
FILE = "digests.json"

Kept = dict[str, list[object]]
"""By the path of a file: size, time of change, inode, bytes read, digest."""


def digest(files: Sequence[Path], folder: Path | None) -> str:
    """Return a digest of the files' sizes and contents, in their order.

    If the files have more than MOST bytes, only equal shares are read, in blocks spread over each.
    Digests of files with the same size, modification time and inode are taken from `folder`, which
    other processes of this host may use at the same time; None: no cache.

    Raises:
        OSError: A file cannot be read.
    """
    found = [file.stat() for file in files]
    share = max(LEAST, MOST // max(1, len(files)))
    if sum(each.st_size for each in found) <= MOST:
        share = max((each.st_size for each in found), default=0)
    with _kept(folder) as kept:
        stamps = [[each.st_size, each.st_mtime_ns, each.st_ino, share] for each in found]
        names = [os.fspath(file) for file in files]
        missing = [
            place for place, name in enumerate(names) if kept.get(name, [])[:-1] != stamps[place]
        ]
        size = sum(min(found[place].st_size, share) for place in missing)
        if size > TOLD:
            say(f"reads {size / 1e9:.1f} GB of its data once, to compare them with other hosts'")
        with ThreadPoolExecutor(THREADS) as pool:
            digests = pool.map(partial(_of_file, share=share), (files[place] for place in missing))
        for place, one in zip(missing, digests, strict=True):
            kept[names[place]] = [*stamps[place], one]
        hashed = hashlib.blake2b(digest_size=16)
        for name, stamp in zip(names, stamps, strict=True):
            hashed.update(f"{stamp[0]} {kept[name][-1]}\n".encode())
    return hashed.hexdigest()


def _of_file(file: Path, share: int) -> str:
    hashed = hashlib.blake2b(digest_size=16)
    with file.open("rb") as stream:
        size = os.fstat(stream.fileno()).st_size
        blocks = -(-min(size, share) // LEAST)
        for number in range(blocks):
            if size > share:  # The first block, the last one, and evenly spaced others.
                stream.seek((size - LEAST) * number // max(1, blocks - 1))
            hashed.update(stream.read(LEAST))
    return hashed.hexdigest()


@contextmanager
def _kept(folder: Path | None) -> Iterator[Kept]:
    """Yield the cached digests; write them if they have changed. Write errors are ignored."""
    if folder is None or not os.access(folder, os.W_OK):
        yield {}
        return
    file = folder / FILE
    with locked(folder / f".{FILE}.lock"):
        kept: Kept = {}
        with suppress(OSError, ValueError):
            found = json.loads(file.read_text("utf-8"))
            kept = found if isinstance(found, dict) else {}
        before = dict(kept)
        yield kept
        if kept != before:
            with suppress(OSError):
                replace_file(file, json.dumps(kept).encode(), durable=False)
