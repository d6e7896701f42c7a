"""The sources of checkpoints: this host's own folder, and endpoints of other hosts.

Each source has its own deadlines; after a failure, requests pause for increasing times.
"""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

from trainer.checkpoints.format import Saved, read_any, verify
from trainer.checkpoints.layout import MANIFEST, STATE
from trainer.checkpoints.listing import Listing
from trainer.checkpoints.manifest import LARGEST, UnusableError, check, parse, shown
from trainer.serve.client import Address, LengthError, SourceError, get
from trainer.serve.config import Settings
from trainer.serve.memory import largest_state
from trainer.serve.offers import Offer, offer_of, place, read_offer

LIST = 2**22  # Bytes of a list: its parsing holds the global interpreter lock.
ENTRIES = 2**12  # The most entries of a list.
FREE = 3  # Successive failures without a pause: a host may just be starting.
LONGEST_PAUSE = 60.0  # Seconds.

Warn = Callable[[str], object]


@dataclass
class Pause:
    """The pause before a failed operation is repeated."""

    least: float  # Seconds.
    failures: int = 0  # Successive ones.
    until: float = 0.0

    def over(self, now: float) -> bool:
        """Whether the operation may be repeated."""
        return now >= self.until

    def failed(self, now: float) -> None:
        """Lengthen the pause."""
        self.failures += 1
        doubled = self.least * 2.0 ** min(self.failures - FREE, 30)
        self.until = now + min(LONGEST_PAUSE, doubled) if self.failures > FREE else now

    def succeeded(self) -> None:
        """Reset the pause."""
        self.failures, self.until = 0, 0.0


class Source(Protocol):
    """A source of checkpoints."""

    @property
    def address(self) -> Address | None:
        """Its address; None for this host's own folder."""

    async def look(self) -> list[Offer]:
        """Return this job's complete checkpoints; raises SourceError."""

    async def fetch(self, offer: Offer) -> Saved:
        """Return a checkpoint's content, verified; raises UnusableError or SourceError."""


class OwnFolder:
    """The checkpoints on this host."""

    address: Address | None = None

    def __init__(self, settings: Settings, warn: Warn) -> None:
        self._settings, self._warn = settings, warn
        self._listing = Listing(settings.folder)

    async def look(self) -> list[Offer]:
        """Return this job's complete checkpoints."""
        job, host = self._settings.job, self._settings.host
        found, faults = await asyncio.to_thread(self._listing.look)
        for name, reason in faults.items():
            self._warn(f"skips {name} from {host}: {reason}")
        own = [each for each in found if each.manifest.job == job]
        return [offer_of(each.manifest, host, each.written, None) for each in own]

    async def fetch(self, offer: Offer) -> Saved:
        """Return a checkpoint's content, verified; raises UnusableError."""
        check_size(offer.size)
        return await asyncio.to_thread(read_any, self._settings.folder / offer.name)


class Endpoint:
    """Another host that offers its checkpoints (checkpoints.py).

    Its data are never written to disk, so that no incomplete checkpoint can appear there.
    """

    def __init__(self, address: Address, settings: Settings, warn: Warn) -> None:
        self.address = address
        self._job, self._key, self._warn = settings.job, settings.key, warn

    async def look(self) -> list[Offer]:
        """Return this job's complete checkpoints; raises SourceError."""
        text = await get(self.address, "/checkpoints", LIST, self._key)
        try:
            content = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise SourceError(f"its list is not JSON ({shown(str(error))})") from error
        if not isinstance(content, list):
            raise SourceError(f"its list is {shown(content)}")
        if len(content) > ENTRIES:
            raise SourceError(f"it lists {len(content)} checkpoints, {ENTRIES} at most are read")
        return self._read(content)

    def _read(self, content: list[Any]) -> list[Offer]:
        found, faults = list[Offer](), list[str]()
        for each in content:
            try:
                if offer := read_offer(each, self._job, self.address):
                    found.append(offer)
            except UnusableError as error:
                faults.append(str(error))
        if faults:
            more = f" and {len(faults) - 1} more" if len(faults) > 1 else ""
            self._warn(f"skips a checkpoint{more} from {place(self.address)}: {faults[0]}")
        return found

    async def fetch(self, offer: Offer) -> Saved:
        """Return a checkpoint's content, verified; raises UnusableError or SourceError."""
        check_size(offer.size)
        path = f"/checkpoints/{offer.name}/"
        try:
            manifest = bytes(await get(self.address, path + MANIFEST, LARGEST, self._key))
            known = check(parse(manifest))
            there = offer_of(known, offer.host, offer.written, self.address)
            # The list of an older endpoint has no loss.
            if replace(there, score=offer.score, figure=offer.figure) != offer:
                raise SourceError("it has another one of that name than it lists")
            state = await get(self.address, path + STATE, offer.size, self._key)
        except LengthError as error:
            raise UnusableError(str(error)) from error
        saved = Saved(manifest, bytes(state))
        await asyncio.to_thread(verify, saved, offer.name)
        return saved


def check_size(size: int) -> None:
    """Raise UnusableError if a state is too large for this server."""
    if size > (most := largest_state()):
        reason = f"{STATE} has {size} bytes, and there is memory for {most}"
        raise UnusableError(f"{reason}; raise limits.memory")
