"""Repositories of data sets at Hugging Face, or at a server like it, with huggingface_hub.

The library resumes a cut connection. It keeps complete files, but no partial ones; without
a connection it would regard the existing files as the whole repository. So the files are listed
first, and each is compared with the checksum of the listing.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from trainer.datasets.errors import FAILURE, MISTAKE, DataSetError
from trainer.datasets.layout import require_room
from trainer.datasets.sources.several import (
    TRIES,
    Progress,
    Report,
    check_names,
    fetch_all,
    give,
    is_of_disk,
    library,
)
from trainer.store.files import digest

TOKEN = "set HF_TOKEN where you run kit to a token that may read it"
OWN = ".cache/huggingface"
"""The library's own folder beside the files."""


@dataclass(frozen=True)
class Entry:
    """A file of the repository; `sha256` is empty for a small file, which has git's hash."""

    path: str
    size: int
    blob: str
    sha256: str


def from_hugging_face(url: str, folder: Path, kept: Path, report: Report) -> str:
    """Download hf://OWNER/NAME[@REVISION]; return the address with the exact commit."""
    os.environ |= {"HF_HUB_DISABLE_TELEMETRY": "1", "HF_XET_CACHE": str(kept / OWN / "xet")}
    hub = library("huggingface_hub", "huggingface-hub")
    repository, at, revision = url.removeprefix("hf://").partition("@")
    repository = repository.removeprefix("datasets/")
    if not 0 < len(repository.split("/")) <= 2 or (at and not revision):
        what = f"{url} does not name one repository"
        raise DataSetError(what, "write hf://OWNER/NAME, or hf://OWNER/NAME@REVISION", MISTAKE)
    report("downloading", 0, 0)
    try:
        api = hub.HfApi()
        commit = str(api.dataset_info(repository, revision=revision or None).sha)
        entries = list(_list(api, repository, commit))
        _check(url, entries)
        _fetch(hub, (repository, commit), entries, kept, report)
    except DataSetError:
        raise
    except Exception as error:  # From one of the libraries that it uses.
        if isinstance(error, OSError) and is_of_disk(error):
            raise
        raise _refused(url, repository, error) from error
    for entry in entries:
        give(kept / entry.path, folder / entry.path)
    return f"hf://{repository}@{commit}"


def _list(api: Any, repository: str, commit: str) -> Iterator[Entry]:
    found = api.list_repo_tree(repository, recursive=True, revision=commit, repo_type="dataset")
    for each in found:
        if hasattr(each, "size"):  # A file.
            lfs = getattr(each, "lfs", None)
            yield Entry(each.path, each.size, each.blob_id, lfs.sha256 if lfs else "")


def _check(url: str, entries: list[Entry]) -> None:
    if not any(entry.size for entry in entries):
        raise DataSetError(f"{url}: the repository has no file", "correct the address", MISTAKE)
    check_names(url, [entry.path for entry in entries])
    if any(entry.path.startswith(f"{OWN}/") for entry in entries):
        raise DataSetError(f"{url}: it has a folder {OWN}", "rename it in the source", MISTAKE)


def _fetch(
    hub: Any, place: tuple[str, str], entries: list[Entry], kept: Path, report: Report
) -> None:
    total, progress = sum(entry.size for entry in entries), Progress(0)
    for path in _parts(kept):
        path.unlink()  # From an interrupted program: the library does not resume them.
    require_room(kept, total - sum(_size(kept / entry.path) for entry in entries))

    def tick() -> None:
        report("downloading", progress.done + sum(map(_size, _parts(kept))), total)

    fetch_all(entries, partial(_fetch_one, hub, place, kept, progress), tick, progress.stop)


def _parts(kept: Path) -> list[Path]:
    """The partial files of the library, which may disappear at any time."""
    return list((kept / OWN).rglob("*.incomplete"))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _fetch_one(
    hub: Any, place: tuple[str, str], kept: Path, progress: Progress, entry: Entry
) -> None:
    """Download a file and compare it with its checksum; the library keeps complete files."""
    repository, commit = place
    for left in reversed(range(TRIES)):
        try:
            hub.hf_hub_download(
                repository, entry.path, repo_type="dataset", revision=commit, local_dir=kept
            )
        except Exception as error:  # From one of several libraries, also if a connection is cut.
            status = getattr(getattr(error, "response", None), "status_code", 500)
            if not left or status < 500 or (isinstance(error, OSError) and is_of_disk(error)):
                raise
            time.sleep(min(TRIES - left, 3))
            continue
        if _intact(kept / entry.path, entry):
            progress.add(entry.size)
            return
        (kept / entry.path).unlink(missing_ok=True)
    what = f"{entry.path} arrives with another content than its repository lists"
    raise DataSetError(what, "try again later", FAILURE)


def _intact(path: Path, entry: Entry) -> bool:
    """Whether a file matches its listed hash; git hashes a small file with a header."""
    if not path.is_file() or path.stat().st_size != entry.size:
        return False
    if entry.sha256:
        return digest(path) == entry.sha256
    with path.open("rb") as file:
        head = f"blob {entry.size}\0".encode()
        return hashlib.file_digest(file, lambda: hashlib.sha1(head)).hexdigest() == entry.blob


def _refused(url: str, repository: str, error: Exception) -> DataSetError:
    """Convert the hub's answer to an error with a remedy."""
    names = {kind.__name__ for kind in type(error).__mro__}
    status = getattr(getattr(error, "response", None), "status_code", 0)
    line = " ".join(str(error).split())[:300]
    if "GatedRepoError" in names:
        page = f"{os.environ.get('HF_ENDPOINT') or 'https://huggingface.co'}/datasets/{repository}"
        fix = f"accept its terms at {page}, and {TOKEN}"
        return DataSetError(f"{url}: its owner must give access to it", fix, MISTAKE)
    if "RevisionNotFoundError" in names:
        fix = "correct the name of the branch, tag or commit behind @"
        return DataSetError(f"{url}: there is no such revision", fix, MISTAKE)
    if "RepositoryNotFoundError" in names:
        what = f"{url}: there is no such data set, or it is private"
        return DataSetError(what, f"correct the name, or {TOKEN}", MISTAKE)
    if status in (401, 403):
        return DataSetError(f"{url}: access was refused ({line})", TOKEN, MISTAKE)
    if "HFValidationError" in names:
        return DataSetError(f"{url}: {line}", "write hf://OWNER/NAME", MISTAKE)
    return DataSetError(f"{url}: {line}", "check the network, and try again: it continues", FAILURE)
