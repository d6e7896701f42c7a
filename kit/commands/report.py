"""`kit report`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path

import click

from kit import __version__, files
from kit.commands.options import with_paths
from kit.commands.records import archive_of, read_runs
from kit.commands.scripts import scripts_of, show_script
from kit.commands.tables import console, table
from kit.commands.targets import target_for, with_engine
from kit.errors import InputError, KitError, ProblemsError
from kit.model import EngineName
from kit.paths import Paths, identity
from kit.project import load_lowered
from kit.report.collect import chosen
from kit.report.record import Run, named
from kit.report.run_view import NONE, Origin, number, share, usage_words
from kit.report.times import compare, division, paces, speed, speed_unit
from kit.report.usage import usage_of
from kit.report.view import Inventory
from kit.runtime.history import Deployment, begins
from kit.runtime.past import Past
from kit.targets.lowered import Lowered
from kit.values import count
from kit.workload.names import kind_of
from kit.workload.types import Kind
from kit.yamlfile import read_text
from trainer.contract.words import nearest

MOST = 8
"""The most runs side by side; the page has this number of colours."""


@click.command("report", short_help="Show runs side by side, as a page and in the terminal.")
@click.argument("jobs", nargs=-1, metavar="[JOB[@RUN]]...")
@with_paths
@with_engine
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("report.html"),
    show_default=True,
    help="File of the page.",
)
@click.option(
    "--runs",
    "most",
    type=click.IntRange(1, MOST),
    default=1,
    show_default=True,
    help="Number of the newest runs of each job.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, and write no page.")
def command(
    paths: Paths, engine: str | None, jobs: tuple[str, ...], out: Path, *, most: int, as_json: bool
) -> None:
    """Write a page that shows runs side by side, and a summary of them.

    JOB is a job (default: all), JOB@RUN one of its earlier runs: `kit history` lists them. The
    trainer records its runs beside the checkpoints; kit keeps a copy of those that it has read. A
    job without a record has a time line from its lines; JOB@N is that of its deployment N, if the
    hosts keep lines.
    """
    cluster, own = identity(paths)
    name = engine or own
    target = target_for(name, cluster, paths.tree(cluster))
    past = Past(target, cluster, paths.tree(cluster))
    history = past.history
    lowered = _lowered(paths, name)
    jobs_of_files = {each.name: each for each in lowered.workloads} if lowered else {}
    known = {name for name, each in jobs_of_files.items() if each.kind is Kind.JOB}
    known |= {each.job for each in history if kind_of(each.job) is Kind.JOB}
    known |= set(archive_of(cluster).jobs())
    wanted = [(job, run) for job, _, run in (name.partition("@") for name in jobs)]
    if unknown := next((job for job, _ in wanted if job not in known), None):
        raise InputError(f"there is no job {unknown}", nearest(unknown, sorted(known)))
    by_job = {
        job: read_runs(target, cluster, job, jobs_of_files.get(job))
        for job in (dict.fromkeys(job for job, _ in wanted) or sorted(known))
    }
    without = [job for job, own_runs in by_job.items() if not own_runs]
    scripts = scripts_of(past, target, without, wanted, most)
    wanted = [each for each in wanted if each[0] not in {script.job for script in scripts}]
    runs = _chosen(by_job, wanted, most) if wanted or any(by_job.values()) or not scripts else []
    origins = [_origin(run, history) for run in runs]
    if as_json:
        from kit.report.document import document

        listing = {**document(runs, origins), "without_record": [each.json() for each in scripts]}
        click.echo(json.dumps(listing, indent=2, ensure_ascii=False))
        return
    for script in scripts:
        show_script(script)
    if not runs:
        return
    hashes = {each.inventory_hash for name, each in jobs_of_files.items() if name in by_job}
    text = _page(runs, origins, cluster, paths, ", ".join(sorted(hashes)))
    try:
        files.replace(out, text)
    except OSError as error:
        raise KitError(f"{out}: cannot be written: {error.strerror}") from None
    for run in runs:
        archive_of(cluster).note_report(run.job, run.id, out)
    _summary(runs)
    click.echo(f"{out}: {len(text.encode()) / 1000:,.0f} kB, {count(len(runs), 'run')}")


def _lowered(paths: Paths, engine: str) -> Lowered | None:
    """Return the jobs of the files; None if these have mistakes, which do not concern past runs."""
    try:
        return load_lowered(paths, EngineName(engine))
    except ProblemsError:
        return None


def _chosen(
    by_job: Mapping[str, list[Run]], wanted: Sequence[tuple[str, str]], most: int
) -> list[Run]:
    """Return the wanted runs, in the order of the arguments; without any, the newest of all jobs.

    Raises:
        KitError: A job has no record, or there are too many runs.
    """
    for job, _ in wanted:
        if not by_job[job]:
            raise KitError(
                f"job {job} has no record of a run",
                "the built-in trainer records its runs; see `kit status` and `kit logs` for others",
            )
    pairs = wanted or [(job, "") for job in by_job]
    runs = [run for job, name in pairs for run in chosen(by_job[job], job, name, most)]
    if not runs:
        raise KitError("no job has a record of a run", "start one with `kit deploy`")
    if len(runs) > MOST and wanted:
        what = f"{len(runs)} runs are too many side by side"
        raise InputError(what, f"name at most {MOST}, for example `kit report {runs[0].job}`")
    if len(runs) > MOST:
        runs = sorted(runs, key=lambda run: run.began)[-MOST:]
    return list({run.title: run for run in runs}.values())


def _origin(run: Run, deployments: Sequence[Deployment]) -> Origin:
    """Return the newest deployment before a run; deployments are the newest first."""
    for each in deployments:
        if each.job == run.job and begins(each) <= run.attempts[-1].time:
            return Origin(each.image, each.by, each.inventory, each.job_hash, each.code)
    return Origin()


def _page(
    runs: Sequence[Run], origins: Sequence[Origin], cluster: str, paths: Paths, hashes: str
) -> str:
    from kit.report.page import page

    text = read_text(paths.inventory, str(paths.inventory), "")
    return page(
        runs,
        origins,
        Inventory(str(paths.inventory), text, hashes),
        cluster=cluster,
        written=datetime.now().astimezone().isoformat(" ", "minutes"),
        version=__version__,
    )


def _summary(runs: Sequence[Run]) -> None:
    screen, runs = console(), named(runs)
    several, comparisons = len(runs) > 1, compare(runs)
    unit = speed_unit(comparisons)
    columns = ["run", "ranks", "epochs", "seconds", "training", unit]
    columns += ["speed-up", "efficiency"] if several else []
    columns += ["accuracy", "outcome"]
    rows = table(*columns, right=columns[1:-1])
    for each in comparisons:
        relative = (number(each.speedup, ".2f", " ×"), share(each.efficiency, 0))
        rows.add_row(
            each.run.label,
            str(each.world_size),
            str(each.epochs),
            f"{each.seconds:.1f}",
            f"{each.training:.1f}",
            number(speed(each, unit), ",.0f"),
            *(relative if several else ()),
            share(each.accuracy),
            each.run.state,
        )
    screen.print(rows)
    spent = [division(run) for run in runs]
    kinds = [kind for kind in spent[0] if any(each[kind] >= 0.05 for each in spent)]
    times = table("seconds of", *kinds, right=kinds)
    for run, own in zip(runs, spent, strict=True):
        times.add_row(run.label, *(f"{own[kind]:.1f}" if own[kind] else NONE for kind in kinds))
    screen.print(times)
    _show_usage(runs)
    for run in runs:
        for pace in paces(run):
            if pace.slow:
                rank = f"rank {pace.rank.rank} on {pace.rank.host}"
                screen.print(f"{run.label}: {rank} is slow: {pace.factor:.2f} × the others' work")


def _show_usage(runs: Sequence[Run]) -> None:
    """Show the owners of runs of the queue's jobs, and the usage of the runs."""
    used = {run.label: usage_words(usage) for run in runs if (usage := usage_of(run))}
    names = list(next(iter(used.values()), ()))
    rows = table("run", *names, right=names[1:])
    for label, words in used.items():
        rows.add_row(label, *words.values())
    if used:
        console().print(rows)
