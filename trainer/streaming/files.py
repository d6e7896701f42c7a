"""The shards on this host: in the data folder, or fetched from a web server into a cache.

All ranks of a host share the cache. The least recently used shards are deleted; open ones remain
readable.
"""

from __future__ import annotations

import http.client
import io
import os
import shutil
import time
import urllib.error
import urllib.request
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from trainer.contract.bearer import read_key
from trainer.data.samples import DataError
from trainer.output import say_error
from trainer.store.files import digest, draft_of
from trainer.store.locks import locked
from trainer.streaming.index import INDEX, Shard

SILENCE = 30.0  # Seconds without a byte after which a connection is given up.
PATIENCE = 300.0  # Seconds for which a server may not answer.
START = 60.0  # Seconds that a data server may need to start.
PAUSE = 1.0  # Seconds between two attempts.
CHUNK = 2**20
NEWEST = "/newest/"  # In an address of kit's data server: redirects to the newest version.
LOCK = ".lock"
GONE = (urllib.error.URLError, http.client.HTTPException, OSError)


class ChangedError(Exception):
    """The bytes of a shard are not those of the index."""


def settled(place: str) -> str:
    """Return the address of the present newest version; raises DataError.

    It is resolved once, before the index is read, so that shards of two versions never mix. The
    server may still be starting when hosts have just started.
    """
    until = time.monotonic() + START
    while NEWEST in f"{place}/":
        try:
            with _get(f"{place}/{INDEX}", 0) as answer:
                return answer.geturl().removesuffix(f"/{INDEX}")
        except GONE as error:
            if _refused(error) or time.monotonic() > until:
                hint = "`kit data ls` lists the stored data sets"
                raise DataError(f"{place}/{INDEX} cannot be read ({error}); {hint}") from error
            time.sleep(PAUSE)
    return place


@dataclass(frozen=True)
class ShardFiles:
    """The shards of a folder, or of an address (http, https) with a cache of `limit` bytes."""

    place: str
    cache: Path = Path()
    limit: int = 0

    @property
    def remote(self) -> bool:
        """Whether the shards are at an address."""
        return self.place.startswith(("http://", "https://"))

    def index(self) -> bytes:
        """Return the content of the index; raises DataError."""
        try:
            if not self.remote:
                return (Path(self.place) / INDEX).read_bytes()
            with _get(f"{self.place}/{INDEX}", 0) as answer:
                return answer.read()
        except GONE as error:
            hint = "python -m trainer.streaming.index makes it"
            raise DataError(f"{self.place}/{INDEX} cannot be read ({error}); {hint}") from error

    def read(self, shard: Shard, offset: int, length: int) -> bytes:
        """Return bytes of a shard, after fetching it if necessary; raises DataError."""
        while True:
            path = self.fetch(shard)
            with suppress(FileNotFoundError), path.open("rb") as stream:  # It was just deleted.
                found = os.pread(stream.fileno(), length, offset)
                if len(found) < length:
                    raise DataError(f"{path} is shorter than its index says; copy it again")
                return found

    def fetch(self, shard: Shard) -> Path:
        """Return the path of a shard after fetching it; raises DataError."""
        if not self.remote:
            return Path(self.place) / shard.name
        path = self.cache / shard.name
        if not _touched(path):
            self.cache.mkdir(parents=True, exist_ok=True)
            with locked(self.cache / f".{shard.name}{LOCK}"):
                if not _touched(path):
                    self._fetch(shard, path)
        return path

    def _fetch(self, shard: Shard, path: Path) -> None:
        """Fetch a shard, and continue after interruptions."""
        draft, until, changed = draft_of(path), 0.0, False
        while True:
            self._make_room(shard, draft)
            before = _size(draft)
            try:
                _download(f"{self.place}/{shard.name}", shard, draft)
            except ChangedError as error:
                draft.unlink(missing_ok=True)
                if changed:
                    raise DataError(f"{self.place}/{shard.name}: {error}") from None
                changed = True
            except GONE as error:
                now = time.monotonic()
                until = now + PATIENCE if not until or _size(draft) > before else until
                if now > until or _refused(error):
                    what = f"{self.place}/{shard.name} cannot be fetched ({error})"
                    raise DataError(f"{what}; check the server and the network") from error
                say_error(f"trainer: warning: {self.place}: {error}; tries again")
                time.sleep(PAUSE)
            else:
                draft.replace(path)
                return

    def _make_room(self, shard: Shard, draft: Path) -> None:
        """Delete the least recently used shards until a shard fits; raises DataError."""
        with locked(self.cache / LOCK):
            files = [(*_age_and_size(file), file) for file in self.cache.glob("*.tar")]
            files.sort()
            held = sum(size for _, size, _ in files)
            missing = shard.size - _size(draft)
            while files and (held + shard.size > self.limit or missing > _free(self.cache)):
                _, size, oldest = files.pop(0)
                oldest.unlink(missing_ok=True)
                held -= size
            if missing > _free(self.cache):
                raise DataError(
                    f"{self.cache} has {_free(self.cache):,} bytes free, and {shard.name} needs "
                    f"{missing:,}; free some, or mount a larger disk there"
                )


