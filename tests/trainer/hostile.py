"""Hostile sources of checkpoints, each on its own port."""

import gzip
import io
import json
import socket
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch

from tests.trainer.servers import content
from trainer.checkpoints.format import Saved

Answer = bytes | Iterator[bytes]
Entry = dict[str, Any]
SLOWLY = 0.2  # Seconds between two bytes.
CLAIM = 10**6  # A step above that of the real checkpoint.


@dataclass
class Source:
    """Answers each path with a function, and counts connections."""

    answer: Callable[[str], Answer]
    listener: socket.socket = field(
        default_factory=lambda: socket.create_server(("127.0.0.1", 0), backlog=64)
    )
    asked: list[str] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)

    @property
    def place(self) -> str:
        return "{}:{}".format(*self.listener.getsockname())

    def serve(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self.listener.accept()
                threading.Thread(target=self._visit, args=(connection,), daemon=True).start()

    def _visit(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            head = b""
            while b"\r\n\r\n" not in head:
                head += connection.recv(2**14) or b"\r\n\r\n"
            if not head.startswith(b"GET "):
                return  # It has hung up.
            path = head.decode("latin-1").split(" ")[1]
            self.asked.append(path)
            answer = self.answer(path)
            for part in [answer] if isinstance(answer, bytes) else answer:
                connection.sendall(part)
                if self.ended.is_set():
                    break

    def end(self) -> None:
        self.ended.set()
        with suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()


@contextmanager
def sources(answers: dict[str, Callable[[str], Answer]]) -> Iterator[dict[str, Source]]:
    found = {name: Source(answer) for name, answer in answers.items()}
    for source in found.values():
        threading.Thread(target=source.serve, daemon=True).start()
    try:
        yield found
    finally:
        for source in found.values():
            source.end()


def http(body: bytes, *headers: str, status: str = "200 OK", length: int | None = None) -> bytes:
    size = len(body) if length is None else length
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {size}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


def slowly(body: bytes, fast: int = 0) -> Iterator[bytes]:
    yield body[:fast]
    for n in range(fast, len(body)):
        yield body[n : n + 1]
        time.sleep(SLOWLY)


def endless(first: bytes, part: bytes) -> Iterator[bytes]:
    yield first
    while True:
        yield part


# ---- what they offer


def changed(saved: Saved, state: bytes | None = None, **values: Any) -> Saved:
    """A checkpoint of another step that its checksum fits; `values` go to its manifest."""
    state = saved.state if state is None else state
    about = {"bytes": len(state), "sha256": sha256(state).hexdigest()}
    manifest = {**saved.content, "step": CLAIM, "files": {"state.pt": about}, **values}
    return Saved(json.dumps(manifest).encode(), state)


def with_state(saved: Saved, change: Callable[[dict[str, Any]], object]) -> Saved:
    state = saved.load()
    change(state)
    stream = io.BytesIO()
    torch.save(state, stream)
    return changed(saved, stream.getvalue())


def entry(saved: Saved, **values: Any) -> Entry:
    manifest = json.loads(saved.manifest)
    name = f"step-{manifest['step']:08d}"
    return {"name": name, "host": "n2", "written": 1e9, "manifest": manifest, **values}


def offering(saved: Saved, listed: str = "", **files: Answer | Callable[[], Answer]) -> Any:
    """Lists and sends one checkpoint, except for the answers in `files`."""

    def answer(path: str) -> Answer:
        if path == "/checkpoints":
            return http(listed.encode() or json.dumps([entry(saved)]).encode())
        name = path.rpartition("/")[2].partition(".")[0]
        if name in files:
            found = files[name]
            return found() if callable(found) else found
        return http(getattr(saved, name))

    return answer


def listing(text: str) -> Any:
    return lambda _: http(text.encode())


def packed(state: bytes) -> bytes:
    """The same file, compressed, with additional zeros."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as target:
        with zipfile.ZipFile(io.BytesIO(state)) as source:
            for each in source.infolist():
                target.writestr(each.filename, source.read(each))
        target.writestr("archive/data/none", bytes(2**24))
    return stream.getvalue()


def no_matrices(state: dict[str, Any]) -> None:
    state["model"] = {name: value for name, value in state["model"].items() if value.ndim != 2}


def doubles(state: dict[str, Any]) -> None:
    state["model"] = {name: value.double() for name, value in state["model"].items()}


def everything(trained: Path, good: str) -> dict[str, Callable[[str], Answer]]:
    """Each kind of bad source by its name; `trained` has a whole checkpoint of name `good`."""
    saved = content(trained / good)
    listed = json.dumps([entry(changed(saved))])
    half = changed(saved).state[: len(saved.state) // 2]
    job, step, accuracy = saved.content["job"], f'"step": {CLAIM}', saved.content["accuracy"]
    deep = "[" * 100_000 + "]" * 100_000

    def trickle() -> Answer:
        return slowly(http(saved.state), 2**12)

    return {
        # Of the protocol.
        "slow head": lambda _: slowly(http(listed.encode())),
        "slow list": lambda _: slowly(http(listed.encode()), 100),
        "slow infinite head": lambda _: endless(b"HTTP/1.1 200 OK\r\n", b"A: " + b"a" * 2**12),
        "no http": lambda _: b"SSH-2.0-OpenSSH_9.2\r\n",
        "redirect": lambda _: http(b"", "Location: http://127.0.0.1:1/", status="302 Found"),
        "scheme": lambda _: http(b"", "Location: file:///etc/passwd", status="301 Moved"),
        "html": lambda _: http(b"<html>Login</html>", "Content-Type: text/html"),
        "gzip": lambda _: http(gzip.compress(listed.encode()), "Content-Encoding: gzip"),
        "chunks": lambda _: endless(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n" * 1000
        ),
        "no length": lambda _: endless(b"HTTP/1.1 200 OK\r\n\r\n", b" " * 2**16),
        "large list": lambda _: http(b"[" + b" " * 2**24 + b"]"),
        "many entries": listing("[" + ", ".join(["{}"] * 5000) + "]"),
        "cut list": lambda _: http(listed.encode()[:-9], length=len(listed)),
        "status 500": lambda _: http(b"", status="500 Oh"),
        # Of lists.
        "deep list": listing(deep),
        "deep manifest": listing('[{"name": "step-01000000", "manifest": ' + deep + "}]"),
        "infinite step": listing(listed.replace(step, '"step": 1e999')),
        "step of digits": listing(listed.replace(step, '"step": ' + "9" * 5000)),
        "negative step": listing(listed.replace(step, '"step": -5')),
        "step is text": listing(listed.replace(step, f'"step": "{CLAIM}"')),
        "files is a list": listing(json.dumps([entry(changed(saved, files=[]))])),
        "accuracy NaN": listing(listed.replace(f'"accuracy": {accuracy}', '"accuracy": NaN')),
        "accuracy 1e999": listing(listed.replace(f'"accuracy": {accuracy}', '"accuracy": 1e999')),
        "negative size": listing(
            json.dumps(
                [entry(changed(saved, files={"state.pt": {"bytes": -1, "sha256": "0" * 64}}))]
            )
        ),
        "lone surrogate": listing(listed.replace('"n2"', '"\\ud800"')),
        "forged host": listing(
            listed.replace('"n2"', '"n2\\nserve n1: serves step-99999999 of digits\\u001b[2J"')
        ),
        "wrong name": listing(listed.replace('"step-01000000"', '"../../etc/passwd"')),
        "written NaN": listing(listed.replace("1000000000.0", "NaN")),
        # Of checkpoints.
        "huge": offering(
            changed(saved, files={"state.pt": {"bytes": 2**50, "sha256": "0" * 64}}),
            state=lambda: endless(http(b"", length=2**50), bytes(2**16)),
        ),
        "slow state": offering(changed(saved), state=trickle),
        "wrong checksum": offering(changed(saved), state=http(saved.state[::-1])),
        "cut state": offering(changed(saved), state=http(half, length=len(saved.state))),
        "short state": offering(changed(saved), state=http(half)),
        "gone state": offering(changed(saved), state=http(b"", status="404 Not Found")),
        "large manifest": offering(changed(saved), manifest=http(b" " * 2**23)),
        "other manifest": offering(changed(saved), manifest=http(saved.manifest)),
        "no torch file": offering(changed(saved, b"hello")),
        "compressed": offering(changed(saved, packed(saved.state))),
        "unknown data set": offering(changed(saved, job={**job, "dataset": "imagenet"})),
        "text of a cnn": offering(changed(saved, job={**job, "dataset": "text", "path": "a"})),
        "huge images": offering(
            changed(saved, job={**job, "dataset": "folder", "path": "a", "image_size": 10**8})
        ),
        "labels": offering(changed(saved, serving={"labels": 7})),
        "no matrices": offering(with_state(saved, no_matrices)),
        "doubles": offering(with_state(saved, doubles)),
        "texts": offering(with_state(saved, lambda state: state.update(model={"a": "b"}))),
    }
