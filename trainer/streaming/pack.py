"""Packs a folder of images, as `dataset: folder` reads them, into tar shards with an index.

    python -m trainer.streaming.pack FOLDER SHARDS [--mib 256] [--seed 0]

The images are shuffled first: a shard has all classes. Without a part for the test, a fifth of each
class becomes it.
"""

from __future__ import annotations

import argparse
import io
import sys
import tarfile
from collections import deque
from collections.abc import Sequence
from itertools import count
from pathlib import Path

from trainer.contract.job import Train
from trainer.data.files import DataMissingError, find_folder
from trainer.data.load import folder_parts
from trainer.data.samples import DataError
from trainer.data.shards import permutation
from trainer.output import say, say_error
from trainer.streaming.index import CLASSES, INDEX, PARTS, make, write


def pack(folder: Path, shards: Path, size: int, seed: int) -> None:
    """Write shards of about `size` bytes; raises DataError, DataMissingError or OSError."""
    shards.mkdir(parents=True, exist_ok=True)
    if there := sorted(file.name for file in shards.iterdir()):
        raise DataError(f"{shards} is not empty: it has {there[0]}; name another folder")
    train = Train(dataset="folder", path=".", model="cnn", epochs=1, batch_size=1)
    found = find_folder(train, folder)
    for note in found.notes:
        say(note)
    (shards / CLASSES).write_text("\n".join(found.classes) + "\n", "utf-8")
    parts = folder_parts(found, seed)
    names = PARTS if len(parts) == len(PARTS) else ("train", "test")
    for name, (files, labels) in zip(names, parts, strict=True):
        order = permutation(len(files), seed, 0).tolist()
        _pack_part(shards, name, [(files[each], int(labels[each])) for each in order], size)
    write(make(shards), shards)


def _pack_part(shards: Path, name: str, samples: Sequence[tuple[Path, int]], size: int) -> None:
    left = deque(samples)
    numbers = count()
    while left:
        path = shards / f"{name}-{next(numbers):06}.tar"
        with path.open("wb") as stream, tarfile.open(fileobj=stream, mode="w") as tar:
            while left and stream.tell() < size:
                file, label = left.popleft()
                key = f"{len(samples) - len(left):09}"
                _add(tar, f"{key}{file.suffix.lower()}", file.read_bytes())
                _add(tar, f"{key}.cls", str(label).encode())
        say(f"{path.name}: {len(samples) - len(left):,} of {len(samples):,} images")


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    tar.addfile(member, io.BytesIO(content))


def main() -> int:
    """Pack a folder."""
    parser = argparse.ArgumentParser(prog="trainer.streaming.pack", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("shards", type=Path)
    parser.add_argument("--mib", type=float, default=256, help="size of a shard")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    try:
        pack(options.folder, options.shards, int(options.mib * 2**20), options.seed)
    except (DataError, DataMissingError, OSError) as error:
        say_error(f"error: {error}")
        return 2
    say(f"{options.shards / INDEX}: made")
    return 0


if __name__ == "__main__":
    sys.exit(main())
