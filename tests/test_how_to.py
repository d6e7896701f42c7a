"""Each how-to page shows the expected output and the duration; kit prints what the pages show."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.pages import DOCS, blocks, page
from tests.sandbox import Project

FOLDER = DOCS / "how-to"
NAMES = sorted(file.stem for file in FOLDER.glob("*.md"))
DESKTOPS = "docs/start/two-desktops.md"


@dataclass(frozen=True)
class Case:
    """The files of a page that its output belongs to, beside those of the two desktops."""

    files: tuple[str, ...] = ()
    more: str = ""
    """Lines that the page adds to the inventory."""
    digits: bool = False
    """Whether the job of the two desktops is one of the jobs."""
    before: tuple[str, ...] = ()
    """A command that the page assumes."""


SPLIT = ("split", "--infer", "pc2:1", "--yes")
CASES = {
    "air-gap": Case(digits=True),
    "divided-models": Case(("inventory.yaml", "jobs/llm.yaml")),
    "frameworks": Case(("jobs/finetune.yaml",)),
    "git": Case(digits=True),
    "images": Case(("jobs/flowers.yaml",)),
    "jobs": Case(("jobs/cifar10.yaml",)),
    "language-models": Case(("jobs/words.yaml",)),
    "monitoring": Case(more="monitoring: {retention: 30d}\n", digits=True),
    "move-to-kubernetes": Case(("inventory.yaml",), digits=True),
    "own-image": Case(digits=True),
    "own-model": Case(("jobs/progression.py", "jobs/diabetes.yaml")),
    "own-script": Case(("jobs/ddp.yaml",)),
    "own-server": Case(("serve/chat.yaml",), digits=True, before=SPLIT),
    "serve": Case(("serve/digits.yaml",), digits=True, before=SPLIT),
    "share-a-pool": Case(("inventory.yaml", "jobs/resnet.yaml")),
    "split": Case(digits=True),
    "tensorflow": Case(("jobs/mnist-tf.yaml",)),
}
"""Pages of which kit can print an output here; the others need hosts with Docker."""
HELD = re.compile(r"(?:plan|render|split)(?: |$)")


def path_of(name: str) -> str:
    return f"docs/how-to/{name}.md"


def written(path: str) -> dict[str, str]:
    """Return the files of a page by name: blocks that begin with a comment of their path."""
    every = [*blocks(path, "yaml"), *blocks(path, "python")]
    found = ((re.match(r"# ([\w./-]+\.(?:yaml|py))\b", text), text) for text in every)
    return {match[1]: text for match, text in found if match}


def prompts(path: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the commands of a page's console blocks, with the lines that they print."""
    for block in blocks(path, "console"):
        for text in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, *lines = text.splitlines()
            yield command.partition("  #")[0].strip(), [each.rstrip() for each in lines]


def create(project: Project, name: str) -> None:
    """Write the input that the page describes."""
    case, files = CASES[name], written(path_of(name))
    inventory, digits = blocks(DESKTOPS, "yaml")
    chosen = {Path(each): files[each] for each in case.files}
    jobs = {"digits": digits} if case.digits else {}
    jobs |= {each.name: text for each, text in chosen.items() if each.parent.name == "jobs"}
    servers = {each.stem: text for each, text in chosen.items() if each.parent.name == "serve"}
    own = "inventory.yaml" in case.files
    project.write(files["inventory.yaml"] if own else inventory + case.more, jobs, servers)
    if case.before:
        assert project.kit(*case.before).status == 0


@pytest.mark.parametrize("name", NAMES)
def test_a_page_shows_the_output_and_the_duration(name: str) -> None:
    assert any(lines for _, lines in prompts(path_of(name)))
    assert re.search(r"^\*\*Duration:\*\* \S", page(path_of(name)), re.MULTILINE)


@pytest.mark.parametrize("name", CASES)
def test_kit_prints_what_the_page_shows(name: str, project: Project) -> None:
    create(project, name)
    held = 0
    for command, lines in prompts(path_of(name)):
        program, _, rest = command.partition(" ")
        if program != "kit" or not HELD.match(rest):
            continue
        result = project.kit(*rest.split())
        assert result.status == 0, result.err
        printed = [line.rstrip() for line in result.out.splitlines()]
        for line in lines:
            start = line.removesuffix("…")
            assert line in {"…", ""} or any(
                each == line or (start != line and each.startswith(start)) for each in printed
            ), f"{line}\nis not in\n{result.out}"
        held += 1
    assert held
