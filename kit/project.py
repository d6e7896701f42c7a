"""From a project's files to lowered workloads."""

from __future__ import annotations

import json
from functools import partial

from kit.config.load import Project, load
from kit.errors import FaultsError
from kit.files import read_plain
from kit.memory import collection_paused
from kit.model import EngineName, Inventory
from kit.paths import Paths
from kit.plan.make import make_plan
from kit.targets.lower import has_data_services, lower
from kit.targets.lowered import Lowered


def load_project(paths: Paths) -> Project:
    """Read the user's files.

    Raises:
        ProblemsError: Mistakes in the files, with their lines.
    """
    with collection_paused():
        folders = (paths.jobs_folder(), paths.servers_folder())
        return load(paths.inventory, *folders, paths.own(), partial(_rendered_code, paths))


def _rendered_code(paths: Paths, cluster: str, job: str, folder: str) -> str:
    """Return the version of a job's code in the rendered files; "" if its folder is another."""
    try:
        content = json.loads(read_plain(paths.tree(cluster) / "jobs" / f"{job}.json"))
        return str(content["code"]["sha256"]) if content["code"]["folder"] == folder else ""
    except (OSError, ValueError, LookupError, TypeError):
        return ""


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
        engine = engine or inventory.engine
        plan = make_plan(
            inventory,
            project.jobs,
            project.lock,
            project.servers,
            data_services=has_data_services(engine),
        )
        return lower(plan, engine)
