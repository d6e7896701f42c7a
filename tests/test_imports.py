"""Who may import whom: the rooms of the project, by the syntax of its files."""

import ast
import graphlib
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sandbox import ROOT

MODULES = [path for room in ("kit", "trainer") for path in sorted((ROOT / room).rglob("*.py"))]
PURE = [
    path
    for path in MODULES
    if path.is_relative_to(ROOT / "kit" / "plan")
    or path.is_relative_to(ROOT / "kit" / "render")
    or (path.parent == ROOT / "kit" / "split" and path.name != "propose.py")
]
WORLD = {
    "asyncio",
    "builtins",
    "click",
    "datetime",
    "docker",
    "glob",
    "io",
    "locale",
    "os",
    "pathlib",
    "platform",
    "psutil",
    "python_on_whales",
    "random",
    "secrets",
    "shutil",
    "signal",
    "socket",
    "subprocess",
    "sys",
    "tempfile",
    "threading",
    "time",
    "urllib",
    "uuid",
}
OUTSIDE = {
    "kit.cli",
    "kit.commands",
    "kit.config.load",
    "kit.docker",
    "kit.engine",
    "kit.images",
    "kit.lock",
    "kit.project",
    "kit.registry",
    "kit.tree",
    "kit.yamlfile",
}


def imports(path: Path) -> Iterator[str]:
    """Return the full names that a module imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert node.module is not None
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def rooms(path: Path) -> set[str]:
    return {name.split(".")[0] for name in imports(path)}


def is_of(package: str, name: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def contract() -> Iterator[str]:
    """Yield the modules of trainer.contract and what is in each of them, by their full names."""
    yield "trainer.contract"
    for path in (ROOT / "trainer" / "contract").glob("*.py"):
        module = f"trainer.contract.{path.stem}"
        yield module
        for node in ast.parse(path.read_text()).body:
            targets = getattr(node, "targets", None) or [getattr(node, "target", node)]
            names = (getattr(each, "id", None) or getattr(each, "name", None) for each in targets)
            yield from (f"{module}.{name}" for name in names if name)


CONTRACT = set(contract())


def test_there_is_something_to_look_at() -> None:
    assert len(MODULES) > 20
    assert len(PURE) > 5


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_rooms_keep_apart(path: Path) -> None:
    if path.is_relative_to(ROOT / "trainer"):
        assert rooms(path) & {"kit", "tests"} == set()
        return
    assert rooms(path) & {"torch", "numpy", "tests"} == set()
    # What kit and the trainer agree on, and nothing else of the trainer.
    assert {name for name in imports(path) if is_of("trainer", name)} <= CONTRACT


def test_the_contract_is_of_the_standard_library_alone() -> None:
    for path in sorted((ROOT / "trainer" / "contract").glob("*.py")):
        alien = {name for name in imports(path) if is_of("trainer", name)} - CONTRACT
        assert (alien, rooms(path) - {"trainer"} - sys.stdlib_module_names) == (set(), set())
    assert not list(imports(ROOT / "trainer" / "__init__.py"))


@pytest.mark.parametrize("path", PURE, ids=lambda path: str(path.relative_to(ROOT)))
def test_plan_render_and_split_touch_nothing(path: Path) -> None:
    allowed = {"pathlib"} if path == ROOT / "kit" / "render" / "templates.py" else set()
    assert (rooms(path) & WORLD) - allowed == set()
    # Texts are edited by their positions, which it knows.
    parser = {"kit.yamlfile"} if path == ROOT / "kit" / "split" / "edit.py" else set()
    assert {name for name in imports(path) if name in OUTSIDE} - parser == set()
    called = {
        node.func.id
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    assert called & {"open", "print", "input", "exec", "eval"} == set()


def test_kit_installs_without_torch() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    base = " ".join(project["dependencies"])
    for heavy in ("torch", "numpy", "scikit", "docker"):
        assert heavy not in base
    assert any(name.startswith("torch") for name in project["optional-dependencies"]["trainer"])


LIMITS = {
    "": 680,
    "contract": 620,
    "data": 370,
    "parallel": 430,
    "checkpoints": 290,
    "core": 1250,
    "serve": 1700,
}
"""Lines of each room of the trainer: a room is meant to be read from top to bottom."""


@pytest.mark.parametrize("room", LIMITS)
def test_a_room_of_the_trainer_can_be_read_from_top_to_bottom(room: str) -> None:
    assert lines(ROOT / "trainer" / room) < LIMITS[room]


def test_every_room_of_the_trainer_has_a_limit() -> None:
    rooms = {path.parent for path in MODULES if path.is_relative_to(ROOT / "trainer")}
    assert rooms == {ROOT / "trainer" / room for room in LIMITS}


def lines(folder: Path) -> int:
    """Count the lines of a folder's own modules that are not blank."""
    texts = [path.read_text() for path in MODULES if path.parent == folder]
    return sum(bool(line.strip()) for text in texts for line in text.splitlines())


TRAINER = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in MODULES
    if path.is_relative_to(ROOT / "trainer")
}
MAY_IMPORT = {
    "contract": set[str](),
    "output": {"contract"},
    "data": {"contract"},
    "parallel": {"contract"},
    "checkpoints": {"contract", "output", "parallel"},
    "core": {"contract", "output", "data", "parallel", "checkpoints"},
    "train": {"contract", "output", "data", "parallel", "checkpoints", "core"},
    # Mounted alone into other images; in the trainer's it checks the job and the data first.
    "launch": {"core.job", "data.files"},
    "serve": {"contract", "output", "data", "checkpoints", "core", "launch"},
}
"""Rooms and modules of the trainer, and which of the others each may import."""


def of_trainer(path: Path) -> set[str]:
    """The modules of the trainer that a module imports."""
    return {name for name in imports(path) if name in TRAINER and TRAINER[name].stem != "__init__"}


@pytest.mark.parametrize("name", [name for name in TRAINER if name != "trainer"])
def test_rooms_of_the_trainer_import_those_before_them(name: str) -> None:
    room = name.split(".")[1]
    allowed = MAY_IMPORT[room] | {room}
    for other in of_trainer(TRAINER[name]):
        own = other.removeprefix("trainer.")
        assert {own, own.split(".")[0]} & allowed, f"{name} imports {other}"


def test_no_module_of_the_trainer_imports_itself_in_the_end() -> None:
    graphlib.TopologicalSorter({name: of_trainer(path) for name, path in TRAINER.items()}).prepare()


@pytest.mark.parametrize(
    "name", ["trainer.serve.checkpoints", "trainer.core.job", "trainer.data.files"]
)
def test_what_runs_without_torch_needs_no_packages(name: str) -> None:
    seen, todo = set[str](), [name]
    while todo:
        module = todo.pop()
        parents = {module.rpartition(".")[0], module.split(".")[0]} & TRAINER.keys()
        todo += [other for other in of_trainer(TRAINER[module]) | parents if other not in seen]
        seen.add(module)
        assert rooms(TRAINER[module]) <= sys.stdlib_module_names | {"trainer"}, module
