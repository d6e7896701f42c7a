"""The programs that kit mounts into images without the trainer, and the modules in them."""

import ast
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit import rendered
from kit.workload.training import KEEPER_FILE, LAUNCHER_FILE
from tests.trainer.hosts import ROOT, hosts, program_text, write_programs
from trainer.contract.programs import PROGRAMS

TRAINER = ROOT / "trainer"


def defined(tree: ast.Module) -> Iterator[str]:
    """Yield the functions, classes and constants of a module, in their order."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Assign):
            yield from (
                name.id
                for target in node.targets
                for name in ast.walk(target)
                if isinstance(name, ast.Name)
            )
        elif isinstance(node, ast.AnnAssign):
            yield ast.unparse(node.target)


def trees(program: str) -> dict[str, ast.Module]:
    return {path: ast.parse((TRAINER / path).read_text()) for path in PROGRAMS[program]}


def imports(tree: ast.Module) -> Iterator[ast.Import | ast.ImportFrom]:
    yield from (each for each in tree.body if isinstance(each, ast.Import | ast.ImportFrom))


def test_the_programs_have_every_module() -> None:
    listed = {path for modules in PROGRAMS.values() for path in modules}
    there = {str(path.relative_to(TRAINER)) for path in TRAINER.glob("launcher/**/*.py")}
    there |= {f"group/{path.name}" for path in TRAINER.glob("group/[a-z]*.py")}
    assert {path for path in listed if path.startswith(("launcher/", "group/"))} == there
    assert PROGRAMS.keys() == {LAUNCHER_FILE, KEEPER_FILE, "probe.py"}


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_defines_each_name_once(program: str) -> None:
    found = Counter[str]()
    of_python = set[str]()
    for tree in trees(program).values():
        found.update({*defined(tree)})
        of_python |= {
            alias.name
            for node in imports(tree)
            if not (isinstance(node, ast.ImportFrom) and (node.module or "").startswith("trainer."))
            for alias in node.names
        }
    assert {name for name, count in found.items() if count > 1} == set()
    assert found.keys() & of_python == set()


@pytest.mark.parametrize("program", PROGRAMS)
def test_modules_import_names_from_the_modules_before_them(program: str) -> None:
    before = dict[str, set[str]]()
    for path, tree in trees(program).items():
        for node in ast.walk(tree):
            if not isinstance(node, ast.Import | ast.ImportFrom):
                continue
            named = [alias.asname for alias in node.names if alias.asname]
            module = (node.module or "") if isinstance(node, ast.ImportFrom) else ""
            if node in tree.body:
                assert not named, f"{path}: the joined program has {named} under another name"
                assert not any(alias.name.startswith("trainer") for alias in node.names), path
            if node in tree.body and module.startswith("trainer."):
                assert {alias.name for alias in node.names} <= before[module], path
            else:  # Within a function, other folders of the trainer.
                assert module not in before, path
                assert not module.startswith(("trainer.launcher", "trainer.group")), path
        before["trainer." + path.removesuffix(".py").replace("/", ".")] = {*defined(tree)}


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_joined_program_is_its_modules(program: str) -> None:
    text = program_text(program)
    joined = ast.parse(text, feature_version=(3, 10))
    modules = trees(program)
    assert [*defined(joined)] == [name for tree in modules.values() for name in defined(tree)]
    bodies = [
        ast.dump(node)
        for tree in modules.values()
        for node in tree.body[1:]  # Without the docstring.
        if not isinstance(node, ast.Import | ast.ImportFrom)
    ]
    assert bodies == [
        ast.dump(node)
        for node in joined.body[1:]
        if not isinstance(node, ast.Import | ast.ImportFrom)
    ]
    assert ast.get_docstring(joined) == ast.get_docstring(modules[PROGRAMS[program][0]])
    head = text.partition("\nimport ")[0].replace("\n# ", " ")
    assert ", ".join(PROGRAMS[program]) in head
    assert all(f"\n# -------- {path}\n" in text for path in PROGRAMS[program][1:])
    assert rendered.program_text(program) == text


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_joined_program_needs_only_the_standard_library(program: str) -> None:
    tree = ast.parse(program_text(program))
    nodes = [*imports(tree)]
    assert tree.body[1 : 1 + len(nodes)] == nodes  # All at its begin, and before the check of 3.10.
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in names} <= sys.stdlib_module_names


def test_the_joined_programs_run_a_script(tmp_path: Path) -> None:
    """The launcher, its rendezvous, agent, worker and keeper, without torch and the trainer."""
    (tmp_path / "packages" / "tensorflow").mkdir(parents=True)
    (tmp_path / "packages" / "tensorflow" / "__init__.py").touch()
    poison = tmp_path / "packages" / "trainer" / "__init__.py"
    poison.parent.mkdir()
    poison.write_text("raise ImportError('the programs must do without the package')")
    (tmp_path / "own.py").write_text(
        "import os, pathlib\n"
        "pathlib.Path('notes.txt').write_text('words')\n"
        "print('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'])\n"
    )
    job = {"name": "own", "command": ["own.py"], "framework": "tensorflow"}
    job_file = tmp_path / "job.json"
    job_file.write_text(json.dumps({**job, "checkpoint": {"files": ["notes.txt"]}}))
    launch = write_programs(tmp_path / "kit")
    with hosts(tmp_path, cold=True) as local:
        task = local.start(
            "pc1",
            [launch],
            {
                "KIT_JOB": job_file,
                "KIT_RENDEZVOUS": local.rendezvous(launch=launch, script=True),
                "KIT_NNODES": "1:1",
                "KIT_NPROC": "1",
                "KIT_HOST": "pc1",
                "KIT_CHECKPOINTS": tmp_path / "checkpoints",
                "KIT_ONE_RUN": "1",
                "PYTHONPATH": tmp_path / "packages",
            },
        )
        assert task.wait() == 0, task.text
    assert "[rank0]: rank 0 of 1" in task.log.read_text()
    (manifest,) = (tmp_path / "checkpoints" / "versions" / "pc1").glob("*/manifest.json")
    assert (manifest.parent / "0").read_text() == "words"


def test_the_launcher_of_the_package_is_the_same_program() -> None:
    run = [sys.executable, str(TRAINER / "launch.py"), "nothing"]
    done = subprocess.run(run, capture_output=True, text=True, cwd="/", env={"KIT_HOST": "pc1"})
    assert done.returncode == 2
    assert done.stderr == (
        "launch pc1: error: unknown: nothing; give nothing, coordinator, rendezvous or health\n"
    )
