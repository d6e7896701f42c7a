"""`kit queue`: the running and waiting jobs, with reasons; and the controller of the queue."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import click

from kit.commands.options import with_paths
from kit.commands.submit import queue_of, tell_unattended
from kit.commands.tables import console, table
from kit.commands.targets import target_of, with_engine
from kit.errors import InputError, KitError, joined
from kit.hosts import ssh
from kit.hosts.docker import on_each
from kit.model import Host
from kit.paths import Paths, identity
from kit.queue.carrier import Queue, Seen
from kit.queue.controller import Controller
from kit.queue.document import Rules
from kit.queue.forecast import DAY, Moment, forecast, starts
from kit.queue.moves import Release
from kit.queue.pool import PoolHost, QueuedJob
from kit.queue.program import packed, say
from kit.queue.record import Record, going
from kit.queue.turn import turn
from kit.runtime.history import current_user
from kit.runtime.rendered import rendered
from kit.values import count, show_age

LEAVES = 60.0
"""Seconds until a training must have left a host: a script may save during this time."""


@click.group(
    "queue",
    short_help="Show the jobs of the queue; run its controller.",
    invoke_without_command=True,
)
@with_paths
@with_engine
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--all", "everything", is_flag=True, help="Also jobs that ended more than a day ago.")
@click.option(
    "--plan",
    "tonight",
    type=click.Choice(["tonight"]),
    help="Jobs and hosts of the next 24 hours, as hosts are lent and taken back, if no job ends.",
)
@click.pass_context
def command(
    context: click.Context,
    paths: Paths,
    engine: str | None,
    tonight: str | None,
    *,
    as_json: bool,
    everything: bool,
) -> None:
    """Show the jobs of the queue: what runs where, what waits and why.

    A job that waits for a host to be lent has the time of its start.
    """
    if context.invoked_subcommand is not None:
        return
    queue = queue_of(target_of(paths, engine))
    rules, records, seen = look(queue)
    if tonight:
        _show_plan(list(forecast(seen.pool, rules, seen.pool.now + DAY)), as_json=as_json)
        return
    begins, reasons = starts(seen.pool, rules), turn(seen.pool).reasons
    recent = (
        each
        for each in records.values()
        if everything or each.ended is None or (not each.gone and seen.pool.now - each.ended < DAY)
    )
    rows = [_row(each, seen, begins, reasons) for each in sorted(recent, key=_order)]
    if as_json:
        click.echo(json.dumps({"jobs": rows, "hosts": _hosts(seen)}, indent=2))
        return
    _show(rows, seen)
    tell_unattended(queue)


def _show_plan(moments: Sequence[Moment], *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps([asdict(each) for each in moments], indent=2))
        return
    lines = table("from", "lent", "taken back", "runs")
    for each in moments:
        runs = ", ".join(f"{job} on {' '.join(hosts)}" for job, hosts in each.hosts.items())
        lines.add_row(_clock(each.time), " ".join(each.opens), " ".join(each.closes), runs)
    console().print(lines)


def look(queue: Queue) -> tuple[Rules, dict[str, Record], Seen]:
    """Return the rules of the queue, the records of its jobs, and the pool now.

    Raises:
        InputError: Nothing was ever handed in.
    """
    rules, now = queue.rules(), time.time()
    if rules is None:
        raise InputError("there is no queue yet", "hand a job in: `kit submit JOB`")
    records = queue.records()
    used = queue.spent().until(now, rules.sharing.half_life)
    return rules, records, queue.look(rules, list(going(records).values()), used, now)


def _order(record: Record) -> tuple[bool, bool, int, float]:
    return record.ended is not None, record.began is None, -record.priority, record.arrived


def _row(
    record: Record, seen: Seen, begins: Mapping[str, float], reasons: Mapping[str, str]
) -> dict[str, Any]:
    job = next((each for each in seen.pool.jobs if each.name == record.job), None)
    has = {host: list(had.gpus) for host, had in job.has.items()} if job else {}
    return {
        "job": record.job,
        "owner": record.owner,
        "priority": record.priority,
        "state": _state(record, job, seen),
        "hosts": has,
        "submitted": record.arrived,
        "began": record.began,
        "ended": record.ended,
        "waited_seconds": round(record.waited_until(seen.pool.now), 1),
        "starts": begins.get(record.job),
        "why": reasons.get(record.job, ""),
    }


def _state(record: Record, job: QueuedJob | None, seen: Seen) -> str:
    if record.ended is not None:
        return record.state
    if job is None:
        return "ending" if record.job in seen.ending else "not deployed"
    return "running" if job.keeps else "leaving" if job.has else "waiting"


def _hosts(seen: Seen) -> dict[str, dict[str, Any]]:
    return {
        host.name: {
            "gpus": list(host.gpus),
            "open": host.open,
            "until": host.until,
            "there": host.there,
            "reclaimed": seen.reclaimed.get(host.name),
        }
        for host in seen.pool.hosts
    }


def _show(rows: list[dict[str, Any]], seen: Seen) -> None:
    lines = table("job", "owner", "priority", "state", "hosts", "waited", "why", right={"priority"})
    for row in rows:
        lines.add_row(
            row["job"],
            row["owner"],
            str(row["priority"]),
            row["state"],
            _places(row["hosts"]),
            show_age(row["waited_seconds"]),
            row["why"] + (f"; starts {_clock(row['starts'])}" if row["starts"] else ""),
        )
    if rows:
        console().print(lines)
    else:
        click.echo("the queue is empty: hand a job in with `kit submit JOB`")
    for host in seen.pool.hosts:
        if text := _closed(host, seen):
            click.echo(f"{host.name}: {text}")


def _places(hosts: Mapping[str, list[str]]) -> str:
    return ", ".join(f"{host} ({count(len(gpus), 'GPU')})" for host, gpus in hosts.items())


def _closed(host: PoolHost, seen: Seen) -> str:
    """Return why jobs cannot use a host; "" if they can."""
    if who := seen.reclaimed.get(host.name):
        return f"{who} uses it; `kit lend {host.name}` gives it to the pool again"
    if until := seen.avoided.get(host.name):
        return f"a job was ended there by hand; jobs avoid it until {_clock(until)}"
    if why := seen.silent.get(host.name):
        return f"the controller cannot reach it: {why.removeprefix(f'{host.name}: ')}"
    if not host.there:
        return "does not answer"
    if host.open or host.until is None:
        return "" if host.open else "is not lent"
    return f"is lent from {_clock(host.until)}"


def _clock(moment: float) -> str:
    return time.strftime("%a %H:%M", time.localtime(moment))


@command.command("up")
@with_paths
def up(paths: Paths) -> None:
    """Start the controller as a service of systemd, also after each reboot.

    With a Swarm, it runs on all managers: the controller of the leading manager decides, and if
    that manager is lost, the next one takes over. With Compose, it runs on the first host with the
    role `manager`, whose user must reach the others by SSH without a password. Without a
    controller, running jobs continue and no job starts. It needs Python 3.11 on the host, and root
    or sudo without a password. The command also updates the pool from the rendered files.
    """
    cluster, engine = identity(paths)
    queue, tree = queue_of(target_of(paths, engine)), paths.tree(cluster)
    if document := rendered(tree).queue:
        queue.set_rules(document)
    service = queue.service()
    _install(service.hosts, service.up, packed(service), "the controller runs")


@command.command("down")
@with_paths
def down(paths: Paths) -> None:
    """Remove the controller. Running jobs of the queue continue."""
    service = queue_of(target_of(paths, None)).service()
    _install(service.hosts, service.down, b"", "the controller is removed")


def _install(hosts: Sequence[Host], script: str, content: bytes, done: str) -> None:
    """Run a script on all hosts that answer, and print the outcome of each.

    Raises:
        KitError: It failed on one of them.
    """
    answers = on_each(hosts, partial(ssh.run, script=script, content=content))
    for name, answer in answers.items():
        if not isinstance(answer, KitError):
            click.echo(f"{name}: {done}{' already' if answer.strip() == 'unchanged' else ''}")
    failed = [answer for answer in answers.values() if isinstance(answer, KitError)]
    if failed:
        raise joined(failed)


@command.command("run")
@with_paths
@with_engine
def run(paths: Paths, engine: str | None) -> None:
    """Run the controller here, for hosts without systemd.

    It may end at any time; another controller continues from the state of the cluster. With
    Compose, run only one.
    """
    Controller(queue_of(target_of(paths, engine)), say).run()


@click.command("reclaim", short_help="Take hosts back from the queue.")
@click.argument("hosts", nargs=-1, required=True)
@with_paths
@with_engine
def reclaim(paths: Paths, hosts: tuple[str, ...], engine: str | None) -> None:
    """Take HOSTS back from the queue: its trainings leave them at the end of their step.

    The queue starts no job there until `kit lend`. This needs no controller.
    """
    queue = queue_of(target_of(paths, engine))
    for host in hosts:
        queue.reclaim(host, current_user())
    *_, seen = look(queue)
    left = True
    for job in seen.pool.jobs:
        for host in hosts:
            if host in job.has:
                left = _leave(queue, Release(job.name, host)) and left
    for host in hosts if left else ():
        click.echo(f"{host} is yours: `kit lend {host}` gives it to the pool again")
    if not left:
        raise KitError("not all have left yet", "see `kit queue`; nothing else starts there")


def _leave(queue: Queue, move: Release) -> bool:
    """Make a job leave a host, and print how long that took; return whether it has left."""
    began = time.monotonic()
    left = queue.leave(move, LEAVES)
    took = f"{time.monotonic() - began:.1f} s"
    click.echo(f"{move.job} {'has left' if left else 'still saves on'} {move.host} after {took}")
    return left


@click.command("lend", short_help="Give hosts to the queue again.")
@click.argument("hosts", nargs=-1, required=True)
@with_paths
@with_engine
def lend(paths: Paths, hosts: tuple[str, ...], engine: str | None) -> None:
    """Give HOSTS that were reclaimed to the queue again, in the hours of the inventory."""
    queue = queue_of(target_of(paths, engine))
    for host in hosts:
        queue.reclaim(host, "")
        click.echo(f"{host} is in the pool again")
