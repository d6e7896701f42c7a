"""Archives: their regular files, unpacked into an empty folder.

An archive is not trusted: names and sizes are checked before anything is written, and a damaged or
truncated archive is refused, never partly unpacked.
"""

from __future__ import annotations

import gzip
import lzma
import shutil
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import IO

if sys.version_info >= (3, 14):
    from compression.zstd import ZstdError, ZstdFile
else:
    from backports.zstd import ZstdError, ZstdFile

from trainer.contract.words import shown
from trainer.datasets.errors import MISTAKE, DataSetError
from trainer.datasets.layout import require_room
from trainer.datasets.manifest import check_path
from trainer.datasets.sources.several import BLOCK, Report

DAMAGE = (tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error, lzma.LZMAError, ZstdError)


class DamagedError(DataSetError):
    """A damaged archive."""


def unpack(path: Path, name: str, folder: Path, report: Report) -> None:
    """Unpack an archive of regular files with usable names.

    `name` is the archive's own name, which `path` may lack.
    """
    opener: Callable[[Path, str], Iterator[Member]] = _tar
    if name.lower().endswith(".zip"):
        opener = _zip
    size, done = path.stat().st_size, 0
    try:
        for member, length, stream, place in opener(path, name):
            require_room(folder, length)
            target = folder / check_path(member)
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("xb") as file:
                shutil.copyfileobj(stream, file, BLOCK)
            if (written := target.stat().st_size) != length:
                raise tarfile.ReadError(f"{member} has {written} bytes, not {length}")
            done = max(done, place)
            report("unpacking", done, size)
    except (FileExistsError, NotADirectoryError) as error:
        what = f"{name} has {shown(member)} twice, or as a file and a folder"
        raise DataSetError(what, "make the archive again", MISTAKE) from error
    except (RuntimeError, NotImplementedError) as error:  # Encryption, methods of compression.
        what = f"{name} cannot be unpacked ({error})"
        raise DataSetError(what, "pack it without that", MISTAKE) from error
    except (*DAMAGE, OSError) as error:
        raise _damaged(name, error) from error


def decode(path: Path, name: str, target: Path) -> None:
    """Unpack a file that its server has compressed with gzip."""
    try:
        with gzip.open(path) as stream, target.open("wb") as file:
            while block := stream.read(BLOCK):
                require_room(target.parent, len(block))
                file.write(block)
    except (*DAMAGE, OSError) as error:
        raise _damaged(name, error) from error


def _damaged(name: str, error: Exception) -> Exception:
    """Return the error to raise; errors of the disk are unchanged."""
    if isinstance(error, OSError) and error.errno is not None:
        return error
    what = f"{name} cannot be unpacked ({error})"
    return DamagedError(what, "get the archive again")


Member = tuple[str, int, IO[bytes], int]
"""Name, size, content, and position in the archive."""


class _Header(tarfile.TarInfo):
    """A header that raises an error for a damaged archive, where tarfile would stop silently."""

    @classmethod
    def fromtarfile(cls, tarfile_: tarfile.TarFile) -> _Header:
        try:
            return super().fromtarfile(tarfile_)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]
            raise
        except tarfile.HeaderError as error:
            what = f"{error} at byte {tarfile_.offset}: it is cut or damaged"
            raise tarfile.ReadError(what) from error


def _tar(path: Path, name: str) -> Iterator[Member]:
    with (
        path.open("rb") as raw,
        ZstdFile(raw) if name.lower().endswith(".zst") else nullcontext(raw) as packed,
        tarfile.open(fileobj=packed, mode="r:*", tarinfo=_Header) as tar,
    ):
        for member in tar:
            # Otherwise tarfile keeps all members: a gigabyte for a million files.
            tar.members = []  # type: ignore[attr-defined]
            if member.isdir():
                continue
            inside = member.name.removeprefix("./")
            stream = tar.extractfile(member) if member.isreg() else None
            if stream is None:
                raise _irregular(name, inside)
            yield inside, member.size, stream, raw.tell()
        while tar.fileobj and tar.fileobj.read(BLOCK):
            pass  # Read to the end: the checksum follows the archive.


def _zip(path: Path, name: str) -> Iterator[Member]:
    with zipfile.ZipFile(path) as archive:
        members = [each for each in archive.infolist() if not each.is_dir()]
        require_room(path.parent, sum(each.file_size for each in members))
        done = 0
        for member in members:
            if (member.external_attr >> 28) & 0xF not in (0, 8):  # The type of a file's mode.
                raise _irregular(name, member.filename)
            done += member.compress_size
            with archive.open(member) as stream:
                yield member.filename, member.file_size, stream, done


def _irregular(archive: str, name: str) -> DataSetError:
    what = f"{shown(name)} in {archive} is a link or a special file"
    return DataSetError(what, "make the archive without it", MISTAKE)
