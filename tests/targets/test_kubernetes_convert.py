"""`kit convert`: an inventory of a Swarm for Kubernetes, line by line."""

from __future__ import annotations

import re
import shutil

import pytest
import yaml

from tests.sandbox import JOB, ROOT, SERVER, Project

SWARM = """\
# Our machines.
cluster: pool
engine: swarm     # for now
hosts:
  pc1:
    address: 10.0.0.1
    roles: [manager]
    gpus:
      - uuid: GPU-a   # the left one
        model: A100
      - uuid: GPU-b
        model: A100
        use: inference
  "pc[2-3]": {address: "10.0.0.[2-3]", gpus: 2}
"""
TO = ("convert", "--to", "kubernetes", "--namespace", "training")


def rows(out: str) -> list[tuple[str, ...]]:
    """The table's rows, without the folded rests of long cells."""
    return [
        tuple(re.split(r"\s{2,}", line.strip()))
        for line in out.splitlines()
        if re.match(r" \S+\.yaml:\d", line)
    ]


def test_an_inventory_becomes_one_that_renders(project: Project) -> None:
    job = JOB + "hosts: {min: 1}\nsecrets: {WANDB_API_KEY: env}\n"
    project.write(SWARM, {"digits": job}, {"digits": SERVER})
    result = project.kit(*TO, "--yes")
    assert result.status == 0, result.err
    text = (project.folder / "inventory.yaml").read_text()
    lines = "kubernetes     # for now\nkubernetes: {namespace: training}"
    expected = SWARM.replace("swarm     # for now", lines)
    assert text == expected.replace("uuid: GPU-a", "index: 0").replace("uuid: GPU-b", "index: 1")
    assert project.kit("render").status == 0
    tree = project.folder / "compose" / "pool"
    assert yaml.safe_load((tree / "kustomization.yaml").read_text())["namespace"] == "training"
    found = {row[1] for row in rows(result.out) if row[2] == "changes"}
    assert found == {"engine", "hosts.pc1.gpus", "checkpoint", "secrets", "port"}


def test_a_server_without_a_gpu_comes_along_too(project: Project) -> None:
    project.write(
        SWARM.replace("use: inference", "use: training"), {"digits": JOB}, {"digits": SERVER}
    )
    result = project.kit(*TO, "--dry-run")
    assert ("serve/digits.yaml:1", "is kept", "idle: it has no GPU") in rows(result.out)


def test_what_cannot_come_along_has_its_line_and_stays(project: Project) -> None:
    inventory = SWARM + "monitoring: {retention: 30d}\n"
    project.write(inventory, {"digits": JOB + "queue: {owner: anna}\n"})
    result = project.kit(*TO, "--yes")
    unsupported = [row for row in rows(result.out) if "is not supported" in row]
    assert [row[:2] for row in unsupported] == [
        ("inventory.yaml:15", "monitoring"),
        ("jobs/digits.yaml:7", "queue"),
    ]
    assert "remove the values that are not supported (2 lines), then `kit plan`" in result.out
    assert "monitoring: {retention: 30d}" in (project.folder / "inventory.yaml").read_text()


FLOW = "{cluster: pool, engine: swarm, hosts: {pc1: {address: 10.0.0.1, gpus: 1}}}\n"
BLOCK = "hosts:\n  pc1: {address: 10.0.0.1, gpus: 1}\n"
UNUSUAL = {
    "a mapping in braces": FLOW,
    "braces without an engine": FLOW.replace("engine: swarm, ", "").replace("gpus: 1", "gpus: 1"),
    "a folded text": f"cluster: pool\nengine: >-\n  swarm\n{BLOCK}",
    "an alias": f"cluster: &c swarm\nengine: *c\n{BLOCK}",
    "a section without an engine": f"cluster: pool\nengine: swarm\nkubernetes:\n{BLOCK}",
    "a section beside another engine": (
        f"cluster: pool\nengine: swarm\nkubernetes: {{namespace: x}}\n{BLOCK}"
    ),
}


@pytest.mark.parametrize("form", UNUSUAL)
def test_a_text_that_cannot_be_edited_stays(project: Project, form: str) -> None:
    text = UNUSUAL[form]
    project.write(text)
    result = project.kit(*TO, "--yes")
    assert (result.status, (project.folder / "inventory.yaml").read_text()) == (2, text)
    assert "the conversion cannot be written into this text" in result.err
    assert "nothing was written; begin the file with `engine: kubernetes`" in result.err


def test_a_dry_run_writes_nothing(project: Project) -> None:
    project.write(SWARM)
    result = project.kit(*TO, "--context", "on", "--dry-run")
    assert '+kubernetes: {context: "on", namespace: training}' in result.out
    assert (project.folder / "inventory.yaml").read_text() == SWARM


@pytest.mark.parametrize("example", ["case2-serving", "shared-pool", "twenty-hosts"])
def test_the_examples_of_swarms_are_told_line_by_line(project: Project, example: str) -> None:
    shutil.copytree(ROOT / "tests" / "examples" / example, project.folder, dirs_exist_ok=True)
    result = project.kit(*TO, "--dry-run")
    assert result.status == 0, result.err
    assert {"is kept", "changes"} <= {row[-2] for row in rows(result.out)}


WRONG = {
    ("--namespace", "Training"): "--namespace: ",
    ("--namespace", "training", "--context", ""): "--context: ",
}


@pytest.mark.parametrize("options", WRONG)
def test_wrong_options_are_told(project: Project, options: tuple[str, ...]) -> None:
    result = project.write(SWARM).kit("convert", "--to", "kubernetes", *options, "--yes")
    assert (result.status, WRONG[options] in result.err) == (2, True)
    assert (project.folder / "inventory.yaml").read_text() == SWARM


def test_an_inventory_is_converted_once(project: Project) -> None:
    project.write(SWARM).kit(*TO, "--yes")
    again = project.kit(*TO, "--yes")
    assert (again.status, "is for kubernetes already" in again.err) == (2, True)
