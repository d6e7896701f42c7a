"""A server that speaks the part of Hugging Face's hub that downloads of data sets need."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

LARGE = 10_000  # Bytes from which a file is stored by LFS.
PAGE = 2  # Files of a page of a listing.


@dataclass
class Repository:
    """The files of each commit, and the names of commits; `token` may read it.

    The server knows the account of the token `hf_other`, which may not.
    """

    commits: dict[str, dict[str, bytes]]
    names: dict[str, str]
    token: str = ""
    gated: bool = False


@dataclass
class Request:
    method: str
    path: str
    start: int
    headers: dict[str, str] = field(repr=False)


class Hub(ThreadingHTTPServer):
    """`cut` maps a file to the bytes after which its answers end, one for each request.

    `pauses` has the bytes after which an answer pauses, and seconds.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.repositories, self.seen = dict[str, Repository](), list[Request]()
        self.cut, self.damaged = dict[str, list[int]](), set[str]()
        self.busy = 0  # Requests for files that get 503.
        self.pauses = dict[str, tuple[int, float]]()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def starts(self, file: str) -> list[int]:
        """The first bytes of the GETs of a file."""
        return [
            each.start for each in self.seen if each.method == "GET" and each.path.endswith(file)
        ]


class Answer(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        path, asked = unquote(url.path), self.headers.get("Range", "")
        start = int(asked.removeprefix("bytes=").partition("-")[0]) if asked else 0
        self.server.seen.append(Request(self.command, path, start, dict(self.headers)))
        parts = path.strip("/").split("/")
        if parts[:2] == ["api", "datasets"]:
            kind, rest = (parts[4:5] or ["revision"])[0], parts[5:]
            return self._api("/".join(parts[2:4]), kind, rest, parse_qs(url.query))
        if parts[0] == "datasets" and parts[3] == "resolve":
            return self._file("/".join(parts[1:3]), parts[4], "/".join(parts[5:]), start)
        return self._fail(404, "EntryNotFound")

    def do_HEAD(self) -> None:
        self.do_GET()

    def _repository(self, name: str, revision: str) -> tuple[str, dict[str, bytes]] | None:
        """The commit and its files; None after an answer that refuses."""
        repository = self.server.repositories.get(name)
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if repository is None or (repository.token and not repository.gated and not token):
            self._fail(404 if token else 401, "RepoNotFound")
        elif repository.token and token == "hf_other":
            self._fail(403, "GatedRepo" if repository.gated else "", "Forbidden")
        elif repository.token and token not in ("", repository.token):
            self._fail(401, "", "Invalid credentials in Authorization header")
        elif repository.gated and not token:
            self._fail(401, "GatedRepo", "Access to this data set is restricted")
        elif (commit := repository.names.get(revision, revision)) not in repository.commits:
            self._fail(404, "RevisionNotFound")
        else:
            return commit, repository.commits[commit]
        return None

    def _api(self, name: str, kind: str, rest: list[str], query: dict[str, list[str]]) -> None:
        found = self._repository(name, rest[0] if rest else "main")
        if found is None:
            return None
        commit, files = found
        if kind == "revision":
            return self._json({"id": name, "sha": commit, "tags": [], "siblings": []})
        first = int(query.get("cursor", ["0"])[0])
        entries = [_entry(path, content) for path, content in files.items()]
        folders = {path.rpartition("/")[0] for path in files} - {""}
        entries += [{"type": "directory", "path": each, "oid": "0" * 40} for each in folders]
        more = {}
        if first + PAGE < len(entries):
            page = f"{self.server.address}{urlsplit(self.path).path}?recursive=True"
            more = {"Link": f'<{page}&cursor={first + PAGE}>; rel="next"'}
        return self._json(entries[first : first + PAGE], more)

    def _file(self, name: str, revision: str, path: str, start: int) -> None:
        found = self._repository(name, revision)
        if found is None:
            return None
        commit, files = found
        if self.command == "GET" and self.server.busy:
            self.server.busy -= 1
            return self._fail(503, "")
        content = files[path]
        tag = hashlib.sha256(content).hexdigest() if len(content) >= LARGE else _blob(content)
        self.send_response(206 if start else 200)
        self.send_header("X-Repo-Commit", commit)
        self.send_header("ETag", f'"{tag}"')
        self.send_header("Content-Length", str(len(content) - start))
        if start:
            place = f"bytes {start}-{len(content) - 1}/{len(content)}"
            self.send_header("Content-Range", place)
        self.end_headers()
        if self.command == "HEAD":
            return None
        if path in self.server.damaged:
            content = content[:-1] + b"?"
        cuts = self.server.cut.get(path, [])
        end = cuts.pop(0) if cuts else len(content)
        middle, seconds = self.server.pauses.get(path, (start, 0))
        self.wfile.write(content[start:middle])
        time.sleep(seconds)
        self.wfile.write(content[middle:end])
        self.close_connection = end < len(content)
        return None

    def _json(self, value: Any, headers: dict[str, str] | None = None) -> None:
        content = json.dumps(value).encode()
        self.send_response(200)
        for name, text in (headers or {}).items():
            self.send_header(name, text)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _fail(self, status: int, code: str, message: str = "") -> None:
        self.send_response(status)
        if code:
            self.send_header("X-Error-Code", code)
        if message:
            self.send_header("X-Error-Message", message)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Say nothing."""


def _blob(content: bytes) -> str:
    return hashlib.sha1(f"blob {len(content)}\0".encode() + content).hexdigest()


def _entry(path: str, content: bytes) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "type": "file", "path": path, "size": len(content), "oid": _blob(content),
    }  # fmt: skip
    if len(content) >= LARGE:
        sha = hashlib.sha256(content).hexdigest()
        entry["oid"] = "1" * 40  # Of the pointer, not of the content.
        entry["lfs"] = {"oid": sha, "size": len(content), "pointerSize": 130}
    return entry


@contextmanager
def serve_hub() -> Iterator[Hub]:
    """A hub without repositories."""
    with Hub() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server
        finally:
            server.shutdown()
