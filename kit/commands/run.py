"""`kit run`: a job from the command line, by the same files as by hand."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from kit.code.folder import printable
from kit.commands.job_file import (
    file_of,
    free_hosts,
    head_of,
    image_of,
    open_project,
    remove,
    start_written,
    write_job,
    written,
)
from kit.commands.options import with_paths
from kit.commands.targets import with_engine
from kit.config.flow import flow
from kit.config.load import Project
from kit.errors import InputError, KitError
from kit.paths import Paths
from kit.runtime.endings import EndedError
from kit.runtime.status import JobStatus, State
from kit.targets.lowered import Lowered
from kit.values import count, label_of

COMMAND = "kit run"
FAILED = 1


@dataclass(frozen=True, slots=True)
class Wanted:
    """The request of the command line."""

    name: str | None
    hosts: int | None
    gpus: int | None
    image: str | None
    code: Path | None


@click.command(
    "run",
    short_help="Run a script on GPUs that no job has.",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@with_paths
@with_engine
@click.option("--name", help="Name of the job.  [default: that of the script]")
@click.option("--hosts", type=click.IntRange(1), help="Number of hosts.")
@click.option("--gpus", type=click.IntRange(1), help="Number of GPUs.  [default: 1]")
@click.option("--image", help="Default: the image that all jobs of the folder have.")
@click.option(
    "--code",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Folder with the code.  [default: this folder, if the script is in it]",
)
@click.option("--rm", "removes", is_flag=True, help="Remove the job when it has ended.")
@click.option("--detach", is_flag=True, help="Return when it runs.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def command(
    paths: Paths,
    engine: str | None,
    *,
    name: str | None,
    hosts: int | None,
    gpus: int | None,
    image: str | None,
    code: Path | None,
    removes: bool,
    detach: bool,
    command: tuple[str, ...],
) -> int:
    """Run a script and its arguments: `kit run --gpus 2 -- train.py --epochs 5`.

    It writes jobs/NAME.yaml, renders, deploys, and follows the log to the end. Its exit status is
    that of the script. `kit status`, `kit logs` and `kit stop` know the job as any other;
    Ctrl-C leaves it running, but on this machine (engine local).
    """
    if removes and detach:
        raise InputError("--rm removes the job at its end", "leave out --detach or --rm")
    wanted = Wanted(name, hosts, gpus, image, code)
    project = open_project(paths)
    job = wanted.name or _name_of(command)
    file = file_of(paths, job, COMMAND)
    text = _text(paths, project, wanted, job, command)

    lowered, undo = write_job(paths, file, text)
    click.echo(_described(lowered, job))
    try:
        signalled, status = start_written(paths, job, engine, undo, follows=not detach)
    except KitError as error:
        if removes and file.exists():
            remove(paths, file, engine)
        if isinstance(error, EndedError) and error.exit_code:
            error.exit_status = error.exit_code
        raise
    if removes:
        remove(paths, file, engine)
    return signalled or (0 if detach or status is None else exit_status(status))


def _name_of(command: Sequence[str]) -> str:
    """Name a job after its script or its module."""
    script = command[1] if command[0] == "-m" and len(command) > 1 else command[0]
    return label_of(Path(script).name.removesuffix(".py")) or "run"


def _text(paths: Paths, project: Project, wanted: Wanted, job: str, command: Sequence[str]) -> str:
    """Return the job's file."""
    content: dict[str, object] = {
        "image": wanted.image or image_of(project.jobs),
        "command": list(command),
    }
    if folder := _code(wanted.code, command):
        content["code"] = os.path.relpath(folder.resolve(), paths.inventory.parent.resolve())
    hosts = free_hosts(project, job, wanted.hosts, wanted.gpus)
    content["hosts"] = written(hosts)
    return head_of(COMMAND) + "".join(f"{key}: {flow(value)}\n" for key, value in content.items())


def _code(folder: Path | None, command: Sequence[str]) -> Path | None:
    """Return the folder to send: the named one, or this one if it contains the script."""
    if folder is not None:
        return folder
    package = " ".join(command[1:2]).partition(".")[0]
    module = command[0] == "-m" and (Path(package).is_dir() or Path(f"{package}.py").is_file())
    script = not command[0].startswith("/") and Path(command[0]).is_file()
    return Path() if module or script else None


def _described(lowered: Lowered, job: str) -> str:
    """Describe the job and its hosts in one line."""
    (plan,) = [each for each in lowered.plan.jobs if each.name == job]
    places = ", ".join(
        f"{each.host.name} ({count(len(each.gpus), 'GPU')})" for each in plan.placements
    )
    words = printable(" ".join(plan.job.command))
    return f"job {job} on {places}, world size {plan.world_size}: {words}"


def exit_status(status: JobStatus) -> int:
    """Return the exit status of a run: the script's where it is known, or 1."""
    if status.state is State.COMPLETED:
        return 0
    return status.exit_code or FAILED
