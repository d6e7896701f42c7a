"""The description of a key of a job, and the messages for a wrong value.

A key is a field of a frozen dataclass. The field has the type (a Literal for a choice) and the
default; `Key` has the rest. kit makes its schema of YAML from the same fields.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any, Literal, get_args, get_type_hints

from trainer.contract.models import DATASETS, dataset_fault, layers_fault, model_fault
from trainer.contract.own import options_fault
from trainer.contract.words import nearest, shown

Form = Literal["plain", "duration", "data path", "model", "data set", "options", "files", "layers"]
"""The form in YAML: `60s` for seconds, a path below the data folder, the name of a model or of a
data set (see models.py), options of custom functions, the files of a script, the names of
layers, or the same as in JSON."""
Fault = tuple[str, str]
"""A mistake, and how to correct it."""
TYPES = {str: "a text", int: "a whole number", float: "a number", bool: "true or false"}
BOUNDS = {"le": "at most", "lt": "less than", "ge": "at least", "gt": "more than"}


@dataclass(frozen=True, slots=True)
class Only:
    """A key is for these `values` of the key `of` or, without `values`, for any that is not empty.

    `what` is the message after the key's name, `fix` the remedy.
    """

    of: str
    values: tuple[Any, ...]
    what: str
    fix: str = "leave it out"

    def admits(self, value: Any) -> bool:
        """Whether the key is allowed with this value of the other one."""
        return value in self.values if self.values else bool(value)


@dataclass(frozen=True, kw_only=True)
class Key:
    """The description of a key, without its type and its default."""

    description: str | None = None
    examples: tuple[Any, ...] = ()
    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    lt: float | None = None
    form: Form = "plain"
    # YAML may have null, which is the same as no key; always so if None is the default.
    optional: bool = False
    planned: bool = False  # The plan sets it; YAML cannot.
    only: Only | None = None


def key(default: Any = MISSING, **about: Any) -> Any:
    """Declare a key; a key without a default is required."""
    return field(default=default, metadata={"key": Key(**about)})


def about(each: Field[Any]) -> Key:
    """Return the description of a field."""
    found: Key = each.metadata["key"]
    return found


def optional(each: Field[Any]) -> bool:
    """Whether null means the same as leaving out the key."""
    return about(each).optional or each.default is None


def hints(kind: type[Any]) -> Mapping[str, Any]:
    """Return the types of a dataclass's fields, without the None of optional ones."""
    return {name: _without_none(hint) for name, hint in get_type_hints(kind).items()}


def _without_none(hint: Any) -> Any:
    options = get_args(hint)
    return options[0] if type(None) in options else hint


def section_name(kind: type[Any]) -> str:
    """Return the key of the job that holds the keys of a dataclass."""
    return kind.__name__.lower()


def written(section: Any, *, planned: bool = True) -> dict[str, Any]:
    """Return the keys of a section as in a job file; `planned`: with those that the plan sets.

    Keys that are None are left out: a new key does not change jobs that do not use it, and an
    older trainer does not get an unknown key.
    """
    values = {
        each.name: getattr(section, each.name)
        for each in fields(section)
        if planned or not about(each).planned
    }
    return {name: value for name, value in values.items() if value is not None}


def fault(kind: type[Any], each: Field[Any], value: Any) -> Fault | None:
    """Return the fault in a key's value from JSON; None if it is valid."""
    hint, known = hints(kind)[each.name], about(each)
    if value == each.default and type(value) is type(each.default):
        return None
    checks = {
        "model": model_fault,
        "data set": dataset_fault,
        "options": options_fault,
        "layers": layers_fault,
    }
    if check := checks.get(known.form):
        return check(value)
    if known.form == "files":  # Only scripts have files.
        return "is for `command`", "leave it out: the built-in training saves by itself"
    if words := [word for word in get_args(hint) if isinstance(word, str)]:
        return None if value in words else (f"{shown(value)} is not known", nearest(value, words))
    # The exact type: in Python a bool is also an int. A float may be written as an integer.
    fits = type(value) is hint or (type(value) is int and hint is float)
    if not fits or (hint is float and not math.isfinite(value)):
        left_out = ", or leave it out" if value is None and each.default is not MISSING else ""
        return f"{shown(value)} is not {TYPES[hint]}", f"write {example(kind, each)}{left_out}"
    if hint in (int, float):
        return _out_of_range(value, known)
    return None


def _out_of_range(value: float, known: Key) -> Fault | None:
    bounds = ((name, getattr(known, name)) for name in BOUNDS)
    for name, bound in ((name, bound) for name, bound in bounds if bound is not None):
        inside = {"le": value <= bound, "lt": value < bound, "ge": value >= bound}
        if not inside.get(name, value > bound):
            return f"{value} is out of range", f"write a number of {BOUNDS[name]} {bound:.12g}"
    return None


def unknown(name: str, kind: type[Any]) -> Fault:
    """Return the fault of a key that the section does not have."""
    known = [each.name for each in fields(kind)]
    return "is not a known key", nearest(name, known)


def missing(kind: type[Any], each: Field[Any]) -> Fault:
    """Return the fault of a required key that is missing."""
    return "is missing", f"add {example(kind, each)}"


def example(kind: type[Any], each: Field[Any]) -> str:
    """Return a key with a valid value, as an example."""
    if about(each).form == "data set":
        return f"`{each.name}:` with one of {', '.join(DATASETS)}"
    if examples := about(each).examples:
        return f"for example `{each.name}: {_json(examples[0])}`"
    if words := [word for word in get_args(hints(kind)[each.name]) if isinstance(word, str)]:
        return f"`{each.name}:` with one of {', '.join(words)}"
    usual = True if hints(kind)[each.name] is bool and each.default is None else each.default
    return f"for example `{each.name}: {json.dumps(usual)}`"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False).strip('"')
