"""The routes of OpenAI's API: /v1/completions and /v1/models, for a gpt."""

import contextlib
from collections.abc import AsyncIterator

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from trainer.serve import schema, text
from trainer.serve.app import Server
from trainer.serve.completions import Answer, Piece, pieces, read_request
from trainer.serve.guard import content_type
from trainer.serve.inputs import JSON, read_object
from trainer.serve.kind import Kind
from trainer.serve.refusal import Refusal
from trainer.serve.requests import REQUEST
from trainer.serve.waiting import unless_gone

FIX = 'send {"prompt": "To be"}'


def add_openai(app: FastAPI, server: Server) -> None:
    """Add the routes. The server's token is the API key, its name or its job the model."""
    settings = server.settings
    names = (settings.name, settings.job)

    @app.get("/v1/models", **schema.MODELS)
    async def models() -> Response:
        """List the served model."""
        serving = server.batcher.serving
        created = int(serving.offer.written) if serving else 0
        model = {"id": settings.name, "object": "model", "created": created, "owned_by": "kit"}
        return JSONResponse({"object": "list", "data": [model] if serving else []})

    @app.post("/v1/completions", **schema.COMPLETIONS)
    async def complete(request: Request) -> Response:
        """Complete a text, as a whole or as a stream."""
        content_type(request, JSON, FIX)
        body, kind = await request.body(), server.kind(text=True)
        if len(body) > text.LARGEST:
            raise Refusal(413, "the text is too large", f"send {text.LARGEST} bytes at most")
        wanted = read_request(read_object(body, FIX), kind, names)
        answer = Answer(REQUEST.get(), settings.name, wanted)
        found = pieces(drawn(server, wanted.wish, kind), wanted)
        if not wanted.stream:
            return JSONResponse(answer.whole(await unless_gone(request, collected(found))))
        # Get the first piece before the answer's head is sent: its refusal sets the status.
        first = await unless_gone(request, first_of(found))
        return StreamingResponse(answer.events(first, found), media_type="text/event-stream")


async def drawn(server: Server, wish: text.Wish, kind: Kind) -> AsyncIterator[str]:
    """Yield the text that each token adds, "" within a character; raises Refusal."""
    await server.batcher.reserve(1)
    tokens, told = list[int](), 0
    found = text.drawn(server.batcher, wish, kind, server.settings.timeout)
    async with contextlib.aclosing(found):
        async for token, _ in found:
            if token is None:
                return
            tokens.append(token)
            whole = kind.vocabulary.decode(tokens, after=wish.tokens)
            yield whole[told:]
            told = max(told, len(whole))


async def collected(found: AsyncIterator[Piece]) -> list[Piece]:
    """Return all pieces."""
    return [piece async for piece in found]


async def first_of(found: AsyncIterator[Piece]) -> Piece:
    """Return the first piece."""
    return await anext(found)
