"""Completion of texts with a gpt of characters."""

import json
from typing import Any, NamedTuple

import numpy as np

from trainer.serve.batching import Answer, Batcher
from trainer.serve.kind import Kind
from trainer.serve.refusal import Refusal
from trainer.serve.waiting import within

MOST = 2000  # Characters of an answer.
LARGEST = 2**16  # Bytes of a request: more than any model's context.
FIX = 'send {"text": "To be"}'


class Wish(NamedTuple):
    """A checked request."""

    characters: list[int]  # Of the text so far, as the model's indices.
    length: int  # Characters to add.
    temperature: float  # 0: always the likeliest character.
    seed: int | None


def read_wish(content: dict[str, Any], kind: Kind) -> Wish:
    """Check a request; raises Refusal."""
    text, count = content.get("text", ""), content.get("characters", 200)
    temperature, seed = content.get("temperature", 0.8), content.get("seed")
    if not isinstance(text, str):
        raise Refusal(422, "text: is no text", FIX)
    if type(count) is not int or not 0 < count <= MOST:
        raise Refusal(422, "characters: is no such number", f"send a whole number of 1 to {MOST}")
    if type(temperature) not in (int, float) or not 0 <= temperature <= 10:
        raise Refusal(422, "temperature: is no such number", "send a number of 0 to 10")
    if seed is not None and (type(seed) is not int or not 0 <= seed < 2**63):
        raise Refusal(422, "seed: is no such number", "send a whole number from 0 on, or none")
    known = {label: number for number, label in enumerate(kind.labels)}
    strange = sorted(set(text) - known.keys())
    if strange:
        shown = (json.dumps(each, ensure_ascii=not each.isprintable()) for each in strange[:10])
        listed = ", ".join(shown)
        raise Refusal(422, f"text: the model has never seen {listed}", "leave these characters out")
    # Most texts begin after a newline.
    return Wish([known[each] for each in text or ("\n" if "\n" in known else kind.labels[0])],
                count, float(temperature), seed)  # fmt: skip


async def complete(
    batcher: Batcher, wish: Wish, kind: Kind, timeout: float
) -> tuple[str, list[Answer]]:
    """Complete a text, character by character, each within the timeout; raises Refusal.

    Each character is a separate sample: then many completions share batches, and a later one need
    not wait for earlier ones.
    """
    draw = np.random.default_rng(wish.seed)
    characters, answers = list(wish.characters), list[Answer]()
    for number in range(wish.length):
        window = np.array(characters[-kind.shape[0] :], np.int64)
        answer = await within(timeout, batcher.put(window, kind, urgent=number > 0))
        characters.append(choose(answer.scores, wish.temperature, draw))
        answers.append(answer)
    return "".join(kind.labels[each] for each in characters[-wish.length :]), answers


def choose(scores: Any, temperature: float, draw: np.random.Generator) -> int:
    """Draw a class by its scores, float32 [K]."""
    if temperature == 0:
        return int(scores.argmax())
    shares = np.exp((scores - scores.max()).astype(np.float64) / temperature)
    return int(draw.choice(len(shares), p=shares / shares.sum()))
