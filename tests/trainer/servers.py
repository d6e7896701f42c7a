"""Inference servers on this machine, and a client for them."""

import http.client
import io
import json
import re
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from tests.ports import free_port
from tests.trainer.hosts import DEADLINE, ROOT, Hosts, Task, wait_until
from trainer.checkpoints.format import Saved
from trainer.contract.job import Train
from trainer.data.load import load_data
from trainer.data.samples import Samples

LAST = "step-00000360"
BOUNDARY = "boundary-of-a-form"
FORM = f"multipart/form-data; boundary={BOUNDARY}"


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def best(self) -> list[str]:
        """The likeliest class of each sample."""
        assert self.status == 200, self.body
        return [each["classes"][0]["class"] for each in self.json["predictions"]]


@dataclass
class Server:
    task: Task
    port: int
    token: str = ""

    def ask(
        self, method: str, path: str, body: Any = None, kind: str = "", **headers: str
    ) -> Answer:
        """One request; a generator of bytes as its body is sent in chunks."""
        if kind:
            headers["Content-Type"] = kind
        if self.token and "Authorization" not in headers:
            headers["Authorization"] = f"Bearer {self.token}"
        client = http.client.HTTPConnection("127.0.0.1", self.port, timeout=DEADLINE)
        with closing(client) as connection:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            names = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(answer.status, names, answer.read())

    def get(self, path: str, **headers: str) -> Answer:
        return self.ask("GET", path, **headers)

    def predict(self, inputs: Any, **more: Any) -> Answer:
        body = json.dumps({"inputs": inputs, **more}).encode()
        return self.ask("POST", "/predict", body, "application/json")

    def image(self, picture: "Image.Image | bytes", top: int = 10, kind: str = "PNG") -> Answer:
        content = picture if isinstance(picture, bytes) else encoded(picture, kind)
        return self.ask("POST", f"/predict/image?top={top}", form(content), FORM)

    def metric(self, name: str) -> float:
        """One figure, by its name and labels."""
        text = self.get("/metrics").body.decode()
        found = re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)
        return float(found[1]) if found else 0.0

    def until(self, path: str, status: int) -> None:
        def seen() -> bool:
            assert self.task.process.poll() is None, self.task.text
            try:
                return self.get(path).status == status
            except OSError:
                return False

        wait_until(seen, f"{path} answers {status}")

    def several(self, count: int, inputs: Any) -> list[Answer]:
        """The same request from so many clients at a time."""
        with ThreadPoolExecutor(count) as pool:
            return list(pool.map(self.predict, [inputs] * count))


def form(content: bytes, name: str = "image", file: str = '; filename="a.png"') -> bytes:
    head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"{file}\r\n\r\n'
    return head.encode() + content + f"\r\n--{BOUNDARY}--\r\n".encode()


def encoded(picture: Image.Image, kind: str = "PNG", **more: Any) -> bytes:
    stream = io.BytesIO()
    picture.save(stream, kind, **more)
    return stream.getvalue()


def start(
    local: Hosts,
    checkpoints: Path,
    *,
    environ: dict[str, str] | None = None,
    wait: str = "/ready",
    prefix: Sequence[str] = (),
    **changes: Any,
) -> Server:
    """Start a server on n1 and wait until it answers; `changes` go to its file."""
    usual = {"port": free_port(), "poll": 0.1, "checkpoint": "newest"}
    content = {"name": "demo", "job": "digits", **usual, **changes}
    port = content["port"]
    file = local.folder / f"server-{port}.json"
    file.write_text(json.dumps(content))
    variables = {
        "KIT_SERVER": str(file),
        "KIT_CHECKPOINTS": str(checkpoints),
        "KIT_HOST": "n1",
        "KIT_ADDRESS": "127.0.0.1",
        "PYTHONPATH": str(ROOT),
        **(environ or {}),
    }
    task = local.start("server", ["-m", "trainer.serve"], variables, prefix=prefix)
    server = Server(task, port)
    server.until(wait, 200)
    return server


def samples() -> Samples:
    """The test samples of digits."""
    train = Train(dataset="digits", model="cnn", epochs=1, batch_size=1, learning_rate=0)
    return load_data(train, Path()).test


def inputs(count: int, first: int = 0) -> Any:
    """Some of them as a client sends them, 0 to 255."""
    images = samples().inputs[first : first + count]
    return (images.numpy().astype(np.float64) * 255 / 16).round(2).tolist()


def put(source: Path, target: Path, *names: str) -> None:
    """Copy checkpoints to another folder atomically, as the trainer writes them."""
    target.mkdir(exist_ok=True)
    for name in names:
        draft = target / f".writing-{name}"
        shutil.copytree(source / name, draft)
        draft.rename(target / name)


def damage(checkpoint: Path) -> None:
    """Change one byte of the state, but not its length."""
    file = checkpoint / "state.pt"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def content(checkpoint: Path) -> Saved:
    manifest, state = (checkpoint / name for name in ("manifest.json", "state.pt"))
    return Saved(manifest.read_bytes(), state.read_bytes())
