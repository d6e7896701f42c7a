"""The checks of every request: host, origin, token and size; headers and metrics."""

from collections.abc import Callable
from time import monotonic
from typing import Any

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from trainer.contract.bearer import has_token
from trainer.serve.config import Settings
from trainer.serve.connections import BODY, IDLE, LARGE, Connections, busy, time_left
from trainer.serve.inputs import FORM
from trainer.serve.metrics import Metrics
from trainer.serve.names import allowed_host, allowed_origin
from trainer.serve.protocol import CONNECTION, LimitedConnection
from trainer.serve.refusal import Refusal
from trainer.serve.requests import HEADER, REQUEST, AccessLog, request_id

OPENAI = "/v1/"
GUARDED = (
    *("/predict", "/predict/image", "/complete", "/model"),
    *("/v1/completions", "/v1/models"),
)
COUNTED = (*GUARDED, "/", "/health", "/ready", "/metrics", "/docs", "/openapi.json")
HEADERS = {
    # Scripts only from the page's own files; images also from files, clipboard and drawing board.
    "Content-Security-Policy": "default-src 'self'; img-src 'self' blob: data:; object-src 'none'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
    "Cache-Control": "no-cache",
}
DRESS = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]


def refused(refusal: Refusal, path: str = "") -> JSONResponse:
    """The answer to a refused request; below /v1/ in the form of OpenAI's API."""
    # Text from the request may be impossible to encode.
    texts = {"error": refusal.error, "fix": refusal.fix}
    content = {key: text.encode(errors="replace").decode() for key, text in texts.items()}
    if refusal.status == 500:  # The log has the reason, with this id.
        content["request"] = REQUEST.get()
    if path.startswith(OPENAI):
        return JSONResponse(openai_error(refusal, content), refusal.status, refusal.headers)
    return JSONResponse(content, refusal.status, refusal.headers)


def openai_error(refusal: Refusal, content: dict[str, str]) -> dict[str, Any]:
    """Return a refusal as clients of OpenAI's API read it."""
    kinds = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}
    usual = "server_error" if refusal.status >= 500 else "invalid_request_error"
    request = f" (request {content['request']})" if "request" in content else ""
    return {
        "error": {
            "message": f"{content['error']}; {content['fix']}{request}",
            "type": kinds.get(refusal.status, usual),
            "param": refusal.key,
            "code": "invalid_api_key" if refusal.status == 401 else None,
        }
    }


def content_type(request: Request, wanted: str, fix: str) -> str:
    """Return the Content-Type of a request; raises Refusal if it is not `wanted`.

    A page of another website may send other types without a preflight request.
    """
    said = request.headers.get("content-type", "")
    kind = said.partition(";")[0].strip().lower()
    if kind != wanted:
        raise Refusal(415, f"the body is {kind or 'of no type'}, not {wanted}", fix)
    return said if wanted == FORM else kind


def bears_token(headers: Headers, settings: Settings) -> bool:
    """Whether a request has the token, if one is needed."""
    return has_token(headers.get("authorization", ""), settings.token)


class Guard:
    """Wraps the application."""

    def __init__(
        self,
        app: ASGIApp,
        settings: Settings,
        metrics: Metrics,
        limits: Connections,
        repeat: Callable[[], None],
    ) -> None:
        """`repeat` emits the server's state again."""
        self.ending = False  # Whether to close each connection after its answer.
        self._app, self._settings, self._metrics, self._limits = app, settings, metrics, limits
        self._log = AccessLog(settings.access_log, settings.host, repeat)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        began, status, size = monotonic(), 0, 0
        request = request_id(Headers(scope=scope))
        REQUEST.set(request)
        connection, limits = CONNECTION.get(), self._limits

        async def counted() -> Message:
            """Receive a part of the body, with or without a known length."""
            message = await receive()
            if message["type"] == "http.request":
                connection.taken += len(message["body"])
                if refusal := self._refusal_of_body(connection):
                    limits.hold(connection, 0)
                    raise refusal
                limits.extend(connection, time_left(began, connection.taken))
                if not message["more_body"]:
                    limits.answer(connection)
            return message

        async def dressed(message: Message) -> None:
            nonlocal status, size
            size += len(message.get("body", b""))
            if message["type"] == "http.response.start":
                status = message["status"]
                own = {name for name, _ in message["headers"]}
                added = [pair for pair in DRESS if pair[0] not in own]
                closes = self.ending or connection.incomplete or bool(connection.refusal)
                last = [(b"connection", b"close")] if closes and b"connection" not in own else []
                named = [(HEADER.lower().encode(), request.encode())]
                message["headers"] = [*message["headers"], *added, *last, *named]
            limits.wait(connection, IDLE)
            await send(message)
            limits.answer(connection)

        # uvicorn leaves out the body of an answer to HEAD.
        head = {**scope, "method": "GET"} if scope["method"] == "HEAD" else scope
        if connection.incomplete:
            limits.wait(connection, BODY)
        else:
            limits.answer(connection)
        try:
            # Refuse before the body has arrived: the connection drops the rest.
            if refusal := connection.refusal or self._refusal(scope):
                await refused(refusal, scope["path"])(scope, counted, dressed)
            else:
                await self._app(head, counted, dressed)
        finally:
            path = scope["path"] if scope["path"] in COUNTED else "other"
            seconds = monotonic() - began
            self._metrics.answered(path, status or 500, seconds)
            self._log.write(scope, request, status or 500, seconds, size)
            connection.finish()
        return None

    def _refusal(self, scope: Scope) -> Refusal | None:
        """Return why a request's head must be refused, or None."""
        headers, settings = Headers(scope=scope), self._settings
        host, origin = headers.get("host"), headers.get("origin")
        names = settings.allowed_hosts
        if host and scope["path"] != "/health" and not allowed_host(host, names):
            what = f"the host name {host[:100]} is not allowed"
            return Refusal(403, what, "use the server's address, or add the name to allowed_hosts")
        if origin and scope["method"] == "POST" and not allowed_origin(origin, host or "", names):
            what = f"requests from pages of {origin[:100]} are not allowed"
            return Refusal(403, what, "use the server's own page, or add the name to allowed_hosts")
        if scope["path"] in GUARDED and not bears_token(headers, settings):
            fix = "send the header Authorization: Bearer and the token of this server"
            return Refusal(401, "the token is missing or wrong", fix, WWW_Authenticate="Bearer")
        length = headers.get("content-length", "0")
        if length.isdecimal() and int(length) > settings.body:
            return too_large(settings.body)
        return None

    def _refusal_of_body(self, connection: LimitedConnection) -> Refusal | None:
        """Return why the part of a body that has arrived must be refused, or None."""
        if connection.taken > self._settings.body:
            return too_large(self._settings.body)
        if not self._limits.hold(connection, connection.taken):
            return busy(LARGE)
        return connection.refusal


def too_large(most: int) -> Refusal:
    """The refusal of a large body; it closes the connection."""
    what, fix = "the request is too large", f"send {most} bytes at most"
    return Refusal(413, what, fix, Connection="close")
