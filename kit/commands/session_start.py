"""`kit session start`: the file of a session, its start, and the way into it."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import click

from kit.commands.job_file import (
    file_of,
    free_hosts,
    head_of,
    image_of,
    open_project,
    start_written,
    write_job,
    written,
)
from kit.commands.options import with_paths
from kit.commands.session_access import access_of, ask, is_open
from kit.commands.targets import target_of, with_engine
from kit.config.flow import flow
from kit.errors import InputError, KitError
from kit.paths import Paths, identity
from kit.runtime.history import current_user
from kit.runtime.status import ENDED, JobStatus, SessionStatus
from kit.runtime.target import Target
from kit.session import entry
from kit.session.keys import key_of, private_files, public_keys
from kit.values import WrongValueError, count, duration, label_of
from trainer.contract.words import nearest

COMMAND = "kit session start"
HOUR = 3600
PATIENCE = 600.0
"""Seconds for a session to begin, after it was deployed: data sets and code are fetched first."""
POLL = 1.0


@click.command("start")
@with_paths
@with_engine
@click.option("--name", help="Name of the session.  [default: your user name]")
@click.option("--gpus", type=click.IntRange(1), default=1, show_default=True)
@click.option("--host", help="Its host.  [default: one with as many free GPUs]")
@click.option("--hours", type=click.FloatRange(0, 10_000), default=8.0, show_default=True)
@click.option(
    "--idle", default="1h", show_default=True, help="End it when idle for this time; never."
)
@click.option("--image", help="Default: the image that all jobs of the folder have.")
@click.option(
    "--code",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="A folder with code for the session.",
)
@click.option("--setup", multiple=True, help="A line for sh that runs first; several times.")
@click.option("--data", multiple=True, help="A data set for the session; several times.")
@click.option(
    "--key",
    "keys",
    multiple=True,
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="A public SSH key; several times.  [default: all of ~/.ssh/id_*.pub]",
)
def start(
    paths: Paths,
    engine: str | None,
    *,
    name: str | None,
    gpus: int,
    host: str | None,
    hours: float,
    idle: str,
    image: str | None,
    code: Path | None,
    setup: tuple[str, ...],
    data: tuple[str, ...],
    keys: tuple[Path, ...],
) -> None:
    """Start a session: a container with GPUs that are not a job's, and a home that stays.

    It writes jobs/NAME.yaml, renders, deploys, and writes an entry for ssh. `kit session stop` ends
    it, and frees its GPUs; its time and `--idle` end it too. Its home stays on its host.
    """
    project = open_project(paths)
    session = name or label_of(current_user().partition("@")[0]) or "session"
    file = file_of(paths, session, COMMAND)
    if host is not None and host not in {each.name for each in project.inventory.hosts}:
        known = [each.name for each in project.inventory.hosts]
        raise InputError(f"{host} is not in the inventory", nearest(host, known))
    chosen = free_hosts(project, session, 1, gpus, host)
    seconds, unused = round(hours * HOUR), _unused(idle)
    now = datetime.now().astimezone().isoformat(timespec="milliseconds")
    content: dict[str, Any] = {
        "image": image or image_of([each for each in project.jobs if each.name != session]),
        "session": {"keys": _keys(keys), "started": now},
        "hosts": written(chosen),
        **({"max_duration": f"{seconds}s"} if seconds else {}),
        **({"idle": f"{unused}s"} if unused else {}),
        **({"data": list(data)} if data else {}),
        **({"setup": list(setup)} if setup else {}),
    }
    if code:
        content["code"] = os.path.relpath(code.resolve(), paths.inventory.parent.resolve())
    target = target_of(paths, engine)
    _refuse_an_open_one(target, session)
    text = "".join(f"{key}: {flow(value)}\n" for key, value in content.items())
    _, undo = write_job(paths, file, head_of(COMMAND) + text)
    click.echo(f"session {session} with {count(gpus, 'GPU')} of {chosen.names[0]}")
    start_written(paths, session, engine, undo, follows=False)
    known_now = _begun(target, session)
    answer = ask(access_of(target, session), "about")
    _tell(paths, session, answer, known_now, keys, engine)


def _keys(files: Sequence[Path]) -> list[str]:
    if files:
        return [key_of(path) for path in files]
    found = public_keys(Path.home(), partial(click.echo, err=True))
    if not found:
        what = "there is no public key in ~/.ssh: without SSH; `ssh-keygen -t ed25519` makes one"
        click.echo(f"note: {what}", err=True)
    return found


def _unused(idle: str) -> int:
    """Return after how many seconds without use a session ends; 0: never."""
    if idle == "never":
        return 0
    try:
        return duration(idle)
    except WrongValueError as error:
        raise InputError(f"--idle: {error.what}", f"{error.fix}, or never") from None


def _refuse_an_open_one(target: Target, session: str) -> None:
    """Refuse to replace a container in which somebody works."""
    if any(each.job == session and is_open(each) for each in target.status()):
        more = f"`kit session extend {session} --hours 4` gives it more time"
        fix = f"{more}, `kit session stop {session}` ends it; or choose another --name"
        raise InputError(f"session {session} is open", fix)


def _begun(target: Target, session: str) -> SessionStatus:
    """Wait until a session reports that it is open."""
    until, told = time.monotonic() + PATIENCE, ""
    while True:
        status = next((each for each in target.status() if each.job == session), None)
        known = status.session if status else None
        if known is not None and not known.ended:
            return known
        if status is None or known is not None or status.state in ENDED:
            why = _why(status)
            raise KitError(f"session {session} has ended: {why}", f"see `kit logs {session}`")
        doing = next((host.message for host in status.hosts if host.message), "")
        if doing and doing != told:
            click.echo(f"{session}: {doing}")
            told = doing
        if time.monotonic() > until:
            raise KitError(f"session {session} has not begun", f"see `kit logs {session}`")
        time.sleep(POLL)


def _why(status: JobStatus | None) -> str:
    if status is None:
        return "it is not there"
    own = status.session.ended if status.session else ""
    return own or status.failure or status.message or str(status.state)


def _tell(
    paths: Paths,
    session: str,
    answer: dict[str, Any],
    known: SessionStatus,
    keys: Sequence[Path],
    engine: str | None,
) -> None:
    """Write the entry for ssh, and print the commands that open the session."""
    cluster, _ = identity(paths)
    alias = entry.alias_of(cluster, session)
    more = f" --engine {engine}" if engine else ""
    end = time.strftime("%a %H:%M", time.localtime(answer["until"])) if answer["until"] else ""
    click.echo(f"session {session} is open{f' until {end}' if end else ''}:")
    if known.ssh:
        click.echo(f"  kit shell {session}{more}    (without SSH: {known.ssh})")
    else:
        options = ("-i", str(paths.inventory.resolve()), *(["--engine", engine] if engine else []))
        proxy = (sys.executable, "-m", "kit", "session", "connect", *options, session)
        own = private_files(keys)
        made = entry.Entry(alias, answer["user"], answer["host_key"], proxy, own)
        file = entry.write(made, Path.home())
        way = "" if entry.included(Path.home()) else f"-F {file} "
        click.echo(f"  ssh {way}{alias}")
        if way:
            click.echo(f"  `{entry.INCLUDE}` at the top of ~/.ssh/config lets VS Code find {alias}")
    if known.jupyter:
        click.echo(f"  without JupyterLab: {known.jupyter}")
    else:
        click.echo(f"  kit session jupyter {session}{more}")
    click.echo(f"  kit session stop {session}{more}    ends it; its home stays")
