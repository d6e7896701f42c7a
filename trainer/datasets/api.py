"""The agent's service for the jobs of its host, and its interface on the Unix socket."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from trainer.contract.words import shown
from trainer.datasets.cache import Cache, bytes_of
from trainer.datasets.engine import Engine, Key
from trainer.datasets.errors import MISTAKE, DataSetError
from trainer.datasets.fetch import TICK, Fetch, key_text
from trainer.datasets.layout import Place, index, is_version, remove
from trainer.datasets.manifest import check_name, check_version
from trainer.datasets.peers import Others, UnreachableError
from trainer.output import say

SCAN = 30  # Ticks between two scans of the folders, for versions that others added or removed.
EVERY = 1.0  # Seconds between two lines to a user.
LARGEST = 2**20  # Bytes of a request's body.
GONE = "http.disconnect"


class Agent:
    """The cache, torrents and fetches of this host."""

    def __init__(self, cache: Cache, engine: Engine, others: Others, patience: float) -> None:
        self.cache, self.engine, self.others = cache, engine, others
        self._patience = patience
        self._fetches: dict[Key, Fetch] = {}
        self._ends = False

    async def run(self) -> None:
        """Process libtorrent's alerts, and offer complete versions, until `stop`."""
        tick = 0
        while not self._ends:
            self.engine.poll()
            if tick % SCAN == 0:
                await self._offer()
            tick += 1
            await asyncio.sleep(TICK)
        for fetch in self._fetches.values():
            fetch.task.cancel()

    def stop(self) -> None:
        """End `run`."""
        self._ends = True

    async def _offer(self) -> None:
        held = {place.key: place for place in await asyncio.to_thread(self._complete)}
        for key, torrent in list(self.engine.torrents.items()):
            if key not in held and not self._busy(key) and not torrent.place.complete:
                self.engine.stop(key)
        for key, place in held.items():
            if key not in self.engine.torrents and not self._busy(key):
                try:
                    self.engine.seed(place, await asyncio.to_thread(place.read))
                except (DataSetError, OSError, RuntimeError) as error:
                    say(f"data agent: cannot offer {key_text(key)}: {error}")

    def _complete(self) -> list[Place]:
        return [place for place in self.cache.held() if place.complete]

    def _busy(self, key: Key) -> bool:
        return key in self._fetches and not self._fetches[key].task.done()

    async def resolve(self, name: str, version: int | None) -> Key:
        """Return a version; without a number, the newest one. Raises DataSetError."""
        if version is not None:
            return name, version
        try:
            return name, await self.others.newest(name)
        except UnreachableError as error:
            there = {**index(self.cache.root), **index(self.cache.store or self.cache.root)}
            if versions := there.get(name):
                return name, max(versions)
            raise DataSetError(str(error), "start the data server") from error

    def fetch(self, key: Key) -> Fetch:
        """Begin to fetch a version, or join a running fetch."""
        known = self._fetches.get(key)
        if known is None or known.task.done():
            place = self.cache.place(key)
            known = Fetch(place, self.cache, self.engine, self.others, self._patience)
            self._fetches[key] = known
        return known

    async def delete(self, key: Key) -> None:
        """Remove a version from the cache; raises DataSetError while it is in use."""
        place = Place(self.cache.root, *key)
        if not place.folder.exists():
            raise DataSetError(f"{key_text(key)} is not in the cache", "see GET /status", MISTAKE)
        if users := self.cache.users(key):
            what = f"{key_text(key)} is in use by {', '.join(users)}"
            raise DataSetError(what, "end these jobs, and try again")
        if self._busy(key):
            self._fetches[key].task.cancel()
        self.engine.stop(key)
        await asyncio.to_thread(remove, place)

    def status(self) -> dict[str, Any]:
        """The content of the cache, for `GET /status`."""
        root = self.cache.root
        return {
            "cache": str(root),
            "store": str(self.cache.store) if self.cache.store else None,
            "size": self.cache.size or None,
            "free": shutil.disk_usage(root).free,
            "peers": [f"{host}:{port}" for host, port in self.others.peers],
            "held": [self._facts(place) for place in self.cache.held()],
        }

    def _facts(self, place: Place) -> dict[str, Any]:
        fetch = self._fetches.get(place.key)
        torrent = self.engine.torrents.get(place.key)
        if fetch and not fetch.task.done():
            facts = fetch.line()
        else:
            state = "ready" if place.complete else "incomplete"
            size = bytes_of(place)
            facts = {"state": state, "name": place.name, "version": place.version, "bytes": size}
        used = datetime.fromtimestamp(self.cache.last_use(place), UTC)
        return {
            **facts,
            "in_use_by": self.cache.users(place.key),
            "last_use": used.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "sent": torrent.status.total_payload_upload if torrent else 0,
            "received": torrent.status.total_payload_download if torrent else 0,
            "banned": sorted(torrent.banned) if torrent else [],
        }


