"""`kit init`."""

from __future__ import annotations

from pathlib import Path

import click

from kit.commands.schema import SECTIONS, schema_text
from kit.errors import InputError
from kit.render.templates import BUILT_IN

STARTER = BUILT_IN / "init"


def starter_files() -> dict[str, str]:
    """Return the files of a new project: texts by path."""
    files = {
        path.relative_to(STARTER).as_posix(): path.read_text(encoding="utf-8")
        for path in sorted(STARTER.rglob("*"))
        if path.is_file()
    }
    schemas = {f".schema/{what}.schema.json": schema_text(what) for what in SECTIONS}
    return files | schemas


@click.command("init", short_help="Start a GitOps repository.")
@click.argument("folder", type=click.Path(path_type=Path))
def command(folder: Path) -> None:
    """Start a GitOps repository in FOLDER: inventory, a job, Makefile, CI example.

    It overwrites nothing.
    """
    files = starter_files()
    there = [path for path in files if (folder / path).exists()]
    if there:
        raise InputError(
            f"{folder} holds {', '.join(there)} already", "choose an empty folder, or move it away"
        )
    for path, text in files.items():
        target = folder / path
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")
        except OSError as error:
            raise InputError(f"{target}: cannot be written: {error.strerror}") from None
    click.echo(f"{folder}: {len(files)} files")
    click.echo(f"next: cd {folder}, write your hosts into inventory.yaml, make plan render")
