"""Where the files of a new version come from: each function fills an empty folder.

Every error is a DataSetError; what was downloaded stays for the next try.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import shutil
import tarfile
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

from trainer.contract.words import shown
from trainer.datasets.errors import MISTAKE, DataSetError
from trainer.datasets.layout import require_room
from trainer.datasets.manifest import check_path, list_files

UPLOADS, PARTIAL = ".uploads", ".partial"
ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".zip")
BLOCK = 2**20
SILENCE = 60.0  # Seconds without a byte after which a connection has failed.
TRIES = 5  # In a row without a byte.

Report = Callable[[str, int, int], None]
"""Is called with a state, the bytes done and those in all (0: unknown)."""


def fill(source: str, folder: Path, store: Path, name: str, report: Report) -> None:
    """Fill a folder from a source; raises DataSetError."""
    kind, _, rest = source.partition(":")
    if kind == "torchvision":
        return from_torchvision(rest, folder, report)
    if kind in ("https", "http"):
        return from_web(source, folder, store, report)
    if kind == "s3":
        return from_s3(source, folder, report)
    if kind == "hf":
        return from_hugging_face(source, folder, report)
    path = store / UPLOADS / name if kind == "upload" else Path(source)
    return from_path(path, folder, store, report)


def from_torchvision(name: str, folder: Path, report: Report) -> None:
    """Download by torchvision's own loader, which checks its own checksums."""
    report("downloading", 0, 0)
    try:
        downloads = importlib.import_module("trainer.vision.downloads")
    except Exception as error:  # Of a torchvision that is missing or does not match torch.
        what = f"torchvision can not be imported ({error})"
        raise DataSetError(what, "use the trainer's image") from error
    try:
        downloads.download_any(name, folder)
    except LookupError as error:
        raise DataSetError(str(error.args[0]), str(error.args[1]), MISTAKE) from error
    except (OSError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:500] or repr(error)
        fix = "see to the network and the disk, and try again"
        raise DataSetError(f"the download of {name} has failed: {reason}", fix) from error
    drop_archives(folder)


