"""The paths of a project's files, and the cluster's name and engine."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path

from kit.errors import KitError, Problem, ProblemsError
from kit.measurements import FILE as MEASUREMENTS
from kit.model import EngineName
from kit.yamlfile import parse, read_text

TREES = "compose"
"""The folder of the rendered trees, beside the inventory."""
DATA_SETS = "datasets.json"
"""The file with the sizes of the data sets, beside the inventory."""
IMAGES = "images.lock"
"""The file with the digests of images, beside the inventory."""
NO_INVENTORY = "write one with `kit init .`, or name one with --inventory FILE"


@dataclass(frozen=True, slots=True)
class Paths:
    """The values of the options `--inventory`, `--jobs`, `--output` and `--templates`."""

    inventory: Path
    jobs: Path | None
    output: Path | None
    templates: Path | None

    def jobs_folder(self) -> Path:
        """Return the folder of jobs; default: `jobs` beside the inventory."""
        return self.jobs or self.inventory.parent / "jobs"

    def servers_folder(self) -> Path:
        """Return the folder of servers, beside the folder of jobs."""
        return self.jobs_folder().parent / "serve"

    def own(self) -> tuple[Path, ...]:
        """Return kit's own files. They are not code of a job: a render or a split changes them."""
        beside = self.inventory.parent
        names = (TREES, DATA_SETS, MEASUREMENTS, IMAGES)
        folders = (self.jobs_folder(), self.servers_folder())
        described = (each for folder in folders for each in folder.glob("*.y*ml"))
        output = (self.output,) if self.output else ()
        return (self.inventory, *(beside / each for each in names), *output, *described)

    def tree(self, cluster: str) -> Path:
        """Return the rendered tree; default: compose/<cluster> beside the inventory."""
        return self.output or self.inventory.parent / TREES / cluster


def identity(paths: Paths) -> tuple[str, EngineName]:
    """Read only the cluster's name and engine: `kit stop` must work despite other mistakes.

    Raises:
        ProblemsError: The file has no valid name or engine.
    """
    file = str(paths.inventory)
    document = parse(read_text(paths.inventory, file, NO_INVENTORY), file)
    value = document.value if isinstance(document.value, dict) else {}
    cluster, engine = value.get("cluster"), value.get("engine", EngineName.LOCAL)
    if not isinstance(cluster, str) or engine not in set(EngineName):
        line = document.line(("engine",) if isinstance(cluster, str) else ("cluster",))
        what = "the name of the cluster or the engine is missing"
        raise ProblemsError([Problem(file, line, "", what, "run `kit plan` to see all mistakes")])
    return cluster, EngineName(engine)


def launcher_path() -> Path:
    """Return the path of the trainer's launch.py, without importing the trainer.

    kit runs it on this machine. Its folder contains the modules of the trainer's programs.
    """
    spec = importlib.util.find_spec("trainer")
    if spec is None or not spec.submodule_search_locations:
        raise KitError("the package `trainer` is not installed", "reinstall kit")
    return Path(spec.submodule_search_locations[0]) / "launch.py"
