"""`kit deploy` and `kit resume`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from kit.commands.code import with_code
from kit.commands.options import with_paths
from kit.commands.records import keep_records
from kit.commands.tables import show_steps
from kit.commands.targets import target_for, with_engine
from kit.commands.to_the_end import follow_to_end
from kit.errors import SIGNALLED, InputError, KitError
from kit.model import EngineName
from kit.paths import Paths, identity
from kit.plan.notes import resume_notes
from kit.project import load_lowered
from kit.rendered import rendered_tree
from kit.runtime.health import Check, await_healthy, await_proxy, with_health
from kit.runtime.history import Deployment, current_user, newest, undone
from kit.runtime.proof import wrong_gpus
from kit.runtime.source import SHORT, contains, current_source
from kit.runtime.status import ENDED, JobStatus
from kit.runtime.target import Agree, Target
from kit.targets.lowered import Lowered
from kit.workload.types import Kind, Workload
from trainer.contract.words import nearest

NO_QUEUE = ("this engine has no queue", "write `engine: swarm` or `compose`, then `kit render`")
"""The mistake, and what to do."""


def _with_jobs(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the arguments of deploy and resume to a command."""
    for decorate in (
        click.option(
            "--detach",
            is_flag=True,
            help="On this machine: return at once, do not follow the jobs.",
        ),
        click.option("--wait", is_flag=True, help="Follow the jobs to their end."),
        click.option("--skip-doctor", is_flag=True, help="Do not examine the hosts before."),
        with_engine,
        with_paths,
        click.argument("jobs", nargs=-1),
    ):
        function = decorate(function)
    return function


@click.command("deploy", short_help="Start jobs, or bring them up to date.")
@_with_jobs
@click.option(
    "--fresh", is_flag=True, help="Start from the beginning: delete the jobs' checkpoints."
)
@click.option("--dry-run", is_flag=True, help="Only show the steps.")
@click.option("--yes-older", is_flag=True, help="Also undo what a newer commit has deployed.")
@click.option("--break-lock", is_flag=True, help="Take the lock of a deploy that is dead.")
def command(
    paths: Paths,
    jobs: tuple[str, ...],
    engine: str | None,
    *,
    fresh: bool,
    wait: bool,
    detach: bool,
    dry_run: bool,
    yes_older: bool,
    break_lock: bool,
    skip_doctor: bool,
) -> int:
    """Start JOBS from the rendered files, or bring them up to date.

    By default, all of jobs/ and serve/. A server has the name of its stack, serve-NAME. GPUs are
    released before they are reassigned. The quick part of `kit doctor` comes first: a job that
    cannot run on its hosts is refused.

    The command returns when everything runs. With --wait it returns when the jobs have ended, with
    0 only if all have completed. On this machine (engine local) it always follows the jobs, and
    Ctrl-C stops them after a last checkpoint. Jobs on other hosts do not depend on it.
    """
    target, chosen, refuse = prepare(paths, jobs, engine, examines=not (skip_doctor or dry_run))
    refuse(chosen)
    if break_lock:
        target.break_lock()
    agree = _agreement(chosen, paths.inventory.parent, asks=not (dry_run or yes_older))
    if dry_run:
        show_steps(target.preview(chosen, fresh=fresh))
        if not yes_older:
            agree(target.history())
        return 0
    if fresh:
        keep_records(target, identity(paths)[0], chosen)
    chosen = with_code(target, chosen, paths)
    follows = wait or (target.tied_to_terminal and not detach)
    return _deploy(target, chosen, engine, agree, fresh=fresh, follows=follows)


def run_job(
    paths: Paths, job: str, engine: str | None, *, follows: bool
) -> tuple[int, JobStatus | None]:
    """Deploy one job, and if `follows`, follow it to its end.

    Returns 128 plus the number of the signal that has ended it here, or 0; and its status.

    Raises:
        InputError: It runs for somebody else.
        KitError: It cannot be started; see `deploy`.
    """
    target, chosen, refuse = prepare(paths, [job], engine, examines=True)
    _refuse_of_others(target, job)
    refuse(chosen)
    agree = _agreement(chosen, paths.inventory.parent, asks=True)
    chosen = with_code(target, chosen, paths)
    status = _deploy(target, chosen, engine, agree, fresh=False, follows=follows)
    ended = next((each for each in target.status() if each.job == job), None)
    return status if status > SIGNALLED else 0, ended


