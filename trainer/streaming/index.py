"""The index of a folder of tar shards in WebDataset's format, and the command that makes it.

    python -m trainer.streaming.index FOLDER

A sample is an image and a class number in consecutive members of an uncompressed tar file, named
KEY.jpg and KEY.cls (https://github.com/webdataset/webdataset). Shards for the test begin with
`test`, and those of the validation with `val`; if only one of both exists, it is the test.
`classes.txt`, if there, has the names of the classes, one on each line.
"""

from __future__ import annotations

import argparse
import io
import sys
import tarfile
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainer.data.folder import ENDINGS
from trainer.data.samples import DataError
from trainer.output import say, say_error
from trainer.store.files import digest, replace_file

INDEX = "shards.npz"
CLASSES = "classes.txt"
PARTS = ("train", "val", "test")
FIELDS = ("names", "sizes", "sha256", "shard", "offset", "length", "label", "classes")


class Shard(NamedTuple):
    """A tar file: its name in the folder, its bytes and their SHA-256."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Index:
    """The M shards of a folder and the N samples in them, in the order of names and offsets."""

    names: NDArray[np.str_]  # [M]
    sizes: NDArray[np.int64]  # [M], bytes.
    sha256: NDArray[np.str_]  # [M]
    shard: NDArray[np.int64]  # [N]
    offset: NDArray[np.int64]  # [N], of the image in its shard.
    length: NDArray[np.int64]  # [N], bytes of the image.
    label: NDArray[np.int64]  # [N]
    classes: NDArray[np.str_]  # Names of the classes; their number if there is no classes.txt.

    @property
    def shards(self) -> list[Shard]:
        """The tar files."""
        rows = zip(self.names.tolist(), self.sizes.tolist(), self.sha256.tolist(), strict=True)
        return [Shard(*row) for row in rows]


def parts_of(names: Sequence[str]) -> list[str]:
    """Return the part of each shard, one of `PARTS`, by the beginnings of all names."""
    found = [next((part for part in PARTS if name.startswith(part)), "train") for name in names]
    return found if "test" in found else ["test" if part == "val" else part for part in found]


def read(content: bytes, source: str) -> Index:
    """Read an index; raises DataError if it is damaged or inconsistent."""
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as found:
            index = Index(*(found[name] for name in FIELDS))
            _check(index)
    except (OSError, EOFError, KeyError, ValueError, IndexError, zipfile.BadZipFile) as error:
        raise DataError(f"{source} is not an index of shards ({error}); make it again") from error
    return index


def _check(index: Index) -> None:
    for name in index.names.tolist():
        if name != Path(name).name or not name.endswith(".tar"):
            raise ValueError(f"{name!r} is no name of a tar file")
    columns = (index.shard, index.offset, index.length, index.label)
    if len({len(column) for column in columns}) != 1 or not len(index.shard):
        raise ValueError("it has no samples, or columns of several lengths")
    ends = index.offset + index.length
    if min(map(np.min, columns)) < 0 or np.any(ends > index.sizes[index.shard]):
        raise ValueError("a sample is outside its shard")
    if index.label.max() >= len(index.classes):
        raise ValueError("a class number is above those of the classes")


def make(folder: Path) -> Index:
    """Read all shards of a folder; raises DataError."""
    files = sorted(folder.glob("*.tar"))
    if not {"test", "train"} <= set(parts_of([file.name for file in files])):
        raise DataError(f"{folder} needs files train-*.tar, and test-*.tar or val-*.tar")
    rows: list[tuple[int, int, int, int]] = []
    hashes = []
    for number, file in enumerate(files):
        hashes.append(digest(file))
        rows += [(number, *sample) for sample in samples_of(file)]
        say(f"{file.name}: {number + 1} of {len(files)}, {len(rows):,} samples")
    shard, offset, length, label = np.array(rows, np.int64).reshape(-1, 4).T
    return Index(
        names=np.array([file.name for file in files]),
        sizes=np.array([file.stat().st_size for file in files], np.int64),
        sha256=np.array(hashes),
        shard=shard,
        offset=offset,
        length=length,
        label=label,
        classes=_classes(folder, label),
    )


def samples_of(file: Path) -> Iterator[tuple[int, int, int]]:
    """Yield offset, bytes and class of the images of a shard; raises DataError."""
    key, parts = "", dict[str, Any]()
    try:
        with tarfile.open(file, "r:") as tar:
            for member in tar:
                if not member.isfile():
                    continue
                folder, _, name = member.name.rpartition("/")
                start, _, ending = name.partition(".")
                if (found := f"{folder}/{start}") != key:
                    yield from _sample(file, key, parts)
                    key, parts = found, {}
                if f".{ending.lower()}" in ENDINGS:
                    parts["image"] = member.offset_data, member.size
                elif ending == "cls":
                    parts["class"] = int(_content(tar, member))
            yield from _sample(file, key, parts)
    except (tarfile.TarError, ValueError, OSError) as error:
        raise DataError(f"{file} is not a shard ({error}); a compressed one: unpack it") from error


def _content(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    stream = tar.extractfile(member)
    return stream.read() if stream else b""


def _sample(file: Path, key: str, parts: dict[str, Any]) -> Iterator[tuple[int, int, int]]:
    if len(parts) == 1:
        missing = "image" if "class" in parts else ".cls"
        raise DataError(f"{file}: the sample {key.strip('/')} has no {missing}")
    if parts:
        yield (*parts["image"], parts["class"])


def _classes(folder: Path, label: NDArray[np.int64]) -> NDArray[np.str_]:
    if (file := folder / CLASSES).is_file():
        return np.array(file.read_text("utf-8").split("\n")[: label.max() + 1])
    return np.array([str(number) for number in range(label.max() + 1)])


def write(index: Index, folder: Path) -> None:
    """Write the index beside the shards, atomically."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **{name: getattr(index, name) for name in FIELDS})
    replace_file(folder / INDEX, buffer.getbuffer())


def main() -> int:
    """Make the index of a folder."""
    parser = argparse.ArgumentParser(prog="trainer.streaming.index", description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    try:
        index = make(folder)
        write(index, folder)
    except (DataError, OSError) as error:
        say_error(f"error: {error}")
        return 2
    say(f"{folder / INDEX}: {len(index.label):,} samples in {len(index.names):,} shards")
    return 0


if __name__ == "__main__":
    sys.exit(main())
