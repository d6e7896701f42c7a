"""The privileges of containers: kit's own services need only their files and ports."""

from __future__ import annotations

from collections.abc import Collection

from kit.workload.types import Environment, Variable, Word

NOBODY = "65534:65534"
"""A user without files. It is numeric, because images may lack the name."""
ROOT = frozenset({"root", "0"})


def unprivileged(user: str) -> bool:
    """Return whether containers of a user (`name` or `uid`, then `:group`) get no capabilities."""
    return bool(user) and user.partition(":")[0] not in ROOT


def default_variables(user: str, taken: Collection[str]) -> Environment:
    """Return HOME and USER for a user that the image may not know, except the names in `taken`.

    Caches are stored below HOME, and torch.compile needs USER.
    """
    found = (Variable("HOME", Word("/tmp")), Variable("USER", Word("kit")))
    return tuple(each for each in found if unprivileged(user) and each.name not in taken)
