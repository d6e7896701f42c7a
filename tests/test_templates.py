# ruff: noqa: E501 - a message is one line
"""A user's own templates: single ones are overridden, a mistake names its file and line."""

import os
import shutil
import sys
from pathlib import Path
from unittest.mock import patch

import jinja2
import pytest

from kit import rendered
from kit.render.templates import BUILT_IN, names
from tests.sandbox import Project, kit_process, snapshot

PLATFORM = "platform.stack.yaml.j2"


def override(project: Project, name: str, text: str | bytes) -> Path:
    path = project.write().folder / "mine" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_one_template_is_replaced_and_the_others_stay(project: Project) -> None:
    override(
        project, PLATFORM, "# {{ header }}\nservices: {own: {image: {{ platform.cluster }}}}\n"
    )
    own = snapshot(project.rendered("--templates", "mine", "-o", "compose/lab"))
    theirs = snapshot(project.rendered("-o", "compose/theirs", cluster="theirs"))
    different = {name for name, text in own.items() if text != theirs[name]}
    assert different == {"platform.stack.yaml"}
    assert (own["platform.stack.yaml"] or b"").endswith(b"\nservices: {own: {image: lab}}\n")


@pytest.mark.parametrize("name", names())
def test_every_template_can_be_overridden(project: Project, name: str) -> None:
    override(project, name, (BUILT_IN / name).read_text())
    own = snapshot(project.rendered("--templates", "mine"))
    assert own == snapshot(project.rendered())


# The text of a template, the line of the slip, and a word that the message has in any release of Jinja.
WRONG: dict[str, tuple[str | bytes, int, str]] = {
    "a tag that is not closed": ("a\nb {% if %}\n", 2, ""),
    "a tag of nobody's": ("a\n\n{% frobnicate %}\n", 3, "frobnicate"),
    "an undefined variable": ("a\n{{ nobody }}\n", 2, "nobody"),
    "an undefined field": ("{{ header }}\n\n{{ platform.klaster }}\n", 3, "klaster"),
    "in a loop": ("{% for one in platform.cluster %}\n{{ one.nam }}\n{% endfor %}\n", 2, "nam"),
    "a filter of nobody's": ("a\n{{ header | shout }}\n", 2, "shout"),
    "a wrong type": ("{{ platform.cluster + 1 }}\n", 1, "str"),
    "a division by zero": ("\n{{ 1 / 0 }}\n", 2, "zero"),
    "a filter that fails": ("\n{{ 5 | words }}\n", 2, "int"),
    "no UTF-8": (b"# caf\xe9\n", 1, "this is not UTF-8 text"),
    "an include of nothing": ("\n{% include 'x.j2' %}\n", 2, "there is no template x.j2"),
    "an include of itself": ("{% include 'platform.stack.yaml.j2' %}", 1, "it includes itself"),
}


@pytest.mark.parametrize("slip", WRONG)
def test_a_slip_names_its_template_and_line(project: Project, slip: str) -> None:
    text, line, word = WRONG[slip]
    override(project, PLATFORM, text)
    result = project.kit("render", "--templates", "mine")
    first, second = result.err.splitlines()
    assert first.startswith(f"kit: mine/{PLATFORM}:{line}: the template fails: ")
    assert word in first
    assert second == f"compare it with kit's own: {BUILT_IN / PLATFORM}"
    assert (result.status, result.out) == (2, "")
    assert not (project.folder / "compose").exists()


UNKNOWN = [
    ("platfrom.stack.yaml.j2", "did you mean platform.stack.yaml.j2?"),
    ("platform.stack.yaml", "did you mean platform.stack.yaml.j2?"),
    (
        "hosts/{host}/train-{job}.compose.j2",
        "did you mean hosts/{host}/train-{job}.compose.yaml.j2?",
    ),
]


@pytest.mark.parametrize(("name", "fix"), UNKNOWN)
def test_a_template_without_a_use_is_refused(project: Project, name: str, fix: str) -> None:
    override(project, name, "# {{ header }}\n")
    result = project.kit("render", "--templates", "mine")
    assert result.err == f"kit: mine/{name}: kit has no template {name}\n{fix}\n"
    assert result.status == 2


def test_a_missing_folder_is_told(project: Project) -> None:
    result = project.write().kit("render", "--templates", "mine")
    assert result.err.startswith("kit: mine: there is no such folder of templates\n")
    assert result.status == 2


BOMBS = [
    ("{{ 'x' * 10**11 }}", "1: the template fails: it needs too much memory"),
    ("\n{{ 'x' | center(10**11) }}", "2: the template fails: it needs too much memory"),
    ("{{ 'x' * 10**8 }}", "1: the template fails: its text has 100,000,000 characters"),
    ("{% for _ in range(10**9) %}{% endfor %}", "1: the template fails: Range too big"),
    ("{{ lipsum.__globals__.__builtins__.exit() }}", "1: the template fails: access to attribute"),
    ("{{ cycler.__init__.__globals__.os._exit(0) }}", "1: the template fails: access to attribute"),
]


@pytest.mark.parametrize(("text", "message"), BOMBS)
def test_a_template_can_neither_take_the_memory_nor_end_kit(
    project: Project, text: str, message: str
) -> None:
    override(project, PLATFORM, text)
    result = kit_process(project.folder, "render", "--templates", "mine")
    assert result.err.startswith(f"kit: mine/{PLATFORM}:{message}")
    assert (result.status, result.out) == (2, "")
    assert not (project.folder / "compose").exists()


ODD = ["docs", "hosts/n1/daemon.json.j2", "hosts/{host}/pipe.j2"]


@pytest.mark.parametrize("name", ODD)
def test_what_is_no_template_is_not_passed_over(project: Project, name: str) -> None:
    path = project.write().folder / "mine" / name
    path.parent.mkdir(parents=True)
    os.mkfifo(path)
    assert "mine/" in project.kit("render", "--templates", "mine").err
    assert project.kit("render", "--templates", "mine").status == 2


def test_what_editors_and_git_hide_is_no_template(project: Project) -> None:
    override(project, ".git/config", "")
    override(project, "hosts/{host}/.daemon.json.j2.swp", "")
    project.rendered("--templates", "mine")


def test_compiled_templates_lie_where_python_keeps_compiled_modules(
    project: Project, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """They are read again; a damaged one, or a place where none can be written, does no harm."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(rendered, "BUILT_IN", place := tmp_path / "built-in")
    place.mkdir()

    def render() -> tuple[dict[str, bytes | None], int]:
        """Return a tree, and the number of templates that were compiled."""
        rendered._built_in.cache_clear()
        compile_template = jinja2.Environment.compile
        with patch.object(jinja2.Environment, "compile", autospec=True) as compiled:
            compiled.side_effect = compile_template
            return snapshot(project.write().rendered()), compiled.call_count

    tree, count = render()
    files = list((place / "__pycache__").iterdir())
    assert len(files) == count > 3
    assert render() == (tree, 0)
    files[0].write_bytes(files[0].read_bytes()[:200])
    assert render() == (tree, 1)
    shutil.rmtree(place)
    assert render() == (tree, count)
