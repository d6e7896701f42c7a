"""The rendered tree of a project, as its templates make it and as it is on disk."""

from __future__ import annotations

from contextlib import nullcontext
from functools import cache
from pathlib import Path

from kit import tree
from kit.errors import InputError
from kit.memory import collection_paused, limited_memory
from kit.model import Tree
from kit.paths import Paths, launcher_path
from kit.prepare import MERGE
from kit.render.templates import Templates
from kit.render.tree import render
from kit.targets.lowered import Lowered
from kit.values import count
from trainer.contract.programs import PROGRAMS, join

MOST_MEMORY = 2 * 2**30
"""Bytes that the user's templates may allocate: a mistake must not exhaust the machine."""


def render_lowered(lowered: Lowered, paths: Paths) -> Tree:
    """Render the files with the project's templates."""
    merge = MERGE.read_text(encoding="utf-8")
    programs = {name: program_text(name) for name in PROGRAMS}
    with collection_paused(), limited_memory(MOST_MEMORY) if paths.templates else nullcontext():
        templates = Templates(paths.templates) if paths.templates else _built_in()
        return render(lowered, templates, programs, merge)


@cache
def _built_in() -> Templates:
    """Compile kit's own templates once in a process."""
    return Templates()


@cache
def program_text(name: str) -> str:
    """Join one of the trainer's programs from its modules, without importing them."""
    trainer = launcher_path().parent
    return join(name, lambda path: (trainer / path).read_text(encoding="utf-8"))


def rendered_tree(lowered: Lowered, paths: Paths) -> Path:
    """Return the folder of the rendered tree.

    Raises:
        InputError: It differs from what `kit render` would write.
    """
    root = paths.tree(lowered.cluster)
    changes = tree.changes(root, render_lowered(lowered, paths))
    if changes:
        raise InputError(
            f"{root} differs from the inventory and the jobs in {count(len(changes), 'file')} "
            f"({changes[0].path} for one)",
            "see the difference with `kit render --diff`, then run `kit render`",
        )
    return root
