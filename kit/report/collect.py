"""The runs of a job, from the files of their records on the hosts and in the archive."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from kit.errors import InputError
from kit.report.record import Run
from kit.report.record_lines import lines_of, read_run
from kit.runtime.record_files import RecordFile

EVALUATION = "evaluation.json"


def joined(read: Iterable[RecordFile], kept: Iterable[RecordFile]) -> list[RecordFile]:
    """Return the files of the hosts, and those copies that the hosts no longer have."""
    files = {(file.run, file.host, file.name): file for file in kept}
    for file in read:
        files[file.run, file.host, file.name] = file
    return list(files.values())


def runs_of(job: str, files: Iterable[RecordFile]) -> list[Run]:
    """Return a job's runs, the oldest first. Hosts that share a folder have equal files."""
    by_run: dict[str, dict[tuple[str, bytes], RecordFile]] = {}
    for file in files:
        by_run.setdefault(file.run, {})[file.name, file.content] = file
    runs = []
    for name in sorted(by_run):
        own = list(by_run[name].values())
        ranks = [list(lines_of(file.content)) for file in own if file.name != EVALUATION]
        evaluations = [_evaluation(file) for file in own if file.name == EVALUATION]
        run = read_run(name, job, ranks, next(filter(None, evaluations), None))
        if run is not None:
            runs.append(run)
    return runs


def _evaluation(file: RecordFile) -> Mapping[str, Any] | None:
    try:
        evaluation = json.loads(file.content)
    except (ValueError, RecursionError):
        return None
    return evaluation if isinstance(evaluation, dict) else None


def chosen(runs: list[Run], job: str, name: str, most: int) -> list[Run]:
    """Return the run whose name begins with `name`, or for "" the newest `most`.

    Raises:
        InputError: There is no such run, or several.
    """
    if not name:
        return runs[-most:]
    named = [run for run in runs if run.id.startswith(name)]
    if len(named) == 1:
        return named
    known = ", ".join(run.id for run in runs) or "none"
    what = f"job {job} has {'several runs' if named else 'no run'} with names like {name}"
    raise InputError(what, f"its runs: {known}")
