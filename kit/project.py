"""Where a project's files lie, and the way from them to a plan and a tree."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass, replace
from pathlib import Path

from kit import tree
from kit.config.load import NO_INVENTORY, Project, load
from kit.errors import FaultsError, InputError, KitError, Problem, ProblemsError
from kit.model import EngineName, Inventory
from kit.plan import make_plan
from kit.plan.work import Plan
from kit.render import Tree, render
from kit.render.templates import Templates
from kit.values import count
from kit.yamlfile import parse, read_text


@dataclass(frozen=True, slots=True)
class Paths:
    """What the options `--inventory`, `--jobs`, `--output` and `--templates` say."""

    inventory: Path
    jobs: Path | None
    output: Path | None
    templates: Path | None

    def jobs_folder(self) -> Path:
        """Return the folder of jobs: by default the one beside the inventory."""
        return self.jobs or self.inventory.parent / "jobs"

    def servers_folder(self) -> Path:
        """Return the folder of servers, beside that of the jobs."""
        return self.jobs_folder().parent / "serve"

    def tree(self, cluster: str) -> Path:
        """Return the rendered tree: by default compose/<cluster> beside the inventory."""
        return self.output or self.inventory.parent / "compose" / cluster


def load_project(paths: Paths) -> Project:
    """Read the files that people write.

    Raises:
        ProblemsError: Mistakes in the files, at their lines.
    """
    return load(paths.inventory, paths.jobs_folder(), paths.servers_folder())


def load_plan(paths: Paths, engine: EngineName | None = None) -> Plan:
    """Read the files and make the plan, for `engine` instead of the inventory's where it is given.

    Raises:
        ProblemsError: Mistakes in the files, at their lines.
    """
    project = load_project(paths)
    inventory = project.inventory
    if engine is not None:
        inventory = replace(inventory, engine=engine)
    return plan_of(project, inventory)


def plan_of(project: Project, inventory: Inventory) -> Plan:
    """Make the plan of what was read.

    Raises:
        ProblemsError: The jobs do not go together with the machines, or each other.
    """
    try:
        return plan_with(project, inventory)
    except FaultsError as error:
        raise project.sources.problems(error.faults) from None


def plan_with(project: Project, inventory: Inventory) -> Plan:
    """Make the plan of the project's jobs and servers on these machines, its own or others.

    Raises:
        FaultsError: They do not go together.
    """
    return make_plan(inventory, project.jobs, project.lock, project.servers)


def identity(paths: Paths) -> tuple[str, EngineName]:
    """Read the cluster's name and engine alone: a slip elsewhere must not keep one from `kit stop`.

    Raises:
        ProblemsError: The file is no inventory at all.
    """
    file = str(paths.inventory)
    document = parse(read_text(paths.inventory, file, NO_INVENTORY), file)
    value = document.value if isinstance(document.value, dict) else {}
    cluster, engine = value.get("cluster"), value.get("engine", EngineName.LOCAL)
    if not isinstance(cluster, str) or engine not in set(EngineName):
        line = document.line(("engine",) if isinstance(cluster, str) else ("cluster",))
        what = "cluster and engine are not told"
        raise ProblemsError([Problem(file, line, "", what, "see what is wrong with `kit plan`")])
    return cluster, EngineName(engine)


def render_plan(plan: Plan, paths: Paths) -> Tree:
    """Render the plan with the project's templates."""
    return render(plan, Templates(paths.templates), launcher_path().read_text(encoding="utf-8"))


def rendered_tree(plan: Plan, paths: Paths) -> Path:
    """Return the folder of the plan's rendered tree.

    Raises:
        InputError: It is not what the plan says.
    """
    root = paths.tree(plan.cluster)
    changes = tree.changes(root, render_plan(plan, paths))
    if changes:
        raise InputError(
            f"{root} differs from the inventory and the jobs in {count(len(changes), 'file')} "
            f"({changes[0].path} for one)",
            "see the difference with `kit render --diff`, then run `kit render`",
        )
    return root


def launcher_path() -> Path:
    """Return the path of the trainer's launch.py; the trainer is found, never imported."""
    spec = importlib.util.find_spec("trainer")
    if spec is None or not spec.submodule_search_locations:
        raise KitError("the package `trainer` is not there", "install kit again, as a whole")
    return Path(spec.submodule_search_locations[0]) / "launch.py"
