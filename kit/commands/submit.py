"""`kit submit` and `kit cancel`."""

from __future__ import annotations

import time
from dataclasses import replace

import click

from kit.commands.deploy import NO_QUEUE, hand_in
from kit.commands.options import with_paths
from kit.commands.targets import target_of, with_engine
from kit.commands.to_the_end import report
from kit.errors import InputError
from kit.paths import Paths, identity
from kit.queue.carrier import Queue
from kit.queue.controller import NOTED
from kit.queue.record import Record
from kit.runtime.history import current_user
from kit.runtime.rendered import rendered
from kit.runtime.target import Target
from kit.values import show_age
from kit.workload.types import Workload
from trainer.contract.words import nearest

CANCELLED = "cancelled"
SHOWS, POLL = 4.0, 0.5
"""Seconds for a controller to show that it has seen the first job, and between two checks."""


@click.command("submit", short_help="Hand jobs to the queue.")
@click.argument("jobs", nargs=-1, required=True)
@with_paths
@with_engine
@click.option("--fresh", is_flag=True, help="Start from the beginning: delete the checkpoints.")
@click.option("--skip-doctor", is_flag=True, help="Do not examine the hosts before.")
def submit(
    paths: Paths, jobs: tuple[str, ...], engine: str | None, *, fresh: bool, skip_doctor: bool
) -> None:
    """Submit JOBS to the queue, which starts each job when enough hosts are free.

    A job that is already in the queue keeps its place, and continues with its new files from a last
    checkpoint. `kit queue` shows the jobs that run and wait, and the reasons.
    """
    target, chosen = hand_in(paths, jobs, engine, fresh=fresh, examines=not skip_doctor)
    queue = queue_of(target)
    queue.set_rules(rendered(paths.tree(identity(paths)[0])).queue)
    known = queue.records()
    for each in chosen:
        before = known.get(each.name)
        home = before.home if before and not fresh else ()
        if before and before.ended is None:
            queue.update(replace(renewed(before, each), home=home))
            click.echo(f"{each.name} keeps its place in the queue")
        else:
            queue.add(replace(_record(each), home=home))
            click.echo(f"{each.name} is in the queue")
    click.echo("see it with `kit queue`, end it with `kit cancel`")
    tell_unattended(queue)


def _record(work: Workload) -> Record:
    now = time.time()
    return renewed(Record(work.name, "", 0, now, current_user(), waits=now), work)


def renewed(record: Record, work: Workload) -> Record:
    """Return the record of a job with the owner and the priority of its present file."""
    assert work.queue is not None
    return replace(record, owner=work.queue.owner, priority=work.queue.priority)


@click.command("cancel", short_help="Take jobs out of the queue, after a last checkpoint.")
@click.argument("jobs", nargs=-1, required=True)
@with_paths
@with_engine
def cancel(paths: Paths, jobs: tuple[str, ...], engine: str | None) -> None:
    """Remove JOBS from the queue. Running jobs end after a last checkpoint.

    `kit submit` adds them again, and they continue from that checkpoint. Ended jobs are removed.
    """
    target = target_of(paths, engine)
    queue = queue_of(target)
    known = {name: record for name, record in queue.records().items() if not record.gone}
    for job in jobs:
        if job not in known:
            fix = nearest(job, known) if known else "the queue is empty: see `kit queue`"
            raise InputError(f"there is no job {job} in the queue", fix)
    deployed = target.known()
    for job in jobs:
        # First, or the controller would start it again.
        queue.update(_cancelled(known[job]))
        if job in deployed:
            report(target.stop(job))
        else:
            click.echo(f"{job} is out of the queue; its stack was gone already")


def _cancelled(record: Record) -> Record:
    """Return the record of a cancelled job; it keeps the hosts with the checkpoints."""
    if record.ended is None:
        record = replace(record, ended=time.time(), state=CANCELLED, waits=None, reason="")
    return replace(record, gone=True)


def queue_of(target: Target) -> Queue:
    """Return the queue of a target.

    Raises:
        InputError: It has none.
    """
    if (queue := target.queue()) is None:
        raise InputError(*NO_QUEUE)
    return queue


def tell_unattended(queue: Queue) -> None:
    """Print a note if no controller has been seen: without one, no job of the queue starts."""
    deadline = time.monotonic() + SHOWS
    while not (seen := queue.spent().at) and time.monotonic() < deadline:
        time.sleep(POLL)
    if time.time() - seen > 3 * NOTED:
        when = f"for {show_age(time.time() - seen)}" if seen else "yet"
        what = f"the queue's controller has not been seen {when}: waiting jobs do not start"
        click.echo(f"note: {what}: `kit queue up`", err=True)
