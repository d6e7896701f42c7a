"""The other hosts: addresses of the server and of the peers' agents, and metadata from them."""

from __future__ import annotations

import asyncio
import json
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from http import HTTPStatus
from http.client import HTTPException
from typing import Any
from urllib.parse import quote, urlsplit

from trainer.datasets.engine import Address, Key
from trainer.datasets.errors import MISTAKE, DataSetError
from trainer.datasets.manifest import Manifest, parse
from trainer.datasets.torrent import load_torrent

RESOLVED = 10.0  # Seconds for which a peer's addresses are cached.
TIMEOUT = 5.0  # Seconds without a byte.
LARGEST = 2**30  # Bytes of a manifest or torrent; those of a million files have about 2**27.


class UnreachableError(Exception):
    """Neither the server nor a peer answers; the caller tries again."""


@dataclass
class Others:
    """The server's address (URL), the names of peers, and the key for both."""

    server: str
    peers: list[Address]
    key: bytes | None = None
    _found: frozenset[Address] = frozenset()
    _at: float = field(default=-RESOLVED)

    @property
    def login(self) -> str:
        """The server's address with the key as password, for a torrent client."""
        if self.key is None:
            return self.server
        scheme, _, rest = self.server.partition("://")
        return f"{scheme}://kit:{quote(self.key, safe='')}@{rest}"

    async def addresses(self) -> frozenset[Address]:
        """The addresses of all peers, resolved again at intervals, as hosts come and go."""
        if time.monotonic() - self._at >= RESOLVED:
            self._at = time.monotonic()
            found = await asyncio.gather(*(_resolve(*peer) for peer in self.peers))
            self._found = frozenset().union(*found) or self._found
        return self._found

    async def newest(self, name: str) -> int:
        """The newest version of a data set; raises DataSetError or UnreachableError."""
        found = await self._index()
        versions = found.get(name)
        if not versions:
            raise self._unknown(name, found)
        return max(versions)

    async def metadata(self, key: Key) -> tuple[Manifest, bytes, bytes]:
        """Manifest, its text, and torrent of a version, checked against each other.

        They come from the server or, if it lacks the version, from a peer. Raises DataSetError if
        no host has it, UnreachableError if no host answers.
        """
        below, broken = f"{key[0]}/{key[1]}", None
        for source in await self._sources():
            try:
                text = await self._get(f"{source}/{below}/manifest.json")
                torrent = await self._get(f"{source}/{below}/dataset.torrent")
                manifest = await asyncio.to_thread(_check, key, text, torrent)
            except DataSetError as error:
                broken = error
            except (OSError, HTTPException, ValueError):
                continue
            else:
                return manifest, text, torrent
        if broken:
            raise broken
        raise self._unknown(f"{key[0]}@{key[1]}", await self._index())

    async def _index(self) -> dict[str, list[int]]:
        broken = None
        for source in await self._sources():
            try:
                found: Any = json.loads(await self._get(source + "/"))
                return {str(name): [int(each) for each in found[name]] for name in found}
            except DataSetError as error:
                broken = error
            except (OSError, HTTPException, ValueError, TypeError):
                continue
        if broken:
            raise broken
        raise UnreachableError(f"nothing answers at {self.server}, nor does a peer")

    async def _sources(self) -> list[str]:
        """The server, then the peers' agents: they offer manifests at the port above their own."""
        hosts = sorted(await self.addresses())
        shown = ((f"[{host}]" if ":" in host else host, port) for host, port in hosts)
        return [self.server, *(f"http://{host}:{port + 1}" for host, port in shown)]

    async def _get(self, url: str) -> bytes:
        return await asyncio.to_thread(_get_now, url, self.key)

    def _unknown(self, what: str, found: dict[str, list[int]]) -> DataSetError:
        known = ", ".join(f"{name}@{max(found[name])}" for name in sorted(found)) or "nothing"
        fix = f"it has {known}; to add a data set: kit data add NAME SOURCE"
        return DataSetError(f"{self.server} has no data set {what}", fix, MISTAKE)


def _check(key: Key, text: bytes, torrent: bytes) -> Manifest:
    manifest = parse(json.loads(text))
    if manifest.key != key:
        raise DataSetError(f"the manifest is of {manifest.name}@{manifest.version}", "add it again")
    load_torrent(torrent, manifest)
    return manifest


async def _resolve(host: str, port: int) -> frozenset[Address]:
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=1)  # SOCK_STREAM
    except OSError:
        return frozenset()
    return frozenset((str(entry[4][0]), port) for entry in found)


def _get_now(url: str, key: bytes | None) -> bytes:
    # Ignore proxies of the environment, which are for other networks.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    login = {"Authorization": f"Bearer {key.decode()}"} if key else {}
    try:
        with opener.open(urllib.request.Request(url, headers=login), timeout=TIMEOUT) as answer:
            content: bytes = answer.read(LARGEST + 1)
    except urllib.error.HTTPError as error:
        if error.code != HTTPStatus.UNAUTHORIZED:
            raise
        what = f"{urlsplit(url).netloc} refuses the key of this agent"
        raise DataSetError(what, "restart all data services: they share one key") from error
    if len(content) > LARGEST:
        raise ValueError(f"{url} is larger than {LARGEST} bytes")
    return content
