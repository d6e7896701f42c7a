"""The job's sections for the built-in training, generated from the contract with the trainer.

Keys, types, bounds and rules are defined in trainer/contract. This module converts them to
pydantic models, which parse YAML values and report lines.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import MISSING, fields
from dataclasses import Field as DataclassField
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, Field, create_model

from kit.config.data import streams
from kit.config.fields import (
    DataPath,
    DataSetName,
    Duration,
    LayerNames,
    ModelName,
    Options,
    ScriptFiles,
    Section,
)
from kit.errors import Fault
from trainer.contract import rules
from trainer.contract.job import SECTIONS, Checkpoint, Exchange, Faults, Metrics, Parallel, Train
from trainer.contract.keys import about, hints, optional, section_name

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
