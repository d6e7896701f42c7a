"""The allowed imports between the project's packages, checked in the syntax of its files."""

import ast
import functools
import graphlib
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tests.sandbox import ROOT

MODULES = [path for room in ("kit", "trainer") for path in sorted((ROOT / room).rglob("*.py"))]
LONGEST = 350
"""Lines of a module."""
PURE_ROOMS = ("plan", "workload", "render", "split")
PURE_MODULES = (
    "addresses",
    "bench/findings",
    "bench/rounds",
    "discover/cable",
    "discover/engines",
    "discover/entries",
    "discover/facts",
    "discover/match",
    "discover/notes",
    "discover/parse",
    "discover/update",
    "doctor/checks/*",
    "doctor/codes",
    "doctor/facts",
    "doctor/findings",
    "doctor/host_codes",
    "doctor/kernel",
    "doctor/parse",
    "doctor/show",
    "doctor/results",
    "doctor/wanted",
    "errors",
    "jobs",
    "measurements",
    "model",
    "platforms",
    "queue/carrier",
    "queue/decide",
    "queue/document",
    "queue/forecast",
    "queue/hours",
    "queue/moves",
    "queue/order",
    "queue/pool",
    "queue/reasons",
    "queue/record",
    "queue/see",
    "queue/service",
    "queue/turn",
    "queue/words",
    "ranges",
    "retention",
    "servers",
    "sharing",
    "values",
    "yamledit",
    "hosts/gpus",
    "prepare/merge",
    "prepare/order",
    "prepare/report",
    "report/charts",
    "report/curves",
    "report/document",
    "report/moments",
    "report/predictions",
    "report/record",
    "report/record_lines",
    "report/run_view",
    "report/scripts",
    "report/times",
    "report/usage",
    "report/view",
    "runtime/endings",
    "runtime/events",
    "runtime/lines",
    "runtime/outcome",
    "runtime/proof",
    "runtime/reported",
    "runtime/status",
    "runtime/steps",
    "targets/fields",
    "targets/hosts",
    "targets/lower",
    "targets/lowered",
    "targets/*/addressing",
    "targets/*/lower",
    "targets/*/decide",
    "targets/compose/containers",
    "targets/compose/data",
    "targets/compose/drift",
    "targets/compose/pool",
    "targets/compose/refusals",
    "targets/compose/status",
    "convert/edit",
    "targets/kubernetes/convert",
    "targets/kubernetes/errors",
    "targets/kubernetes/names",
    "targets/kubernetes/nodes",
    "targets/kubernetes/objects",
    "targets/kubernetes/pods",
    "targets/kubernetes/reasons",
    "targets/kubernetes/refusals",
    "targets/kubernetes/state",
    "targets/kubernetes/status",
    "targets/local/gpus",
    "targets/swarm/drift",
    "targets/swarm/file_fields",
    "targets/swarm/labels",
    "targets/swarm/members",
    "targets/swarm/monitoring",
    "targets/swarm/names",
    "targets/swarm/order",
    "targets/swarm/platform",
    "targets/swarm/pool",
    "targets/swarm/refusals",
    "targets/swarm/service_fields",
    "targets/swarm/stacks",
    "targets/swarm/state",
    "targets/swarm/status",
    "targets/swarm/steps",
    "targets/swarm/updates",
    "top/board",
    "top/smi",
)
PURE = [
    path
    for path in MODULES
    if path.is_relative_to(ROOT / "kit")
    and path.name != "propose.py"  # It reads the inventory again.
    and (
        path.relative_to(ROOT / "kit").parts[0] in PURE_ROOMS
        or any(path.match(f"kit/{name}.py") for name in PURE_MODULES)
    )
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


@functools.cache
def imports(path: Path) -> frozenset[str]:
    """Return the full names that a module imports, anywhere in it."""
    return frozenset(_imports(path))


def _imports(path: Path) -> Iterator[str]:
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
    """Yield the full names of the modules of trainer.contract and of their members."""
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


def offenders(found: Iterable[tuple[Path, set[str]]]) -> dict[str, set[str]]:
    """The modules that break a rule, with what they import or call against it."""
    return {str(path.relative_to(ROOT)): names for path, names in found if names}


def test_trainer_and_kit_keep_apart() -> None:
    def against(path: Path) -> set[str]:
        if path.is_relative_to(ROOT / "trainer"):
            return rooms(path) & {"kit", "tests"}
        # Of the trainer, only the contract.
        trainer = {name for name in imports(path) if is_of("trainer", name)}
        return rooms(path) & {"torch", "numpy", "tests"} | trainer - CONTRACT

    assert offenders((path, against(path)) for path in MODULES) == {}


def test_the_contract_is_of_the_standard_library_alone() -> None:
    def against(path: Path) -> set[str]:
        alien = {name for name in imports(path) if is_of("trainer", name)} - CONTRACT
        return alien | rooms(path) - {"trainer"} - sys.stdlib_module_names

    package = ROOT / "trainer" / "__init__.py"
    found = [(path, against(path)) for path in sorted((ROOT / "trainer" / "contract").glob("*.py"))]
    assert offenders([*found, (package, set(imports(package)))]) == {}


def test_a_module_can_be_read_at_once() -> None:
    lengths = {path: len(path.read_text().splitlines()) for path in MODULES}
    assert {
        str(path.relative_to(ROOT)): length for path, length in lengths.items() if length > LONGEST
    } == {}


def test_what_claims_to_be_pure_is_held_to_it() -> None:
    def claims(path: Path) -> set[str]:
        said = ast.get_docstring(ast.parse(path.read_text())) or ""
        return set(re.findall(r"\bPure\b|\ba pure function\b", said))

    others = (path for path in KIT.values() if path not in PURE)
    assert offenders((path, claims(path)) for path in others) == {}


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


KIT = {module_of(path): path for path in MODULES if path.is_relative_to(ROOT / "kit")}


def of_kit(path: Path) -> set[str]:
    """The modules of kit that a module imports."""
    return {name for name in imports(path) if name in KIT and KIT[name] != path}


def called(path: Path) -> set[str]:
    """The names of the functions that a module calls."""
    return {
        node.func.id
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }


def test_what_is_pure_touches_nothing() -> None:
    # Paths alone, and the templates that are printed.
    allowed = {"kit.render.templates": {"pathlib"}, "kit.targets.local.lower": {"pathlib"}}
    # Moments of events in words, and the hours of a day; nobody asks for the time.
    clocks = ("runtime.events", "sharing", "queue.document", "queue.hours", "queue.record")
    for name in (*clocks, "targets.kubernetes.state"):
        allowed[f"kit.{name}"] = {"datetime"}
    touched = ((path, rooms(path) & WORLD - allowed.get(module_of(path), set())) for path in PURE)
    assert offenders(touched) == {}
    acts = {"open", "print", "input", "exec", "eval"}
    assert offenders((path, called(path) & acts) for path in PURE) == {}


def test_the_pure_path_of_this_machine_is_no_file() -> None:
    names = set(imports(KIT["kit.targets.local.lower"]))
    assert {name for name in names if name.startswith("pathlib.")} == {"pathlib.PurePosixPath"}


def test_what_is_pure_imports_nothing_else() -> None:
    pure = {module_of(each) for each in PURE}
    bare = {name for name, file in KIT.items() if not set(imports(file))}  # Packages.
    # Edits of texts need the parser's positions.
    edits = {"kit.yamledit", "kit.split.edit", "kit.discover.update", "kit.convert.edit"}
    parser = {name: {"kit.yamlfile"} for name in edits}
    found = (
        (path, of_kit(path) - pure - bare - parser.get(module_of(path), set())) for path in PURE
    )
    assert offenders(found) == {}


ROOMS_OF_KIT = {
    "errors": set[str](),
    "values": set(),
    "addresses": {"values"},
    "retention": set(),
    "sharing": set(),
    "platforms": set(),
    "model": {"errors", "platforms", "retention", "sharing"},
    "jobs": {"model", "sharing"},
    "servers": {"model", "jobs"},
    "ranges": {"values"},
    "files": {"values", "errors"},
    "memory": {"errors"},
    "yaml_schema": {"values"},
    "yamlfile": {"yaml_schema", "values", "errors", "files"},
    "yamledit": {"yamlfile"},
    "measurements": set(),
    "plan": {"measurements", "jobs", "model", "servers", "values", "errors", "ranges", "sharing"}
    | {"platforms"},
    "queue": {"plan", "sharing", "model", "values", "errors"},
    "workload": {"queue", "plan", "jobs", "model", "servers", "values", "addresses", "errors"}
    | {"retention", "sharing"},
    "hosts": {"model", "values", "addresses", "errors"},
    "runtime": {"queue", "workload", "plan", "hosts", "model", "values", "errors", "files"},
    "datasets": {"plan", "hosts", "model", "values", "errors", "files", "paths"},
    "targets": {
        "queue",
        "runtime",
        "hosts",
        "workload",
        "plan",
        "model",
        "values",
        "addresses",
        "errors",
    }
    | {"secrets", "retention"},
    "render": {"queue", "targets", "workload", "plan", "model", "values", "errors"},
    "secrets": {"workload", "model", "values", "errors", "files"},
    "lock": {"model", "values", "addresses", "errors", "yamlfile", "paths"},
    "paths": {"model", "errors", "yamlfile", "measurements"},
    "code": {"values", "errors"},
    "config": {"code", "jobs", "model", "servers", "values", "addresses", "ranges", "errors"}
    | {"yamlfile", "lock", "paths", "platforms", "retention", "sharing"},
    "tree": {"errors", "files", "model"},
    "registry": {"hosts", "model", "platforms", "values", "addresses", "errors", "files"},
    "builders": {"hosts", "model", "platforms", "values", "errors"},
    "images": {"builders", "hosts", "registry", "values", "errors"},
    "prepare": {"runtime", "hosts", "model", "values", "addresses", "errors"},
    "project": {"config", "paths", "plan", "targets", "model", "errors", "memory", "files"},
    "rendered": {"paths", "prepare", "targets", "render", "tree", "model", "values", "errors"}
    | {"memory"},
    "discover": {"hosts", "model", "platforms", "values", "addresses", "errors"}
    | {"yamlfile", "yamledit"},
    "doctor": {"discover", "hosts", "workload", "plan", "model", "values", "addresses", "errors"}
    | {"platforms"},
    "bench": {"runtime", "hosts", "workload", "plan", "measurements", "model", "values"}
    | {"errors", "files"},
    "report": {"runtime", "values", "errors"},
    "session": {"values", "errors", "files"},
    "top": {"runtime", "hosts", "model", "errors"},
    "convert": {"errors", "yamlfile", "yamledit"},
    "split": {
        "project",
        "config",
        "plan",
        "jobs",
        "model",
        "values",
        "ranges",
        "errors",
        "yamlfile",
    }
    | {"yamledit"},
}
"""The rooms of kit, and which of the others each may import; commands may import all."""


def test_rooms_of_kit_import_those_before_them() -> None:
    def against(name: str) -> set[str]:
        room = name.split(".")[1]
        if room in {"cli", "commands", "__main__"}:
            return set()
        found = {other.split(".")[1] for other in of_kit(KIT[name]) if other.count(".")}
        return found - ROOMS_OF_KIT[room] - {room}

    assert offenders((KIT[name], against(name)) for name in KIT if name.count(".")) == {}


def test_rendering_knows_what_was_lowered_and_no_target() -> None:
    def against(name: str, path: Path) -> set[str]:
        if is_of("kit.render", name):
            targets = {other for other in of_kit(path) if is_of("kit.targets", other)}
            return targets - {"kit.targets", "kit.targets.lowered"}
        if is_of("kit.targets", name):
            return {other for other in of_kit(path) if is_of("kit.render", other)}
        return set()

    assert offenders((path, against(name, path)) for name, path in KIT.items()) == {}


TARGETS = ("local", "compose", "swarm", "kubernetes")


def test_no_target_knows_another() -> None:
    for target in TARGETS:
        forbidden = [f"kit.targets.{other}" for other in TARGETS if other != target]
        forbidden.append("kit.targets.lower")
        own = [path for name, path in KIT.items() if is_of(f"kit.targets.{target}", name)]
        parts = {"addressing.py", "lower.py", "observe.py", "decide.py", "execute.py", "logs.py"}
        assert parts <= {path.name for path in own}
        found = {
            path: {name for name in of_kit(path) if any(is_of(each, name) for each in forbidden)}
            for path in own
        }
        assert offenders(found.items()) == {}


def test_no_module_of_kit_imports_itself_in_the_end() -> None:
    graph = {
        # The import of a module also names its package.
        name: {other for other in of_kit(path) if not is_of(other, name)}
        for name, path in KIT.items()
    }
    graphlib.TopologicalSorter(graph).prepare()


def test_the_plan_names_no_target() -> None:
    for name in (name for name in KIT if is_of("kit.plan", name) or is_of("kit.workload", name)):
        assert "EngineName" not in KIT[name].read_text()


NAME_ENGINES = {"targets", "model", "config", "discover", "paths"}
"""The rooms of kit that know the engines by name; the others ask a target or what was lowered."""
ENGINES = {"local", "compose", "swarm", "kubernetes"}


def engines_named(path: Path) -> Iterator[str]:
    """Yield the engines that a module names, and its comparisons with one."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "EngineName":
            yield ast.unparse(node)
        elif isinstance(node, ast.Compare | ast.match_case):
            compared = node.pattern if isinstance(node, ast.match_case) else node
            inside = list(ast.walk(compared))
            if any(isinstance(each, ast.Constant) and each.value in ENGINES for each in inside) or (
                any(isinstance(each, ast.Name) and each.id == "EngineName" for each in inside)
            ):
                yield ast.unparse(compared)


def test_only_targets_compare_engines() -> None:
    # The choice of the target is a table of them.
    allowed = {"kit.commands.targets": {f"EngineName.{name.upper()}" for name in ENGINES}}
    found = (
        (path, set(engines_named(path)) - allowed.get(name, set()))
        for name, path in KIT.items()
        if not {*name.split(".")[1:2]} & NAME_ENGINES
    )
    assert offenders(found) == {}


def test_kit_installs_without_torch() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    base = " ".join(project["dependencies"])
    for heavy in ("torch", "numpy", "scikit", "docker"):
        assert heavy not in base
    assert any(name.startswith("torch") for name in project["optional-dependencies"]["trainer"])


LIMITS = {
    "": 300,
    "contract": 2690,
    "data": 1600,
    "datasets": 1990,
    "datasets/sources": 890,
    "parallel": 1180,
    "checkpoints": 1040,
    "core": 3425,
    "custom": 630,
    "elastic": 920,
    "group": 870,
    "launcher": 3590,
    "launcher/keeper": 940,
    "launcher/session": 600,
    "record": 560,
    "serve": 3760,
    "store": 110,
    "streaming": 640,
    "text": 560,
    "vision": 470,
    "bench": 430,
}
"""Lines of each room of the trainer: a room is meant to be read from top to bottom."""


def test_a_room_of_the_trainer_can_be_read_from_top_to_bottom() -> None:
    found = {room: lines(ROOT / "trainer" / room) for room in LIMITS}
    assert {room: count for room, count in found.items() if count >= LIMITS[room]} == {}


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
    "store": set(),
    "data": {"contract", "output", "vision", "streaming", "custom", "text", "store"},
    # Imported only if a job has tokens.
    "text": {"contract", "output", "data", "store"},
    "streaming": {"contract", "output", "data", "store"},
    # Imported only if a job needs it: `test_torchvision_is_imported_on_use`.
    "vision": {"contract", "output", "data", "store", "core.job"},
    "datasets": {"contract", "output", "store", "vision.downloads"},
    # Imported by the data only if a job names data of the user's own.
    "custom": {"contract", "data", "parallel", "core.job", "core.task"},
    "parallel": {"contract"},
    # The standard library alone: also a part of the launcher's one file.
    "group": set(),
    "elastic": {"contract", "group", "launcher", "parallel", "checkpoints.layout"}
    | {"checkpoints.listing", "checkpoints.manifest"},
    "checkpoints": {"contract", "output", "parallel", "store"},
    "record": {"contract", "output", "data", "parallel", "checkpoints", "text", "store"},
    "core": {"contract", "output", "data", "parallel", "elastic", "checkpoints", "record"}
    | {"vision", "custom", "text.vocabulary", "store"},
    "train": {"contract", "output", "data", "parallel", "elastic", "checkpoints", "core"}
    | {"record", "vision"},
    # Mounted into other images as one file (trainer/contract/programs.py); in the trainer's it
    # checks the job and the data first.
    "launcher": {
        "group",
        "contract.allocation",
        "contract.code",
        "contract.exits",
        "contract.mark",
        "contract.script",
        "core.job",
    }
    | {"contract.notify", "data.files", "data.fetched", "vision.downloads"},
    "launch": {"launcher"},
    "keeper": {"launcher"},
    "sbom": set(),
    "serve": {"contract", "output", "data", "checkpoints", "core", "launcher", "custom", "text"}
    | {"parallel.device"},
    "bench": {"output", "data", "checkpoints", "core", "parallel", "train", "launcher.interfaces"},
}
"""Rooms and modules of the trainer, and which of the others each may import."""


def of_trainer(path: Path) -> set[str]:
    """The modules of the trainer that a module imports."""
    return {name for name in imports(path) if name in TRAINER and TRAINER[name].stem != "__init__"}


def test_rooms_of_the_trainer_import_those_before_them() -> None:
    def against(name: str) -> set[str]:
        room = name.split(".")[1]
        allowed = MAY_IMPORT[room] | {room}
        others = {other.removeprefix("trainer.") for other in of_trainer(TRAINER[name])}
        return {other for other in others if not {other, other.split(".")[0]} & allowed}

    found = ((path, against(name)) for name, path in TRAINER.items() if name != "trainer")
    assert offenders(found) == {}


def test_no_module_of_the_trainer_imports_itself_in_the_end() -> None:
    graphlib.TopologicalSorter({name: of_trainer(path) for name, path in TRAINER.items()}).prepare()


WITHOUT_TORCH = (
    "trainer.launch",
    "trainer.keeper",
    "trainer.elastic.agent",
    "trainer.serve.checkpoints",
    "trainer.core.job",
    "trainer.data.files",
    "trainer.data.fetched",
)


def test_what_runs_without_torch_needs_no_packages() -> None:
    seen, todo = set[str](), list(WITHOUT_TORCH)
    while todo:
        module = todo.pop()
        parents = {module.rpartition(".")[0], module.split(".")[0]} & TRAINER.keys()
        others = {name for name in of_trainer(TRAINER[module]) if ".vision." not in name}
        todo += [other for other in others | parents if other not in seen]
        seen.add(module)
        found = rooms(TRAINER[module])
        if module == "trainer.launcher.torchrun":  # It forks torchrun, and serves its store.
            found -= {"torch"}
        assert found <= sys.stdlib_module_names | {"trainer"}, module


def test_torchvision_is_imported_on_use() -> None:
    """The import takes seconds in each process, and not every machine has torchvision."""
    for path in MODULES:
        own = path.is_relative_to(ROOT / "trainer" / "vision")
        assert own or "torchvision" not in rooms(path), path
        at_once = ast.Module(ast.parse(path.read_text()).body, [])
        for node in (each for each in at_once.body if isinstance(each, ast.ImportFrom)):
            assert own or not is_of("trainer.vision", node.module or ""), path


@pytest.mark.parametrize("name", ["trainer.train", "trainer.serve.server"])
def test_ordinary_jobs_import_no_decoder_of_images(name: str) -> None:
    """Nor torchvision: only jobs that need them import torchvision and Pillow."""
    seen, todo = set[str](), [name]
    while todo:
        module = todo.pop()
        seen.add(module)
        body = ast.parse(TRAINER[module].read_text()).body
        named = [each.module or "" for each in body if isinstance(each, ast.ImportFrom)]
        todo += [each for each in named if each in TRAINER and each not in seen]
    images = {"trainer.data.images"} if name == "trainer.train" else set[str]()
    assert not seen & (images | {each for each in TRAINER if is_of("trainer.vision", each)})
