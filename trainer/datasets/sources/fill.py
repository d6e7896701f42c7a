"""Fills the folder of a new version: `fill` calls the function of the source.

Every error is a DataSetError or an OSError; downloads are kept for the next try.
"""

from __future__ import annotations

import hashlib
import importlib
from pathlib import Path
from typing import NamedTuple

from trainer.contract.sources import is_archive
from trainer.datasets.errors import MISTAKE, DataSetError
from trainer.datasets.sources.hub import from_hugging_face
from trainer.datasets.sources.local import UPLOADS, from_path
from trainer.datasets.sources.s3 import from_s3
from trainer.datasets.sources.several import Report
from trainer.datasets.sources.web import from_web

PARTIAL = ".partial"
"""The folder of the store with downloads for incomplete versions."""


class Filled(NamedTuple):
    """The source of a folder's files."""

    source: str
    """The source's exact name, for the manifest."""
    left_out: tuple[str, ...] = ()
    """The hidden files and folders of the source."""


def fill(source: str, folder: Path, store: Path, name: str, report: Report) -> Filled:
    """Fill a folder from a source.

    Raises:
        DataSetError: It failed.
    """
    kind, _, rest = source.partition(":")
    if kind in ("https", "http"):
        return Filled(from_web(source, folder, _kept(store, name, source), report))
    if kind == "s3":
        return Filled(from_s3(source, folder, _kept(store, name, source), report))
    if kind == "hf":
        return Filled(from_hugging_face(source, folder, _kept(store, name, source), report))
    if kind == "torchvision":
        from_torchvision(rest, folder, report)
        return Filled(source)
    path = store / UPLOADS / name if kind == "upload" else Path(source)
    return Filled(source, from_path(path, folder, store, report))


def _kept(store: Path, name: str, source: str) -> Path:
    """Return the folder of a source's partial download; the data set's lock protects it."""
    kept = store / PARTIAL / name / hashlib.sha256(source.encode()).hexdigest()[:16]
    kept.mkdir(parents=True, exist_ok=True)
    return kept


def from_torchvision(name: str, folder: Path, report: Report) -> None:
    """Download by torchvision's own loader, which checks its own checksums."""
    report("downloading", 0, 0)
    try:
        downloads = importlib.import_module("trainer.vision.downloads")
    except Exception as error:  # torchvision is missing or does not match torch.
        what = f"torchvision cannot be imported ({error})"
        raise DataSetError(what, "use the trainer's image") from error
    try:
        downloads.download_any(name, folder)
    except LookupError as error:
        raise DataSetError(str(error.args[0]), str(error.args[1]), MISTAKE) from error
    except (OSError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:500] or repr(error)
        fix = "check the network and the disk, and try again"
        raise DataSetError(f"the download of {name} has failed: {reason}", fix) from error
    drop_archives(folder)


def drop_archives(folder: Path) -> None:
    """Remove the archives that torchvision has unpacked beside them."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    packed = [path for path in files if is_archive(path.name) or path.name.endswith(".gz")]
    if len(packed) < len(files):
        for path in packed:
            path.unlink()
