"""`kit run`: a job from the command line, by the same files as by hand."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import click

from kit import files, tree
from kit.code.folder import printable
from kit.commands.deploy import run_job
from kit.commands.options import with_paths
from kit.commands.targets import target_for, with_engine
from kit.config.flow import flow
from kit.config.load import Project
from kit.errors import InputError, KitError
from kit.model import Job, JobHosts
from kit.paths import Paths
from kit.plan.free import choose, free_gpus
from kit.project import load_lowered, load_project, lowered_of
from kit.rendered import render_lowered
from kit.runtime.status import JobStatus, State
from kit.targets.lowered import Lowered
from kit.values import WrongValueError, count, dns_label, label_of

WRITTEN = "# Written by `kit run`, which writes it anew. Without this line it is yours.\n"
FAILED = 1


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the command line asks for."""

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
    project = load_project(paths)
    job = wanted.name or _name_of(command)
    file = _file_of(paths, job)
    before = _read(file)
    files.replace(file, _text(paths, project, wanted, job, command))
    try:
        _render(paths, job)
    except KitError:
        _restore(file, before)
        raise
    try:
        signalled, status = run_job(paths, job, engine, follows=not detach)
    except InputError:
        _restore(file, before)
        _render_all(paths)
        raise
    except KitError:
        if removes:
            _remove(paths, job, engine, file)
        raise
    if removes:
        _remove(paths, job, engine, file)
    return signalled or (0 if detach or status is None else exit_status(status))


def _name_of(command: Sequence[str]) -> str:
    """Name a job after its script or its module."""
    script = command[1] if command[0] == "-m" and len(command) > 1 else command[0]
    return label_of(Path(script).name.removesuffix(".py")) or "run"


def _file_of(paths: Paths, job: str) -> Path:
    """Return the file of a job; refuse one that a person has written."""
    try:
        dns_label(job)
    except WrongValueError as error:
        raise InputError(f"--name: {error.what}", error.fix) from None
    file = paths.jobs_folder() / f"{job}.yaml"
    before = _read(file)
    if before is not None and not before.startswith(WRITTEN):
        what = f"{file} was not written by kit run"
        raise InputError(what, f"give the run another name, as in `--name {job}-2`")
    return file


def _read(file: Path) -> str | None:
    try:
        return files.read_plain(file).decode(errors="replace")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InputError(f"{file}: cannot be read: {error.strerror}") from None


def _restore(file: Path, before: str | None) -> None:
    if before is None:
        file.unlink(missing_ok=True)
    else:
        files.replace(file, before)


def _text(paths: Paths, project: Project, wanted: Wanted, job: str, command: Sequence[str]) -> str:
    """Return the job's file."""
    others = [each for each in project.jobs if each.name != job]
    content: dict[str, object] = {
        "image": wanted.image or _image(project.jobs),
        "command": list(command),
    }
    if folder := _code(wanted.code, command):
        content["code"] = os.path.relpath(folder.resolve(), paths.inventory.parent.resolve())
    hosts = _hosts(project, others, wanted)
    content["hosts"] = {"names": list(hosts.names), "gpus_per_host": hosts.gpus_per_host}
    return WRITTEN + "".join(f"{key}: {flow(value)}\n" for key, value in content.items())


def _image(jobs: Sequence[Job]) -> str:
    images = sorted({each.image for each in jobs})
    if len(images) == 1:
        return images[0]
    what = f"the jobs have several images: {', '.join(images)}" if images else "there is no image"
    raise InputError(what, f"name one, as in `--image {images[0] if images else 'IMAGE'}`")


def _code(folder: Path | None, command: Sequence[str]) -> Path | None:
    """Return the folder that travels: the one that is named, or this one with its script."""
    if folder is not None:
        return folder
    package = " ".join(command[1:2]).partition(".")[0]
    module = command[0] == "-m" and (Path(package).is_dir() or Path(f"{package}.py").is_file())
    script = not command[0].startswith("/") and Path(command[0]).is_file()
    return Path() if module or script else None


def _hosts(project: Project, others: Sequence[Job], wanted: Wanted) -> JobHosts:
    rest = Project(project.inventory, tuple(others), project.servers, project.lock, project.sources)
    plan = lowered_of(rest, project.inventory).plan
    try:
        return choose(free_gpus(project.inventory, plan.jobs), wanted.hosts, wanted.gpus)
    except WrongValueError as error:
        raise InputError(error.what, error.fix) from None


def _render(paths: Paths, job: str) -> None:
    """Write the files, and say in short what runs where."""
    lowered = _render_all(paths)
    (plan,) = [each for each in lowered.plan.jobs if each.name == job]
    places = ", ".join(
        f"{each.host.name} ({count(len(each.gpus), 'GPU')})" for each in plan.placements
    )
    words = printable(" ".join(plan.job.command))
    click.echo(f"job {job} on {places}, world size {plan.world_size}: {words}")


def _render_all(paths: Paths) -> Lowered:
    lowered = load_lowered(paths)
    tree.write(paths.tree(lowered.cluster), render_lowered(lowered, paths))
    return lowered


def _remove(paths: Paths, job: str, engine: str | None, file: Path) -> None:
    """Remove a job that has ended: its containers, its file, and its rendered files."""
    lowered = load_lowered(paths)
    root = paths.tree(lowered.cluster)
    with suppress(KitError):  # Nothing of it may be left.
        target_for(engine or lowered.engine, lowered.cluster, root).stop(job)
    file.unlink(missing_ok=True)
    _render_all(paths)
    click.echo(f"job {job}: removed")


def exit_status(status: JobStatus) -> int:
    """Return the exit status of a run: the script's where it is known, or 1."""
    if status.state is State.COMPLETED:
        return 0
    return status.exit_code or FAILED
