"""The routes. Answers are JSON; refusals have `error` and `fix`."""

from pathlib import Path
from time import monotonic

import fastapi_offline
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.staticfiles import StaticFiles

from trainer.serve import schema, text
from trainer.serve.app import Server
from trainer.serve.config import Settings
from trainer.serve.connections import Connections
from trainer.serve.gpus import Gpus
from trainer.serve.guard import Guard, bears_token, content_type, refused
from trainer.serve.inputs import FORM, FORM_FIX, JSON, JSON_FIX, TOP, read_object, read_top
from trainer.serve.openai import add_openai
from trainer.serve.refusal import Refusal
from trainer.serve.waiting import unless_gone

PAGE = Path(__file__).with_name("page")
SWAGGER = Path(fastapi_offline.__file__).with_name("static")


def routes(server: Server) -> FastAPI:
    """Return the application without its guard."""
    app = FastAPI(
        title=f"{server.settings.name}: {server.settings.job}",
        version="1",
        description=schema.DESCRIPTION,
        docs_url=None,
        redoc_url=None,
        lifespan=server.life,
    )
    add_predictions(app, server)
    add_openai(app, server)
    add_figures(app, server)
    add_page(app)
    schema.secure(app, needed=server.settings.needs_token)

    @app.exception_handler(Refusal)
    async def refuse(request: Request, refusal: Refusal) -> Response:
        return refused(refusal, request.url.path)

    @app.exception_handler(ClientDisconnect)
    async def gone(_: Request, _error: ClientDisconnect) -> Response:
        return refused(Refusal(499, "the client has gone", "nobody reads this"))

    @app.exception_handler(HTTPException)
    async def other(request: Request, error: HTTPException) -> Response:
        refusal = Refusal(error.status_code, str(error.detail), "see /docs")
        return refused(refusal, request.url.path)

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> Response:
        return refused(Refusal(422, str(error.errors()[0]["msg"]), "see /docs"))

    @app.exception_handler(Exception)
    async def failed(request: Request, _error: Exception) -> Response:
        return refused(Refusal(500, "the server has failed", "see its log"), request.url.path)

    return app


def add_predictions(app: FastAPI, server: Server) -> None:
    """Add the routes that use the model."""

    @app.post("/predict", **schema.PREDICT)
    async def predict(request: Request) -> Response:
        """Classify arrays, or one picture in base64."""
        return await server.classify(request, content_type(request, JSON, JSON_FIX))

    @app.post("/predict/image", **schema.IMAGE)
    async def predict_image(request: Request, top: str = str(TOP), show: bool = False) -> Response:
        """Classify an uploaded picture: PNG, JPEG or WebP. With `show`, as the model sees it."""
        kind = content_type(request, FORM, FORM_FIX)
        return await server.classify(request, kind, read_top(top), show=show)

    @app.post("/complete", **schema.COMPLETE)
    async def complete(request: Request) -> Response:
        """Complete a text."""
        content_type(request, JSON, text.FIX)
        began, body, kind = monotonic(), await request.body(), server.kind(text=True)
        if len(body) > text.LARGEST:
            raise Refusal(413, "the text is too large", f"send {text.LARGEST} bytes at most")
        wish = text.read_wish(read_object(body, text.FIX), kind)
        await server.batcher.reserve(1)
        work = text.complete(server.batcher, wish, kind, server.settings.timeout)
        completion, answers = await unless_gone(request, work)
        return JSONResponse({"completion": completion, **server.about(answers, began)})


def add_figures(app: FastAPI, server: Server) -> None:
    """Add the routes on the state of the server."""

    @app.get("/health", **schema.HEALTH)
    async def health(request: Request) -> Response:
        """200 as long as the process and its GPUs are alive."""
        if reason := server.gpus.lost:
            what = reason if bears_token(request.headers, server.settings) else "a GPU is missing"
            raise Refusal(503, what, "restart the container")
        return JSONResponse({"status": "ok"})

    @app.get("/ready", **schema.HEALTH)
    async def ready(request: Request) -> Response:
        """200 as soon as a checkpoint is served."""
        if bears_token(request.headers, server.settings):
            server.batcher.ready()
        elif server.batcher.serving is None:
            raise Refusal(503, "not ready", "try again later", Retry_After="2")
        return JSONResponse({"status": "ok"})

    @app.get("/model", **schema.MODEL)
    async def model() -> Response:
        """Describe the served model and its server."""
        return JSONResponse(server.model())

    @app.get("/metrics", include_in_schema=False)
    async def metrics(request: Request) -> Response:
        told = bears_token(request.headers, server.settings)
        figures = server.metrics.exposed(of_model=told)
        return Response(figures, media_type=CONTENT_TYPE_LATEST)


def add_page(app: FastAPI) -> None:
    """Add the page for people, and Swagger's page of the routes with local files only."""

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        return FileResponse(PAGE / "index.html")

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return FileResponse(PAGE / "docs.html")

    app.mount("/page", StaticFiles(directory=PAGE))
    app.mount("/swagger", StaticFiles(directory=SWAGGER))


def application(settings: Settings, gpus: Gpus, limits: Connections) -> Guard:
    """Return the whole application."""
    server = Server(settings, gpus, limits)
    return Guard(routes(server), settings, server.metrics, limits, server.emit_state)
