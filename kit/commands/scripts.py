"""The part of `kit report` for jobs without a record, such as scripts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

import click

from kit.commands.tables import console, table
from kit.errors import KitError
from kit.report.run_view import usage_words
from kit.report.scripts import Script, from_lines, from_status
from kit.runtime.past import Past, Runs, number_of
from kit.runtime.target import Target
from kit.values import count


def scripts_of(
    past: Past, target: Target, jobs: Sequence[str], wanted: Sequence[tuple[str, str]], most: int
) -> list[Script]:
    """Return the `wanted` runs of `jobs`, each a job and a number; without any, the newest `most`.

    Raises:
        KitError: There is no such deployment, or its lines are gone.
    """
    if not jobs:
        return []
    statuses = {status.job: status for status in target.status() if status.job in jobs}
    asked = {job: [number for name, number in wanted if name == job] or [""] for job in jobs}
    chosen = [pair for job in jobs for pair in _numbers(past, job, asked[job], most)]
    known = {(job, past.last(job)) for job in statuses}
    old = [each for each in chosen if each[:2] not in known and each[1]]
    needed = any(explicit for *_, explicit in old)
    runs = _kept(past, sorted({job for job, *_ in old}), needed=needed) if old else {}
    scripts = list[Script]()
    for job, number, explicit in chosen:
        if (job, number) in known:
            scripts.append(from_status(statuses[job], number, past.newest_lines(job)))
        elif (job, number) in runs:
            scripts.append(from_lines(job, number, runs[job, number]))
        elif explicit:
            what = f"no lines of {job}@{number} are left"
            raise KitError(what, "`kit history` lists the runs; see `monitoring: {logs: …}`")
    return scripts


def _numbers(
    past: Past, job: str, asked: Sequence[str], most: int
) -> Iterator[tuple[str, int, bool]]:
    """Yield the wanted runs of a job: its name, the number, and whether it was asked for."""
    for word in asked:
        if word:
            yield job, number_of(past.history, job, word), True
        else:
            last = past.last(job)
            for number in range(max(last - most + 1, min(last, 1)), last + 1):
                yield job, number, False


def _kept(past: Past, jobs: Sequence[str], *, needed: bool) -> Runs:
    """Read the kept events of jobs; unless they are `needed`, only report what is missing."""
    if not (needed or past.is_kept):
        return {}
    try:
        runs = past.events_of(jobs)
    except KitError as error:
        if needed:
            raise
        click.echo(f"warning: {error}", err=True)
        return {}
    for note in past.notes:
        click.echo(f"warning: {note}", err=True)
    return runs


def show_script(script: Script) -> None:
    """Print the launcher's facts about a run: its ranks, its restarts and its time line."""
    number = f"@{script.number}" if script.number else ""
    click.echo(
        f"{script.job}{number}: {script.words}; it has no record: the built-in trainer alone "
        "writes one. What the launcher of each host knows:"
    )
    places = [f"{', '.join(map(str, ranks))} on {host}" for host, ranks in script.ranks]
    if places:
        click.echo(f"ranks {'; '.join(places)}; {count(script.restarts, 'restart')}")
    if script.usage:
        click.echo(", ".join(f"{name} {word}" for name, word in usage_words(script.usage).items()))
    rows = table("at", "host", "event")
    for each in script.moments:
        when = datetime.fromtimestamp(each.time).astimezone().isoformat(" ", "seconds")
        rows.add_row(when, each.host, each.words)
    if script.moments:
        console().print(rows)
