"""The rendered tree of a project: from its templates, and on disk."""

from __future__ import annotations

import sys
from contextlib import nullcontext, suppress
from functools import cache
from pathlib import Path

from jinja2 import FileSystemBytecodeCache
from jinja2.bccache import Bucket

from kit import tree
from kit.errors import InputError
from kit.memory import collection_paused, limited_memory
from kit.model import Tree
from kit.paths import Paths, launcher_path
from kit.prepare import MERGE
from kit.render.templates import BUILT_IN, Templates
from kit.render.tree import render
from kit.targets.lowered import Lowered
from kit.values import count
from trainer.contract.programs import PROGRAMS, join

MOST_MEMORY = 2 * 2**30
"""Bytes that the user's templates may allocate: a mistake must not exhaust the machine."""


class _Compiled(FileSystemBytecodeCache):
    """Kit's own templates as compiled code, in the folder of the compiled modules of kit.

    Compiling them takes a tenth of a render's time for 1,000 hosts.
    """

    def __init__(self) -> None:
        super().__init__(str(BUILT_IN / "__pycache__"))

    def dump_bytecode(self, bucket: Bucket) -> None:
        """Write the code, unless Python writes no bytecode or the folder is another user's."""
        if sys.dont_write_bytecode:
            return
        with suppress(OSError):
            Path(self.directory).mkdir(exist_ok=True)
            super().dump_bytecode(bucket)


def render_lowered(lowered: Lowered, paths: Paths) -> Tree:
    """Render the files with the project's templates."""
    merge = MERGE.read_text(encoding="utf-8")
    programs = {name: program_text(name) for name in PROGRAMS}
    with collection_paused(), limited_memory(MOST_MEMORY) if paths.templates else nullcontext():
        templates = Templates(paths.templates) if paths.templates else _built_in()
        return render(lowered, templates, programs, merge)


@cache
def _built_in() -> Templates:
    """Read kit's own templates once in a process."""
    return Templates(compiled=_Compiled())


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
