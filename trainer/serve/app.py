"""The routes. Answers are JSON; those that are refusals have `error` and `fix`."""

import asyncio
import base64
import binascii
import json
import os
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

import fastapi_offline
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.staticfiles import StaticFiles

from trainer.contract import events
from trainer.output import emit, say
from trainer.serve import pictures, schema, text
from trainer.serve.batching import Answer, Batcher, Serving
from trainer.serve.config import Settings
from trainer.serve.gpus import Gpus
from trainer.serve.guard import Guard, refused
from trainer.serve.metrics import Metrics
from trainer.serve.model import Array, Kind, devices
from trainer.serve.refusal import Refusal
from trainer.serve.reload import Watcher
from trainer.serve.waiting import unless_gone, within

PAGE = Path(__file__).with_name("page")
SWAGGER = Path(fastapi_offline.__file__).with_name("static")
SMALL = 2**14  # Bytes of JSON that are read about as fast as another thread is woken.
TOP = 10  # Classes of an answer, unless the client says how many.
JSON_FIX = 'send JSON such as {"inputs": [...]} or {"image": "<base64>"}'


class Server:
    """What the routes share."""

    def __init__(self, settings: Settings, gpus: Gpus) -> None:
        self.settings, self.gpus, self.metrics = settings, gpus, Metrics()
        self.batcher = Batcher(settings, self.metrics)
        self.devices = devices(settings.replicas)
        cores = len(os.sched_getaffinity(0))
        self.decoders = ThreadPoolExecutor(max(2, cores), "decoder")

    @asynccontextmanager
    async def life(self, _: FastAPI) -> AsyncIterator[None]:
        """Look for checkpoints and answer, from the start to after the last request."""
        loop = asyncio.get_running_loop()

        def wait(why: str) -> None:
            if self.batcher.serving is None and self.batcher.reason != why:
                say(f"serve {self.settings.host}: waits: {why}")
                self.batcher.reason = why

        watcher = Watcher(
            self.settings,
            self.devices,
            lambda serving: loop.call_soon_threadsafe(self.take, serving),
            lambda why: loop.call_soon_threadsafe(wait, why),
        )
        tasks = [asyncio.create_task(self.batcher.work(n)) for n in range(len(self.devices))]
        tasks += [asyncio.create_task(self.gpus.watch()), asyncio.create_task(self.tell())]
        watcher.start()
        yield
        await loop.run_in_executor(None, watcher.end)
        for task in tasks:
            task.cancel()
        self.batcher.close()
        self.decoders.shutdown(wait=False, cancel_futures=True)

    def take(self, serving: Serving) -> None:
        """Answer with another checkpoint from the next batch on."""
        offer, self.batcher.serving = serving.offer, serving
        accuracy = "unknown" if offer.accuracy is None else f"{offer.accuracy * 100:.1f} %"
        say(
            f"serve {self.settings.host}: serves {offer.name} of {self.settings.job}: "
            f"epoch {offer.epoch}, accuracy {accuracy}, from {offer.host}"
        )
        replicas, source = len(self.devices), offer.host
        emit(events.Serving(checkpoint=offer.name, replicas=replicas, source=source))
        self.metrics.reloads.inc()
        self.metrics.step.set(offer.step)
        self.metrics.written.set(offer.written)
        if offer.accuracy is not None:
            self.metrics.accuracy.set(offer.accuracy)

    async def tell(self) -> None:
        """Say once a minute what was answered."""
        while True:
            await asyncio.sleep(60)
            if line := self.metrics.minute():
                say(f"serve {self.settings.host}: {line}")

    def kind(self, *, text: bool) -> Kind:
        """What the model takes; raises Refusal where nothing is served, or another kind."""
        kind = self.batcher.ready().models[0].kind
        if kind.text != text:
            does, path = ("writes", "/complete") if kind.text else ("classifies", "/predict")
            raise Refusal(404, f"{self.settings.name} {does}", f"use POST {path}")
        return kind

    async def classify(
        self, request: Request, prepare: Callable[[Kind], list[Array]], top: int, *, here: bool
    ) -> JSONResponse:
        """Prepare samples, in another thread unless `here`; have them answered; answer."""
        began, kind, batcher = monotonic(), self.kind(text=False), self.batcher
        batcher.reserve(1)  # So many may be decoded at a time as may wait.
        try:
            loop = asyncio.get_running_loop()
            work = None if here else loop.run_in_executor(self.decoders, prepare, kind)
            values = await work if work else prepare(kind)
        finally:
            batcher.free(1)
        batcher.reserve(len(values))
        futures = asyncio.gather(*map(batcher.put, values))
        answers = await unless_gone(request, within(self.settings.timeout, futures))
        found = [{"classes": self.classes(answer, top)} for answer in answers]
        return JSONResponse({"predictions": found, **self.about(answers, began)})

    @staticmethod
    def classes(answer: Answer, top: int) -> list[dict[str, Any]]:
        """The likeliest classes, the first first."""
        labels, order = answer.serving.models[0].kind.labels, (-answer.scores).argsort()[:top]
        return [
            {"class": labels[n], "index": int(n), "probability": round(float(answer.scores[n]), 6)}
            for n in order
        ]

    def about(self, answers: list[Answer], began: float) -> dict[str, Any]:
        """What an answer tells besides: by what, how fast, in what batch."""
        last = max(answers, key=lambda answer: answer.serving.offer.step)
        seconds = {
            "queue": max(answer.queued for answer in answers),
            "batch": max(answer.computed for answer in answers),
            "total": monotonic() - began,
        }
        return {
            "checkpoint": schema.checkpoint(last.serving.offer, self.settings.job),
            "latency_ms": {name: round(value * 1000, 3) for name, value in seconds.items()},
            "batch_size": max(answer.batch for answer in answers),
        }

    def model(self) -> dict[str, Any]:
        """What is served, and by what."""
        settings, serving = self.settings, self.batcher.serving
        content: dict[str, Any] = {
            "name": settings.name,
            "job": settings.job,
            "ready": serving is not None,
            "reason": None if serving else self.batcher.reason,
            "replicas": [str(device) for device in self.devices],
            "gpus": self.gpus.described(),
            "batch": {"size": settings.size, "window": settings.window},
            "limits": {"queue": settings.queue, "body": settings.body, "pixels": settings.pixels},
        }
        if serving:
            kind, precision = serving.models[0].kind, serving.models[0].precision
            content |= {
                "kind": "text" if kind.text else "image",
                "dataset": kind.dataset,
                "model": kind.model,
                "precision": precision,
                "drawn": kind.dataset in pictures.DRAWN,
                "input": {"shape": kind.shape, "values": "0 (black) to 255 (white)"},
                "classes": kind.labels,
                "checkpoint": schema.checkpoint(serving.offer, settings.job),
            }
        return content


