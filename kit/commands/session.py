"""`kit session`: containers with GPUs in which people work."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import click

from kit.commands.deploy import run_job
from kit.commands.job_file import file_of, free_hosts, head_of, image_of, read, remove, write_job
from kit.commands.options import with_paths
from kit.commands.status import describe_session
from kit.commands.tables import console, table
from kit.commands.targets import target_for, with_engine
from kit.config.flow import flow
from kit.errors import InputError, KitError
from kit.hosts import forward
from kit.hosts.environment import clean
from kit.paths import Paths, identity
from kit.project import load_project
from kit.runtime.access import Access
from kit.runtime.history import current_user
from kit.runtime.status import ENDED, JobStatus, SessionStatus
from kit.runtime.target import Target
from kit.session import entry
from kit.values import WrongValueError, count, duration, label_of
from kit.workload.training import MOUNTED_LAUNCHER
from trainer.contract.words import nearest

COMMAND = "kit session start"
HOUR = 3600
PATIENCE = 600.0
"""Seconds for a session to begin, after it was deployed: data sets and code are fetched first."""
POLL = 1.0


@click.group("session", short_help="Work in a container with GPUs.")
def command() -> None:
    """Work in a container with GPUs of the pool: by SSH, in an editor, or in JupyterLab."""


@command.command("start")
@with_paths
@with_engine
@click.option("--name", help="Name of the session.  [default: your user name]")
@click.option("--gpus", type=click.IntRange(1), default=1, show_default=True)
@click.option("--host", help="Its host.  [default: one with as many free GPUs]")
@click.option("--hours", type=click.FloatRange(0, 10_000), default=8.0, show_default=True)
@click.option("--idle", default="1h", show_default=True, help="End it when unused so long; never.")
@click.option("--image", help="Default: the image that all jobs of the folder have.")
@click.option(
    "--code",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="A folder to bring along.",
)
@click.option("--setup", multiple=True, help="A line for sh that runs first; several times.")
@click.option("--data", multiple=True, help="A data set to bring along; several times.")
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
    project = load_project(paths)
    session = name or label_of(current_user().partition("@")[0]) or "session"
    file = file_of(paths, session, COMMAND)
    if host is not None and host not in {each.name for each in project.inventory.hosts}:
        known = [each.name for each in project.inventory.hosts]
        raise InputError(f"{host} is not in the inventory", nearest(host, known))
    chosen = free_hosts(project, session, 1, gpus, host)
    seconds, unused = round(hours * HOUR), _unused(idle)
    content: dict[str, Any] = {
        "image": image or image_of([each for each in project.jobs if each.name != session]),
        "session": {"keys": _keys(keys)},
        "hosts": {"names": list(chosen.names), "gpus_per_host": chosen.gpus_per_host},
        **({"max_duration": f"{seconds}s"} if seconds else {}),
        **({"idle": f"{unused}s"} if unused else {}),
        **({"data": list(data)} if data else {}),
        **({"setup": list(setup)} if setup else {}),
    }
    if code:
        content["code"] = os.path.relpath(code.resolve(), paths.inventory.parent.resolve())
    text = "".join(f"{key}: {flow(value)}\n" for key, value in content.items())
    _, undo = write_job(paths, file, head_of(COMMAND) + text)
    where = f"{count(gpus, 'GPU')} of {chosen.names[0]}"
    click.echo(f"session {session} with {where}")
    try:
        run_job(paths, session, engine, follows=False)
    except InputError:
        undo()
        raise
    target = _target(paths, engine)
    status = _begun(target, session)
    access = target.access(session, chosen.names[0])
    _tell(paths, session, _ask(access, "renew", str(seconds)), status, keys, engine)


def _keys(files: Sequence[Path]) -> list[str]:
    if files:
        return [entry.key_of(path) for path in files]
    found = entry.public_keys(Path.home())
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


def _target(paths: Paths, engine: str | None) -> Target:
    cluster, own = identity(paths)
    return target_for(engine or own, cluster, paths.tree(cluster))


def _begun(target: Target, session: str) -> JobStatus:
    """Wait until a session tells that it is open."""
    until, told = time.monotonic() + PATIENCE, ""
    while True:
        status = next((each for each in target.status() if each.job == session), None)
        if status is not None and status.session is not None and not status.session.ended:
            return status
        reason = (status.failure or status.message) if status else "it is not there"
        if status is None or status.state in ENDED:
            raise KitError(f"session {session} has ended: {reason}", f"see `kit logs {session}`")
        doing = next((host.message for host in status.hosts if host.message), "")
        if doing and doing != told:
            click.echo(f"{session}: {doing}")
            told = doing
        if time.monotonic() > until:
            raise KitError(f"session {session} has not begun", f"see `kit logs {session}`")
        time.sleep(POLL)


def _ask(access: Access, *words: str) -> dict[str, Any]:
    """Run a command of the session's launcher, which answers with JSON.

    Raises:
        KitError: It fails.
    """
    line = access.command(("python3", MOUNTED_LAUNCHER, "session", *words), terminal=False)
    done = subprocess.run(
        line,
        env=clean(os.environ),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    with suppress(ValueError):
        answer = json.loads(done.stdout)
        if done.returncode == 0 and isinstance(answer, dict):
            return answer
    said = done.stderr.strip().splitlines() or ["it gave no reason"]
    raise KitError(said[-1].partition("error: ")[2] or said[-1])


def _tell(
    paths: Paths,
    session: str,
    answer: dict[str, Any],
    status: JobStatus,
    keys: Sequence[Path],
    engine: str | None,
) -> None:
    """Write the entry for ssh, and say how to get in."""
    cluster, _ = identity(paths)
    alias, known = entry.alias_of(cluster, session), status.session
    assert known is not None
    more = f" --engine {engine}" if engine else ""
    end = time.strftime("%a %H:%M", time.localtime(answer["until"])) if answer["until"] else ""
    click.echo(f"session {session} is open{f' until {end}' if end else ''}:")
    if known.ssh:
        click.echo(f"  kit shell {session}{more}    (without SSH: {known.ssh})")
    else:
        options = ("-i", str(paths.inventory.resolve()), *(["--engine", engine] if engine else []))
        proxy = (sys.executable, "-m", "kit", "session", "connect", *options, session)
        own = keys[0].with_suffix("") if keys and keys[0].suffix == ".pub" else None
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


@command.command("connect", hidden=True)
@click.argument("name")
@with_paths
@with_engine
def connect(name: str, paths: Paths, engine: str | None) -> NoReturn:
    """Connect standard input and output with sshd in a session: ssh's ProxyCommand.

    It becomes docker's command: ssh ends it by a signal, about which kit would say something.
    """
    access = _access(_target(paths, engine), name)
    line = access.command(("python3", MOUNTED_LAUNCHER, "session", "connect"), terminal=False)
    os.execvpe(line[0], line, clean(os.environ))


def _access(target: Target, name: str) -> Access:
    known = target.known()
    if name not in known:
        fix = nearest(name, known) if known else "`kit session start` starts one"
        raise InputError(f"session {name} is not deployed", fix)
    return target.access(name, next(iter(known[name].hosts), ""))


@command.command("jupyter")
@click.argument("name")
@with_paths
@with_engine
@click.option("--port", type=click.IntRange(0, 65535), default=8888, show_default=True)
def jupyter(name: str, paths: Paths, engine: str | None, *, port: int) -> None:
    """Bring the JupyterLab of session NAME to this machine, until Ctrl-C; port 0 is a free one."""
    access = _access(_target(paths, engine), name)
    answer = _ask(access, "jupyter")
    line = access.command(forward.words(answer["port"]), terminal=False)
    say: Callable[[str], None] = partial(click.echo, err=True)

    def ready(opened: int) -> None:
        click.echo(f"http://{forward.HERE}:{opened}/lab?token={answer['token']}")

    with suppress(KeyboardInterrupt):
        asyncio.run(forward.serve(port, line, clean(os.environ), say, ready))


@command.command("list")
@with_paths
@with_engine
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def show(paths: Paths, engine: str | None, *, as_json: bool) -> None:
    """Show all sessions: their hosts, and until when they are open."""
    planned = {job.name for job in load_project(paths).jobs if job.session}
    statuses = _target(paths, engine).status()
    known = [each for each in statuses if each.job in planned or _is_open(each)]
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


def _is_open(status: JobStatus) -> bool:
    return status.session is not None and status.state not in ENDED


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
    """Let session NAME be open for more hours."""
    access = _access(_target(paths, engine), name)
    answer = _ask(access, "extend", str(round(hours * HOUR)))
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
    text = read(file)
    if text is not None and text.startswith(head_of(COMMAND)):
        remove(paths, file, engine)
    else:
        _target(paths, engine).stop(name)
        click.echo(f"session {name} has ended; jobs/{name}.yaml is yours, and stays")
    entry.remove(entry.alias_of(cluster, name), Path.home())
