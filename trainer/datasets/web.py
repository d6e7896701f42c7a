"""The read-only web interface of a store: an index, manifests, torrents and files with ranges.

    GET /                                   {"cifar10": [1, 2], …}: complete versions
    GET /<name>/<version>/manifest.json, dataset.torrent, data/<path>
    GET /<name>/newest/<path>               redirects to the newest complete version
    GET /healthz

All but /healthz need the cluster's key, if there is one: as a bearer token, or as the password of
a basic login. A path is not resolved but looked up in the manifest, so none can leave the folder.
"""

from __future__ import annotations

import asyncio
import socket
import stat
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from urllib.parse import quote

import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from trainer.contract.bearer import has_key
from trainer.contract.listening import open_listener
from trainer.datasets.errors import MISTAKE, DataSetError
from trainer.datasets.layout import Place, index, is_version
from trainer.datasets.manifest import NAME

OWN = ("manifest.json", "dataset.torrent")
CONNECTIONS = 256  # Concurrent ones; others get status 503.
IDLE = 15  # Seconds after which a connection without a request is closed.
HEAD = 2**14  # Bytes of a request's head.


class LargeFile(FileResponse):
    """A file that is read in blocks of 1 MiB: with 64 KiB, thread switches take most time."""

    chunk_size = 2**20


class Guard:
    """Refuses requests without the key."""

    def __init__(self, app: ASGIApp, key: bytes | None) -> None:
        self._app, self._key = app, key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, as an ASGI application."""
        given = Headers(scope=scope).get("authorization", "")
        if scope["path"] == "/healthz" or has_key(given, self._key):
            return await self._app(scope, receive, send)
        texts = {
            "error": "the key is missing or wrong",
            "fix": "send the header Authorization: Bearer and the cluster's key",
        }
        refused = JSONResponse(texts, 401, {"WWW-Authenticate": "Bearer"})
        return await refused(scope, receive, send)


def make_app(roots: Sequence[Path], *, data: bool, key: bytes | None) -> Starlette:
    """An application that offers the versions in folders; their files only with `data`."""

    async def answer_index(_: Request) -> Response:
        found: dict[str, set[int]] = {}
        for root in roots:
            for name, versions in (await asyncio.to_thread(index, root)).items():
                found.setdefault(name, set()).update(versions)
        return JSONResponse({name: sorted(versions) for name, versions in found.items()})

    async def answer_file(request: Request) -> Response:
        words = request.path_params
        if data or words["path"] in OWN:
            for root in roots:
                if file := await asyncio.to_thread(find_file, root, **words):
                    return LargeFile(file)
        raise HTTPException(404, "there is no such file of a complete version")

    async def answer_newest(request: Request) -> Response:
        return RedirectResponse(await asyncio.to_thread(newest, roots, **request.path_params))

    async def answer_health(_: Request) -> Response:
        return Response("ok\n", media_type="text/plain")

    routes = [
        Route("/", answer_index),
        Route("/healthz", answer_health),
        Route("/{name}/newest/{path:path}", answer_newest),
        Route("/{name}/{version}/{path:path}", answer_file),
    ]
    guard = [Middleware(Guard, key=key)]
    return Starlette(
        routes=routes, middleware=guard, exception_handlers={HTTPException: answer_error}
    )


async def answer_error(_: Request, error: Exception) -> Response:
    """Answer an HTTPException."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    return JSONResponse({"error": getattr(error, "detail", "see the server's log")}, status)


def newest(roots: Sequence[Path], name: str, path: str) -> str:
    """The address of a file in the newest complete version; raises HTTPException."""
    versions = [version for root in roots for version in index(root).get(name, ())]
    if not versions:
        raise HTTPException(404, "no version of this data set is stored")
    return quote(f"/{name}/{max(versions)}/{path}")


def find_file(root: Path, name: str, version: str, path: str) -> Path | None:
    """The file of a complete version that a request names."""
    if not NAME.fullmatch(name) or not is_version(version):
        return None
    place = Place(root, name, int(version))
    if not place.complete:
        return None
    if path in OWN:
        return place.folder / path
    file = place.folder / path
    known = path in paths_of(place)
    return file if known and stat.S_ISREG(file.lstat().st_mode) else None


@lru_cache(maxsize=8)
def paths_of(place: Place) -> frozenset[str]:
    """The paths of a version, cached: a version never changes, and may have a million."""
    try:
        return frozenset(f"data/{file.path}" for file in place.read().files)
    except DataSetError:
        return frozenset()


def make_config(app: Starlette) -> uvicorn.Config:
    """The settings of uvicorn for an application, with limits."""
    return uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        lifespan="off",
        ws="none",
        http="h11",
        limit_concurrency=CONNECTIONS,
        timeout_keep_alive=IDLE,
        timeout_graceful_shutdown=2,
        h11_max_incomplete_event_size=HEAD,
        server_header=False,
    )


def listen(address: str, port: int) -> socket.socket:
    """Open a listening socket, by default on all addresses; raises DataSetError."""
    try:
        return open_listener(address, port)
    except OSError as error:
        what = f"port {port} cannot be used ({error.strerror})"
        raise DataSetError(what, "end what uses it, or give another --port", MISTAKE) from error
