"""The job's sections for the built-in training, generated from the contract with the trainer.

Keys, types, bounds and rules are defined in trainer/contract. This module converts them to
pydantic models, which parse YAML values and report lines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields
from dataclasses import Field as DataclassField
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, WithJsonSchema, create_model

from kit.config.data import streams
from kit.config.fields import Duration, Section, text_field, validator_of, wrong
from kit.errors import Fault
from kit.values import WrongValueError
from trainer.contract import models, own, rules
from trainer.contract.job import SECTIONS, Checkpoint, Exchange, Faults, Metrics, Parallel, Train
from trainer.contract.keys import about, hints, optional, section_name
from trainer.contract.words import shown


def _below(path: object) -> str:
    if isinstance(path, str) and not path.startswith("/"):
        parts = [part for part in path.split("/") if part not in {"", "."}]
        if parts and ".." not in parts:
            return "/".join(parts)
    raise WrongValueError(
        f"{shown(path)} is not a path below the data folder, without ..",
        "write for example flowers",
    )


def _script_file(path: object) -> str:
    if not isinstance(path, str) or not path:
        raise WrongValueError(f"{shown(path)} is not a path", "write for example snapshot.pt")
    parts = [part for part in path.split("/") if part not in {"", "."}]
    if ".." in parts or path.endswith("/") or not parts:
        what = f"{shown(path)} is not the path of a file, without .."
        raise WrongValueError(what, "write for example snapshot.pt, or /data/snapshot.pt")
    if any(sign in path for sign in "*?[]"):
        raise WrongValueError(f"{shown(path)} is a pattern", "name each file")
    return ("/" if path.startswith("/") else "") + "/".join(parts)


def _different(paths: list[str]) -> tuple[str, ...]:
    for index, path in enumerate(paths):
        if path in paths[:index]:
            raise wrong(f"{path} is named twice", "keep one of the two", index)
    return tuple(paths)


def _checked(fault_of: Callable[[object], tuple[str, str] | None]) -> BeforeValidator:
    """Return the validator of values that the contract checks; a list becomes a tuple."""

    def parse(value: object) -> object:
        if fault := fault_of(value):
            raise WrongValueError(*fault)
        return tuple(value) if isinstance(value, list) else value

    return BeforeValidator(validator_of(parse))


DataPath = Annotated[
    str, *text_field(_below, r"^[^/]", "flowers", "A file or folder below the data folder")
]
ScriptFiles = Annotated[
    list[
        Annotated[
            str,
            *text_field(
                _script_file,
                r"^[^*?\[\]]*[^*?\[\]/]$",
                "snapshot.pt",
                "A file below the working folder, or with an absolute path",
            ),
        ]
    ],
    Field(min_length=1),
    AfterValidator(_different),
]
ModelName = Annotated[
    str,
    _checked(models.model_fault),
    WithJsonSchema(
        {
            "anyOf": [
                {"enum": list(models.OWN)},
                {"type": "string", "pattern": f"^{models.NAME}$"},
                {"type": "string", "pattern": f"^{own.REFERENCE}$"},
            ],
            "examples": ["cnn", "torchvision/resnet50", "mymodel:build"],
        }
    ),
]
DataSetName = Annotated[
    str,
    _checked(models.dataset_fault),
    WithJsonSchema(
        {
            "anyOf": [
                {"enum": list(models.DATASETS)},
                {"type": "string", "pattern": f"^{own.REFERENCE}$"},
            ],
            "examples": ["digits", "mymodel:data"],
        }
    ),
]
LayerNames = Annotated[
    tuple[str, ...],
    _checked(models.layers_fault),
    WithJsonSchema(
        {
            "type": "array",
            "items": {"type": "string", "pattern": f"^{models.LAYER}$"},
            "minItems": 1,
        }
    ),
]
_OPTION_TYPES = ["string", "number", "boolean", "array", "null"]
Options = Annotated[
    dict[str, Any],
    _checked(own.options_fault),
    WithJsonSchema({"type": "object", "additionalProperties": {"type": _OPTION_TYPES}}),
]
ValueT = TypeVar("ValueT")
FORMS: dict[str, Any] = {
    "duration": Duration,
    "data path": DataPath,
    "model": ModelName,
    "data set": DataSetName,
    "options": Options,
    "files": ScriptFiles,
    "layers": LayerNames,
}


def section_of(kind: type[Any]) -> type[BaseModel]:
    """Return the pydantic model of a contract dataclass, without the keys that the plan decides."""
    types = hints(kind)
    written: Any = {
        each.name: _field(types[each.name], each)
        for each in fields(kind)
        if not about(each).planned
    }
    return create_model(
        f"{kind.__name__}Section",
        __base__=Section,
        __doc__=kind.__doc__,
        __module__=__name__,
        **written,
    )


def _field(hint: Any, each: DataclassField[Any]) -> tuple[Any, Any]:
    key = about(each)
    default: Any = ... if each.default is MISSING else each.default
    settings: dict[str, Any] = {
        "description": key.description,
        "examples": list(key.examples) or None,
    }
    if key.form != "plain":
        hint = FORMS[key.form]
    else:
        bounds = ("ge", "gt", "le", "lt")
        settings |= {name: getattr(key, name) for name in bounds}
        settings["allow_inf_nan"] = False if hint is float else None
    options = {name: value for name, value in settings.items() if value is not None}
    if optional(each):
        return hint | None, Field(None, **options)
    return hint, Field(default, **options)


if TYPE_CHECKING:  # mypy cannot use models that are created at run time; these have their fields.
    TrainSection = Train
    ExchangeSection = Exchange
    CheckpointSection = Checkpoint
    MetricsSection = Metrics
    FaultsSection = Faults
    ParallelSection = Parallel
else:
    TrainSection, ExchangeSection, CheckpointSection = map(section_of, SECTIONS[:3])
    MetricsSection, FaultsSection, ParallelSection = map(section_of, SECTIONS[3:])


def to_value(kind: type[ValueT], section: Any) -> ValueT:
    """Convert a validated section to its dataclass."""
    return kind(**{name: value for name, value in section if value is not None})


def rule_faults(document: Any, faults: list[Fault], source: str) -> Iterator[Fault]:
    """Yield the keys of a job's document that contradict each other.

    Keys with a fault in `faults` count as unknown. The plan gives a streamed data set its address.
    """
    broken = {".".join(map(str, fault.loc[:2])) for fault in faults}
    values, written = dict[str, Any](), set[str]()
    for kind in SECTIONS:
        given: Any = document.get(section_name(kind), {}) if isinstance(document, dict) else None
        for each in fields(kind) if isinstance(given, dict) else ():
            name, value = f"{section_name(kind)}.{each.name}", given.get(each.name)
            if (value is None and optional(each)) or each.name not in given:
                value = each.default
            else:
                written.add(name)
            if name not in broken and value is not MISSING:
                values[name] = value
    shards = values.get("train.dataset") == "shards"
    if shards and isinstance(document, dict) and streams(document.get("data")):
        values["train.url"] = values.get("train.url") or "http://the-data-server"
    for problem in rules.problems(values, written):
        yield Fault(source, (problem.section, problem.key), problem.what, problem.fix)
