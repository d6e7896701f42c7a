"""What a container may do on its host: kit's own services need their files and ports alone."""

from __future__ import annotations

from collections.abc import Collection

from kit.workload.types import Environment, Variable, Word

NOBODY = "65534:65534"
"""A user without files, by numbers: images need not know the name."""
ROOT = frozenset({"root", "0"})


def unprivileged(user: str) -> bool:
    """Whether a container of a user (`name` or `uid`, `:group` after it) gets no capabilities."""
    return bool(user) and user.partition(":")[0] not in ROOT


def home(user: str, taken: Collection[str]) -> Environment:
    """Return a home and a name for a user whom the image may not know; `taken` are set already.

    Caches lie below the home, and PyTorch asks for the name where it compiles.
    """
    found = (Variable("HOME", Word("/tmp")), Variable("USER", Word("kit")))
    return tuple(each for each in found if unprivileged(user) and each.name not in taken)
