"""`kit history`."""

from __future__ import annotations

import dataclasses
import json
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import click

from kit.commands.options import with_paths
from kit.commands.records import archive_of
from kit.commands.tables import console, table
from kit.commands.targets import target_for, with_engine
from kit.errors import KitError
from kit.paths import Paths, identity
from kit.report.archive import Archive, began
from kit.runtime.history import Deployment, begins, newest
from kit.runtime.outcome import Outcome, outcome_of
from kit.runtime.past import Past
from kit.workload.names import kind_of
from kit.workload.types import Kind


@click.command("history", short_help="Show what was deployed when, and by whom.")
@with_paths
@with_engine
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(paths: Paths, engine: str | None, *, as_json: bool) -> None:
    """Show what was deployed when, by whom and from which input, the newest first.

    `kit logs JOB --run N` prints the kept lines of the deployment with the number N. Equal hashes
    mean equal input; comments and the order of keys do not count. The outcome is from the lines
    that the hosts keep with `monitoring: {logs: 30d}`. The runs are those that `kit report` has
    read on this machine: `kit report JOB@RUN` shows one again.
    """
    cluster, own = identity(paths)
    tree = paths.tree(cluster)
    past = Past(target_for(engine or own, cluster, tree), cluster, tree)
    deployments = past.history
    runs, numbers = _runs(archive_of(cluster), deployments), _numbers(deployments)
    outcomes = _outcomes(past)
    ends = [
        outcomes.get((each.job, number)) for each, number in zip(deployments, numbers, strict=True)
    ]
    if as_json:
        listing = [
            {
                **dataclasses.asdict(each),
                "number": number,
                "outcome": end.json() if end else None,
                "runs": [run for run, _ in own_runs],
                "reports": reports,
            }
            for each, number, end, own_runs in zip(deployments, numbers, ends, runs, strict=True)
            for reports in [[str(path) for _, path in own_runs if path is not None]]
        ]
        click.echo(json.dumps(listing, indent=2))
        return
    # Without a repository there is no commit, and the column would squeeze the others.
    commit = ["commit"] if any(each.commit for each in deployments) else []
    code = ["code"] if any(each.code for each in deployments) else []
    outcome = ["outcome"] if any(end and end.words for end in ends) else []
    more = (*outcome, *commit, *code, "image", "run", "report")
    rows = table("when", "job", "#", "by", "inventory", "job's hash", *more)
    for each, number, end, own_runs in zip(deployments, numbers, ends, runs, strict=True):
        pages = dict.fromkeys(_shown(path) for _, path in own_runs if path is not None)
        rows.add_row(
            *(each.when, each.job, str(number), each.by, each.inventory, each.job_hash),
            *(end.words if end else "" for _ in outcome),
            *(f"{each.version} {each.subject}".strip() for _ in commit),
            *(each.code for _ in code),
            each.image,
            "\n".join(f"{each.job}@{run}" for run, _ in own_runs),
            "\n".join(pages),
        )
    console().print(rows)


def _outcomes(past: Past) -> dict[tuple[str, int], Outcome]:
    """Return the outcomes of the jobs' deployments, by job and number, as far as lines are kept."""
    if not past.is_kept:
        return {}
    jobs = [job for job in newest(past.history) if kind_of(job) is Kind.JOB]
    try:
        runs = past.events_of(jobs)
    except KitError as error:
        click.echo(f"note: how the jobs have ended is not known: {error.message}", err=True)
        return {}
    for note in past.notes:
        click.echo(f"note: {note}", err=True)
    return {run: outcome_of(lines) for run, lines in runs.items()}


def _numbers(deployments: Sequence[Deployment]) -> list[int]:
    """Number the deployments of each job, the oldest as 1; `deployments` are the newest first."""
    left = Counter(each.job for each in deployments)
    numbers = []
    for each in deployments:
        numbers.append(left[each.job])
        left[each.job] -= 1
    return numbers


def _shown(path: Path) -> str:
    """Return a path as short as it can be from here: a long one would squeeze other columns."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def _runs(
    archive: Archive, deployments: Sequence[Deployment]
) -> list[list[tuple[str, Path | None]]]:
    """Return the runs that began with each deployment, and the newest report of each."""
    runs = []
    for number, each in enumerate(deployments):
        newer = [begins(other) for other in deployments[:number] if other.job == each.job]
        own = [
            run
            for run in archive.runs(each.job)
            if begins(each) <= began(run) < min(newer, default=math.inf)
        ]
        runs.append([(run, archive.report_of(each.job, run)) for run in own])
    return runs
