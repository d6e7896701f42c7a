"""The cache of a host: its versions, their users, and their eviction."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path

from trainer.datasets.engine import Engine, Key
from trainer.datasets.errors import DataSetError
from trainer.datasets.layout import (
    Place,
    find_places,
    in_use,
    remove,
    require_room,
    room,
    show_bytes,
)
from trainer.store.locks import take


class Cache:
    """The versions in a folder, with a limit of their total bytes (0: the size of the disk)."""

    def __init__(self, root: Path, size: int, store: Path | None) -> None:
        self.root, self.size, self.store = root, size, store
        self._users: dict[int, tuple[str, Key]] = {}
        self._number = 0
        self._making = asyncio.Lock()
        self.promised: dict[Key, int] = {}
        """The bytes that fetches will still write."""

    def place(self, key: Key) -> Place:
        """The place of a version: in the store, if this host has it, or in the cache."""
        if self.store and (there := Place(self.store, *key)).complete:
            return there
        return Place(self.root, *key)

    def held(self) -> list[Place]:
        """All stored versions, including incomplete ones."""
        roots = dict.fromkeys(root.resolve() for root in (self.store, self.root) if root)
        return [place for root in roots for place in find_places(root)]

    @contextmanager
    def use(self, who: str, key: Key) -> Iterator[None]:
        """Protect a version from removal."""
        self._number += 1
        number = self._number
        self._users[number] = (who, key)
        try:
            yield
        finally:
            del self._users[number]
            self.touch(self.place(key))

    def lock(self, place: Place) -> AbstractContextManager[object]:
        """Hold the shared flock of a complete version, which other programs also check."""
        try:
            mark = place.mark.open("rb")
        except OSError:
            return nullcontext()
        with suppress(OSError):  # The file system may not support locks.
            take(mark, shared=True)
        return mark

    def users(self, key: Key) -> list[str]:
        """The jobs that use a version."""
        return sorted({who for who, used in self._users.values() if used == key})

    def touch(self, place: Place) -> None:
        """Record that a version was used now."""
        with suppress(OSError):
            (place.folder / "USED").touch()

    def last_use(self, place: Place) -> float:
        """The time of the last use, in seconds since 1970."""
        for name in ("USED", "COMPLETE", "manifest.json"):
            with suppress(OSError):
                return (place.folder / name).stat().st_mtime
        return 0.0

    async def free(self, needed: int, engine: Engine) -> None:
        """Free space for `needed` bytes; raises DataSetError as `make_room`."""
        async with self._making:
            used = {key for _, key in self._users.values()}
            everything = needed + sum(self.promised.values())
            for key in await asyncio.to_thread(self.make_room, everything, used):
                engine.stop(key)

    def make_room(self, needed: int, used: set[Key]) -> list[Key]:
        """Remove the least recently used versions until `needed` bytes are free; return them.

        Raises DataSetError, and removes nothing, if this is not possible.
        """
        places = [place for place in find_places(self.root) if not self._is_store(place)]
        free = [
            place
            for place in sorted(places, key=self.last_use)
            if place.key not in used and not in_use(place)
        ]
        sizes = {place.key: bytes_of(place) for place in places}
        missing = self._missing(needed, sum(sizes.values()))
        if missing > sum(sizes[place.key] for place in free):
            self._refuse(needed, sum(sizes[place.key] for place in free))
        removed = []
        for place in free:
            if missing <= 0:
                break
            remove(place)
            removed.append(place.key)
            missing -= sizes[place.key]
        return removed

    def _is_store(self, place: Place) -> bool:
        return self.store is not None and place.root.resolve() == self.store.resolve()

    def _missing(self, needed: int, held: int) -> int:
        """The number of bytes that must be removed, for the disk or for the limit."""
        over = held + needed - self.size if self.size else 0
        return max(needed - room(self.root), over, 0)

    def _refuse(self, needed: int, free: int) -> None:
        if self.size and needed > self.size:
            what = (
                f"{show_bytes(needed)} are needed, and the cache may have {show_bytes(self.size)}"
            )
            raise DataSetError(what, "raise its limit (--size)")
        if needed - room(self.root) > free:
            require_room(self.root, needed)
        what = f"{show_bytes(needed)} are needed, and all other versions in the cache are in use"
        raise DataSetError(what, "raise its limit (--size), or end a job")


def bytes_of(place: Place) -> int:
    """The bytes of a version; of an incomplete one, its bytes on the disk."""
    with suppress(OSError, ValueError):
        return int(place.mark.read_text())
    total = 0
    for folder, _, names in os.walk(place.folder):
        for name in names:
            with suppress(OSError):
                total += os.lstat(Path(folder, name)).st_blocks * 512
    return total
