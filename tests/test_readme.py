"""The README is true: its files are valid, its outputs are what kit prints."""

from __future__ import annotations

import re
import shlex

from kit.cli import COMMANDS
from tests.sandbox import ROOT, Project

README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def shown(output: str) -> list[str]:
    return [line for line in output.splitlines()[1:] if line not in {"…", ""}]


def test_the_plan_is_what_kit_prints(project: Project) -> None:
    inventory, digits, *_ = blocks("yaml")
    plan, _ = blocks("console")
    result = project.write(inventory, {"digits": digits}).kit("plan")
    printed = [line.rstrip() for line in result.out.splitlines()]
    for line in shown(plan):
        assert line in printed


def test_the_slip_is_answered_as_shown(project: Project) -> None:
    inventory, digits, *_ = blocks("yaml")
    _, slip = blocks("console")
    twice = inventory.replace("GPU-91c07be6-2a98-4d3c-b6f0-84d5e7a91c03", "")
    twice = twice.replace("{uuid: ,", "{uuid: GPU-77aa02d4-53c1-4f7e-8b1d-6c9e0a3f5b02,")
    result = project.write(twice, {"digits": digits}).kit("plan")
    assert result.status == 2
    assert result.err.splitlines() == shown(slip)


def test_every_job_is_accepted(project: Project) -> None:
    inventory, *others = blocks("yaml")
    jobs = [block for block in others if block.startswith("# jobs/")]
    names = [re.findall(r"^# jobs/(\w+)\.yaml$", job, re.MULTILINE)[0] for job in jobs]
    assert names == ["digits", "cifar10", "shakespeare", "airbench", "ddp"]
    for name, job in zip(names, jobs, strict=True):
        assert project.write(inventory, {name: job}).kit("render").status == 0


def test_the_server_is_accepted(project: Project) -> None:
    inventory, digits, *others = blocks("yaml")
    (server,) = [block for block in others if block.startswith("# serve/digits.yaml")]
    project.write(inventory, {"digits": digits}, {"digits": server})
    assert project.kit("split", "--infer", "pc2:1", "--yes").status == 0
    assert project.kit("render").status == 0
    made = project.lowered().workloads[-1]
    for url in made.urls:
        assert f"`{url}` is a page" in README


def test_the_files_are_those_of_the_walk(project: Project) -> None:
    inventory, digits, *_ = blocks("yaml")
    assert project.write(inventory, {"digits": digits}).kit("render").status == 0
    tree = project.folder / "compose" / "pool"
    named = re.findall(r"-c (\S+\.stack\.yaml) ", README)
    assert named == ["platform.stack.yaml", "train-digits.stack.yaml"]
    assert all((tree / name).is_file() for name in [*named, "label-nodes.sh"])


def test_the_splits_are_possible(project: Project) -> None:
    inventory, digits, *_ = blocks("yaml")
    inventory = inventory.replace(
        "network:", '  "gpu[001-064]": {address: "10.0.0.[1-64]", gpus: 8}\nnetwork:'
    )
    project.write(inventory, {"digits": digits})
    section = README.partition("## Split")[2].partition("\n## ")[0]
    lines = re.findall(r"^    kit (split .*?) *#", section, re.MULTILINE)
    assert len(lines) == 6
    for line in lines:
        assert project.kit(*shlex.split(line), "--dry-run").status == 0, line


def test_every_command_is_in_the_table() -> None:
    listed = re.findall(r"^\| `kit (\w+)", README, re.MULTILINE)
    assert sorted(listed) == sorted(COMMANDS)
