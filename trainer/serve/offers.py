"""The checkpoints that sources offer, and the choice of the one to serve."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from trainer.checkpoints.layout import folder_name
from trainer.checkpoints.manifest import Manifest, UnusableError, check, shown
from trainer.serve.client import Address

LONGEST = 255  # Characters of a host's name.
LATEST = 2**40  # Seconds since 1970.


@dataclass(frozen=True)
class Offer:
    """A complete checkpoint of the job, offered by a source and not verified."""

    name: str
    step: int
    epoch: int
    accuracy: float | None  # Share of the test samples.
    host: str  # The host that has it.
    written: float  # Seconds since 1970, by that host's clock.
    sha256: str  # Of the state.
    size: int  # Bytes of the state.
    address: Address | None  # Of the source; None: this host's own folder.
    score: float | None = None  # Selects the best checkpoint (checkpoints/manifest.py).
    figure: str = ""  # The meaning of the score, for people.

    @property
    def place(self) -> str:
        """Its source, for messages."""
        return place(self.address) if self.address else self.host


def place(address: Address) -> str:
    """Format an address."""
    return "[{}]:{}".format(*address) if ":" in address[0] else "{}:{}".format(*address)


def offer_of(manifest: Manifest, host: str, written: float, address: Address | None) -> Offer:
    """Make an offer from checked values."""
    known = (manifest.step, manifest.epoch, manifest.accuracy, host, written)
    about = (manifest.sha256, manifest.size, address, manifest.score, manifest.figure)
    return Offer(folder_name(manifest.step), *known, *about)


def read_offer(content: Any, job: str, address: Address) -> Offer | None:
    """Read an entry of another host's list; None for another job. Raises UnusableError."""
    if not isinstance(content, dict):
        raise UnusableError(f"it is {shown(content)}, not an object")
    manifest = check(content.get("manifest"))
    name, host, written = content.get("name"), content.get("host"), content.get("written")
    if name != folder_name(manifest.step):
        raise UnusableError(f"it is called {shown(name)}, and its manifest is of another")
    # Logs and the page show it: it must not look like another line.
    if not isinstance(host, str) or not host.isprintable() or not 0 < len(host) <= LONGEST:
        raise UnusableError(f"its host is {shown(host)}, not a name")
    if not isinstance(written, int | float) or not 0 <= written < LATEST:
        raise UnusableError(f"written is {shown(written)}, not a time")
    return offer_of(manifest, host, written, address) if manifest.job == job else None


def candidates(
    found: Iterable[Offer], wish: str, served: Offer | None, known: Iterable[Offer] = ()
) -> list[Offer]:
    """Return the offers that are better than the served one, the best first.

    The best has the highest score, of equals the highest step. The newest has the highest step. A
    lower one is used only if it was written later and no source has the served checkpoint any more:
    then the job was restarted from the beginning. `known` are offers of sources that do not answer
    at present.
    """

    def rank(offer: Offer) -> tuple[float, int]:
        score = -math.inf if offer.score is None else offer.score
        return (score if wish == "best" else 0.0, offer.step)

    wished = [each for each in found if wish in ("newest", "best", each.name)]
    if served:
        gone = all(each.sha256 != served.sha256 for each in (*wished, *known))
        wished = [
            each
            for each in wished
            if rank(each) > rank(served) or (gone and each.written > served.written)
        ]
    # The sort is stable: this host's copy of a checkpoint comes before others.
    return sorted(wished, key=rank, reverse=True)
