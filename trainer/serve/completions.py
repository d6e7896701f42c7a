"""OpenAI's API of completions, for a gpt: requests, answers and streams of server-sent events.

https://platform.openai.com/docs/api-reference/completions
"""

import json
import time
from collections.abc import AsyncIterator, Callable
from typing import Any, NamedTuple

from trainer.serve import text
from trainer.serve.guard import openai_error
from trainer.serve.kind import Kind
from trainer.serve.refusal import Refusal

STOPS = 4  # Sequences that end a text.
DONE = "data: [DONE]\n\n"
KINDS: dict[str, Callable[[Any], bool]] = {
    "a text": lambda value: isinstance(value, str),
    "a whole number": lambda value: type(value) is int,
    "a number": lambda value: type(value) in (int, float),
    "true or false": lambda value: isinstance(value, bool),
}
# Key: kind, least, most, default.
NUMBERS: dict[str, tuple[str, float, float, float]] = {
    "max_tokens": ("a whole number", 1, text.MOST, 16),
    "temperature": ("a number", 0, 2, 1.0),
    "top_p": ("a number", 0.001, 1, 1.0),
}
# Keys without an effect here, with the only values that are allowed.
FIXED: dict[str, tuple[Any, ...]] = {
    "n": (None, 1),
    "best_of": (None, 1),
    "logprobs": (None,),
    "suffix": (None,),
    "logit_bias": (None, {}),
    "presence_penalty": (None, 0),
    "frequency_penalty": (None, 0),
}
OTHERS = ("model", "prompt", "stop", "seed", "stream", "stream_options", "echo", "user")


class Request(NamedTuple):
    """A checked request."""

    wish: text.Wish
    prompt: str
    stops: tuple[str, ...]
    echo: bool
    stream: bool
    usage: bool  # Whether a stream ends with the numbers of tokens.


def read_request(content: dict[str, Any], kind: Kind, names: tuple[str, ...]) -> Request:
    """Check a request to the model called `names`; raises Refusal."""
    known = {*NUMBERS, *FIXED, *OTHERS}
    if unknown := [key for key in content if key not in known]:
        raise refusal(unknown[0][:100], "is no key of a completion", "leave it out")
    for key, values in FIXED.items():
        if content.get(key) not in values:
            raise refusal(key, "is not supported here", "leave it out")
    model = content.get("model")
    if model is not None and model not in names:
        what = f"there is no model {str(model)[:100]}"
        raise Refusal(404, what, f"ask for {names[0]}", "model")
    prompt = content.get("prompt", "")
    if isinstance(prompt, list) and len(prompt) == 1:
        prompt = prompt[0]
    prompt = checked(prompt, "prompt", "a text")
    count, temperature, top_p = (number(content, key) for key in NUMBERS)
    seed = content.get("seed")
    if seed is not None and (type(seed) is not int or not -(2**63) <= seed < 2**63):
        raise refusal("seed", "is not a valid number", "send a whole number of 64 bits")
    options = content.get("stream_options") or {}
    if not isinstance(options, dict):
        raise refusal("stream_options", "is no object", 'send {"include_usage": true}')
    wish = text.Wish(
        text.encoded(prompt, kind, 400, "prompt"),
        int(count),
        temperature,
        None if seed is None else seed % 2**63,
        top_p,
    )
    return Request(
        wish,
        prompt,
        stops(content.get("stop")),
        checked(content.get("echo") or False, "echo", "true or false"),
        checked(content.get("stream") or False, "stream", "true or false"),
        bool(options.get("include_usage")),
    )


def refusal(key: str, what: str, fix: str) -> Refusal:
    """Refuse a key's value."""
    return Refusal(400, f"{key}: {what}", fix, key)


def checked(value: Any, key: str, kind: str) -> Any:
    """Return a value of a kind; raises Refusal."""
    if not KINDS[kind](value):
        raise refusal(key, f"is not {kind}", f"send {kind}")
    return value


