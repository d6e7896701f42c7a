"""The schemas of requests and answers in /openapi.json; inputs.py and text.py parse requests."""

from time import time
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel, Field

from trainer.serve.config import Settings
from trainer.serve.offers import Offer

DESCRIPTION = """Answers with a checkpoint of a training. Requests that cannot be served
are answered with `error`, what is wrong, and `fix`, what to do."""


class Checkpoint(BaseModel):
    """The checkpoint that answered, and by which choice: `best`, `newest` or its name."""

    job: str
    name: str
    choice: str
    step: int
    epoch: int
    accuracy: float | None
    age_seconds: float
    host: str


class Class(BaseModel):
    """A class with its probability."""

    name: str = Field(alias="class")
    index: int
    probability: float


class Prediction(BaseModel):
    """The likeliest classes of a sample, in order."""

    classes: list[Class] = []
    answer: Any = Field(None, description="of a custom model, instead of classes")
    input: str | None = Field(None, description="what the model saw, a PNG as a data URL")


class Latency(BaseModel):
    """Milliseconds: in the queue, in the model, altogether."""

    queue: float
    batch: float
    total: float


class Answer(BaseModel):
    """The fields of every answer."""

    checkpoint: Checkpoint
    latency_ms: Latency
    batch_size: int


class Predictions(Answer):
    """A prediction for each sample of the request."""

    predictions: list[Prediction]


class Completion(Answer):
    """The continuation of the text."""

    completion: str


class Problem(BaseModel):
    """The fault, and the remedy."""

    error: str
    fix: str


PROBLEMS: Any = {
    status: {"model": Problem, "description": text}
    for status, text in {
        400: "damaged",
        401: "no token",
        403: "by a name, or for a website, that is not allowed",
        413: "too large",
        415: "of another type",
        422: "not as asked for",
        429: "the queue is full",
        503: "not ready, or too slow",
    }.items()
}
NUMBERS = {
    "type": "array",
    "items": {},
    "description": "0 (black) to 255 (white); any numbers for a custom model",
}
TOP = {"type": "integer", "minimum": 1, "default": 10, "description": "classes of each answer"}
TEXT = {"type": "string"}


# A black line on white, and an empty text: valid for every model.
LINE = (
    "iVBORw0KGgoAAAANSUhEUgAAABAAAAAQAQAAAAA3iMLMAAAAHElEQVR42mP8z8DEwMDyv5GJgQE/YvzPwMTAAAB0SQOf"
    "ZtipKQAAAABJRU5ErkJggg=="
)


def body(kind: str, *needed: str, example: Any = None, **properties: Any) -> dict[str, Any]:
    """A route's request body, which has exactly one of the `needed` properties."""
    choice = [{"required": [name]} for name in needed]
    content = {"schema": {"type": "object", "oneOf": choice, "properties": properties}}
    example = {"example": example} if example else {}
    return {"requestBody": {"required": True, "content": {kind: content | example}}}


JSON, FORM = "application/json", "multipart/form-data"
PREDICT: Any = {
    "response_model": Predictions,
    "responses": PROBLEMS,
    "openapi_extra": body(
        JSON,
        "inputs",
        "image",
        example={"image": LINE, "top": 3},
        inputs=NUMBERS,
        image=TEXT | {"format": "byte"},
        top=TOP,
    ),
}
IMAGE: Any = {
    "response_model": Predictions,
    "responses": PROBLEMS,
    "openapi_extra": body(FORM, "image", image=TEXT | {"format": "binary"}),
}
COMPLETE: Any = {
    "response_model": Completion,
    "responses": PROBLEMS,
    "openapi_extra": body(
        JSON,
        "text",
        example={"text": "", "characters": 200},
        text=TEXT,
        characters={"type": "integer", "minimum": 1, "maximum": 2000, "default": 200},
        temperature={"type": "number", "minimum": 0, "maximum": 10, "default": 0.8},
        seed={"type": "integer", "minimum": 0},
    ),
}
COMPLETIONS: Any = {
    "responses": {
        status: {"description": each["description"]} for status, each in PROBLEMS.items()
    },
    "openapi_extra": body(
        JSON,
        "prompt",
        example={"prompt": "", "max_tokens": 16},
        model=TEXT,
        prompt=TEXT,
        max_tokens={"type": "integer", "minimum": 1, "maximum": 2000, "default": 16},
        temperature={"type": "number", "minimum": 0, "maximum": 2, "default": 1},
        top_p={"type": "number", "exclusiveMinimum": 0, "maximum": 1, "default": 1},
        stop={"type": "array", "items": TEXT, "maxItems": 4},
        seed={"type": "integer"},
        stream={"type": "boolean", "default": False},
        echo={"type": "boolean", "default": False},
    ),
}
MODELS: Any = {"responses": {401: {"description": "no token"}}}
HEALTH: Any = {"responses": {503: PROBLEMS[503]}}
MODEL: Any = {"responses": {401: PROBLEMS[401]}}


def checkpoint(offer: Offer, settings: Settings) -> dict[str, Any]:
    """Describe a checkpoint that answers."""
    return {
        "job": settings.job,
        "name": offer.name,
        "choice": settings.checkpoint,
        "step": offer.step,
        "epoch": offer.epoch,
        "accuracy": offer.accuracy,
        "age_seconds": round(max(0.0, time() - offer.written), 1),
        "host": offer.host,
    }


def secure(app: FastAPI, *, needed: bool) -> None:
    """Let the page of the routes ask for the token if one is needed."""
    if needed:
        original = app.openapi

        def openapi() -> dict[str, Any]:
            content = original()
            scheme = {"token": {"type": "http", "scheme": "bearer"}}
            content.setdefault("components", {})["securitySchemes"] = scheme
            return content | {"security": [{"token": []}]}

        app.openapi = openapi  # type: ignore[method-assign]
