"""From a project's files to workloads and the rendered tree."""

from __future__ import annotations

from contextlib import nullcontext
from functools import cache
from pathlib import Path

from kit import tree
from kit.config.load import Project, load
from kit.errors import FaultsError, InputError
from kit.memory import collection_paused, limited_memory
from kit.model import EngineName, Inventory
from kit.paths import Paths, launcher_path
from kit.plan.make import make_plan
from kit.prepare import MERGE
from kit.render import Tree, render
from kit.render.templates import Templates
from kit.targets.lower import lower
from kit.targets.lowered import Lowered
from kit.values import count
from trainer.contract.programs import PROGRAMS, join

MOST_MEMORY = 2 * 2**30
"""Bytes that the user's templates may allocate: a mistake must not exhaust the machine."""


def load_project(paths: Paths) -> Project:
    """Read the user's files.

    Raises:
        ProblemsError: Mistakes in the files, with their lines.
    """
    with collection_paused():
        return load(paths.inventory, paths.jobs_folder(), paths.servers_folder())


def load_lowered(paths: Paths, engine: EngineName | None = None) -> Lowered:
    """Read the files, make the plan and lower it for `engine`, or for the inventory's engine.

    Raises:
        ProblemsError: Mistakes in the files, with their lines.
    """
    project = load_project(paths)
    return lowered_of(project, project.inventory, engine)


def lowered_of(project: Project, inventory: Inventory, engine: EngineName | None = None) -> Lowered:
    """Make the plan of the loaded files and lower it.

    Raises:
        ProblemsError: The jobs do not fit the hosts, or conflict with each other.
    """
    try:
        return lowered_with(project, inventory, engine)
    except FaultsError as error:
        raise project.sources.problems(error.faults) from None


def lowered_with(
    project: Project, inventory: Inventory, engine: EngineName | None = None
) -> Lowered:
    """Plan and lower the project's jobs and servers for an inventory, its own or another.

    Raises:
        FaultsError: They do not fit the hosts, or conflict with each other.
    """
    with collection_paused():
        plan = make_plan(inventory, project.jobs, project.lock, project.servers)
        return lower(plan, engine or inventory.engine)


def render_lowered(lowered: Lowered, paths: Paths) -> Tree:
    """Render the files with the project's templates."""
    merge = MERGE.read_text(encoding="utf-8")
    programs = {name: program_text(name) for name in PROGRAMS}
    with collection_paused(), limited_memory(MOST_MEMORY) if paths.templates else nullcontext():
        return render(lowered, Templates(paths.templates), programs, merge)


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
