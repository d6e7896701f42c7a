"""Lists checkpoints, here and on other hosts, chooses the one to serve, and fetches it."""

import http.client
import json
import socket
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any

from trainer.checkpoints.format import Saved, UnusableError, read_any, verify
from trainer.checkpoints.layout import MANIFEST, STATE
from trainer.serve.checkpoints import LARGEST, listing
from trainer.serve.config import Settings

PATIENCE = 5.0  # Seconds for which a source may say nothing.
CHUNK = 2**20  # Bytes read at a time.
ASKED = 16  # Sources that are asked at a time.


@dataclass(frozen=True)
class Offer:
    """A complete checkpoint of the job that somebody has, unverified."""

    name: str
    step: int
    epoch: int
    accuracy: float | None  # Share of the test samples.
    host: str  # Who has it.
    written: float  # Seconds since 1970, by that host's clock.
    sha256: str  # Of the state.
    address: tuple[str, int] | None  # Of the source; None: this host's own folder.

    @property
    def place(self) -> str:
        """Its place, for messages."""
        return "{}:{}".format(*self.address) if self.address else self.host


def offers(settings: Settings) -> list[Offer]:
    """All of this job's complete checkpoints, those of this host first; silent sources have none.

    Every address of a name is asked: behind a service's name there are several hosts.
    """
    addresses = sorted({each for source in settings.sources for each in resolve(*source)})
    found = list(read_offers(listing(settings.folder, settings.host), settings.job, None))
    ask_with_token = partial(ask, token=settings.token)
    if addresses:
        with ThreadPoolExecutor(min(ASKED, len(addresses))) as pool:
            for address, answer in zip(addresses, pool.map(ask_with_token, addresses), strict=True):
                found += read_offers(answer, settings.job, address)
    return found


def resolve(host: str, port: int) -> list[tuple[str, int]]:
    """The addresses of a name; none where it has none."""
    try:
        entries = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError:
        return []
    return [(str(entry[4][0]), port) for entry in entries]


def ask(address: tuple[str, int], token: bytes | None) -> Any:
    """Ask a source for its list; it is empty where the source does not answer."""
    try:
        return json.loads(get(address, "/checkpoints", LARGEST, token))
    except (OSError, http.client.HTTPException, ValueError):
        return []


def read_offers(content: Any, job: str, address: tuple[str, int] | None) -> Iterator[Offer]:
    """Yield the offers of a job in a list from elsewhere, which may hold anything."""
    for each in content if isinstance(content, list) else []:
        try:
            manifest, name = each["manifest"], each["name"]
            if manifest["job"]["name"] != job or name != f"step-{int(manifest['step']):08d}":
                continue
            accuracy = None if manifest["accuracy"] is None else float(manifest["accuracy"])
            sha256, written = str(manifest["files"][STATE]["sha256"]), float(each["written"])
            progress = int(manifest["step"]), int(manifest["epoch"])
            yield Offer(name, *progress, accuracy, str(each["host"]), written, sha256, address)
        except (KeyError, TypeError, ValueError):
            continue


def candidates(found: Iterable[Offer], wish: str, served: Offer | None) -> list[Offer]:
    """Those that are better than what is served, the best first.

    The newest is the one of the highest step. A lower one is taken instead only if it was written
    later and what is served is nowhere any more: then the job has begun anew.
    """

    def rank(offer: Offer) -> tuple[float, int]:
        accuracy = -1.0 if offer.accuracy is None else offer.accuracy
        return (accuracy if wish == "best" else 0.0, offer.step)

    wished = [each for each in found if wish in ("newest", "best", each.name)]
    if served:
        gone = all(each.sha256 != served.sha256 for each in wished)
        wished = [
            each
            for each in wished
            if rank(each) > rank(served) or (gone and each.written > served.written)
        ]
    # The sort is stable: of copies of one checkpoint this host's own is the first.
    return sorted(wished, key=rank, reverse=True)


def fetch(offer: Offer, settings: Settings) -> Saved:
    """A checkpoint's content, verified; raises UnusableError, or OSError where it may come yet.

    It is never on this host's disk: what is not whole can not be taken for a checkpoint.
    """
    if offer.address is None:
        return read_any(settings.folder / offer.name)
    path = f"/checkpoints/{offer.name}/"
    try:
        manifest = get(offer.address, path + MANIFEST, LARGEST, settings.token)
        size = int(json.loads(manifest)["files"][STATE]["bytes"])
        saved = Saved(manifest, get(offer.address, path + STATE, size, settings.token))
    except (KeyError, TypeError, ValueError) as error:
        raise UnusableError(f"its manifest can not be read ({error!r})") from error
    except http.client.HTTPException as error:
        raise ConnectionError(f"the transfer broke off ({error!r})") from error
    verify(saved, offer.name)
    return saved


def get(address: tuple[str, int], path: str, most: int, token: bytes | None) -> bytes:
    """The content of a path, of `most` bytes; raises OSError, HTTPException or UnusableError."""
    with closing(http.client.HTTPConnection(*address, timeout=PATIENCE)) as connection:
        headers = {"Authorization": b"Bearer " + token} if token else {}
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        if answer.status != 200:
            raise ConnectionError(f"it answers {answer.status} to {path}")
        content = bytearray()
        while part := answer.read(CHUNK):
            content += part
            if len(content) > most:
                raise UnusableError(f"{path} has more than {most} bytes")
        if answer.length:  # Which was promised besides.
            raise ConnectionError(f"the transfer broke off after {len(content)} bytes")
        return bytes(content)
