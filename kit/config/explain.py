"""Pydantic's errors as messages for the author of the file."""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, Tag, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from kit.errors import Fault, Loc
from trainer.contract.words import nearest, shown

MOST_EXPLAINED = 10_000
"""Searching for a similar word takes a millisecond per mistake, and nobody reads so many."""
_KINDS = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a number",
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


def faults(
    error: ValidationError, model: type[BaseModel], source: str, document: object = None
) -> list[Fault]:
    """Convert a validation error of `model` to faults of the document `source`."""
    errors = error.errors(include_url=False)
    return [_fault(details, model, source, document) for details in errors[:MOST_EXPLAINED]]


def _fault(error: ErrorDetails, model: type[BaseModel], source: str, document: object) -> Fault:
    place = _Place(model)
    for part in (*error["loc"], *error.get("ctx", {}).get("at", ())):
        place.enter(part)
    if error["type"] == "extra_forbidden":
        from kit.config.foreign import unknown_key  # Its tables take a tenth of a second.

        known = [name for each in place.models for name in each.model_fields]
        fix = unknown_key(place.loc, error["input"], model, document, known)
        return Fault(source, place.loc, "is not a known key", fix)
    what, fix = _words(error, place)
    return Fault(source, place.loc, what, fix)


class _Place:
    """A walk along one of pydantic's paths, through the annotations.

    Pydantic's paths contain extra parts: the tags of unions, and `[key]` after a key.
    """

    def __init__(self, model: type[BaseModel]) -> None:
        self.loc: Loc = ()
        self.fields: list[tuple[str, FieldInfo]] = []
        self.models: list[type[BaseModel]] = [model]
        self._annotation: Any = model

    def enter(self, part: str | int) -> None:
        """Go one step: update `loc`, `fields` and `models`, the models possible at this place."""
        options = list(_options(self._annotation))
        for option in options:
            if isinstance(option, type) and issubclass(option, BaseModel):
                if len(options) > 1 and part == _tag(option):
                    self._now(option)
                    return
                if part in option.model_fields:
                    field = option.model_fields[str(part)]
                    self.fields.append((str(part), field))
                    self._now(field.annotation)
                    self.loc += (part,)
                    return
            origin, arguments = typing.get_origin(option), typing.get_args(option)
            if (origin is dict and isinstance(part, str)) or (
                origin is list and isinstance(part, int)
            ):
                self._now(arguments[-1])
                self.loc += (part,)
                return
        if self.models and part != "[key]" and part not in set(_tags(self._annotation)):
            self.loc += (part,)  # an unknown key

    def _now(self, annotation: Any) -> None:
        self._annotation = annotation
        self.models = [
            option
            for option in _options(annotation)
            if isinstance(option, type) and issubclass(option, BaseModel)
        ]


def _options(annotation: Any) -> Iterator[Any]:
    """Return the types that a place may hold, with unions and annotations expanded."""
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        yield from _options(typing.get_args(annotation)[0])
    elif origin in {typing.Union, types.UnionType}:
        for argument in typing.get_args(annotation):
            yield from _options(argument)
    else:
        yield annotation


def _tags(annotation: Any) -> Iterator[str]:
    """Yield the tags of a union's types."""
    if typing.get_origin(annotation) is typing.Annotated:
        kind, *more = typing.get_args(annotation)
        yield from (each.tag for each in more if isinstance(each, Tag))
        yield from _tags(kind)
    elif typing.get_origin(annotation) in {typing.Union, types.UnionType}:
        for argument in typing.get_args(annotation):
            yield from _tags(argument)


def _tag(model: type[BaseModel]) -> str:
    return f"<{next(iter(model.model_fields))}>"


def _words(error: ErrorDetails, place: _Place) -> tuple[str, str]:
    kind, context = error["type"], error.get("ctx", {})
    value = error["input"]
    if kind == "kit":
        return context["what"], context["fix"]
    if kind == "missing":
        return "is missing", f"add {_example(place)}"
    if kind == "literal_error":
        allowed = [
            word.strip("'") for word in context["expected"].replace(" or ", ", ").split(", ")
        ]
        return f"{shown(value)} is not known", nearest(str(value), allowed)
    if kind in _BOUNDS:
        key, words = _BOUNDS[kind]
        return f"{value} is out of range", f"write a number of {words} {context[key]:.12g}"
    if kind == "too_short":
        return "is empty", f"write {_example(place)}"
    fix = f"write {_example(place)}"
    name, field = place.fields[-1]
    if value is None and place.loc[-1] == name and not field.is_required():
        fix += ", or leave it out"
    if kind in _KINDS:
        return f"{shown(value)} is not {_KINDS[kind]}", fix
    return f"{shown(value)} is not valid: {error['msg']}", fix


def _example(place: _Place) -> str:
    name, field = place.fields[-1]
    examples = [*(field.examples or []), *_schema_examples(field)]
    if place.loc[-1] != name:  # The item needs an example of the whole list or mapping.
        examples = [example for example in examples if isinstance(example, (list, dict))]
    if examples:
        shown_ = json.dumps(examples[0], ensure_ascii=False).strip('"')
        return f"for example `{name}: {shown_}`"
    choices = [c for c in typing.get_args(field.annotation) if isinstance(c, str)]
    if choices:
        return f"`{name}:` with one of {', '.join(choices)}"
    if field.is_required():
        return f"`{name}: …`"
    usual = True if field.default is None and bool in _options(field.annotation) else field.default
    return f"for example `{name}: {json.dumps(usual, default=str)}`"


def _schema_examples(field: FieldInfo) -> list[Any]:
    for extra in field.metadata:
        schema = getattr(extra, "json_schema", None) or {}
        if schema.get("examples"):
            return list(schema["examples"])
    return []
