"""`images.lock`: the digests of the images, so that all hosts run the same ones."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from kit import addresses
from kit.errors import Problem, ProblemsError
from kit.model import Lock, Locked
from kit.paths import IMAGES
from kit.values import WrongValueError
from kit.yamlfile import parse, read_text
from trainer.contract.words import shown

HEADER = """\
# Written by `kit image lock`: what the registries had under these names. `kit render` pins the
# images to the digests, and `kit plan` compares the platforms with the hosts. Commit it; after a
# push, run `kit image lock` and `kit render` again.
"""
_PLATFORM = re.compile(r"[a-z0-9]+(/[a-z0-9]+){1,2}")
_ANEW = "remove the file and run `kit image lock`"


def lock_path(inventory: Path) -> Path:
    """Return the path of an inventory's lock: it is beside the inventory."""
    return inventory.with_name(IMAGES)


def read_lock(path: Path) -> Lock | None:
    """Read a lock; return None if there is none.

    Raises:
        ProblemsError: It does not have the format of `kit image lock`.
        InputError: It cannot be read.
    """
    if not os.path.lexists(path):
        return None
    document = parse(read_text(path, str(path), _ANEW), str(path))
    content = {} if document.value is None else document.value
    if not isinstance(content, dict):
        what = "this is not a lock file of kit"
        raise ProblemsError([Problem(str(path), document.line(()), "", what, _ANEW)])
    problems = [
        Problem(str(path), document.line((image,)), "", what, _ANEW)
        for image, entry in content.items()
        if (what := _wrong(image, entry))
    ]
    if problems:
        raise ProblemsError(problems)
    return {image: Locked(*_parts(entry)) for image, entry in content.items()}


def _parts(entry: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return the digest and the platforms of an entry; locks of older versions have no platforms.

    Raises:
        TypeError: It does not have this form.
    """
    if not isinstance(entry, dict):
        return entry, ()
    if set(entry) != {"digest", "platforms"} or not isinstance(entry["platforms"], list):
        raise TypeError
    return entry["digest"], tuple(entry["platforms"])


def _wrong(image: str, entry: object) -> str:
    try:
        addresses.image(image)
        digest, platforms = _parts(entry)
    except WrongValueError as error:
        return error.what
    except TypeError:
        return f"{shown(entry)} is not the digest of an image with its platforms"
    if "@" in image:
        return f"{image} has its digest already"
    for each in platforms:
        if not isinstance(each, str) or not _PLATFORM.fullmatch(each):
            return f"{shown(each)} is not a platform, as linux/arm64"
    if isinstance(digest, str) and re.fullmatch(r"sha256:[0-9a-f]{64}", digest):
        return ""
    return f"{shown(digest)} is not the digest of an image"


def lock_text(lock: Lock) -> str:
    """Return the text of a lock file."""
    return HEADER + "".join(f"{image}: {_entry(lock[image])}\n" for image in sorted(lock))


def _entry(locked: Locked) -> str:
    if not locked.platforms:
        return locked.digest
    return f"{{digest: {locked.digest}, platforms: [{', '.join(locked.platforms)}]}}"
