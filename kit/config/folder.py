"""The key `code` of a job: the folder with the code that is sent with it."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path, PurePosixPath
from typing import Annotated

from pydantic import AfterValidator, Field, Tag

from kit.code.folder import list_code
from kit.code.pack import digest
from kit.config.fields import Section, tagged, wrong
from kit.errors import Fault, FaultsError, InputError
from kit.jobs import Package


def _inside(name: str) -> str:
    path = PurePosixPath(name)
    if not name or path.is_absolute() or ".." in path.parts or str(path) == ".":
        raise wrong(f"{name!r} is not a path in the folder", "write for example `[.env]`")
    return name


class CodeSection(Section):
    """The folder, relative to the inventory's, and the files of it that kit sends."""

    folder: str = Field(min_length=1, examples=["../research"])
    exclude: list[str] = Field(
        [],
        examples=[["runs/", "*.ckpt"]],
        description="Patterns as in .gitignore; .gitignore and .dockerignore count anyway",
    )
    include: list[Annotated[str, AfterValidator(_inside)]] = Field(
        [],
        examples=[[".env"]],
        description="Files and folders that kit sends although a pattern excludes them, or their "
        "names say that they are secret",
    )


def _kind(value: object) -> str | None:
    if isinstance(value, str) and value:
        return "<text>"
    return "<folder>" if isinstance(value, dict) else None


CodeKey = Annotated[
    Annotated[str, Tag("<text>")] | Annotated[CodeSection, Tag("<folder>")],
    tagged(
        _kind,
        "is not a folder",
        "write `code: .`, or `code: {folder: ../research, exclude: [runs/]}`",
    ),
]


def to_package(
    section: str | CodeSection | None,
    job: str,
    root: Path,
    own: Collection[Path],
    rendered: Callable[[str], str],
) -> Package | None:
    """Return the package of a folder, which is relative to `root`, without kit's `own` files.

    If the folder does not exist here, the package has the version in the `rendered` files: nobody
    needs the code of all jobs to deploy another job, or to split GPUs.

    Raises:
        FaultsError: The folder cannot be read, or is too large.
    """
    if section is None:
        return None
    code = CodeSection(folder=section) if isinstance(section, str) else section
    place, rules = root / code.folder, (tuple(code.exclude), tuple(code.include))
    if not place.exists() and (version := rendered(code.folder)):
        return Package(code.folder, *rules, sha256=version, files=0, bytes=0, here=False)
    try:
        listing = list_code(place, *rules, own)
        return Package(
            code.folder,
            *rules,
            sha256=digest(listing.entries),
            files=len(listing.entries),
            bytes=listing.size,
            secrets=tuple(listing.secrets),
            left_out=tuple(listing.left_out),
        )
    except InputError as error:
        raise FaultsError([Fault(job, ("code",), error.message, error.hint)]) from None
