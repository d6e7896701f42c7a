"""The file of the measurements, beside the inventory."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from kit import files
from kit.errors import InputError
from kit.measurements import FILE, Measurements, to_text

LARGEST = 64 * 2**20
"""Bytes; 300 hosts with all their pairs need less than 10 MiB."""


def path_beside(inventory: Path) -> Path:
    """Return the path of the file for an inventory."""
    return inventory.parent / FILE


def load(inventory: Path) -> Measurements:
    """Read the measurements; there may be none yet.

    Raises:
        InputError: The file cannot be read, or has another content.
    """
    path = path_beside(inventory)
    try:
        text = files.read_plain(path, largest=LARGEST)
    except FileNotFoundError:
        return Measurements()
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    from pydantic import TypeAdapter, ValidationError  # `kit plan` mostly needs no file.

    try:
        return TypeAdapter(Measurements).validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        what = f"{path}: {place + ': ' if place else ''}{first['msg']}"
        raise InputError(what, "delete the file and run `kit bench` again") from None


def store(inventory: Path, new: Measurements) -> Path:
    """Write new measurements, which replace older ones; return the file's path.

    Raises:
        InputError: The file cannot be written, or has another content.
    """
    path = path_beside(inventory)
    stamped = Measurements(
        datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        new.hosts,
        new.links,
        new.reductions,
        new.steps,
    )
    try:
        files.replace_alone(path, to_text(load(inventory).updated(stamped)))
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}") from None
    return path
