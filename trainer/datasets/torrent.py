"""The torrent of a version: its pieces, which hosts send to each other, and their hashes.

It uses version 1 of the protocol: in version 2 each file begins a new piece, and a data set of a
million images would have a million pieces. The SHA-256 of the manifest are checked afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import libtorrent

from trainer.datasets.errors import DataSetError
from trainer.datasets.manifest import File, Manifest

PIECES = 2048  # The approximate number in a torrent, within the limits of the piece size.
SMALLEST, LARGEST = 2**18, 2**24  # Bytes of a piece.
LIMITS: Any = {"max_buffer_size": 2**30, "max_decode_tokens": 10**8, "max_pieces": 2**22}


def piece_size(total: int) -> int:
    """The bytes of a piece, a power of two."""
    size = SMALLEST
    while size < LARGEST and total > size * PIECES:
        size *= 2
    return size


def make_torrent(
    folder: Path, version: str, files: tuple[File, ...], progress: Callable[[int], None]
) -> tuple[bytes, str]:
    """Make the torrent of the files below `folder`/data; return it and its hash.

    `version` is NAME@VERSION. It makes the hashes of versions with equal files different, as
    libtorrent has one folder for each hash.
    """
    entries = [libtorrent.create_file_entry(f"data/{file.path}", file.bytes) for file in files]
    total = sum(file.bytes for file in files)
    flags = libtorrent.create_torrent.v1_only
    made = libtorrent.create_torrent(entries, piece_size(total), flags)
    libtorrent.set_piece_hashes(made, str(folder), lambda index: progress(made.piece_size(index)))
    torrent = made.generate()  # generate_buf of 2.1.1 decodes it as text.
    torrent[b"info"][b"source"] = version.encode()
    content = libtorrent.bencode(torrent)
    return content, _hash_of(content)


def _hash_of(content: bytes) -> str:
    info = _load(content).ti
    return info.info_hashes().v1.to_bytes().hex() if info else ""


def _load(content: bytes) -> libtorrent.add_torrent_params:
    try:
        found: libtorrent.add_torrent_params = libtorrent.load_torrent_buffer(content, LIMITS)
    except RuntimeError as error:
        raise _broken(f"it cannot be read ({error})") from error
    return found


def load_torrent(content: bytes, manifest: Manifest) -> libtorrent.add_torrent_params:
    """Read a torrent; raises DataSetError if it does not exactly match the manifest."""
    found = _load(content)
    if found.ti is None or found.ti.info_hashes().v1.to_bytes().hex() != manifest.info_hash:
        raise _broken("its hash is not that of the manifest")
    layout = found.ti.layout()
    listed = [(layout.file_path(n), layout.file_size(n)) for n in range(layout.num_files())]
    if listed != [(f"data/{file.path}", file.bytes) for file in manifest.files]:
        raise _broken("its files are not those of the manifest")
    return found


def _broken(reason: str) -> DataSetError:
    return DataSetError(f"the torrent is not valid: {reason}", "add the data set again")
