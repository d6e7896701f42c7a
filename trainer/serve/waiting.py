"""Limits the wait of a request for its answer."""

import asyncio
from collections.abc import Awaitable, Coroutine
from typing import Any, TypeVar

from fastapi import Request

from trainer.serve.refusal import Refusal

T = TypeVar("T")


async def within(seconds: float, work: Awaitable[T]) -> T:
    """Return the result of work, or cancel it after a timeout; raises Refusal."""
    try:
        return await asyncio.wait_for(work, seconds)
    except TimeoutError as error:
        what = f"no answer within {seconds:g} s: too many others wait"
        raise Refusal(503, what, "try again later", Retry_After="5") from error


async def unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of work, or cancel it if the client disconnects; raises Refusal.

    The client's samples then leave the queue, so that they do not block other requests.
    """

    async def hung_up() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    task, gone = asyncio.create_task(work), asyncio.create_task(hung_up())
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise Refusal(499, "the client has gone", "nobody reads this")
    finally:
        gone.cancel()
        task.cancel()
        # Free its place in the queue before this returns.
        await asyncio.wait({task})
