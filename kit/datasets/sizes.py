"""The sizes of the stored data sets, in a file beside the inventory, from which `kit plan` reads.

`kit data add`, `ls` and `rm` write it. Without it, a plan does not know how long a fetch takes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kit import files
from kit.errors import InputError
from kit.paths import DATA_SETS
from kit.plan.data import Sizes

LARGEST = 2**24


@dataclass(frozen=True, slots=True)
class Stored:
    """A version of a data set in the store."""

    name: str
    version: int
    bytes: int
    files: int
    licence: str = ""
    source: str = ""
    made: str = ""


def load(inventory: Path) -> Sizes:
    """Read the sizes; there may be none yet.

    Raises:
        InputError: The file cannot be read, or has another content.
    """
    path = inventory.parent / DATA_SETS
    try:
        listed = json.loads(files.read_plain(path, largest=LARGEST))["datasets"]
        return {(each["name"], each["version"]): int(each["bytes"]) for each in listed}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        what = f"{path}: is not a list of data sets ({error})"
        raise InputError(what, "delete it and run `kit data ls`") from None


def store(inventory: Path, stored: Sequence[Stored]) -> None:
    """Write the sizes of all stored data sets.

    Raises:
        InputError: The file cannot be written.
    """
    rows = [
        json.dumps({"name": each.name, "version": each.version, "bytes": each.bytes})
        for each in sorted(stored, key=lambda each: (each.name, each.version))
    ]
    text = '{"datasets": [\n  ' + ",\n  ".join(rows) + "\n]}\n" if rows else '{"datasets": []}\n'
    path = inventory.parent / DATA_SETS
    try:
        if not path.exists() or files.read_plain(path) != text.encode():
            files.replace_alone(path, text)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}") from None