class Member(NamedTuple):
    """An image in a shard."""

    files: ShardFiles
    shard: Shard
    offset: int
    length: int

    def open(self) -> io.BytesIO:
        """Return the content of the image; raises DataError."""
        return io.BytesIO(self.files.read(self.shard, self.offset, self.length))

    def __str__(self) -> str:
        return f"{self.files.place}/{self.shard.name}, the image at byte {self.offset:,},"


def _get(address: str, start: int) -> http.client.HTTPResponse:
    request = urllib.request.Request(address)
    server = os.environ.get("KIT_DATA_SERVER")
    if server and address.startswith(f"{server}/") and (key := _key()):  # Not for other servers.
        request.add_header("Authorization", f"Bearer {key.decode()}")
    if start:
        request.add_header("Range", f"bytes={start}-")
    answer: http.client.HTTPResponse = urllib.request.urlopen(request, timeout=SILENCE)
    return answer


def _key() -> bytes | None:
    try:
        return read_key(os.environ)
    except ValueError as error:
        raise DataError(str(error)) from None


def _download(address: str, shard: Shard, draft: Path) -> None:
    """Append the missing bytes; raises ChangedError, or an error of the connection."""
    with draft.open("ab") as stream:
        start = stream.tell()
        if start < shard.size:
            with _get(address, start) as answer:
                if answer.status != http.HTTPStatus.PARTIAL_CONTENT:
                    stream.truncate(0)  # A server without ranges sends the whole file.
                # Read at most the size in the index, to protect the disk.
                left = shard.size - os.fstat(stream.fileno()).st_size
                while left > 0 and (content := answer.read(min(CHUNK, left))):
                    stream.write(content)
                    left -= len(content)
        stream.flush()
    if _size(draft) < shard.size:
        raise http.client.IncompleteRead(b"", shard.size - _size(draft))
    if digest(draft) != shard.sha256:
        raise ChangedError("its bytes are not those of the index; make the index again")


def _refused(error: BaseException) -> bool:
    """Whether a retry cannot help: the server refuses the file, or lacks it."""
    return isinstance(error, urllib.error.HTTPError) and error.code in {401, 403, 404, 410}


def _touched(path: Path) -> bool:
    """Set the time of a shard's last use; return whether it exists."""
    try:
        os.utime(path)
    except FileNotFoundError:
        return False
    return True


def _age_and_size(path: Path) -> tuple[float, int]:
    try:
        found = path.stat()
    except FileNotFoundError:
        return 0.0, 0
    return found.st_mtime, found.st_size


def _size(path: Path) -> int:
    return _age_and_size(path)[1]


def _free(folder: Path) -> int:
    return shutil.disk_usage(folder).free
