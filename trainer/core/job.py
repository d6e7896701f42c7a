"""Reads and checks the job file, and checks that torch is new enough to load checkpoints safely.

Standard library only: the launcher uses both before torch.
"""

from __future__ import annotations

import json
import re
from dataclasses import MISSING, fields
from importlib import metadata
from pathlib import Path
from typing import Any

from trainer.contract import keys, rules
from trainer.contract.job import SECTIONS, TrainJob


class JobError(Exception):
    """A mistake in the job file; the message names the file and the key."""


def load_job(path: Path) -> TrainJob:
    """Read the job file of a built-in training; raises JobError."""
    try:
        return _job(json.loads(path.read_text()))
    except OSError as error:
        raise JobError(f"{path}: {error.strerror}; KIT_JOB must name the job file") from error
    except ValueError as error:
        raise JobError(f"{path}: is not JSON: {error}") from error
    except JobError as error:
        raise JobError(f"{path}: {error}") from None


def _job(content: Any) -> TrainJob:
    if not isinstance(content, dict):
        raise JobError("must be an object with the keys name and train")
    name = content.get("name")
    if not isinstance(name, str) or not name:
        raise JobError(f"name: must be a text of at least one character, is {json.dumps(name)}")
    job = TrainJob(name, *(_section(content, kind) for kind in SECTIONS))
    for problem in rules.problems(*_values(job)):
        raise JobError(f"{problem.section}.{problem.key}: {problem.what}; {problem.fix}")
    return job


def _section(content: dict[str, Any], kind: type[Any]) -> Any:
    """Read the section of a dataclass; its key is the lower-case class name; raises JobError."""
    section = keys.section_name(kind)
    given = content.get(section, {})
    if not isinstance(given, dict):
        raise JobError(f"{section}: must be an object, is {json.dumps(given)}")
    known = {each.name: each for each in fields(kind)}
    for name in given:
        if name not in known:
            raise _error(f"{section}.{name}", keys.unknown(name, kind))
    for name, each in known.items():
        if name not in given and each.default is MISSING:
            raise _error(f"{section}.{name}", keys.missing(kind, each))
        if name in given and (fault := keys.fault(kind, each, given[name])):
            raise _error(f"{section}.{name}", fault)
    hints = keys.hints(kind)
    return kind(**{name: _typed(hints[name], value) for name, value in given.items()})


def _typed(hint: Any, value: Any) -> Any:
    """Convert a valid JSON value to the type of its key."""
    if hint is float and value is not None:
        return float(value)
    return tuple(value) if isinstance(value, list) else value


def _error(key: str, fault: keys.Fault) -> JobError:
    return JobError(f"{key}: {'; '.join(fault)}")


def _values(job: TrainJob) -> tuple[dict[str, Any], set[str]]:
    """Return all keys and values, and the keys that differ from their defaults."""
    values, written = dict[str, Any](), set[str]()
    for kind in SECTIONS:
        section = keys.section_name(kind)
        for each in fields(kind):
            name = f"{section}.{each.name}"
            values[name] = getattr(getattr(job, section), each.name)
            if values[name] != each.default:
                written.add(name)
    return values, written


OLDEST = (2, 6)


def torch_fault(version: str) -> str:
    """Return why a version of torch is too old; empty if it is not, or if it is unknown."""
    found = re.match(r"(\d+)\.(\d+)", version)
    if not found or (int(found[1]), int(found[2])) >= OLDEST:
        return ""
    why = "a damaged or forged checkpoint could run code (CVE-2025-32434)"
    return f"torch {version} is too old, {why}; use an image with torch 2.6 or newer"


def installed_torch() -> str:
    """Return the version of torch without importing it; empty if it is unknown."""
    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return ""
