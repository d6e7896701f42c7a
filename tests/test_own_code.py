"""The Python files that come with a job: found, checked, rendered, and part of its version."""

from __future__ import annotations

import json

import pytest
import yaml

from tests.sandbox import INVENTORY, JOB, SERVER, Project
from trainer.contract import own

OWN = (
    "image: registry.lab:5000/trainer:0.2.0\n"
    "train:\n"
    "  model: mine:build\n"
    "  dataset: mine:data\n"
    "  options: {width: 64, names: [a, b]}\n"
    "  epochs: 1\n"
    "  batch_size: 8\n"
)
CODE = "def build(settings): ...\ndef data(settings): ...\n"
COMPOSE = INVENTORY.replace("engine: swarm", "engine: compose")


def write(
    project: Project,
    code: str = CODE,
    job: str = OWN,
    *,
    inventory: str = INVENTORY,
    servers: dict[str, str] | None = None,
) -> Project:
    project.write(inventory, {"own": job}, servers)
    (project.folder / "jobs" / "mine.py").write_text(code)
    return project


def hashes(project: Project) -> list[str]:
    return [each.job_hash for each in project.lowered().workloads]


@pytest.mark.parametrize("inventory", [INVENTORY, COMPOSE])
def test_containers_get_the_file_of_the_job(project: Project, inventory: str) -> None:
    tree = write(project, inventory=inventory).rendered()
    assert (tree / "jobs" / "own" / "mine.py").read_text() == CODE
    named = json.loads((tree / "jobs" / "own.json").read_text())["train"]
    assert named["options"] == {"width": 64, "names": ["a", "b"]}
    files = [*tree.glob("train-own.stack.yaml"), *tree.glob("hosts/*/train-own.compose.yaml")]
    assert files
    for file in files:
        content = yaml.safe_load(file.read_text())
        trains = [s for name, s in content["services"].items() if name.startswith("train")]
        assert trains
        for service in trains:
            assert {"source": "code", "target": "/kit/code/mine.py"} in service["configs"]
            assert service["environment"]["KIT_CODE"] == "/kit/code/mine.py"
        mounted = file.parent / content["configs"]["code"]["file"]
        assert mounted.read_text() == CODE


def test_a_change_of_the_file_starts_the_job_and_its_server_anew(project: Project) -> None:
    servers = {"own": SERVER.replace("job: digits", "job: own")}
    tree = write(project, servers=servers).rendered()
    stacks = ("train-own.stack.yaml", "serve-own.stack.yaml")
    before, known = [(tree / name).read_text() for name in stacks], hashes(project)
    write(project, CODE + "# changed\n", servers=servers).rendered()
    after = [(tree / name).read_text() for name in stacks]
    assert all(old != new for old, new in zip(before, after, strict=True))
    assert all(old != new for old, new in zip(known, hashes(project), strict=True))
    write(project, CODE, servers=servers).rendered()
    assert [(tree / name).read_text() for name in stacks] == before


def test_a_server_imports_the_module_of_its_job_alone(project: Project) -> None:
    servers = {"own": SERVER.replace("job: digits", "job: own")}
    tree = write(project, servers=servers).rendered()
    assert json.loads((tree / "serve" / "own.json").read_text())["model"] == "mine:build"
    serve = yaml.safe_load((tree / "serve-own.stack.yaml").read_text())["services"]
    mounts = [each["configs"] for name, each in serve.items() if name.startswith("serve")]
    assert [{"source": "code", "target": "/kit/code/mine.py"} in each for each in mounts] == [True]
    project.write(INVENTORY, {"digits": JOB}, {"digits": SERVER}).rendered()
    assert "model" not in json.loads((tree / "serve" / "digits.json").read_text())


