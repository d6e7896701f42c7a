"""Hostile clients: harmful, slow and foreign requests; others are answered meanwhile."""

import asyncio
import io
import json
import os
import re
import signal
import socket
import struct
import zlib
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.ports import free_port
from tests.trainer.hosts import ROOT, Hosts, descendants, hosts, kill_all, wait_until
from tests.trainer.servers import FORM, Server, encoded, form, inputs, start
from tests.trainer.strokes import draw
from trainer.serve import decoding
from trainer.serve.decoding import Decoders
from trainer.serve.inputs import JSON, Limits
from trainer.serve.kind import Kind
from trainer.serve.names import allowed_host, allowed_origin
from trainer.serve.pictures import fitted
from trainer.serve.refusal import Refusal

DIGITS = Kind("digits", "cnn", (1, 8, 8), (), 16)
LIMITS = Limits(256, 2**24)
MIB = 2**20


@pytest.fixture(scope="module")
def server(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with few file descriptors."""
    with hosts(tmp_path_factory.mktemp("limits")) as local:
        yield start(local, trained, prefix=["prlimit", "--nofile=128:128"])


def post(server: Server, body: str) -> tuple[int, str]:
    """Status and words of the answer to some JSON."""
    answer = server.ask("POST", "/predict", body, JSON)
    return answer.status, answer.json.get("error", "")


def peak(server: Server) -> float:
    """The most memory that the process has had, in MiB; not that of its decoders."""
    status = Path(f"/proc/{server.task.process.pid}/status").read_text()
    return int(re.findall(r"VmHWM:\s+(\d+)", status)[0]) / 1024


def png(width: int, height: int) -> bytes:
    """A black picture of one bit a pixel, row by row as small as it can be."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        sum_ = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + sum_

    head = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    rows = zlib.compress(bytes((width + 7) // 8 + 1) * height, 9)
    content = chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + content


def test_texts_are_not_padded_to_gigabytes(server: Server) -> None:
    before = peak(server)
    # A gigabyte, as the rectangle of texts that numpy would make of it; the last in a decoder.
    for length, count in ((9000, 2000), (50000, 5000)):
        body = json.dumps({"inputs": ["A" * length] + [""] * count})
        assert post(server, body) in (
            (422, "inputs: has something else than numbers in it"),
            (413, f"{count + 1} samples in one request"),
        )
    assert peak(server) - before < 100


def test_megabytes_of_json_are_read_beside_the_others(server: Server) -> None:
    before, body = peak(server), '{"inputs": [' + "[]," * 2_500_000 + "[]]}"
    with ThreadPoolExecutor(1) as pool:
        large = pool.submit(post, server, body)
        while not large.done():
            assert server.predict(inputs(1)).status == 200
        assert large.result()[0] == 413
    # A few copies of the body; another process decoded it.
    assert peak(server) - before < 100


@pytest.mark.parametrize(
    ("picture", "words"),
    [
        (png(1, 2**24), "has 1 x 16777216 pixels"),
        (png(2**14 + 1, 1), "has 16385 x 1 pixels"),
    ],
)
def test_pictures_of_odd_sizes_are_refused(server: Server, picture: bytes, words: str) -> None:
    answer = server.image(picture)
    assert (answer.status, words in answer.json["error"]) == (413, True)


def test_a_jpeg_of_many_scans_is_refused(server: Server) -> None:
    content = encoded(Image.new("L", (64, 64)), "JPEG", progressive=True)
    last = content.rindex(b"\xff\xda")
    answer = server.image(content[:-2] + content[last:-2] * 100 + content[-2:])
    assert answer.status == 413
    assert "scans" in answer.json["error"]
    assert server.image(encoded(draw(5), "JPEG", progressive=True)).best == ["5"]


def test_16_bits_of_grey_are_not_clipped(server: Server) -> None:
    values = np.asarray(draw(3), np.uint16)
    # Half as bright, as an 8-bit picture and as one of 16 bits.
    half = [Image.fromarray((values // 2).astype(np.uint8)), Image.fromarray(values // 2 * 257)]
    assert [image.mode for image in half] == ["L", "I;16"]
    shares = [server.image(image).json["predictions"][0]["classes"] for image in half]
    assert shares[0] == shares[1]


def test_a_form_of_thousands_of_parts_or_with_damage_is_refused(server: Server) -> None:
    part = form(b"x", file="").rpartition(b"\r\n--")[0] + b"\r\n"
    for content in (part * 1000, form(b"x")[:30], b"\r\n" * 1000, b""):
        answer = server.ask("POST", "/predict/image", content, FORM)
        assert 400 <= answer.status < 500, answer.body
    for kind in ("multipart/form-data", "multipart/form-data; boundary="):
        assert server.ask("POST", "/predict/image", b"x", kind).status == 400
    assert "Traceback" not in server.task.text


def running_decoders() -> list[int]:
    """The decoders of this process."""

    def decodes(pid: int) -> bool:
        try:
            return b"trainer.serve.decoder" in Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:  # It has ended.
            return False

    return [pid for pid in descendants(os.getpid()) if decodes(pid)]


def test_a_decoder_is_killed_at_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    async def read(decoders: Decoders, body: bytes) -> int:
        values, top = await decoders.read(body, JSON, DIGITS, LIMITS)
        assert values.shape[1:] == (1, 8, 8)
        return len(values) * top

    async def tried() -> None:
        decoders, good = Decoders(), json.dumps({"inputs": inputs(3), "top": 2}).encode()
        assert await read(decoders, good) == 6
        monkeypatch.setattr(decoding, "SECONDS", 0.001)
        with pytest.raises(Refusal, match="takes more than"):
            await read(decoders, b'{"inputs": [' + b"[]," * 1_000_000 + b"[]]}")
        monkeypatch.setattr(decoding, "SECONDS", 60)
        assert await read(decoders, good) == 6
        # One that was killed for lack of memory, say, is replaced.
        kill_all(running_decoders())
        with suppress(Refusal):  # Its end may not be noticed yet: then this request finds it.
            await read(decoders, good)
        assert await read(decoders, good) == 6
        decoders.close()
        while running_decoders():
            await asyncio.sleep(0.05)
        await asyncio.sleep(0.5)  # The loop closes the pipes of those that were killed.

    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    asyncio.run(asyncio.wait_for(tried(), 90))


def test_what_is_being_read_does_not_delay_the_end(trained: Path, tmp_path: Path) -> None:
    with hosts(tmp_path) as local:
        server = start(local, trained)
        body = b'{"inputs": [' + b"[]," * 2_500_000 + b"[]]}"
        head = f"POST /predict HTTP/1.1\r\nHost: l\r\nContent-Type: {JSON}\r\n"
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            server.task.process.send_signal(signal.SIGTERM)
            assert server.task.wait(30) == 0
        assert "serve n1: ends" in server.task.text


def open_several(stack: ExitStack, port: int, count: int, begin: bytes) -> list[socket.socket]:
    """So many connections that send something, and then nothing."""
    found = []
    for _ in range(count):
        connection = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        connection.settimeout(60)
        try:
            connection.sendall(begin)
        except OSError:  # Dropped while it sends.
            continue
        found.append(connection)
    return found


def dropped(connection: socket.socket) -> bool:
    """Whether the other end has closed a connection, after some words or without."""
    connection.setblocking(False)
    try:
        while connection.recv(MIB):
            pass
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


def reset(connection: socket.socket) -> bool:
    """Whether the other end takes no more of a request."""
    try:
        connection.send(b" ")
    except OSError:
        return True
    return False


def test_idle_connections_take_no_place(server: Server) -> None:
    before = len(server.task.text)
    with ExitStack() as stack:
        open_several(stack, server.port, 150, b"")
        assert server.get("/health").status == 200
        assert server.predict(inputs(1)).status == 200
        open_several(stack, server.port, 150, b"GET / HTTP/1.1\r\nX:")
        assert server.get("/health").status == 200
    # Three answers are logged, and no connection that was dropped.
    assert len(server.task.text) - before < 1_000


def test_bodies_that_do_not_end_are_bounded_and_closed(server: Server) -> None:
    head = f"POST /predict HTTP/1.1\r\nHost: l\r\nContent-Type: {JSON}\r\nContent-Length:"
    body = f"{head} {8 * MIB}\r\n\r\n".encode() + b" " * (8 * MIB - 1)
    before = peak(server)
    with ExitStack() as stack:
        slow = open_several(stack, server.port, 24, body)
        assert server.predict(inputs(1)).status == 200
        # 64 MiB of bodies are kept, twice for a moment.
        assert peak(server) - before < 170
        wait_until(lambda: all(map(dropped, slow)), "all are closed in the end")


def test_heads_and_tiny_chunks_are_closed(server: Server) -> None:
    head = f"POST /predict HTTP/1.1\r\nHost: l\r\nContent-Type: {JSON}\r\n"
    chunks = f"{head}Transfer-Encoding: chunked\r\n\r\n".encode() + b"1\r\nx\r\n" * 20_000
    with ExitStack() as stack:
        (tiny,) = open_several(stack, server.port, 1, chunks)
        (slow,) = open_several(stack, server.port, 1, b"GET / HTTP/1.1\r\nHost: l\r\n")
        # It has its answer, and goes on sending.
        refused = Whole(path="/nowhere").content[:-1000]
        (late,) = open_several(stack, server.port, 1, refused)
        wait_until(lambda: dropped(tiny) and dropped(slow), "both are closed")
        wait_until(lambda: reset(late), "the third is closed")


@dataclass(frozen=True)
class Whole:
    """A request that a client sends to its end before it reads the answer, as requests does."""

    path: str = "/predict"
    headers: str = f"Content-Type: {JSON}\r\n"
    body: bytes = b" " * 300_000
    chunked: bool = False
    version: str = "1.1"
    half: bool = False  # Whether it closes its direction then, as nc -N does.

    @property
    def content(self) -> bytes:
        chunks = [self.body[start : start + 2**15] for start in range(0, len(self.body), 2**15)]
        lines = [f"{len(each):x}\r\n".encode() + each + b"\r\n" for each in chunks]
        body = b"".join([*lines, b"0\r\n\r\n"]) if self.chunked else self.body
        length = "Transfer-Encoding: chunked" if self.chunked else f"Content-Length: {len(body)}"
        head = f"POST {self.path} HTTP/{self.version}\r\nHost: l\r\n{self.headers}{length}"
        return f"{head}\r\n\r\n".encode() + body


def statuses(server: Server, content: bytes, *, half: bool = False) -> list[int]:
    """Send all of something, and read until the server closes the connection."""
    received = b""
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(content)
        if half:
            connection.shutdown(socket.SHUT_WR)
        while part := connection.recv(MIB):
            received += part
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d+) ", received)]


DAMAGE = b"no length\r\n" + b"x" * 300_000
EVIL = f"Content-Type: {JSON}\r\nOrigin: https://evil.example\r\n"


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (Whole(headers=EVIL), 403),
        (Whole(headers=EVIL, body=b" " * 30 * MIB), 403),
        (Whole(headers=EVIL, chunked=True), 403),
        (Whole(headers=EVIL, version="1.0"), 403),
        (Whole(headers=EVIL, half=True), 403),
        (Whole(headers=EVIL + "Connection: close\r\n"), 403),
        (Whole(body=b" " * 30 * MIB), 413),
        (Whole(body=b" " * 30 * MIB, chunked=True), 413),
        (Whole(headers=""), 415),
        (Whole(path="/nowhere", version="1.0"), 404),
        (Whole(path="/health", half=True), 405),
    ],
)
def test_a_client_that_sends_its_whole_body_reads_the_answer(
    named: Server, sent: Whole, status: int
) -> None:
    assert statuses(named, sent.content, half=sent.half) == [status]
    assert "Traceback" not in named.task.text


def test_a_refused_body_that_has_arrived_does_not_end_the_connection(named: Server) -> None:
    small = Whole(headers=EVIL, body=b"{}").content
    last = b"GET /health HTTP/1.1\r\nHost: l\r\nConnection: close\r\n\r\n"
    assert statuses(named, small + small + last) == [403, 403, 200]


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        # The fault is in a body that is refused by its head, in one that is read, and before any.
        (Whole(path="/nowhere", chunked=True).content[:-5] + DAMAGE, 404),
        (Whole(chunked=True).content[:-5] + DAMAGE, 400),
        (Whole(chunked=True, body=b"").content[:-5] + DAMAGE, 400),
        (b"rubbish\r\n\r\n" + b"x" * 300_000, 400),
        (b"GET / HTTP/1.1\r\nHost: l\r\nX: " + b"x" * 300_000, 400),
    ],
)
def test_damaged_requests_are_answered(named: Server, sent: bytes, status: int) -> None:
    assert statuses(named, sent) == [status]
    assert "Traceback" not in named.task.text


def test_many_large_bodies_at_once_are_answered_or_refused(named: Server) -> None:
    sent = Whole(path="/complete", body=b" " * 8 * MIB).content
    with ThreadPoolExecutor(16) as pool:
        found = Counter(status for (status,) in pool.map(statuses, [named] * 16, [sent] * 16))
    assert 404 in found
    assert set(found) <= {404, 429}  # 64 MiB are kept.


def test_rubbish_does_not_fill_the_log(server: Server) -> None:
    with ExitStack() as stack:
        rubbish = open_several(stack, server.port, 200, b"rubbish\r\n\r\n")
        wait_until(lambda: all(map(dropped, rubbish)), "all are refused")
    assert server.task.text.count("Invalid HTTP") <= 20


OWN = {"Origin": "http://pc2:8080", "Host": "pc2:8080"}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        (OWN, 200),
        ({"Host": "192.168.8.114:8080"}, 200),
        ({"Host": "[fd00::1]:8080"}, 200),
        ({"Host": "PC2.Local"}, 200),
        ({"Host": "digits.example.com", "Origin": "https://digits.example.com"}, 200),
        # A proxy that gives its own name for the server's.
        ({"Host": "pc2:8080", "Origin": "https://digits.example.com"}, 200),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        (OWN | {"Origin": "http://pc2:8081"}, 403),
        ({"Host": "evil.example", "Origin": "http://evil.example"}, 403),
        ({"Host": "evil.example:8080"}, 403),
        ({"Host": "192.168.8.114.evil.example"}, 403),
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": ""}, 415),
    ],
)
def test_pages_of_other_websites_may_not_ask(
    named: Server, headers: dict[str, str], status: int
) -> None:
    body = json.dumps({"inputs": inputs(1)})
    answer = named.ask("POST", "/predict", body, **{"Content-Type": JSON, **headers})
    assert answer.status == status, answer.body
    # A page that was given another name reads nothing either; whether it is alive is no secret.
    refused = headers.get("Host", "").partition(":")[0].endswith("evil.example")
    assert named.get("/model", Host=headers.get("Host", "l")).status == (403 if refused else 200)
    assert named.get("/health", Host="evil.example").status == 200


