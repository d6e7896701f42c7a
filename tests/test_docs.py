"""The documentation is true: its links, its generated pages, its examples, its messages."""

from __future__ import annotations

import ast
import json
import re
import shlex
from pathlib import Path
from urllib.parse import urlsplit

import click
import pytest
import yaml

from docs.generate import recordings, story
from docs.generate.pages import DECISIONS, pages
from kit.cli import COMMANDS, cli
from kit.doctor.checks.losses import HARDWARE_XIDS
from kit.doctor.host_codes import XID
from tests.pages import DOCS, PAGES, anchors, blocks, first_cells, links, page
from tests.sandbox import COMMAND, ROOT, Project
from trainer import launcher

LARGEST_README = 6000
DESKTOPS = "docs/start/two-desktops.md"


def names(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("file", PAGES, ids=names)
def test_links_lead_somewhere(file: Path) -> None:
    for link in links(file):
        parts = urlsplit(link)
        if parts.scheme:
            continue
        target = (file.parent / parts.path).resolve() if parts.path else file
        assert target.exists(), link
        assert ROOT in target.parents, link
        if parts.fragment:
            assert parts.fragment in anchors(target), link


def test_pages_of_the_site_stay_inside_it() -> None:
    for file in DOCS.rglob("*.md"):
        for link in links(file):
            if not urlsplit(link).scheme:
                assert DOCS in (file.parent / link).resolve().parents, f"{file}: {link}"


def test_generated_pages_are_true() -> None:
    for path, text in pages().items():
        assert (ROOT / path).read_text(encoding="utf-8") == text, f"{path}: run `make examples`"


def test_the_animated_story_shows_its_commands() -> None:
    shown = recordings.description(story.FILE)
    prompts = [line.removeprefix("$ ") for line in shown.splitlines() if line.startswith("$ ")]
    assert prompts == [command for command, _ in story.STORY]
    assert story.FILE.stat().st_size < 1e6


@pytest.mark.parametrize("name", ["plan", "split-command"])
def test_pictures_show_what_kit_prints(name: str, tmp_path: Path) -> None:
    shown = recordings.description(recordings.IMAGES / f"{name}.svg")
    now = recordings.plain(recordings.record(tmp_path, recordings.RECORDINGS[name]))
    assert shown == now, "run `make pictures`"


def test_the_first_page_leads_to_every_page() -> None:
    linked = set(re.findall(r"\]\(([^)]+\.md)\)", page("docs/index.md")))
    pages = {file.relative_to(DOCS).as_posix() for file in DOCS.rglob("*.md")}
    assert linked == {name for name in pages if not re.match(r"index|decisions/\d", name)}


def test_each_decision_has_a_date_and_a_title() -> None:
    for file in DECISIONS.glob("*.md"):
        if file.name != "index.md":
            assert re.fullmatch(r"\d{4}-\d\d-\d\d-[a-z0-9-]+\.md", file.name)
            assert file.read_text(encoding="utf-8").startswith("# ")


# -------- README and AGENTS.md


def test_the_readme_is_one_short_page() -> None:
    assert (ROOT / "README.md").stat().st_size <= LARGEST_README


def test_the_readme_shows_what_kit_prints(project: Project) -> None:
    inventory, digits = blocks("README.md", "yaml")
    (console,) = blocks("README.md", "console")
    plan, deploy = console.split("$ kit render && kit deploy\n")
    result = project.write(inventory, {"digits": digits}).kit("plan")
    printed = [line.rstrip() for line in result.out.splitlines()]
    assert all(line in printed for line in shown(plan))
    # This part is of the recording, whose cluster is the example: the times are those of one run.
    recorded = recordings.description(recordings.IMAGES / "deploy.svg").splitlines()
    assert all(line in recorded for line in deploy.splitlines() if line != "…")


def test_the_targets_of_make_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", page("Makefile"), re.MULTILINE))
    for file in PAGES:
        text = file.read_text(encoding="utf-8")
        for line in re.findall(r"(?:^    |`)make ([a-z -]+)", text, re.MULTILINE):
            wanted = line.partition("  ")[0].split()
            assert set(wanted) <= targets, f"{file}: make {line}"


def commands(group: click.Group, path: str = "kit") -> dict[str, click.Command]:
    found: dict[str, click.Command] = {}
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            found |= commands(command, f"{path} {name}")
        if not isinstance(command, click.Group) or command.invoke_without_command:
            found[f"{path} {name}"] = command
    return found


def test_agents_know_the_commands_with_json() -> None:
    told = {cell.strip("`") for cell in first_cells("AGENTS.md") if "--json" in cell}
    real = {
        f"{name} --json"
        for name, command in commands(cli).items()
        if any("--json" in option.opts for option in command.params)
    }
    assert told == real


@pytest.mark.parametrize("command", ["plan", "split"])
def test_agents_know_the_keys_of_json(command: str, project: Project) -> None:
    row = re.search(rf"^\| `kit {command} --json` \| (.+) \|$", page("AGENTS.md"), re.MULTILINE)
    assert row is not None
    printed = json.loads(project.write().kit(command, "--json").out)
    assert re.findall(r"`(\w+)`", row[1]) == list(printed)


def test_every_command_of_the_pages_exists() -> None:
    known = {name.split()[1]: command for name, command in commands(cli).items()}
    for file in PAGES:
        for name in re.findall(r"`kit ([a-z]+)", file.read_text(encoding="utf-8")):
            assert name in known or name in COMMANDS, f"{file}: kit {name}"


# -------- The examples


def shown(output: str) -> list[str]:
    return [line for line in output.splitlines()[1:] if line not in {"…", ""}]


def desktops() -> tuple[str, str]:
    inventory, digits = blocks(DESKTOPS, "yaml")
    return inventory, digits


def test_the_plan_is_what_kit_prints(project: Project) -> None:
    inventory, digits = desktops()
    plan, _ = blocks(DESKTOPS, "console")
    result = project.write(inventory, {"digits": digits}).kit("plan")
    printed = [line.rstrip() for line in result.out.splitlines()]
    for line in shown(plan):
        assert line in printed


def test_the_slip_is_answered_as_shown(project: Project) -> None:
    inventory, digits = desktops()
    _, slip = blocks(DESKTOPS, "console")
    twice = inventory.replace("GPU-91c07be6-2a98-4d3c-b6f0-84d5e7a91c03", "")
    twice = twice.replace("{uuid: ,", "{uuid: GPU-77aa02d4-53c1-4f7e-8b1d-6c9e0a3f5b02,")
    result = project.write(twice, {"digits": digits}).kit("plan")
    assert result.status == 2
    assert result.err.splitlines() == shown(slip)


def test_every_job_is_accepted(project: Project) -> None:
    inventory, digits = desktops()
    others = [*blocks("docs/how-to/jobs.md", "yaml"), *blocks("docs/how-to/own-script.md", "yaml")]
    jobs = {"digits": digits}
    for text in others:
        if named := re.match(r"# jobs/(\w+)\.yaml$", text, re.MULTILINE):
            jobs[named[1]] = text
        elif "files" in text:  # keys of the script before it
            jobs["kept"] = jobs["ddp"] + text
        elif "setup" in text:
            jobs["prepared"] = jobs["ddp"] + text
        elif "mounts" in text:
            jobs["shared"] = jobs["ddp"].partition("mounts:")[0] + text
        else:
            jobs["more"] = digits + text
    assert [*jobs] == [
        "digits",
        "cifar10",
        "shakespeare",
        "airbench",
        "imagenet",
        "more",
        "ddp",
        "prepared",
        "kept",
        "shared",
    ]
    for name, job in jobs.items():
        result = project.write(inventory, {name: job}).kit("render")
        assert (result.status, result.err) == (0, "")


@pytest.mark.parametrize("keys", ["", "proxy:", "token:"])
def test_the_server_is_accepted(project: Project, keys: str) -> None:
    inventory, digits = desktops()
    server, *more = blocks("docs/how-to/serve.md", "yaml")
    server += "".join(each for each in more if keys and each.startswith(keys))
    assert keys in server
    project.write(inventory, {"digits": digits}, {"digits": server})
    assert project.kit("split", "--infer", "pc2:1", "--yes").status == 0
    assert project.kit("render").status == 0
    first, *others = project.lowered().workloads[-1].urls
    assert f"`{first}` is a page" in page("docs/how-to/serve.md")
    for url in others:
        assert f"`{url}` then answers for all hosts" in page("docs/how-to/serve.md")


@pytest.mark.parametrize("number", [0, 1])
def test_servers_of_ones_own_are_accepted(project: Project, number: int) -> None:
    inventory, digits = desktops()
    server = blocks("docs/how-to/own-server.md", "yaml")[number]
    project.write(inventory, {"digits": digits}, {"own": server})
    assert project.kit("split", "--infer", "pc2:1", "--yes").status == 0
    result = project.kit("render")
    assert (result.status, result.err) == (0, "")


def test_the_handler_is_accepted(project: Project) -> None:
    inventory, _ = desktops()
    [server] = [each for each in blocks("docs/how-to/serve.md", "yaml") if "handler:" in each]
    _, code = blocks("docs/how-to/serve.md", "python")
    project.write(inventory, {"ddp": COMMAND}, {"words": server})
    (project.folder / "serve" / "mymodel.py").write_text(code)
    assert project.kit("split", "--infer", "pc2:1", "--yes").status == 0
    result = project.kit("render")
    assert (result.status, result.err) == (0, "")


def test_the_files_of_the_walk_are_rendered(project: Project) -> None:
    inventory, digits = desktops()
    assert project.write(inventory, {"digits": digits}).kit("render").status == 0
    tree = project.folder / "compose" / "pool"
    named = re.findall(r"-c (\S+\.stack\.yaml) ", page(DESKTOPS))
    assert named == ["platform.stack.yaml", "train-digits.stack.yaml"]
    assert all((tree / name).is_file() for name in [*named, "label-nodes.sh"])


def test_controllers_find_their_files(project: Project) -> None:
    inventory, digits = desktops()
    *_, stacks, swarm, compose = blocks("docs/how-to/git.md", "yaml")
    assert project.write(inventory, {"digits": digits}).kit("render").status == 0
    for stack in yaml.safe_load(stacks).values():
        assert (project.folder / stack["compose_file"]).is_file()
    for each in yaml.safe_load_all(swarm):
        for file in each["compose_files"]:
            assert (project.folder / each["working_dir"] / file).is_file()
    inventory = inventory.replace("engine: swarm", "engine: compose")
    assert project.write(inventory, {"digits": digits}).kit("render").status == 0
    host = yaml.safe_load(compose)
    (file,) = (project.folder / host["working_dir"] / name for name in host["compose_files"])
    assert yaml.safe_load(file.read_text())["name"] == host["name"]


def test_the_splits_are_possible(project: Project) -> None:
    inventory, digits = desktops()
    inventory = inventory.replace(
        "network:", '  "gpu[001-064]": {address: "10.0.0.[1-64]", gpus: 8}\nnetwork:'
    )
    project.write(inventory, {"digits": digits})
    lines = re.findall(r"^    kit (split .*?) *#", page("docs/how-to/split.md"), re.MULTILINE)
    assert len(lines) == 6
    for line in lines:
        assert project.kit(*shlex.split(line), "--dry-run").status == 0, line


# -------- The reference


def test_the_variables_of_a_container_are_all_there() -> None:
    told = set(re.findall(r"KIT_\w+", page("docs/reference/container.md")))
    # kit sets it if nothing restarts the store.
    assert set(re.findall(r"KIT_\w+", launcher.__doc__ or "")) - {"KIT_ONE_RUN"} <= told


FOREIGN = {"UnknownIssuer"}
"""Messages of other programs."""


def strings(file: Path) -> str:
    """Return the strings of a module, with `…` for inserted values."""
    found = []
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.JoinedStr):
            parts = (v.value if isinstance(v, ast.Constant) else "…" for v in node.values)
            found.append("".join(map(str, parts)))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.append(node.value)
    return "\n".join(found).replace("`", "")


def test_messages_to_look_up_are_in_the_code() -> None:
    modules = [strings(file) for room in ("kit", "trainer") for file in (ROOT / room).rglob("*.py")]
    modules += [page("Makefile"), page("templates/prepare-host.sh.j2")]
    cells = [cell for cell in first_cells("docs/troubleshooting.md") if cell.startswith("`")]
    messages = [message for cell in cells for message in re.findall(r"`([^`]+)`", cell)]
    assert len(messages) > 50
    for message in messages:
        parts = [part.strip(" :;,()") for part in message.split("…")]
        if message not in FOREIGN:
            assert any(all(part in text for part in parts) for text in modules), message


def test_the_xids_of_hardware_are_those_of_kit_doctor() -> None:
    monitoring = page("docs/how-to/monitoring.md").partition("### KitGpuXid")[2]
    sentences = XID.remedy, re.findall(r"[^.]* are faults of hardware", monitoring)[0]
    for sentence in sentences:
        assert {int(each) for each in re.findall(r"\d+", sentence)} == set(HARDWARE_XIDS)
