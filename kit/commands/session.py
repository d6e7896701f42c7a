"""`kit session`: containers with GPUs in which people work."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import NoReturn

import click

from kit.commands.job_file import head_of, read, remove
from kit.commands.options import with_paths
from kit.commands.session_access import (
    access_of,
    ask,
    is_open,
    launcher,
    refuse_of_others,
    sessions_of,
)
from kit.commands.session_start import COMMAND, HOUR, start
from kit.commands.status import describe_session
from kit.commands.tables import console, table
from kit.commands.targets import target_of, with_engine
from kit.errors import InputError
from kit.hosts import forward
from kit.hosts.environment import clean
from kit.paths import Paths, identity
from kit.project import load_project
from kit.runtime.status import ENDED, JobStatus, SessionStatus
from kit.session import entry
from trainer.contract.words import nearest


@click.group("session", short_help="Work in a container with GPUs.")
def command() -> None:
    """Work in a container with GPUs of the pool: by SSH, in an editor, or in JupyterLab."""


command.add_command(start)


@command.command("connect", hidden=True)
@click.argument("name")
@with_paths
@with_engine
def connect(name: str, paths: Paths, engine: str | None) -> NoReturn:
    """Connect standard input and output with sshd in a session: ssh's ProxyCommand.

    It replaces itself by docker's command: kit would report the signal with which ssh ends it.
    """
    access = access_of(target_of(paths, engine), name)
    line = launcher(access, "connect")
    os.execvpe(line[0], line, clean(os.environ))


@command.command("jupyter")
@click.argument("name")
@with_paths
@with_engine
@click.option("--port", type=click.IntRange(0, 65535), default=8888, show_default=True)
def jupyter(name: str, paths: Paths, engine: str | None, *, port: int) -> None:
    """Forward the JupyterLab of session NAME here, until Ctrl-C; port 0 is a free one."""
    access = access_of(target_of(paths, engine), name)
    answer = ask(access, "jupyter")
    line = access.command(forward.words(answer["port"]), terminal=False)
    say: Callable[[str], None] = partial(click.echo, err=True)

    def ready(opened: int) -> None:
        click.echo(f"http://{forward.HERE}:{opened}/lab?token={answer['token']}")

    with suppress(KeyboardInterrupt):
        forward.serve(port, line, clean(os.environ), say, ready)


@command.command("list")
@with_paths
@with_engine
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def show(paths: Paths, engine: str | None, *, as_json: bool) -> None:
    """Show all sessions: their hosts, and until when they are open."""
    statuses = target_of(paths, engine).status()
    planned = {job.name for job in load_project(paths).jobs if job.session}
    known = [each for each in statuses if each.job in planned or is_open(each)]
    if as_json:
        click.echo(json.dumps([asdict(each) for each in known], indent=2))
        return
    if not known:
        click.echo("there is no session: `kit session start` starts one")
        return
    rows = table("session", "state", "host", "GPUs", "")
    for status in known:
        hosts = ", ".join(host.host for host in status.hosts)
        gpus = ", ".join(gpu for host in status.hosts for gpu in host.devices)
        rows.add_row(status.job, status.state, hosts, gpus, _about(status))
    console().print(rows)


def _about(status: JobStatus) -> str:
    session: SessionStatus | None = status.session
    if status.state in ENDED:
        why = (session and session.ended) or status.failure or status.message
        return f"{why}: " * bool(why) + f"`kit session stop {status.job}` frees its GPUs"
    return describe_session(session) if session else status.message or "begins"


@command.command("extend")
@click.argument("name")
@with_paths
@with_engine
@click.option("--hours", type=click.FloatRange(0, 10_000, min_open=True), required=True)
def extend(name: str, paths: Paths, engine: str | None, *, hours: float) -> None:
    """Extend session NAME by more hours."""
    access = access_of(target_of(paths, engine), name)
    answer = ask(access, "extend", str(round(hours * HOUR)))
    if not answer["until"]:
        click.echo(f"session {name} has no end by time: it is open until it is stopped or unused")
        return
    end = time.strftime("%a %H:%M", time.localtime(answer["until"]))
    click.echo(f"session {name} is open until {end}")


@command.command("stop")
@click.argument("name")
@with_paths
@with_engine
def stop(name: str, paths: Paths, engine: str | None) -> None:
    """End session NAME and free its GPUs; its home stays on its host."""
    cluster, _ = identity(paths)
    file = paths.jobs_folder() / f"{name}.yaml"
    text, target = read(file), target_of(paths, engine)
    ours = text is not None and text.startswith(head_of(COMMAND))
    if not ours:
        _require_session(paths, name, target.status())
    refuse_of_others(target, name)
    if ours:
        remove(paths, file, engine)
    else:
        target.stop(name)
        click.echo(f"session {name} has ended; jobs/{name}.yaml is yours, and stays")
    entry.remove(entry.alias_of(cluster, name), Path.home())


def _require_session(paths: Paths, name: str, statuses: Iterable[JobStatus]) -> None:
    """Refuse a job or a server: `kit stop` ends those."""
    known = {each.job: each for each in statuses}
    sessions = sessions_of(paths, known.values())
    if name in known and name not in sessions:
        raise InputError(f"{name} is not a session", f"`kit stop {name}` ends it")
    if name not in known:
        fix = nearest(name, sessions) if sessions else "see `kit session list`"
        raise InputError(f"session {name} is not deployed", fix)