@pytest.fixture(scope="module")
def named(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with hosts(tmp_path_factory.mktemp("named")) as local:
        yield start(local, trained, allowed_hosts=["Digits.example.com"])


def test_every_name_may_be_allowed() -> None:
    assert allowed_host("a.example", ["*"])
    assert allowed_origin("https://a.example", "pc2:8080", ["*"])
    assert not allowed_host("", [])
    assert not allowed_host("[::1", [])


def test_a_body_needs_its_type(named: Server) -> None:
    answer = named.ask("POST", "/predict", json.dumps({"inputs": inputs(1)}))
    assert answer.status == 415
    assert "application/json" in answer.json["error"]


def test_head_is_answered_like_get(named: Server) -> None:
    for path in ("/", "/model", "/health", "/docs", "/openapi.json", "/metrics"):
        got, asked = named.get(path), named.ask("HEAD", path)
        assert (asked.status, asked.body) == (200, b"")
        if path in ("/", "/health"):
            assert asked.headers["content-length"] == got.headers["content-length"]
    assert named.ask("HEAD", "/predict").status == 405


def test_what_the_routes_page_sends_by_itself_is_answered(named: Server) -> None:
    described = named.get("/openapi.json").json
    content = described["paths"]["/predict"]["post"]["requestBody"]["content"][JSON]
    answer = named.ask("POST", "/predict", json.dumps(content["example"]), JSON)
    assert answer.status == 200, answer.body
    told = described["components"]["schemas"]["Class"]["properties"]
    assert set(answer.json["predictions"][0]["classes"][0]) == set(told)


def endpoint(local: Hosts, folder: Path, **environ: str) -> int:
    """Start the endpoint of checkpoints on n2; return its port."""
    port = free_port()
    variables = {
        "KIT_CHECKPOINTS": str(folder),
        "KIT_CHECKPOINT_PORT": str(port),
        "KIT_ADDRESS": "127.0.0.1",
        "KIT_HOST": "n2",
        "PYTHONPATH": str(ROOT),
    }
    argv = ["-m", "trainer.serve.checkpoints"]
    local.start("endpoint", argv, variables | environ).expect("offers the checkpoints")
    return port


def test_slow_clients_do_not_stop_the_endpoint(trained: Path, tmp_path: Path) -> None:
    with hosts(tmp_path) as local, ExitStack() as stack:
        port = endpoint(local, trained)
        open_several(stack, port, 200, b"GET /checkpoints HTTP/1.1\r\n")
        # Clients that do not read their answers.
        asked = b"GET /checkpoints/step-00000360/state.pt HTTP/1.1\r\nHost: l\r\n\r\n"
        open_several(stack, port, 50, asked)
        client = Server(local.tasks[0], port)
        assert len(client.get("/checkpoints").json) == 8
        assert client.get("/checkpoints", Host="evil.example").status == 403
        assert client.ask("POST", "/checkpoints").status == 405
        assert statuses(client, Whole(path="/checkpoints").content) == [405]
        assert client.ask("HEAD", "/checkpoints").body == b""


def test_checkpoints_of_a_server_with_a_token_need_it_too(trained: Path, tmp_path: Path) -> None:
    secret = {"SECRET": "a-token-of-32-characters-or-more"}
    with hosts(tmp_path) as local:
        port = endpoint(local, trained, KIT_CHECKPOINT_TOKEN="SECRET", **secret)
        client = Server(local.tasks[0], port)
        for token in ("", "wrong"):
            client.token = token
            assert client.get("/checkpoints").status == 401
            assert client.get("/checkpoints/step-00000360/state.pt").status == 401
            assert client.get("/health").status == 200
        client.token = secret["SECRET"]
        assert len(client.get("/checkpoints").json) == 8
        environ = secret | {"KIT_CHECKPOINT_SOURCES": f"http://127.0.0.1:{port}"}
        server = start(local, tmp_path / "empty", environ=environ, token="SECRET")
        server.token = secret["SECRET"]
        assert server.get("/model").json["checkpoint"]["host"] == "n2"


def test_nothing_of_the_model_is_told_without_the_token(trained: Path, tmp_path: Path) -> None:
    with hosts(tmp_path) as local:
        server = start(local, trained, environ={"SECRET": "abc"}, token="SECRET")
        stranger = server.get("/metrics").body.decode()
        assert "kit_serve_requests_total" in stranger
        assert "checkpoint" not in stranger
        server.token = "abc"
        assert server.metric("kit_serve_checkpoint_step") == 360
        assert server.metric("kit_serve_checkpoint_accuracy") > 0.9


def test_a_server_without_a_checkpoint_tells_no_places(tmp_path: Path) -> None:
    with hosts(tmp_path) as local:
        folder = tmp_path / "nothing"
        environ = {"SECRET": "abc"}
        server = start(local, folder, environ=environ, token="SECRET", wait="/health")
        said = "has not saved yet"
        assert said not in server.get("/ready").body.decode()
        server.token = "abc"
        wait_until(lambda: said in server.get("/ready").body.decode(), "the reason")
        assert str(folder) not in server.get("/ready").body.decode()
        server.task.expect(str(folder))


def test_a_large_answer_is_refused(server: Server) -> None:
    stream = io.StringIO()
    json.dump({"inputs": [inputs(1)[0]] * 256, "top": 100}, stream)
    assert post(server, stream.getvalue())[0] == 200  # There are ten classes in all.


@pytest.mark.parametrize("paper", [0, 255])
def test_a_picture_of_clothing_becomes_light_on_black(paper: int) -> None:
    """As those of Fashion-MNIST: the paper of a photograph is white."""
    image = Image.new("L", (60, 90), paper)
    image.paste(128 + (paper or 255) // 8, (20, 20, 40, 70))
    kind = Kind("fashion_mnist", "lenet", (1, 28, 28), (), 255)
    pixels = fitted(image, kind)
    assert pixels.shape == (1, 28, 28)
    assert pixels[0, 0, 0] == pixels[0, -1, -1] == 0
    assert pixels[0, 14, 14] > 90