def drop_archives(folder: Path) -> None:
    """Remove the archives whose content torchvision has unpacked beside them."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    packed = [path for path in files if path.name.endswith((*ARCHIVES, ".gz"))]
    if len(packed) < len(files):
        for path in packed:
            path.unlink()


def from_path(path: Path, folder: Path, store: Path, report: Report) -> None:
    """Copy a folder or file, or unpack an archive; uploads are moved."""
    if not path.exists():
        fix = "give torchvision:NAME, https://…, s3://…, hf://… or a path in this container"
        raise DataSetError(f"there is no {path}", fix, MISTAKE)
    own = path.resolve().is_relative_to((store / UPLOADS).resolve())
    if own and path.is_dir():
        files = [each for each in path.rglob("*") if each.is_file()]
        path = files[0] if len(files) == 1 else path
    if path.is_file() and path.name.endswith(ARCHIVES):
        return unpack(path, folder, report)
    if path.is_file():
        check_path(path.name)
        return copy(path.parent, [(path.name, path.stat().st_size)], folder, report, move=own)
    return copy(path, list_files(path), folder, report, move=own)


def copy(
    source: Path, files: list[tuple[str, int]], folder: Path, report: Report, *, move: bool
) -> None:
    """Copy or move files, by their paths below `source`."""
    done, total = 0, sum(size for _, size in files)
    if not move:
        require_room(folder, total)
    for path, size in files:
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if move:
            (source / path).rename(target)
        else:
            shutil.copyfile(source / path, target, follow_symlinks=False)
        done += size
        report("copying", done, total)


def unpack(path: Path, folder: Path, report: Report) -> None:
    """Unpack an archive whose members are regular files with names that can be used."""
    opener: Callable[[Path], Iterator[Member]] = _zip if path.suffix == ".zip" else _tar
    size, done = path.stat().st_size, 0
    try:
        for name, length, stream, place in opener(path):
            require_room(folder, length)
            target = folder / check_path(name)
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("xb") as file:
                shutil.copyfileobj(stream, file, BLOCK)
            if (written := target.stat().st_size) != length:
                raise tarfile.ReadError(f"{name} has {written} bytes, not {length}")
            done = max(done, place)
            report("unpacking", done, size)
    except FileExistsError as error:
        what = f"{path} has the file {shown(error.filename)} twice"
        raise DataSetError(what, "make the archive again") from error
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, OSError) as error:
        what = f"{path} can not be unpacked ({error})"
        raise DataSetError(what, "get the archive again") from error


Member = tuple[str, int, IO[bytes], int]
"""Name, bytes, content, and how far into the archive it is."""


def _tar(path: Path) -> Iterator[Member]:
    with path.open("rb") as raw, tarfile.open(fileobj=raw, mode="r:*") as tar:
        for member in tar:
            if member.isdir():
                continue
            name = member.name.removeprefix("./")
            stream = tar.extractfile(member) if member.isreg() else None
            if stream is None:
                raise _irregular(path, name)
            yield name, member.size, stream, raw.tell()


def _zip(path: Path) -> Iterator[Member]:
    with zipfile.ZipFile(path) as archive:
        done = 0
        for member in archive.infolist():
            if member.is_dir():
                continue
            if (member.external_attr >> 28) & 0xF not in (0, 8):  # The type of a file's mode.
                raise _irregular(path, member.filename)
            done += member.compress_size
            with archive.open(member) as stream:
                yield member.filename, member.file_size, stream, done


def _irregular(path: Path, name: str) -> DataSetError:
    what = f"{shown(name)} in {path} is a link or a special file"
    return DataSetError(what, "make the archive without it", MISTAKE)


def from_web(url: str, folder: Path, store: Path, report: Report) -> None:
    """Download a file, resumed where the last try ended; an archive is unpacked."""
    if urlsplit(url).scheme != "https" and os.environ.get("KIT_PLAIN_HTTP") != "1":
        fix = "use https, or set KIT_PLAIN_HTTP=1 if you trust the network"
        raise DataSetError("http does not protect what is downloaded", fix, MISTAKE)
    name = check_path(Path(urlsplit(url).path).name or "download")
    kept = store / PARTIAL / hashlib.sha256(url.encode()).hexdigest()[:16]
    kept.mkdir(parents=True, exist_ok=True)
    file = download(url, kept / name, folder, report)
    if name.endswith(ARCHIVES):
        unpack(file, folder, report)
    else:
        file.rename(folder / name)
    shutil.rmtree(kept)


def download(url: str, file: Path, folder: Path, report: Report) -> Path:
    """Download to a file, and go on where it ends if the server allows that."""
    tries = 0
    while True:
        before = file.stat().st_size if file.exists() else 0
        try:
            if _download_rest(url, file, folder, report):
                return file
            reason: object = "the connection ended early"
        except urllib.error.HTTPError as error:
            with error:
                if 400 <= error.code < 500 and error.code not in (408, 429):
                    what = f"{url}: {error.code} {error.reason}"
                    raise DataSetError(what, "correct the address", MISTAKE) from error
            reason = error
        except (OSError, HTTPException) as error:
            reason = error
        grown = file.exists() and file.stat().st_size > before
        tries = 0 if grown else tries + 1
        if tries >= TRIES:
            raise DataSetError(f"{url}: {reason}", "try again: the download goes on where it ended")
        time.sleep(min(tries, 3))


def _download_rest(url: str, file: Path, folder: Path, report: Report) -> bool:
    """Download what is missing; return whether the file is then complete.

    If-Range: if the content behind the address has changed, it begins anew.
    """
    done = file.stat().st_size if file.exists() else 0
    tag = file.with_name(".tag")
    headers = {"User-Agent": "kit"}
    if done and tag.exists():
        headers |= {"Range": f"bytes={done}-", "If-Range": tag.read_text()}
    request = urllib.request.Request(url, headers=headers)
    with urllib.request.urlopen(request, timeout=SILENCE) as answer:
        done = done if answer.status == 206 else 0
        length = answer.headers.get("Content-Length")
        total = done + int(length) if length else 0
        require_room(folder, total - done)
        strong = answer.headers.get("ETag") or answer.headers.get("Last-Modified") or ""
        tag.write_text(strong) if strong else tag.unlink(missing_ok=True)
        with file.open("ab" if done else "wb") as target:
            while block := answer.read(BLOCK):
                target.write(block)
                done += len(block)
                report("downloading", done, total)
    return not total or done >= total


def from_s3(url: str, folder: Path, report: Report) -> None:
    """Download the objects below s3://BUCKET/PREFIX with boto3 and its usual settings."""
    boto3 = _library("boto3", "boto3")
    parts = urlsplit(url)
    prefix = parts.path.lstrip("/")
    try:
        bucket = boto3.resource("s3").Bucket(parts.netloc)
        found = [(each.key, each.size) for each in bucket.objects.filter(Prefix=prefix)]
        base = prefix if prefix.endswith("/") or not prefix else prefix.rpartition("/")[0] + "/"
        found = [each for each in found if not each[0].endswith("/")]
        done, total = 0, sum(size for _, size in found)
        require_room(folder, total)
        for key, size in found:
            target = folder / check_path(key.removeprefix(base).lstrip("/"))
            target.parent.mkdir(parents=True, exist_ok=True)
            bucket.download_file(key, str(target))
            done += size
            report("downloading", done, total)
    except DataSetError:
        raise
    except Exception as error:  # boto3 has classes of its own, which are made at run time.
        raise DataSetError(f"{url}: {error}", "check the address and the access") from error


def from_hugging_face(url: str, folder: Path, report: Report) -> None:
    """Download a data set's repository, hf://OWNER/NAME[@REVISION], with huggingface_hub."""
    hub = _library("huggingface_hub", "huggingface-hub")
    repository, _, revision = url.removeprefix("hf://").partition("@")
    report("downloading", 0, 0)
    try:
        hub.snapshot_download(
            repository, repo_type="dataset", revision=revision or None, local_dir=folder
        )
    except Exception as error:  # Its classes are those of several libraries.
        raise DataSetError(f"{url}: {error}", "check the address and the access") from error
    with suppress(FileNotFoundError):
        shutil.rmtree(folder / ".cache")


def _library(module: str, package: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        fix = f"pip install {package}, or build the trainer's image with it"
        raise DataSetError(f"{package} is not installed", fix, MISTAKE) from error


def find_offset(path: Path) -> int:
    """The bytes of an upload that are there."""
    return path.stat().st_size if path.exists() else 0


def receive(path: Path, offset: int, blocks: Iterable[bytes]) -> int:
    """Append blocks to an upload; return its bytes. Raises DataSetError if it ends elsewhere."""
    if offset != (there := find_offset(path)):
        what = f"{path.name} has {there} bytes, not {offset}"
        raise DataSetError(what, f"go on with --offset {there}", MISTAKE)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as target:
        for block in blocks:
            require_room(path.parent, len(block))
            target.write(block)
    return find_offset(path)
