"""The code of a job: its archive is unpacked to the folder in which the job runs."""

import hashlib
import os
import tarfile
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from trainer.contract.code import ARCHIVE, DIGITS, UNPACKED, WORKSPACE, code_name
from trainer.launcher.errors import FAILURE, LaunchError
from trainer.launcher.output import say
from trainer.launcher.settings import Job, Settings


def enter_workspace(settings: Settings, job: Job, folders: Mapping[str, str]) -> None:
    """Unpack the job's code, and make its folder the current one; raises LaunchError.

    A restarted container keeps its folder unchanged.
    """
    folder = writable(settings.workspace)
    mark = folder / UNPACKED
    if read_mark(mark) == job.code:
        say(f"the code {job.code[:DIGITS]} is in {folder}")
    else:
        archive = Path(folders[code_name(job.code)], ARCHIVE)
        verify_archive(archive, job.code)
        unpack(archive, folder)
        mark.write_text(job.code)
        say(f"the code {job.code[:DIGITS]} is in {folder} now")
    inner = folder / Path(job.working_dir or WORKSPACE).relative_to(WORKSPACE)
    try:
        os.chdir(inner)
    except OSError as error:
        raise LaunchError(f"working_dir: {inner}: {error.strerror}; it is not in `code`") from error
    os.environ["KIT_CODE"] = str(mark)  # The built-in training imports modules beside this file.


def writable(wanted: Path) -> Path:
    """Make the folder of the code; without permission, one in the folder for temporary files."""
    own = Path(tempfile.gettempdir(), f"workspace-{os.getuid()}")
    for folder in (wanted, own):
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                if folder != wanted:
                    say(f"this user cannot write to {wanted}: the code is in {folder}")
                return folder
    raise LaunchError(f"neither {wanted} nor {own} can be written: the code needs one", FAILURE)


def read_mark(mark: Path) -> str:
    """Return the version of an unpacked folder; empty if it is not complete."""
    try:
        return mark.read_text()
    except OSError:
        return ""


def verify_archive(archive: Path, digest: str) -> None:
    """Compare an archive with its SHA-256; raises LaunchError."""
    found = hashlib.sha256()
    try:
        with archive.open("rb") as file:
            while block := file.read(2**20):
                found.update(block)
    except OSError as error:
        raise LaunchError(f"{archive}: {error.strerror}", FAILURE, "data") from error
    if found.hexdigest() != digest:
        what = f"{archive} is not the code that the job names: its SHA-256 is {found.hexdigest()}"
        raise LaunchError(
            f"{what}; remove it with `kit data rm`, and deploy again", FAILURE, "data"
        )


def unpack(archive: Path, folder: Path) -> None:
    """Unpack an archive with the right SHA-256, with new file times. Raises LaunchError.

    Python reuses compiled code of a source file that has the same time and size.
    """
    try:
        with tarfile.open(archive) as members:
            for member in members:
                place = folder / member.name
                if not place.parent.resolve().is_relative_to(folder.resolve()):
                    raise LaunchError(f"{archive}: {member.name} is outside of its folder")
                unpack_member(members, member, place)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        raise LaunchError(f"code: {where}{error.strerror}", FAILURE, "data") from error
    except tarfile.TarError as error:
        raise LaunchError(f"{archive}: {error}", FAILURE, "data") from error


def unpack_member(members: tarfile.TarFile, member: tarfile.TarInfo, place: Path) -> None:
    """Write a file, a link or a folder of an archive."""
    (place if member.isdir() else place.parent).mkdir(parents=True, exist_ok=True)
    if member.isdir():
        return
    with suppress(FileNotFoundError):
        place.unlink()
    if member.issym():
        place.symlink_to(member.linkname)
        return
    source = members.extractfile(member)
    if source is None:
        raise LaunchError(f"{member.name} of the code is no plain file")
    with source, place.open("wb") as file:
        while block := source.read(2**20):
            file.write(block)
    place.chmod(member.mode)