async def read_json(request: Request) -> dict[str, Any]:
    """The object in a request's body; raises Refusal."""
    kind = request.headers.get("content-type", "application/json").partition(";")[0].strip()
    if kind.lower() != "application/json":
        raise Refusal(415, f"the body is {kind}, not application/json", JSON_FIX)
    body, loop = await request.body(), asyncio.get_running_loop()
    try:
        small = len(body) < SMALL
        content = json.loads(body) if small else await loop.run_in_executor(None, json.loads, body)
    except (ValueError, RecursionError) as error:
        raise Refusal(400, f"the body is not JSON ({error})", JSON_FIX) from error
    if not isinstance(content, dict):
        raise Refusal(422, "the body is not an object", JSON_FIX)
    return content


def read_top(value: Any) -> int:
    """How many classes to answer; raises Refusal."""
    text = str(value)
    if isinstance(value, bool) or not text.isdecimal() or not 0 < int(text) <= 10**6:
        raise Refusal(422, "top: is no such number", "send a whole number from 1 on")
    return int(text)


def routes(server: Server) -> FastAPI:
    """The application without its guard."""
    app = FastAPI(
        title=f"{server.settings.name}: {server.settings.job}",
        version="1",
        description=schema.DESCRIPTION,
        docs_url=None,
        redoc_url=None,
        lifespan=server.life,
    )
    add_predictions(app, server)
    add_figures(app, server)
    add_page(app)
    schema.secure(app, needed=server.settings.needs_token)

    @app.exception_handler(Refusal)
    async def refuse(_: Request, refusal: Refusal) -> Response:
        return refused(refusal)

    @app.exception_handler(HTTPException)
    async def other(_: Request, error: HTTPException) -> Response:
        return refused(Refusal(error.status_code, str(error.detail), "see /docs"))

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> Response:
        return refused(Refusal(422, str(error.errors()[0]["msg"]), "see /docs"))

    @app.exception_handler(Exception)
    async def failed(_: Request, _error: Exception) -> Response:
        return refused(Refusal(500, "the server has failed", "see its log"))

    return app


