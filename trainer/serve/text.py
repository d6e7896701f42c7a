"""Completion of texts with a gpt."""

import json
from collections.abc import AsyncGenerator
from typing import Any, NamedTuple

import numpy as np

from trainer.serve.batching import Answer, Batcher
from trainer.serve.inputs import require_keys
from trainer.serve.kind import Kind
from trainer.serve.refusal import Refusal
from trainer.serve.waiting import within
from trainer.text.vocabulary import UnknownError

MOST = 2000  # Characters or tokens of an answer.
LARGEST = 2**16  # Bytes of a request: more than any model's context.
FIX = 'send {"text": "To be"}'


class Wish(NamedTuple):
    """A checked request."""

    tokens: list[int]  # Of the text so far.
    length: int  # The most tokens to add.
    temperature: float  # 0: always the likeliest token.
    seed: int | None
    top_p: float = 1.0  # Nucleus sampling: the likeliest tokens with this total probability.


def read_wish(content: dict[str, Any], kind: Kind) -> Wish:
    """Check a request; raises Refusal."""
    require_keys(content, "text", "characters", "temperature", "seed")
    text, count = content.get("text", ""), content.get("characters", 200)
    temperature, seed = content.get("temperature", 0.8), content.get("seed")
    if not isinstance(text, str):
        raise Refusal(422, "text: is no text", FIX)
    if type(count) is not int or not 0 < count <= MOST:
        fix = f"send a whole number of 1 to {MOST}"
        raise Refusal(422, "characters: is not a valid number", fix)
    if type(temperature) not in (int, float) or not 0 <= temperature <= 10:
        raise Refusal(422, "temperature: is not a valid number", "send a number of 0 to 10")
    if seed is not None and (type(seed) is not int or not 0 <= seed < 2**63):
        raise Refusal(422, "seed: is not a valid number", "send a whole number from 0 on, or none")
    return Wish(encoded(text, kind, 422, "text"), count, float(temperature), seed)


def encoded(text: str, kind: Kind, status: int, key: str) -> list[int]:
    """Return the tokens of a text, the request's `key`.

    Raises Refusal with `status` if the model does not know some of its characters.
    """
    try:
        tokens = kind.vocabulary.encode(text)
    except UnknownError as error:
        strange = sorted(error.args[0])
        shown = (json.dumps(each, ensure_ascii=not each.isprintable()) for each in strange[:10])
        what = f"{key}: the model has never seen {', '.join(shown)}"
        raise Refusal(status, what, "leave these characters out", key) from None
    # A document begins with the token that separates them.
    start = [kind.vocabulary.start] if kind.tokenizer or not tokens else []
    return start + tokens


async def complete(
    batcher: Batcher, wish: Wish, kind: Kind, timeout: float
) -> tuple[str, list[Answer]]:
    """Complete a text; raises Refusal."""
    found = [each async for each in drawn(batcher, wish, kind, timeout)]
    tokens = [token for token, _ in found if token is not None]
    return kind.vocabulary.decode(tokens, after=wish.tokens), [answer for _, answer in found]


async def drawn(
    batcher: Batcher, wish: Wish, kind: Kind, timeout: float
) -> AsyncGenerator[tuple[int | None, Answer]]:
    """Yield single tokens, each within the timeout, None at the end of a document; raises Refusal.

    A place in the queue must be reserved. Each token is a separate sample, so that many completions
    share batches, and a later one need not wait for earlier ones.
    """
    draw = np.random.default_rng(wish.seed)
    so_far = list(wish.tokens)
    for number in range(wish.length):
        window = np.array(so_far[-kind.shape[0] :], np.int64)
        answer = await within(timeout, batcher.put(window, kind, urgent=number > 0))
        token = choose(answer.scores, wish.temperature, draw, wish.top_p)
        if kind.tokenizer and token == kind.vocabulary.start:
            yield None, answer
            return
        so_far.append(token)
        yield token, answer


def choose(scores: Any, temperature: float, draw: np.random.Generator, top_p: float = 1.0) -> int:
    """Draw a class by scores, float32 [K], from the likeliest of total probability `top_p`."""
    if temperature == 0:
        return int(scores.argmax())
    shares = np.exp((scores - scores.max()).astype(np.float64) / temperature)
    if top_p < 1:
        order = (-shares).argsort()
        before = shares[order].cumsum() - shares[order]
        shares[order[before >= top_p * shares.sum()]] = 0
    return int(draw.choice(len(shares), p=shares / shares.sum()))
