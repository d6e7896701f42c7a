"""Copies of the records that were read, on this machine.

`kit deploy --fresh` and a lost host delete records with the checkpoints; a run that was reported
once can still be compared.

$XDG_STATE_HOME/kit/.runs/<cluster>/<job>/<run>.json.gz: the files of a run's record
$XDG_STATE_HOME/kit/.runs/<cluster>/<job>/<run>.report: the path of the newest page that shows it
"""

from __future__ import annotations

import base64
import contextlib
import gzip
import json
import re
import secrets
import zlib
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

from kit.runtime.record_files import RecordFile


def began(run: str) -> float:
    """Return the time in a run's name, in seconds since the epoch; 0 for a name without one."""
    match = re.match(r"(\d{8}-\d{6})", run)
    with contextlib.suppress(ValueError):  # 20261399 is not a date.
        if match:
            return datetime.strptime(match[1], "%Y%m%d-%H%M%S").replace(tzinfo=UTC).timestamp()
    return 0.0


class Archive:
    """The records of one cluster in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def keep(self, job: str, files: Iterable[RecordFile]) -> None:
        """Copy the files of runs; a run that cannot be written is left out."""
        by_run: dict[str, list[RecordFile]] = {}
        for file in files:
            by_run.setdefault(file.run, []).append(file)
        for run, own in by_run.items():
            content = [
                [file.host, file.name, base64.b64encode(file.content).decode()] for file in own
            ]
            packed = gzip.compress(json.dumps(content).encode(), compresslevel=4)
            with contextlib.suppress(OSError):
                self._write(self._folder / job / f"{run}.json.gz", packed)

    def read(self, job: str) -> list[RecordFile]:
        """Return the files of all runs of a job; damaged ones are left out."""
        files: list[RecordFile] = []
        for path in sorted((self._folder / job).glob("*.json.gz")):
            run = path.name.removesuffix(".json.gz")
            with contextlib.suppress(OSError, EOFError, ValueError, TypeError, zlib.error):
                content = json.loads(gzip.decompress(path.read_bytes()))
                files += [
                    RecordFile(host, run, name, base64.b64decode(text))
                    for host, name, text in content
                    if isinstance(host, str) and isinstance(name, str)
                ]
        return files

    def jobs(self) -> list[str]:
        """Return the jobs with copies."""
        return sorted({path.parent.name for path in self._folder.glob("*/*.json.gz")})

    def runs(self, job: str) -> list[str]:
        """Return the names of a job's runs, the oldest first."""
        paths = (self._folder / job).glob("*.json.gz")
        return sorted(path.name.removesuffix(".json.gz") for path in paths)

    def note_report(self, job: str, run: str, report: Path) -> None:
        """Remember the page of a run."""
        with contextlib.suppress(OSError):
            self._write(self._folder / job / f"{run}.report", f"{report.resolve()}\n".encode())

    def report_of(self, job: str, run: str) -> Path | None:
        """Return the newest page of a run, if it still exists."""
        try:
            path = Path((self._folder / job / f"{run}.report").read_text(encoding="utf-8").strip())
            return path if path.is_file() else None
        except (OSError, ValueError):
            return None

    @staticmethod
    def _write(path: Path, content: bytes) -> None:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        temporary = path.with_name(f".{path.name}.kit-{secrets.token_hex(4)}")
        temporary.write_bytes(content)
        temporary.replace(path)
