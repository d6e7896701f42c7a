"""The routes. Answers are JSON; those that are refusals have `error` and `fix`."""

import asyncio
import base64
import binascii
import json
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

from trainer.serve import pictures, schema, text
from trainer.serve.app import Server
from trainer.serve.config import Settings
from trainer.serve.gpus import Gpus
from trainer.serve.guard import Guard, refused
from trainer.serve.model import Array, Kind
from trainer.serve.refusal import Refusal
from trainer.serve.waiting import unless_gone

PAGE = Path(__file__).with_name("page")
SWAGGER = Path(fastapi_offline.__file__).with_name("static")
SMALL = 2**14  # Bytes of JSON that are read about as fast as another thread is woken.
TOP = 10  # Classes of an answer, unless the client says how many.
JSON_FIX = 'send JSON such as {"inputs": [...]} or {"image": "<base64>"}'


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
    """Read how many classes to answer; raises Refusal."""
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
    """Add the routes that ask the model."""

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
    """Add the routes on the state of the server."""

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
        """Describe the served model and its server."""
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