def number(content: dict[str, Any], key: str) -> float:
    """Return a number within its limits; raises Refusal."""
    kind, least, most, default = NUMBERS[key]
    value = default if content.get(key) is None else content[key]
    if not KINDS[kind](value) or not least <= value <= most:
        raise refusal(key, "is not a valid number", f"send {kind} of {least:g} to {most:g}")
    return float(value)


def stops(value: Any) -> tuple[str, ...]:
    """Return the sequences that end a text; raises Refusal."""
    listed = [] if value is None else [value] if isinstance(value, str) else value
    fits = isinstance(listed, list) and len(listed) <= STOPS
    if not fits or not all(isinstance(each, str) and each for each in listed):
        raise refusal("stop", "is no such list", f"send at most {STOPS} texts, none empty")
    return tuple(listed)


class Piece(NamedTuple):
    """A piece of a text; `finish` is why the text ends, `tokens` the number of tokens so far."""

    text: str
    finish: str | None
    tokens: int


async def pieces(drawn: AsyncIterator[str], request: Request) -> AsyncIterator[Piece]:
    """Yield the text in pieces, up to the first stop sequence.

    The end of a piece is held back if a stop sequence may begin there.
    """
    held, count = request.prompt if request.echo else "", 0
    searched = len(held)  # Stop sequences in the prompt are ignored.
    async for each in drawn:
        held, count = held + each, count + 1
        found = [at for stop in request.stops if (at := held.find(stop, searched)) >= 0]
        if found:
            yield Piece(held[: min(found)], "stop", count)
            return
        if count < request.wish.length:
            safe = len(held) - overhang(held[searched:], request.stops)
            yield Piece(held[:safe], None, count)
            held, searched = held[safe:], 0
    yield Piece(held, "length" if count == request.wish.length else "stop", count)


def overhang(held: str, stops: tuple[str, ...]) -> int:
    """Return the length of the longest suffix of a text that is a prefix of a stop sequence."""
    most = max((len(stop) - 1 for stop in stops), default=0)
    sizes = range(min(most, len(held)), 0, -1)
    return next((n for n in sizes if any(stop.startswith(held[-n:]) for stop in stops)), 0)


class Answer:
    """Formats the answer to one request."""

    def __init__(self, name: str, model: str, request: Request) -> None:
        self._head = {
            "id": f"cmpl-{name}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": model,
        }
        self._request, self._prompt = request, len(request.wish.tokens)

    def whole(self, found: list[Piece]) -> dict[str, Any]:
        """Return the answer at once."""
        content = "".join(piece.text for piece in found)
        return {
            **self._head,
            "choices": [self._choice(content, found[-1].finish)],
            "usage": self._usage(found[-1]),
        }

    async def events(self, first: Piece, rest: AsyncIterator[Piece]) -> AsyncIterator[str]:
        """Yield the answer as server-sent events; a failure is an event before the last one."""
        last = first
        try:
            yield self._event(first)
            async for last in rest:
                if last.text or last.finish:
                    yield self._event(last)
        except Refusal as error:
            texts = {"error": error.error, "fix": error.fix}
            yield f"data: {json.dumps(openai_error(error, texts))}\n\n"
        if self._request.usage:
            yield self._line({"choices": [], "usage": self._usage(last)})
        yield DONE

    def _event(self, piece: Piece) -> str:
        usage = {"usage": None} if self._request.usage else {}
        return self._line({"choices": [self._choice(piece.text, piece.finish)], **usage})

    def _line(self, content: dict[str, Any]) -> str:
        return f"data: {json.dumps(self._head | content)}\n\n"

    @staticmethod
    def _choice(content: str, finish: str | None) -> dict[str, Any]:
        return {"text": content, "index": 0, "logprobs": None, "finish_reason": finish}

    def _usage(self, last: Piece) -> dict[str, int]:
        return {
            "prompt_tokens": self._prompt,
            "completion_tokens": last.tokens,
            "total_tokens": self._prompt + last.tokens,
        }
