"""The recipes in docs/recipes are jobs that kit accepts; tests/vision trains them."""

import json
import re
from dataclasses import fields
from pathlib import Path

import pytest

from tests.sandbox import ROOT, Project
from trainer.contract.job import Train

RECIPES = sorted((ROOT / "docs" / "recipes").glob("*.yaml"))
EIGHT = """\
cluster: lab
engine: swarm
hosts:
  pc1: {address: 192.168.8.151, roles: [manager], gpus: 8}
"""
FOUR = """\
cluster: lab
engine: compose
hosts:
  pc1: {address: 192.168.8.151, roles: [manager], gpus: 1}
  pc2: {address: 192.168.8.114, gpus: 3}
"""


def test_there_are_recipes() -> None:
    assert [file.stem for file in RECIPES] == ["resnet50", "vit_b_16"]


@pytest.mark.parametrize("file", RECIPES, ids=lambda file: file.stem)
@pytest.mark.parametrize("inventory", [EIGHT, FOUR], ids=["eight", "four"])
def test_a_recipe_is_planned_and_rendered(file: Path, inventory: str, project: Project) -> None:
    name = file.stem.replace("_", "-")
    project.write(inventory, {name: file.read_text()})
    planned = project.kit("plan")
    assert (planned.status, planned.err) == (0, "")
    plan = project.lowered().plan
    train = plan.jobs[0].job.train
    assert train is not None
    assert f"{train.global_batch:,}" in planned.out
    assert project.kit("render").status == 0


@pytest.mark.parametrize("file", RECIPES, ids=lambda file: file.stem)
def test_each_key_of_a_recipe_says_where_it_comes_from(file: Path) -> None:
    train = file.read_text().partition("train:\n")[2].partition("checkpoint:")[0]
    rows = re.findall(r"^  (\w+): *[^#\n]*(#?)", train, re.MULTILINE)
    known = {each.name for each in fields(Train)}
    assert {name for name, _ in rows} <= known
    own = {"model", "epochs", "optimizer", "schedule"}
    assert {name for name, comment in rows if not comment} <= own


def test_the_page_of_images_names_all_recipes() -> None:
    page = (ROOT / "docs" / "how-to" / "images.md").read_text()
    assert all(f"(../recipes/{file.name})" in page for file in RECIPES)


def test_layers_of_a_job_are_frozen(project: Project) -> None:
    (file,) = [each for each in RECIPES if each.stem == "resnet50"]
    train = file.read_text().replace("  ema_decay:", "  freeze: [backbone]\n  ema_decay:")
    tree = project.write(EIGHT, {"fine": train}).rendered()
    job = json.loads((tree / "jobs" / "fine.json").read_text())
    assert job["train"]["freeze"] == ["backbone"]