def _refuse_of_others(target: Target, job: str) -> None:
    """Refuse to replace what another person has started: two scripts may have the same name."""
    last = newest(target.history()).get(job)
    if last is None or last.by == current_user():
        return
    if any(each.job == job and each.state not in ENDED for each in target.status()):
        what = f"job {job} runs, and {last.by} has deployed it on {last.when}"
        raise InputError(what, f"give your run another name, as in `--name {job}-2`")


@click.command("resume", short_help="Continue jobs that have ended.")
@_with_jobs
def resume(
    paths: Paths,
    jobs: tuple[str, ...],
    engine: str | None,
    *,
    wait: bool,
    detach: bool,
    skip_doctor: bool,
) -> int:
    """Continue JOBS that were stopped or have failed, from their newest checkpoint."""
    target, chosen, refuse = prepare(paths, jobs, engine, examines=not skip_doctor)
    known = {deployment.job for deployment in target.history()}
    running = {status.job for status in target.status() if status.state not in ENDED}
    chosen = [
        job
        for job in chosen
        if job.kind is Kind.JOB and (jobs or (job.name in known and job.name not in running))
    ]
    for job in chosen:
        if job.name in running:
            raise InputError(
                f"job {job.name} has not ended", f"see `kit status`, `kit logs {job.name}`"
            )
        if job.name not in known:
            raise InputError(f"job {job.name} was never deployed", f"run `kit deploy {job.name}`")
    if not chosen:
        raise InputError("no ended job can be resumed", "see `kit status` and `kit history`")
    refuse(chosen)
    follows = wait or (target.tied_to_terminal and not detach)
    agree = _agreement(chosen, paths.inventory.parent, asks=True)
    chosen = with_code(target, chosen, paths)
    return _deploy(target, chosen, engine, agree, fresh=False, follows=follows)


def prepare(
    paths: Paths, names: Sequence[str], engine: str | None, *, examines: bool, queued: bool = False
) -> tuple[Target, list[Workload], Callable[[Sequence[Workload]], None]]:
    """Return the target, the workloads, and a function that refuses to start them on faulty hosts.

    `queued`: all of them are for the queue; otherwise none of them is.

    Raises:
        InputError: A named workload is for another command, or is unknown.
    """
    lowered = load_lowered(paths)
    # The files are rendered for the inventory's engine; --engine changes addresses and ports.
    wanted = load_lowered(paths, EngineName(engine)) if engine else lowered
    # The hosts are examined while the files are compared.
    refuse = _doctor(wanted, paths, names if examines else None)
    root = rendered_tree(lowered, paths)
    target = target_for(wanted.engine, wanted.cluster, root, wanted.workloads)
    chosen = _chosen(wanted, names, queued=queued)
    if not target.tied_to_terminal:
        jobs = {each.name for each in chosen}
        for note in resume_notes([plan for plan in wanted.plan.jobs if plan.name in jobs]):
            click.echo(f"note: {note}", err=True)
    return target, chosen, refuse


def _agreement(chosen: Sequence[Workload], folder: Path, *, asks: bool) -> Agree:
    """Return the function that asks before a deploy undoes what a newer commit has deployed.

    Without `asks` it only prints a note. It raises InputError if there is no terminal to ask on.
    """

    def agree(history: Sequence[Deployment]) -> None:
        replaced = list(undone(history, chosen, lambda commit: contains(folder, commit)))
        if not replaced:
            return
        mine = current_source(folder)
        for each in replaced:
            run = f"{each.job} runs from {each.version} “{each.subject}”"
            click.echo(f"{run}, which {each.by} deployed on {each.when}", err=True)
        here = f"{mine.commit[:SHORT]} “{mine.subject}”" if mine.commit else "no commit"
        what = f"the files here, {here}, do not contain it: a deploy undoes it"
        if not asks:
            click.echo(f"note: {what}", err=True)
        elif not sys.stdin.isatty():
            raise InputError(what, "git pull, then kit render; or `kit deploy --yes-older`")
        else:
            click.confirm(f"{what}. Undo it?", abort=True, err=True)

    return agree


