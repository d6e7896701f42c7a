"""The server on a GPU: latency from one client to 64."""

from __future__ import annotations

import http.client
import json
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

from tests.gpu import runs
from tests.gpu.check import Figure, Figures, Place, check

NEEDS = ("numpy", "fastapi", "uvicorn", "h11", "python_multipart", "prometheus_client", "PIL")


def asked(server: Any, bodies: list[Any], clients: int, number: int) -> list[float]:
    """Send so many requests from so many clients at a time; return the seconds of each."""

    def ask(index: int) -> float:
        began = time.perf_counter()
        path, body, kind = bodies[index % len(bodies)]
        answer = server.ask("POST", path, body, kind)
        assert answer.status == 200, answer.body[:300]
        return time.perf_counter() - began

    with ThreadPoolExecutor(clients) as pool:
        return list(pool.map(ask, range(number)))


def percentiles(server: Any, bodies: list[Any], place: Place) -> dict[str, Figure]:
    """The latency and the rate by the number of clients."""
    asked(server, bodies, 8, place.size(64, 8))
    figures = {}
    for clients in (1, 16, 64):
        began = time.perf_counter()
        spans = asked(server, bodies, clients, place.size(20 * clients + 80, 8))
        rate = len(spans) / (time.perf_counter() - began)
        cut = statistics.quantiles(spans, n=100)
        figures[f"{clients} clients"] = Figure(
            f"p50 {1000 * cut[49]:.1f}, p99 {1000 * cut[98]:.1f} ms, {rate:.0f}/s"
        )
    return figures


@check("serving", needs=(*NEEDS, "torchvision"), alone=True)
def a_served_resnet50(place: Place) -> Figures:
    """Pictures of 224 pixels."""
    from PIL import Image

    from tests.trainer.servers import FORM, encoded, form, start

    model = place.size("torchvision/resnet50", "torchvision/resnet18")
    runs.write_pictures(place.folder / "pictures" / "train", 4, 16, 224)
    runs.write_pictures(place.folder / "pictures" / "test", 4, 4, 224)
    job: dict[str, Any] = {
        "dataset": "folder", "path": "pictures", "model": model, "epochs": 1,
        "image_size": place.size(224, 64), "batch_size": 16, "learning_rate": 0.01,
    }  # fmt: skip
    with runs.local(place) as local:
        runs.finish(runs.start(local, "model", **job))
        server = start(local, place.folder / "model", name="model", job="model")
        picture = Image.open(next((place.folder / "pictures" / "test").glob("*/*.jpg")))
        body = ("/predict/image?top=3", form(encoded(picture, "JPEG")), FORM)
        return percentiles(server, [body], place)


@check("serving", needs=(*NEEDS, "tokenizers"), alone=True, seconds=200)
def a_served_gpt(place: Place) -> Figures:
    """Completions of 32 tokens."""
    from tests.trainer.servers import start

    runs.write_text(place.folder / "text.txt", 5_000)
    job: dict[str, Any] = {
        "dataset": "text", "path": "text.txt", "model": "gpt", "context": 256, "batch_size": 16,
        "epochs": 1, "optimizer": "adamw", "learning_rate": 1e-3,
        "options": place.size({"preset": "gpt2"}, {"layers": 1, "heads": 2, "width": 32}),
    }  # fmt: skip
    with runs.local(place) as local:
        runs.finish(runs.start(local, "model", **job))
        server = start(local, place.folder / "model", name="model", job="model")
        request = {"model": "model", "prompt": "the quick ", "max_tokens": 32}
        body = ("/v1/completions", json.dumps(request).encode(), "application/json")
        streaming = json.dumps({**request, "stream": True}).encode()
        return {**percentiles(server, [body], place), **streams(server, streaming, place)}


def streamed(server: Any, body: bytes, clients: int, number: int) -> list[tuple[float, float]]:
    """Send so many requests; return for each the seconds to its first and to its last event."""

    def ask(_: int) -> tuple[float, float]:
        began, first = time.perf_counter(), 0.0
        client = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        with closing(client) as connection:
            headers = {"Content-Type": "application/json"}
            if server.token:
                headers["Authorization"] = f"Bearer {server.token}"
            connection.request("POST", "/v1/completions", body, headers)
            answer = connection.getresponse()
            assert answer.status == 200, answer.read()[:300]
            for line in answer:
                if line.startswith(b"data:"):
                    first = first or time.perf_counter() - began
                    last = line
        assert last.strip() == b"data: [DONE]", last
        return first, time.perf_counter() - began

    with ThreadPoolExecutor(clients) as pool:
        return list(pool.map(ask, range(number)))


def streams(server: Any, body: bytes, place: Place) -> dict[str, Figure]:
    """The seconds to the first event and to the last one by the number of clients."""
    figures = {}
    for clients in (1, 16, 64):
        found = streamed(server, body, clients, place.size(10 * clients + 20, 8))
        texts = []
        for name, spans in zip(("first event", "last"), zip(*found, strict=True), strict=True):
            cut = statistics.quantiles(spans, n=100)
            texts.append(f"{name} p50 {1000 * cut[49]:.1f}, p99 {1000 * cut[98]:.1f} ms")
        figures[f"streams, {clients} clients"] = Figure("; ".join(texts))
    return figures
