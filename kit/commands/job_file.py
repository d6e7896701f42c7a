"""Jobs whose files a command writes: those of `kit run` and `kit session start`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path

import click

from kit import files, tree
from kit.commands.deploy import run_job
from kit.commands.targets import target_of
from kit.config.load import Project
from kit.errors import InputError, KitError
from kit.jobs import Job
from kit.model import JobHosts
from kit.paths import Paths
from kit.plan.free import choose, free_gpus
from kit.project import load_lowered, load_project, lowered_of
from kit.rendered import render_lowered
from kit.runtime.endings import EndedError
from kit.runtime.status import ENDED, JobStatus, unreached
from kit.runtime.target import Target
from kit.targets.lowered import Lowered
from kit.values import WrongValueError, dns_label


def head_of(command: str) -> str:
    """Return the first line of the files that a command writes."""
    return f"# Written by `{command}`, which overwrites it. Without this line it is yours.\n"


def open_project(paths: Paths) -> Project:
    """Read the project, to which a job will be added; make its folder of jobs if there is none.

    Raises:
        ProblemsError: Mistakes in the files, with their lines.
    """
    folder = paths.jobs_folder()
    made = paths.inventory.is_file() and not folder.exists()
    if made:
        folder.mkdir()
    try:
        return load_project(paths)
    except KitError:
        if made:
            folder.rmdir()
        raise


def file_of(paths: Paths, job: str, command: str) -> Path:
    """Return the file of a job; refuse one that the command has not written.

    Raises:
        InputError: The name is not valid, or the file is a person's or another command's.
    """
    try:
        dns_label(job)
    except WrongValueError as error:
        raise InputError(f"--name: {error.what}", error.fix) from None
    file = paths.jobs_folder() / f"{job}.yaml"
    before = read(file)
    if before is not None and not before.startswith(head_of(command)):
        what = f"{file} was not written by {command}"
        raise InputError(what, f"choose another name, as in `--name {job}-2`")
    return file


def read(file: Path) -> str | None:
    """Return the text of a job's file, or None if there is none.

    Raises:
        InputError: It cannot be read.
    """
    try:
        return files.read_plain(file).decode(errors="replace")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InputError(f"{file}: cannot be read: {error.strerror}") from None


def image_of(jobs: Sequence[Job]) -> str:
    """Return the image that all jobs have; those of sessions only count if there is no other.

    Raises:
        InputError: There is none, or there are several.
    """
    work = [each for each in jobs if not each.session]
    images = sorted({each.image for each in work or jobs})
    if len(images) == 1:
        return images[0]
    what = f"the jobs have several images: {', '.join(images)}" if images else "there is no image"
    raise InputError(what, f"name one, as in `--image {images[0] if images else 'IMAGE'}`")


def free_hosts(
    project: Project, job: str, hosts: int | None, gpus: int | None, host: str | None = None
) -> JobHosts:
    """Choose hosts with GPUs that no other job of the folder has; see `kit.plan.free.choose`.

    Raises:
        InputError: There are too few.
    """
    others = tuple(each for each in project.jobs if each.name != job)
    rest = Project(project.inventory, others, project.servers, project.lock, project.sources)
    free = free_gpus(project.inventory, lowered_of(rest, project.inventory).plan.jobs)
    if host is not None:
        free = {name: ids for name, ids in free.items() if name == host}
    try:
        return choose(free, hosts, gpus)
    except WrongValueError as error:
        raise InputError(error.what, error.fix) from None


def written(hosts: JobHosts) -> dict[str, object]:
    """Return chosen hosts in the form of a job's file."""
    ids = {host: [int(gpu) if gpu.isdigit() else gpu for gpu in ids] for host, ids in hosts.gpus}
    return {"gpus": ids}


def write_job(paths: Paths, file: Path, text: str) -> tuple[Lowered, Callable[[], None]]:
    """Write a job's file and render it; return the plan, and a function that restores all files.

    Raises:
        KitError: It cannot be rendered; the files are as before.
    """
    before = read(file)
    files.replace(file, text)

    def undo() -> None:
        _restore(file, before)
        render_all(paths)

    try:
        return render_all(paths), undo
    except KitError:
        _restore(file, before)
        raise


def _restore(file: Path, before: str | None) -> None:
    if before is None:
        file.unlink(missing_ok=True)
    else:
        files.replace(file, before)


def render_all(paths: Paths) -> Lowered:
    """Render all files, and return the plan behind them."""
    lowered = load_lowered(paths)
    tree.write(paths.tree(lowered.cluster), render_lowered(lowered, paths))
    return lowered


def start_written(
    paths: Paths, job: str, engine: str | None, undo: Callable[[], None], *, follows: bool
) -> tuple[int, JobStatus | None]:
    """Deploy a job whose file was written; see `run_job`. Restore all files if nothing started.

    Raises:
        KitError: It cannot be started.
    """
    try:
        return run_job(paths, job, engine, follows=follows)
    except EndedError:
        raise
    except InputError:
        undo()
        raise
    except KitError:
        if not _may_run(target_of(paths, engine), job):
            undo()
        raise


def _may_run(target: Target, job: str) -> bool:
    """Return whether containers of a job exist, or may exist on hosts that do not answer."""
    with suppress(KitError):
        return job in target.known()
    return True


def remove(paths: Paths, file: Path, engine: str | None) -> None:
    """Remove a job: its containers, its file, and its rendered files.

    Raises:
        KitError: It may still run on a host that cannot be reached. Its file stays.
    """
    job, target = file.stem, target_of(paths, engine)
    status = next((each for each in target.status() if each.job == job), None)
    if job in target.known():
        ended = status is not None and status.state in ENDED
        with suppress(KitError) if ended else nullcontext():
            status = target.stop(job)
    if status is not None and (away := unreached(status)):
        fix = f"`kit stop {job}` when it is back, and then remove {file}"
        raise KitError(f"job {job}: {', '.join(away)} cannot be reached; it may run there", fix)
    file.unlink(missing_ok=True)
    render_all(paths)
    click.echo(f"job {job}: removed")