def _doctor(
    lowered: Lowered, paths: Paths, names: Sequence[str] | None
) -> Callable[[Sequence[Workload]], None]:
    """Begin the quick examination (None: no examination); return the function that ends it."""
    if names is None or not lowered.on_hosts:
        return lambda _: None
    from kit.commands.expectations import expectations
    from kit.doctor.quick import QuickDoctor

    doctor = QuickDoctor(expectations(lowered, paths, names or None))

    def refuse(chosen: Sequence[Workload]) -> None:
        needed = {each.name: each.needed for each in chosen}
        doctor.refuse(needed, lambda text: click.echo(text, err=True))

    return refuse


def _chosen(lowered: Lowered, names: Sequence[str], *, queued: bool) -> list[Workload]:
    """Return the named workloads; without names, all except sessions and jobs of the queue."""
    if queued and not lowered.on_hosts:
        raise InputError(*NO_QUEUE)
    by_name = {each.name: each for each in lowered.workloads}
    if not by_name:
        raise InputError("there are no jobs", "describe one in jobs/<name>.yaml")
    for name in names:
        if name not in by_name:
            raise InputError(f"there is no job or server {name}", nearest(name, by_name))
        _refuse_elsewhere(by_name[name], queued=queued)
    if names:
        return [by_name[name] for name in dict.fromkeys(names)]
    for each in lowered.workloads:
        if each.session:
            what = f"session {each.name} is left as it is"
            click.echo(f"note: {what}: `kit deploy {each.name}` starts or updates it", err=True)
        elif each.queue:
            what = f"{each.name} is for the queue"
            click.echo(f"note: {what}: `kit submit {each.name}` hands it in", err=True)
    return [each for each in lowered.workloads if not (each.session or each.queue)]


def _refuse_elsewhere(work: Workload, *, queued: bool) -> None:
    if work.queue and not queued:
        raise InputError(f"{work.title} is for the queue", f"run `kit submit {work.name}`")
    if queued and not work.queue:
        fix = f"write `queue: {{owner: …}}` into {work.file}, or run `kit deploy {work.name}`"
        raise InputError(f"{work.title} is not for the queue", fix)


def hand_in(
    paths: Paths, jobs: Sequence[str], engine: str | None, *, fresh: bool, examines: bool
) -> tuple[Target, list[Workload]]:
    """Deploy the files of jobs of the queue to the target. The queue starts the jobs.

    Raises:
        InputError: They are not for the queue, or the target has none.
        KitError: Their files cannot be deployed.
    """
    target, chosen, refuse = prepare(paths, jobs, engine, examines=examines, queued=True)
    refuse(chosen)
    agree = _agreement(chosen, paths.inventory.parent, asks=True)
    if fresh:
        keep_records(target, identity(paths)[0], chosen)
    chosen = with_code(target, chosen, paths)
    target.deploy(chosen, fresh=fresh, say=click.echo, agree=agree)
    return target, chosen


def _deploy(
    target: Target,
    chosen: list[Workload],
    engine: str | None,
    agree: Agree,
    *,
    fresh: bool,
    follows: bool,
) -> int:
    target.deploy(chosen, fresh=fresh, say=click.echo, agree=agree)
    for each in chosen:
        if each.health and each.parts:
            _await_server(target, each)
        if each.proxied:
            await_proxy(each.name, each.urls[-1] + each.ready)
    jobs = [each.name for each in chosen if each.kind is Kind.JOB]
    if follows and jobs:
        return follow_to_end(target, jobs)
    option = f" --engine {engine}" if engine else ""
    click.echo(
        f"see them with `kit status{option}` and `kit logs -f{option}`, "
        f"end them with `kit stop{option}`"
    )
    return 0


def _await_server(target: Target, work: Workload) -> None:
    """Wait until the user's own server is healthy with its own GPUs.

    Raises:
        KitError: It is not.
    """
    checks = {work.name: Check(work.health, tuple(each.host.name for each in work.placements))}

    def look() -> JobStatus | None:
        statuses = [status for status in target.status() if status.job == work.name]
        return next(iter(with_health(statuses, checks)), None)

    status = await_healthy(work.name, look, work.start_timeout, click.echo)
    if wrong := wrong_gpus([status]):
        raise KitError("WRONG GPUs: " + "; ".join(wrong), "see `kit doctor`")