def test_two_modules_and_none_beside_the_job(project: Project) -> None:
    write(project, job=OWN.replace("mine:data", "other.sub:load"))
    notes = project.plan().notes
    assert any("there is no other.sub.py beside jobs/own.yaml" in each for each in notes)
    write(project, job=OWN.replace("mine:data", "other:load"))
    (project.folder / "jobs" / "other.py").write_text("load = 1\n")
    assert not any("beside" in each for each in project.plan().notes)
    tree = project.rendered()
    configs = yaml.safe_load((tree / "train-own.stack.yaml").read_text())["configs"]
    assert {configs[key]["file"] for key in ("code", "code-2")} == {
        "jobs/own/mine.py",
        "jobs/own/other.py",
    }


def test_jobs_of_other_models_keep_their_version(project: Project) -> None:
    """A Python file beside a job that does not name it is not the job's."""
    project.write(INVENTORY, {"digits": JOB})
    before = hashes(project)
    (project.folder / "jobs" / "mine.py").write_text("broken(")
    assert hashes(project) == before
    assert not list(project.rendered().rglob("mine.py"))


FAULTS = {
    "a syntax error": (
        OWN,
        "def build(s):\n  return (\n",
        "jobs/mine.py:2: '(' was never closed; correct it (read as Python 3.",
    ),
    "no such function": (
        OWN,
        "def built(s): ...\ndef data(s): ...\n",
        "jobs/own.yaml:3: train.model: jobs/mine.py has no function build; did you mean built?",
    ),
    "an empty file": (
        OWN,
        "",
        "jobs/own.yaml:4: train.dataset: jobs/mine.py has no function data; write the function",
    ),
    "too large": (
        OWN,
        CODE + "#" * 500_000,
        "jobs/own.yaml:3: train.model: jobs/mine.py has 500,049 bytes, a file may have 500,000; "
        "put it into the image",
    ),
    "a file's name": (
        OWN.replace("mine:build", "mine.py:build"),
        CODE,
        "jobs/own.yaml:3: train.model: 'mine.py:build' is not a function of a module; leave out "
        "the .py, as in `model: mymodel:build`",
    ),
    "a name of Python's": (
        OWN.replace("mine:build", "random:build"),
        CODE,
        "jobs/own.yaml:3: train.model: a module random exists already, and the trainer may need it",
    ),
    "a model of the trainer": (
        OWN.replace("mine:build", "cnn").replace("  options: {width: 64, names: [a, b]}\n", ""),
        CODE,
        "jobs/own.yaml:3: train.model: cnn is for the trainer's data sets, not for mine:data; ",
    ),
    "options of the trainer's models": (
        OWN.replace("mine:build", "cnn").replace("mine:data", "digits"),
        CODE,
        "jobs/own.yaml:5: train.options: is for models of your own, and for gpt; leave it out",
    ),
    "options that are no values": (
        OWN.replace("64", "{a: 1}"),
        CODE,
        "jobs/own.yaml:5: train.options: the value of width is no plain value; write for example",
    ),
    "a path": (
        OWN + "  path: x\n",
        CODE,
        "jobs/own.yaml:8: train.path: mine:data finds its files itself; leave it out",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_mistakes_are_found_before_a_deploy(project: Project, name: str) -> None:
    job, code, says = FAULTS[name]
    result = write(project, code, job).kit("plan")
    assert result.status == 2
    assert says in result.err
    assert "Traceback" not in result.err


def test_a_folder_does_not_come_with_a_job(project: Project) -> None:
    write(project, job=OWN.replace("mine:data", "pack:data"))
    (project.folder / "jobs" / "pack").mkdir()
    result = project.kit("plan")
    assert result.status == 2
    assert "pack is a folder: kit sends only files with a job; put it into the" in result.err


def test_the_form_of_a_function() -> None:
    for name in ("a:b", "a.b_c:D1", "_a:_b"):
        assert own.reference_fault(name, "x") is None
    for name in ("a:", ":b", "a:b:c", "a b:c", "a/b:c", "../a:b", "a:b()", "1a:b", "torch:load"):
        assert own.reference_fault(name, "x")