class Use:
    """The answer to POST /use: lines until the connection closes, which locks the versions."""

    def __init__(self, agent: Agent, who: str, wanted: list[tuple[str, int | None]]) -> None:
        self._agent, self._who, self._wanted = agent, who, wanted

    async def __call__(self, _: Scope, receive: Receive, send: Send) -> None:
        """Answer, and lock the versions until the user disconnects."""
        headers = [(b"content-type", b"application/x-ndjson")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        gone = asyncio.create_task(_until_gone(receive))
        with ExitStack() as held:
            try:
                async for line in self._lines(held, gone):
                    content = json.dumps(line, ensure_ascii=False).encode() + b"\n"
                    await send(_body(content, more=True))
                    if line["state"] == "ready":
                        await gone
            except OSError:
                return  # The connection has ended.
            finally:
                gone.cancel()
        await send(_body(b"", more=False))

    async def _lines(
        self, held: ExitStack, gone: asyncio.Task[None]
    ) -> AsyncIterator[dict[str, object]]:
        cache = self._agent.cache
        try:
            keys = [await self._agent.resolve(*each) for each in self._wanted]
            for key in keys:
                held.enter_context(cache.use(self._who, key))
            fetches = [self._agent.fetch(key) for key in keys]
            for fetch in fetches:
                while not fetch.task.done() and not gone.done():
                    yield fetch.line()
                    await asyncio.wait(
                        {fetch.task, gone}, timeout=EVERY, return_when="FIRST_COMPLETED"
                    )
                if gone.done():
                    return
                fetch.task.result()
                held.enter_context(cache.lock(fetch.place))
                cache.touch(fetch.place)
        except DataSetError as error:
            yield {"state": "failed", "message": error.message, "fix": error.fix}
            return
        except (OSError, RuntimeError) as error:
            fix = "check this host's disk and the data agent"
            yield {"state": "failed", "message": str(error), "fix": fix}
            return
        paths = {fetch.place.name: str(fetch.place.data) for fetch in fetches}
        yield {"state": "ready", "paths": paths, "cache": str(cache.root)}


def _body(content: bytes, *, more: bool) -> Message:
    return {"type": "http.response.body", "body": content, "more_body": more}


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != GONE:
        pass


def make_api(agent: Agent) -> Starlette:
    """The interface of an agent, for its Unix socket."""

    async def use(request: Request) -> Any:
        try:
            return Use(agent, *parse_use(await request.body()))
        except DataSetError as error:
            return _refuse(error, 400)

    async def status(_: Request) -> Response:
        return JSONResponse(await asyncio.to_thread(agent.status))

    async def delete(request: Request) -> Response:
        words = request.path_params
        try:
            version = int(words["version"]) if is_version(words["version"]) else words["version"]
            key = check_name(words["name"]), check_version(version)
            await agent.delete(key)
        except DataSetError as error:
            return _refuse(error, 404 if error.code == MISTAKE else 409)
        return JSONResponse({"state": "removed", "name": key[0], "version": key[1]})

    async def health(_: Request) -> Response:
        return Response("ok\n", media_type="text/plain")

    return Starlette(
        routes=[
            Route("/use", use, methods=["POST"]),
            Route("/status", status),
            Route("/healthz", health),
            Route("/{name}/{version}", delete, methods=["DELETE"]),
        ]
    )


def _refuse(error: DataSetError, status: int) -> Response:
    return JSONResponse({"error": error.message, "fix": error.fix}, status)


def parse_use(body: bytes) -> tuple[str, list[tuple[str, int | None]]]:
    """Check the body of POST /use; raises DataSetError."""
    fix = 'send {"who": "digits", "data": [{"name": "cifar10", "version": 1}]}'
    try:
        content = json.loads(body if len(body) <= LARGEST else b"")
        who, data = content["who"], content["data"]
        if not isinstance(who, str) or not who.isprintable() or len(who) > 255:
            raise DataSetError(f"`who` is {shown(who)}, not the name of a job", fix, MISTAKE)
        wanted = [(check_name(each["name"]), each.get("version")) for each in data]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataSetError("the request is not valid", fix, MISTAKE) from error
    versions = [None if version is None else check_version(version) for _, version in wanted]
    return who, [(name, version) for (name, _), version in zip(wanted, versions, strict=True)]