def add_predictions(app: FastAPI, server: Server) -> None:
    """What the model is for."""

    @app.post("/predict", **schema.PREDICT)
    async def predict(request: Request) -> Response:
        """Classify arrays, or one picture in base64."""
        content = await read_json(request)
        top = read_top(content.get("top", TOP))
        if ("inputs" in content) == ("image" in content):
            raise Refusal(422, "the body needs either inputs or image", JSON_FIX)
        prepare, small = (
            partial(samples, content, server.settings),
            len(await request.body()) < SMALL,
        )
        return await server.classify(request, prepare, top, here=small and "inputs" in content)

    @app.post("/predict/image", **schema.IMAGE)
    async def predict_image(request: Request, top: str = str(TOP)) -> Response:
        """Classify an uploaded picture: PNG, JPEG or WebP."""
        fix = "send a form (multipart/form-data) whose field image is a file"
        if not request.headers.get("content-type", "").startswith("multipart/form-data"):
            raise Refusal(415, "the body is no form", fix)
        async with request.form(max_files=1, max_fields=1) as form:
            upload = form.get("image")
            if not isinstance(upload, UploadFile):
                raise Refusal(422, "there is no file in the field image", fix)
            content = await upload.read()
        most = server.settings.pixels

        def prepare(kind: Kind) -> list[Array]:
            return [pictures.decode(content, kind, most)]

        return await server.classify(request, prepare, read_top(top), here=False)

    @app.post("/complete", **schema.COMPLETE)
    async def complete(request: Request) -> Response:
        """Go on with a text."""
        began, content, kind = monotonic(), await read_json(request), server.kind(text=True)
        wish = text.read_wish(content, kind)
        server.batcher.reserve(1)
        work = text.complete(server.batcher, wish, kind, server.settings.timeout)
        completion, answers = await unless_gone(request, work)
        return JSONResponse({"completion": completion, **server.about(answers, began)})


def samples(content: dict[str, Any], settings: Settings, kind: Kind) -> list[Array]:
    """The samples in a body's `inputs`, or the one in its `image`; raises Refusal."""
    if "inputs" in content:
        return pictures.numbers(content["inputs"], kind)
    try:
        picture = base64.b64decode(content["image"], validate=True)
    except (TypeError, ValueError, binascii.Error) as error:
        raise Refusal(422, "image: is not base64", "encode the file's bytes in base64") from error
    return [pictures.decode(picture, kind, settings.pixels)]


def add_figures(app: FastAPI, server: Server) -> None:
    """What tells how the server is."""

    @app.get("/health", **schema.HEALTH)
    async def health() -> Response:
        """200 as long as the process and its GPUs are alive."""
        if server.gpus.lost:
            raise Refusal(503, server.gpus.lost, "restart the container")
        return JSONResponse({"status": "ok"})

    @app.get("/ready", **schema.HEALTH)
    async def ready() -> Response:
        """200 as soon as a checkpoint is served."""
        server.batcher.ready()
        return JSONResponse({"status": "ok"})

    @app.get("/model", **schema.MODEL)
    async def model() -> Response:
        """What is served, and by what."""
        return JSONResponse(server.model())

    @app.get("/metrics", include_in_schema=False)
    async def metrics() -> Response:
        figures = generate_latest(server.metrics.registry)
        return Response(figures, media_type=CONTENT_TYPE_LATEST)


def add_page(app: FastAPI) -> None:
    """The page for people, and Swagger's of the routes, which needs nothing from elsewhere."""

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        return FileResponse(PAGE / "index.html")

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return FileResponse(PAGE / "docs.html")

    app.mount("/page", StaticFiles(directory=PAGE))
    app.mount("/swagger", StaticFiles(directory=SWAGGER))


def application(settings: Settings, gpus: Gpus) -> Guard:
    """All of it."""
    server = Server(settings, gpus)
    return Guard(routes(server), settings, server.metrics)
