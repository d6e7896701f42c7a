"""Pydantic's errors in the words of the person who wrote the file."""

from __future__ import annotations

import json
import typing
from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from kit.errors import Fault, Loc, nearest

_KINDS = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "string_type": "a text",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
}
_BOUNDS = {
    "greater_than_equal": ("ge", "at least"),
    "greater_than": ("gt", "more than"),
    "less_than_equal": ("le", "at most"),
    "less_than": ("lt", "less than"),
}


def faults(error: ValidationError, model: type[BaseModel], source: str) -> list[Fault]:
    """Turn a validation error of `model` into faults of the document `source`."""
    return [_fault(details, model, source) for details in error.errors(include_url=False)]


def _fault(error: ErrorDetails, model: type[BaseModel], source: str) -> Fault:
    # Tags of unions are written <tag>: they are in pydantic's path, not in the file.
    loc: Loc = tuple(p for p in error["loc"] if not str(p).startswith("<") and p != "[key]")
    what, fix = _words(error, loc, model)
    return Fault(source, loc, what, fix)


def _words(error: ErrorDetails, loc: Loc, model: type[BaseModel]) -> tuple[str, str]:
    kind, context = error["type"], error.get("ctx", {})
    value = error["input"]
    if kind == "kit":
        return context["what"], context["fix"]
    if kind == "missing":
        return "is missing", f"add {_example(loc, model)}"
    if kind == "extra_forbidden":
        parent = _model_at(model, error["loc"][:-1])
        known = parent.model_fields if parent else []
        return f"{loc[-1]} is not a key that is known here", nearest(str(loc[-1]), known)
    if kind == "literal_error":
        allowed = [
            word.strip("'") for word in context["expected"].replace(" or ", ", ").split(", ")
        ]
        return f"{value!r} is not known", nearest(str(value), allowed)
    if kind in _BOUNDS:
        key, words = _BOUNDS[kind]
        return f"{value} is out of range", f"write a number of {words} {context[key]}"
    if kind in _KINDS:
        shown = "nothing" if value is None else f"{_shorten(value)}"
        return f"{shown} is not {_KINDS[kind]}", f"write {_example(loc, model)}"
    if kind == "too_short":
        return "is empty", f"write {_example(loc, model)}"
    return f"{_shorten(value)} does not fit: {error['msg']}", f"write {_example(loc, model)}"


def _shorten(value: object) -> str:
    text = repr(value) if not isinstance(value, (dict, list)) else json.dumps(value, default=str)
    return text if len(text) <= 60 else text[:59] + "…"


def _example(loc: Loc, model: type[BaseModel]) -> str:
    field = _field_at(model, loc)
    name = str(loc[-1])
    if field is None:
        return f"a value for {name}"
    examples = field.examples or _schema_examples(field)
    if examples:
        shown = json.dumps(examples[0], ensure_ascii=False).strip('"')
        return f"for example `{name}: {shown}`"
    choices = [c for c in typing.get_args(field.annotation) if isinstance(c, str)]
    if choices:
        return f"`{name}:` with one of {', '.join(choices)}"
    if field.default is not None and not field.is_required():
        return f"for example `{name}: {json.dumps(field.default, default=str)}`"
    return f"`{name}:` with {field.description or 'a value'}"


def _schema_examples(field: FieldInfo) -> list[Any]:
    for extra in field.metadata:
        schema = getattr(extra, "json_schema", None) or {}
        if schema.get("examples"):
            return list(schema["examples"])
    return []


def _field_at(model: type[BaseModel], loc: Loc) -> FieldInfo | None:
    parent = _model_at(model, loc[:-1])
    return parent.model_fields.get(str(loc[-1])) if parent else None


def _model_at(model: type[BaseModel], loc: Loc) -> type[BaseModel] | None:
    """Follow a path through the annotations to the model that describes that place."""
    annotation: Any = model
    for part in loc:
        candidates = list(_models_in(annotation))
        if str(part).startswith("<") or not isinstance(part, str) or not candidates:
            narrowed = [c for c in candidates if _tag(c) == part]
            annotation = narrowed[0] if narrowed else annotation
            continue
        field = candidates[0].model_fields.get(part)
        if field is not None:
            annotation = field.annotation
    models = list(_models_in(annotation))
    return models[0] if models else None


def _tag(model: type[BaseModel]) -> str:
    return f"<{next(iter(model.model_fields))}>"


def _models_in(annotation: Any) -> Iterable[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in typing.get_args(annotation):
        yield from _models_in(argument)
