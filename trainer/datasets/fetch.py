"""Fetches one version into the cache: metadata, free space, pieces, verification."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from contextlib import suppress

import libtorrent

from trainer.datasets.cache import Cache, bytes_of
from trainer.datasets.engine import Address, Engine, Key, Torrent
from trainer.datasets.errors import DataSetError
from trainer.datasets.layout import Place, complete, show_bytes
from trainer.datasets.manifest import File, Manifest, find_damage, has_sizes
from trainer.datasets.peers import Others, UnreachableError
from trainer.output import say
from trainer.store.files import replace_file, sync_disk

TICK = 0.1  # Seconds between two checks of a fetch.
FALLBACK = 3.0  # Seconds without a byte from peers, after which pieces come from the server.
RECONNECT = 2.0  # Seconds between two attempts to connect to the peers.
SAVED = 5.0  # Seconds between two records of the progress, for a restart.
STATES = libtorrent.torrent_status.states
CHECKING = (STATES.checking_files, STATES.checking_resume_data, STATES.queued_for_checking)
ALONE = 1.0  # Seconds after which a host fetches the files in order, if no other host fetches.
EARLY = 0.5  # Seconds between two checks for complete files.
ATTEMPTS = 3  # Times that a version may fail its verification.
STUCK = 15.0  # Seconds without a byte after a damaged piece, until the torrent is added again.


class Fetch:
    """The fetch of a version; `task` ends when the version is ready or the fetch has failed."""

    def __init__(
        self, place: Place, cache: Cache, engine: Engine, others: Others, patience: float
    ) -> None:
        """`patience`: seconds without progress after which the fetch fails."""
        self.place, self.state, self.note = place, "waiting", ""
        self.done = self.total = self.rate = self.peers = 0  # Bytes; bytes a second; hosts.
        self._cache, self._engine, self._others = cache, engine, others
        self._patience, self._last = patience, time.monotonic()
        self._sound: set[File] = set()  # Files that match the manifest.
        self.task = asyncio.create_task(self._run(), name=f"{place.name}@{place.version}")
        self.task.add_done_callback(self._end)

    def line(self) -> dict[str, object]:
        """The present state, as a line for users."""
        content: dict[str, object] = {
            "state": self.state,
            "name": self.place.name,
            "version": self.place.version,
            "bytes": self.done,
            "total": self.total,
            "rate": self.rate,
            "peers": self.peers,
        }
        return {**content, "note": self.note} if self.note else content

    def _end(self, task: asyncio.Task[None]) -> None:
        self._cache.promised.pop(self.place.key, None)
        if not task.cancelled() and task.exception():
            say(f"data agent: {self._name}: {task.exception()}")

    async def _run(self) -> None:
        if self.place.complete:
            manifest = await asyncio.to_thread(self.place.read)
            if await asyncio.to_thread(has_sizes, manifest, self.place.data):
                self._finish(manifest)
                return
            self.place.mark.unlink()  # Its files were changed: fetch them again.
            self._engine.stop(self.place.key)
        manifest = await self._prepare()
        self.total = manifest.bytes
        for _ in range(ATTEMPTS):
            torrent = self._start(manifest, await self._others.addresses())
            early = asyncio.create_task(self._verify_early(torrent, manifest))
            try:
                stuck = await self._download(torrent)
            finally:
                early.cancel()
            damage = [stuck] if stuck else await self._verify(torrent, manifest)
            if not damage:
                await asyncio.to_thread(complete, self.place, manifest.bytes)
                (self.place.folder / "resume").unlink(missing_ok=True)
                self._finish(manifest)
                return
            self.note = f"{damage[0]}: fetches that part again"
            self._engine.stop(self.place.key)
            if not stuck:  # The disk has changed received data: hash all pieces again.
                (self.place.folder / "resume").unlink(missing_ok=True)
        what = f"{self._name} has failed its verification {ATTEMPTS} times ({damage[0]})"
        raise DataSetError(what, "check this host's disk and memory, and the copy in the store")

    @property
    def _name(self) -> str:
        return f"{self.place.name}@{self.place.version}"

    def _finish(self, manifest: Manifest) -> None:
        self.state, self.note, self.rate = "ready", "", 0
        self.done = self.total = manifest.bytes

    async def _prepare(self) -> Manifest:
        """Get the metadata, free space for the version, and write the metadata."""
        manifest, text, torrent = await self._metadata()
        self.total = manifest.bytes
        present = await asyncio.to_thread(bytes_of, self.place)
        await self._make_room(max(0, manifest.bytes - present))
        self.place.data.mkdir(parents=True, exist_ok=True)
        replace_file(self.place.torrent, torrent, durable=False)
        replace_file(self.place.manifest, text, durable=False)
        return manifest

    async def _metadata(self) -> tuple[Manifest, bytes, bytes]:
        with suppress(DataSetError, OSError):  # From an interrupted fetch.
            manifest = await asyncio.to_thread(self.place.read)
            content = self.place.manifest.read_bytes(), self.place.torrent.read_bytes()
            return manifest, *content
        while True:
            try:
                return await self._others.metadata(self.place.key)
            except UnreachableError as error:
                self.note = f"{error}; tries again"
                self._require_patience(str(error))
            await asyncio.sleep(1)

    def _start(self, manifest: Manifest, peers: Iterable[Address]) -> Torrent:
        self._engine.stop(self.place.key)
        self._last = time.monotonic()
        return self._engine.fetch(self.place, manifest, peers)

    async def _download(self, torrent: Torrent) -> str:
        """Wait until all pieces have arrived, or return what is stuck; raises DataSetError."""
        self.state = "fetching"
        began = connected = saved = checked = time.monotonic()
        await asyncio.sleep(TICK)
        torrent.handle.resume()
        while not (status := torrent.status).is_seeding:
            now = time.monotonic()
            self._look(torrent, status)
            self._choose_source(torrent, now)
            torrent.take_share()
            if now - began > ALONE:
                torrent.take_in_order()
            if now - connected > RECONNECT:
                connected = now
                await self._connect(torrent)
            if now - saved > SAVED:
                saved = now
                self._engine.save()
            if now - checked > 1:
                checked = now
                await self._make_room(self.total - status.total_done)
            if torrent.error:
                what = f"{self._name} cannot be written: {torrent.error}"
                raise DataSetError(what, "check the disk of the cache, and start again")
            if torrent.failed_pieces and now - self._last > STUCK and torrent.has_forgotten():
                return f"{torrent.failed_pieces} pieces arrived damaged"
            self._require_patience(self._missing(torrent))
            await asyncio.sleep(TICK)
        self.done, self.note = self.total, ""
        return ""

    def _look(self, torrent: Torrent, status: libtorrent.torrent_status) -> None:
        checks = status.state in CHECKING
        if status.total_done > self.done or checks:
            self._last, self.note = time.monotonic(), ""
        self.state = "checking" if checks else "fetching"
        self.done, self.rate = status.total_done, status.download_payload_rate
        self.peers = len(torrent.bittorrent_peers())

    async def _connect(self, torrent: Torrent) -> None:
        for address in await self._others.addresses():
            torrent.handle.connect_peer(address)

    def _choose_source(self, torrent: Torrent, now: float) -> None:
        """Use the server only while no peer sends pieces: all hosts share it."""
        url = f"{self._others.login}/{self.place.name}/{self.place.version}/"
        used = bool(torrent.handle.url_seeds())
        if not used and now - self._last > FALLBACK:
            torrent.handle.add_url_seed(url)
        elif used and any(peer.progress == 1 for peer in torrent.bittorrent_peers()):
            torrent.handle.remove_url_seed(url)

    async def _make_room(self, left: int) -> None:
        promised = self._cache.promised
        promised.pop(self.place.key, None)
        if left:
            await self._cache.free(left, self._engine)
        promised[self.place.key] = left

    def _missing(self, torrent: Torrent) -> str:
        left = show_bytes(max(0, self.total - self.done))
        what = f"nobody sends the {left} that {self._name} lacks"
        if torrent.failed_pieces:
            what += f"; {torrent.failed_pieces} pieces arrived damaged"
        return what

    def _require_patience(self, what: str) -> None:
        silent = time.monotonic() - self._last
        if silent > FALLBACK and not self.note:
            self.note = what
        if silent > self._patience:
            fix = (
                f"does {self._others.server} answer, and is a copy there intact (kit data verify)?"
            )
            raise DataSetError(f"{what}, for {silent:.0f} s", fix)

    async def _verify_early(self, torrent: Torrent, manifest: Manifest) -> None:
        """Hash each file as soon as it has arrived, and write it to the disk.

        A file that differs now is checked again at the end.
        """
        seen: set[int] = set()
        while True:
            await asyncio.sleep(EARLY)
            if not (found := torrent.completed - seen):
                continue
            seen |= found
            await self._flush(torrent)
            for file in (manifest.files[index] for index in sorted(found)):
                if not await asyncio.to_thread(find_damage, [file], self.place.data, ignore):
                    self._sound.add(file)
            await asyncio.to_thread(sync_disk, self.place.folder)

    async def _verify(self, torrent: Torrent, manifest: Manifest) -> list[str]:
        """Hash the remaining files; return a line for each file that differs from the manifest."""
        self.state, self.rate = "verifying", 0
        left = [file for file in manifest.files if file not in self._sound]
        self.done = manifest.bytes - sum(file.bytes for file in left)
        await self._flush(torrent)

        def add(count: int) -> None:
            self.done += count

        return await asyncio.to_thread(find_damage, left, self.place.data, add)

    async def _flush(self, torrent: Torrent) -> None:
        """Wait until all received data can be read from the files."""
        before = torrent.flushed
        torrent.handle.flush_cache()
        while torrent.flushed == before:
            await asyncio.sleep(TICK)


def ignore(_: int) -> None:
    """Ignore the progress."""


def key_text(key: Key) -> str:
    """Format a version for people."""
    return f"{key[0]}@{key[1]}"
