"""The checks of every request: its token, the size of its body; headers, counting."""

import asyncio
import secrets
from contextlib import suppress
from time import monotonic

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from trainer.serve.config import Settings
from trainer.serve.metrics import Metrics
from trainer.serve.refusal import Refusal

GUARDED = ("/predict", "/predict/image", "/complete", "/model")
PATIENCE = 2  # Seconds for the rest of a body that is refused.
COUNTED = (*GUARDED, "/", "/health", "/ready", "/metrics", "/docs", "/openapi.json")
HEADERS = {
    # No script but the page's own files; pictures also from what was dropped, pasted or drawn.
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


def refused(refusal: Refusal) -> JSONResponse:
    """The answer to a request that is refused."""
    content = {"error": refusal.error, "fix": refusal.fix}
    return JSONResponse(content, refusal.status, refusal.headers)


class Guard:
    """Wraps the application."""

    def __init__(self, app: ASGIApp, settings: Settings, metrics: Metrics) -> None:
        self._app, self._settings, self._metrics = app, settings, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        began, status, left = monotonic(), 0, self._settings.body

        async def counted() -> Message:
            """Receive a part of the body, whether its length was given before or not."""
            nonlocal left
            message = await receive()
            left -= len(message.get("body", b""))
            if left < 0:
                await discard(receive, self._settings.body)
                raise too_large(self._settings.body)
            return message

        async def dressed(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            if refusal := self._refusal(scope):
                await discard(receive, self._settings.body)
                await refused(refusal)(scope, counted, dressed)
            else:
                await self._app(scope, counted, dressed)
        finally:
            path = scope["path"] if scope["path"] in COUNTED else "other"
            self._metrics.answered(path, status or 500, monotonic() - began)
        return None

    def _refusal(self, scope: Scope) -> Refusal | None:
        """Why a request's head is enough to refuse it."""
        headers, token = Headers(scope=scope), self._settings.token
        if token is not None and scope["path"] in GUARDED:
            kind, _, given = headers.get("authorization", "").partition(" ")
            right = secrets.compare_digest(given.strip().encode(), token)
            if kind.lower() != "bearer" or not right:
                fix = "send the header Authorization: Bearer and the token of this server"
                return Refusal(401, "the token is missing or wrong", fix, WWW_Authenticate="Bearer")
        length = headers.get("content-length", "0")
        if length.isdecimal() and int(length) > self._settings.body:
            return too_large(self._settings.body)
        return None


async def discard(receive: Receive, most: int) -> None:
    """Read on for a while: a client that is cut off while it sends never reads the answer."""
    with suppress(TimeoutError):
        async with asyncio.timeout(PATIENCE):
            while (message := await receive()).get("more_body") and most > 0:
                most -= len(message["body"])


def too_large(most: int) -> Refusal:
    """The connection ends with it: not all of the body may have been read."""
    what, fix = "the request is too large", f"send {most} bytes at most"
    return Refusal(413, what, fix, Connection="close")
