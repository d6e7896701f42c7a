"""The trainer's image, the registry and the lock, as far as no engine is needed."""

from __future__ import annotations

import base64
import json
import os
import re
import string
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from unittest import mock

import click
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from packaging.requirements import Requirement

from kit import images, registry
from kit.builders import builder_name, nodes_of
from kit.commands import image as commands
from kit.errors import InputError, KitError
from kit.hosts.docker import Docker as Engine
from kit.lock import lock_text, read_lock
from kit.model import Host, Locked
from kit.paths import launcher_path
from kit.targets.swarm.platform import NETWORK_IMAGE as NETWORK
from tests.conftest import Docker
from tests.sandbox import COMMAND, INVENTORY, JOB, ROOT, Project
from trainer import sbom

TRAINER = "registry.lab:5000/trainer:0.2.0"
THEIRS = "pytorch/pytorch:2.2.2-cuda12.1-cudnn8-devel"
SERVED = INVENTORY + "registry: {address: registry.lab:5000, host: pc1}\n"
JOBS = {"a": f"{JOB}hosts: {{names: [pc1]}}\n", "b": f"{COMMAND}hosts: {{names: [pc2]}}\n"}


def digest(number: int) -> str:
    return f"sha256:{number:064x}"


FULL = {TRAINER: digest(1), THEIRS: digest(2), "registry:2": digest(3), NETWORK: digest(4)}


def lock(digests: Mapping[str, str], *platforms: str) -> dict[str, Locked]:
    return {name: Locked(each, platforms) for name, each in digests.items()}


def locked(project: Project, digests: Mapping[str, str], *platforms: str) -> Project:
    (project.folder / "images.lock").write_text(lock_text(lock(digests, *platforms)))
    return project


def rendered_images(tree: Path) -> set[str]:
    """Return the images of all rendered files."""
    files = [*tree.rglob("*.stack.yaml"), *tree.rglob("*.compose.yaml")]
    services = [yaml.safe_load(file.read_text())["services"] for file in files]
    return {service["image"] for each in services for service in each.values()}


# ---- the lock


def test_with_a_lock_every_image_is_pinned(project: Project) -> None:
    for engine in ("swarm", "compose"):
        tree = locked(project.write(SERVED.replace("swarm", engine), JOBS), FULL).rendered()
        used = {name for name in FULL if name != NETWORK or engine == "swarm"}
        assert rendered_images(tree) == {f"{name}@{FULL[name]}" for name in used}
        plan = json.loads((tree / "plan.json").read_text())
        assert [job["image"] for job in plan["jobs"]] == [
            f"{name}@{FULL[name]}" for name in (TRAINER, THEIRS)
        ]
        assert project.kit("render").out.count("note") == 0


def test_without_a_lock_the_names_stay(project: Project) -> None:
    tree = project.write(SERVED, JOBS).rendered()
    assert rendered_images(tree) == set(FULL)
    assert "images.lock" not in project.kit("plan").out


def test_the_lock_needs_no_registry_in_the_inventory(project: Project) -> None:
    tree = locked(project.write(), {TRAINER: digest(1)}).rendered()
    assert rendered_images(tree) == {f"{TRAINER}@{digest(1)}", NETWORK}


def test_what_a_lock_leaves_out_is_told(project: Project) -> None:
    locked(project.write(SERVED, JOBS), {THEIRS: digest(2), "gone:1": digest(9)})
    said = f"images.lock has no digest for {TRAINER}, registry:2: run `kit image lock`"
    assert said in project.lowered().notes
    assert f"note  {said}\n" in project.kit("plan").out
    assert project.kit("render").out.endswith(f"note  {said}\n")
    tree = project.folder / "compose" / "lab"
    assert rendered_images(tree) == {TRAINER, "registry:2", NETWORK, f"{THEIRS}@{digest(2)}"}
    # Here nothing runs in a container.
    local = locked(project.write(SERVED.replace("swarm", "local"), JOBS), {})
    assert "images.lock" not in local.kit("plan").out


def test_an_image_with_a_digest_of_its_own_keeps_it(project: Project) -> None:
    own = f"{TRAINER}@{digest(7)}"
    project.write(jobs={"digits": JOB.replace(TRAINER, own)})
    tree = locked(project, {}).rendered()
    assert rendered_images(tree) == {own, NETWORK}
    assert project.plan().images == ()


def test_another_digest_leaves_jobs_and_configs_as_they_are(project: Project) -> None:
    def configs(number: int) -> dict[str, str]:
        tree = locked(project.write(jobs={"j": JOB}), {TRAINER: digest(number)}).rendered()
        stack = yaml.safe_load((tree / "train-j.stack.yaml").read_text())
        return {key: config["name"] for key, config in stack["configs"].items()}

    assert configs(1) == configs(2)


REGISTRIES = st.sampled_from(["", "registry.lab:5000/", "10.0.0.1:5000/a/", "ghcr.io/null/"])
WORDS = st.sampled_from(["trainer", "null", "true", "no", "12", "1e3", "0x10", "007", "a__b.c-d"])
TAGS = st.sampled_from(["", ":1.4", ":_", ":22", ":latest", ":x-.y"])
NAMES = st.builds("{}{}{}".format, REGISTRIES, WORDS, TAGS)
DIGESTS = st.text(string.hexdigits.lower(), min_size=64, max_size=64).map("sha256:{}".format)


PLATFORMS = st.lists(st.sampled_from(["linux/amd64", "linux/arm64", "linux/arm/v7"]), max_size=3)
ENTRIES = st.builds(Locked, DIGESTS, PLATFORMS.map(tuple))


@given(entries=st.dictionaries(NAMES, ENTRIES, max_size=4))
def test_a_lock_is_read_as_it_was_written(
    tmp_path_factory: pytest.TempPathFactory, entries: dict[str, Locked]
) -> None:
    path = tmp_path_factory.mktemp("lock") / "images.lock"
    path.write_text(lock_text(entries))
    assert read_lock(path) == entries
    assert lock_text(dict(reversed(entries.items()))) == path.read_text()


def test_the_lock_holds_the_platforms_that_registries_have(
    project: Project, registries: Registries
) -> None:
    registries.platforms = ("linux/amd64", "linux/arm64")
    locked(project.write(), {TRAINER: digest(1), NETWORK: digest(4)})
    assert project.kit("image", "lock", "--check").status == 0
    said = project.kit("image", "lock", "--json").out
    assert json.loads(said)["platforms"][TRAINER] == ["linux/amd64", "linux/arm64"]
    text = (project.folder / "images.lock").read_text()
    one = f"{{digest: {digest(1)}, platforms: [linux/amd64, linux/arm64]}}"
    assert f"{TRAINER}: {one}\n" in text


def test_the_platforms_of_an_engines_answer() -> None:
    listed = [
        {"architecture": "arm64", "os": "linux", "variant": "v8"},
        {"architecture": "amd64", "os": "linux"},
        {"architecture": "arm", "os": "linux", "variant": "v7"},
        {"architecture": "unknown", "os": "unknown"},
        {"architecture": "", "os": ""},
    ]
    assert registry._platforms(listed) == ("linux/amd64", "linux/arm/v7", "linux/arm64")


# ---- architectures

SPARK = INVENTORY.replace("{uuid: GPU-b}", "{uuid: GPU-b, model: GB10, memory: 119GiB}")


def test_an_image_without_the_architecture_of_a_host_is_a_mistake(project: Project) -> None:
    locked(project.write(SPARK, JOBS), {TRAINER: digest(1), THEIRS: digest(2)}, "linux/amd64")
    result = project.kit("plan")
    assert result.status == 2
    assert result.err.startswith(
        f"jobs/b.yaml:1: image: images.lock has {THEIRS} for linux/amd64 alone, pc2 needs "
        "linux/arm64; build it for all: `kit image build --platform linux/amd64,linux/arm64 --push`"
    )
    assert "jobs/a.yaml" not in result.err


def test_a_server_needs_an_image_for_its_host_too(project: Project) -> None:
    servers = {"digits": "image: registry.lab:5000/trainer:0.2.0\njob: digits\n"}
    job = JOB + "hosts: {names: [pc1]}\n"
    locked(project.write(SPARK, {"digits": job}, servers), {TRAINER: digest(1)}, "linux/amd64")
    assert "serve/digits.yaml:1: image: images.lock has" in project.kit("plan").err


@pytest.mark.parametrize("platforms", [(), ("linux/arm64", "linux/amd64")])
def test_an_image_with_all_architectures_or_unknown_ones_is_accepted(
    project: Project, platforms: tuple[str, ...]
) -> None:
    locked(project.write(SPARK, JOBS), FULL, *platforms)
    assert project.kit("plan").status == 0


def test_a_lock_without_a_platform_does_not_prevent_the_next(
    project: Project, registries: Registries
) -> None:
    locked(project.write(SPARK, JOBS), FULL, "linux/amd64")
    registries.platforms = ("linux/amd64", "linux/arm64")
    for name in (TRAINER, THEIRS):
        registries.digests[name] = digest(9)
    assert project.kit("image", "lock").status == 0
    assert project.kit("plan").status == 0


@pytest.mark.parametrize(
    ("model", "key", "architecture"),
    [
        ("TITAN RTX", "", "amd64"),
        ("GB10", "", "arm64"),
        ("Orin", "", "arm64"),
        ("GH200 480GB", "", "arm64"),
        ("NVIDIA GB200", "", "arm64"),
        ("B200", "", "amd64"),
        ("TITAN RTX", "architecture: arm64", "arm64"),
        ("GB10", "architecture: amd64", "amd64"),
    ],
)
def test_the_architecture_of_a_host(
    project: Project, model: str, key: str, architecture: str
) -> None:
    text = f"cluster: lab\nhosts: {{a: {{address: 10.0.0.1, gpus: [{{index: 0, model: {model}}}]"
    project.write(f"{text}{', ' if key else ''}{key}}}}}\n")
    assert project.plan().hosts[0].architecture == architecture


def test_a_job_on_different_processors_is_told(project: Project) -> None:
    assert not [note for note in project.write().plan().notes if "processors" in note]
    (note,) = [note for note in project.write(SPARK).plan().notes if "processors" in note]
    assert note.startswith(
        "digits: its hosts have different processors: amd64 on pc1; arm64 on pc2"
    )


# ---- the registry that kit serves


def test_a_served_registry_is_a_service_of_the_platform(project: Project, docker: Docker) -> None:
    tree = project.write(SERVED.replace("5000", "5443")).rendered()
    stack = yaml.safe_load((tree / "platform.stack.yaml").read_text())
    service = stack["services"]["registry"]
    assert service["ports"] == [
        {"target": 5000, "published": 5443, "protocol": "tcp", "mode": "host"}
    ]
    assert service["deploy"]["placement"] == {"constraints": ["node.labels.kit.host == pc1"]}
    assert service["deploy"]["restart_policy"]["condition"] == "any"
    assert service["environment"] == {"NVIDIA_VISIBLE_DEVICES": "void"}
    assert stack["volumes"][service["volumes"][1]["source"]] == {"name": "kit-lab_registry"}
    for host in ("pc1", "pc2"):
        daemon = json.loads((tree / "hosts" / host / "daemon.json").read_text())
        assert daemon["insecure-registries"] == ["registry.lab:5443"]
    result = docker.run("stack", "config", "-c", "platform.stack.yaml", folder=tree)
    assert (result.returncode, result.stderr) == (0, "")


def test_without_an_overlay_the_platform_is_the_registry(project: Project, docker: Docker) -> None:
    inventory = SERVED.replace("{speed: 1Gbit}", "{driver: host}")
    tree = project.write(inventory).rendered()
    stack = yaml.safe_load((tree / "platform.stack.yaml").read_text())
    assert list(stack["services"]) == ["registry"]
    assert "training" not in stack["networks"]
    assert "and platform.stack.yaml" in (tree / "train-digits.stack.yaml").read_text()
    assert docker.run("stack", "config", "-c", "platform.stack.yaml", folder=tree).returncode == 0


def test_compose_serves_the_registry_from_a_file_of_its_host(
    project: Project, docker: Docker
) -> None:
    inventory = SERVED.replace("swarm", "compose").replace("host: pc1", "host: pc2")
    tree = project.write(inventory.replace("pc2}", "pc2, image: registry:3}")).rendered()
    found = list(tree.rglob("registry.compose.yaml"))
    assert found == [tree / "hosts" / "pc2" / "registry.compose.yaml"]
    assert yaml.safe_load(found[0].read_text())["services"]["registry"]["image"] == "registry:3"
    result = docker.run("compose", "-f", str(found[0]), "config", "--format", "json", folder=tree)
    assert (result.returncode, result.stderr) == (0, "")
    assert json.loads(result.stdout)["services"]["registry"]["ports"][0]["published"] == "5000"
    daemon = json.loads((tree / "hosts" / "pc1" / "daemon.json").read_text())
    assert daemon["insecure-registries"] == ["registry.lab:5000"]


def test_a_registry_of_somebody_elses_changes_no_file(project: Project) -> None:
    tree = project.write(INVENTORY + "registry: {address: ghcr.io}\n").rendered()
    assert "registry" not in yaml.safe_load((tree / "platform.stack.yaml").read_text())["services"]
    assert "insecure" not in (tree / "hosts" / "pc1" / "daemon.json").read_text()


# ---- kit image


@pytest.mark.parametrize("name", sorted(commands.command.commands))
def test_every_subcommand_and_option_has_a_help_text(project: Project, name: str) -> None:
    command = commands.command.commands[name]
    assert (command.help or "").splitlines()[0].endswith(".")
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, parameter.name
    result = project.kit("image", name, "-h")
    assert (result.status, result.err) == (0, "")


OURS = INVENTORY + "registry: {address: registry.lab:5000}\n"
SLIPS = [
    (INVENTORY, "build", "inventory.yaml names no registry"),
    (
        OURS.replace("lab:5000", "hall:5000"),
        "push",
        "no server or job with `train:` has an image with a tag in registry.hall:5000: they use "
        "registry.lab:5000/trainer:0.2.0",
    ),
    (OURS, "build --on pc9", "--on pc9: there is no such host in the inventory\ndid you mean pc"),
    (OURS, "build Trainer", "'Trainer' is not the name of an image"),
    (OURS, f"push {TRAINER}@{digest(1)}", "the build determines the digest"),
    (OURS, "build --platform linux/amd64,linux/arm64", "add --push: the registry holds all"),
    (
        OURS,
        "build --platform arm64",
        "'arm64' is not a platform that PyTorch has builds for\nwrite linux/amd64,linux/arm64",
    ),
    (OURS, "lock --on pc9", "--on pc9: there is no such host"),
    (OURS, "lock other:1", "other:1: the rendered files have no such image"),
    (OURS.replace("swarm", "local"), "lock", "with engine local and these jobs there is no image"),
    (OURS + "x: 1\n", "build --on pc1", "inventory.yaml:16: x: is not a known key"),
]


@pytest.mark.parametrize(("inventory", "arguments", "message"), SLIPS)
def test_a_slip_is_a_mistake_in_the_input(
    project: Project, inventory: str, arguments: str, message: str
) -> None:
    result = project.write(inventory).kit("image", *arguments.split())
    assert (result.status, result.out) == (2, "")
    assert message in result.err
    assert not (project.folder / "images.lock").exists()


@pytest.mark.parametrize("arguments", ["build", "push", "lock"])
def test_without_docker_it_is_said(
    project: Project, monkeypatch: pytest.MonkeyPatch, arguments: str
) -> None:
    monkeypatch.setenv("PATH", str(project.folder))
    result = project.write(OURS.replace("swarm", "compose")).kit("image", arguments)
    assert result.status == 2
    program = "ssh" if "--on" in arguments else "docker"
    assert f"the {program} command is not installed here" in result.err


@pytest.mark.parametrize("arguments", ["build", "push", "lock"])
def test_without_an_engine_a_hosts_is_offered(
    project: Project, monkeypatch: pytest.MonkeyPatch, arguments: str
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{project.folder}/docker.sock")
    result = project.write(OURS.replace("swarm", "compose")).kit("image", arguments)
    assert result.status == 1
    assert result.err.startswith("kit: this machine: Docker cannot be reached: ")
    assert result.err.endswith("\nuse a host's engine instead: --on HOST\n")


class Registries:
    """Stand-in registries, which record requests."""

    def __init__(self, **digests: str) -> None:
        self.digests = digests
        self.platforms: tuple[str, ...] = ()
        self.asked: list[tuple[str, str]] = []

    def locked(self, engine: Engine, image: str) -> Locked:
        self.asked.append((engine.name, image))
        if image not in self.digests:
            raise KitError(f"{image}: nobody has it", "push it")
        return Locked(self.digests[image], self.platforms)


@pytest.fixture
def registries(monkeypatch: pytest.MonkeyPatch) -> Registries:
    made = Registries(**FULL)
    monkeypatch.setattr(commands, "locked", made.locked)
    monkeypatch.setattr(images, "require", lambda _: None)
    return made


def test_a_lock_holds_every_image(project: Project, registries: Registries) -> None:
    result = project.write(SERVED, JOBS).kit("image", "lock")
    assert (result.status, result.err) == (0, "")
    assert read_lock(project.folder / "images.lock") == lock(FULL)
    assert registries.asked == [("pc1", name) for name in (*sorted(set(FULL) - {NETWORK}), NETWORK)]
    assert f"+ {TRAINER}: {digest(1)}" in result.out
    assert result.out.endswith("images.lock: 4 images; next: kit render\n")


@pytest.mark.parametrize(
    ("engine", "option", "asked"),
    [("swarm", "", "pc1"), ("swarm", "pc2", "pc2"), ("compose", "", "this machine")],
)
def test_the_engine_that_asks(
    project: Project, registries: Registries, engine: str, option: str, asked: str
) -> None:
    project.write(INVENTORY.replace("swarm", engine))
    assert project.kit("image", "lock", *(["--on", option] if option else [])).status == 0
    assert {name for name, _ in registries.asked} == {asked}


def test_check_compares_and_writes_nothing(project: Project, registries: Registries) -> None:
    project.write(SERVED, JOBS)
    assert project.kit("image", "lock", "--check").status == 1
    assert not (project.folder / "images.lock").exists()
    assert project.kit("image", "lock").status == 0
    assert project.kit("image", "lock", "--check").status == 0
    registries.digests[TRAINER] = digest(9)
    result = project.kit("image", "lock", "--check")
    assert result.status == 1
    assert f"~ {TRAINER}: {digest(9)}, was {digest(1)}" in result.out
    assert result.err == (
        "kit: images.lock differs from the registries\nrun `kit image lock`, then `kit render`\n"
    )
    assert read_lock(project.folder / "images.lock") == lock(FULL)


def test_one_image_alone_can_be_locked_anew(project: Project, registries: Registries) -> None:
    locked(project.write(SERVED, JOBS), {**FULL, "gone:1": digest(8)})
    registries.digests = {TRAINER: digest(9), THEIRS: digest(9)}
    result = project.kit("image", "lock", TRAINER)
    assert (result.status, result.err) == (0, "")
    assert read_lock(project.folder / "images.lock") == lock({**FULL, TRAINER: digest(9)})
    assert "- gone:1: no longer used" in result.out


def test_a_lock_is_whole_or_as_it_was(project: Project, registries: Registries) -> None:
    locked(project.write(SERVED, JOBS), {TRAINER: digest(8)})
    del registries.digests[THEIRS], registries.digests["registry:2"]
    result = project.kit("image", "lock")
    assert result.status == 1
    assert result.err == (
        f"kit: {THEIRS}: nobody has it\npush it\nregistry:2: nobody has it\npush it\n"
        "images.lock was not changed\n"
    )
    assert read_lock(project.folder / "images.lock") == lock({TRAINER: digest(8)})


def test_the_image_that_no_host_runs_may_be_missing(
    project: Project, registries: Registries
) -> None:
    del registries.digests[NETWORK]
    result = project.write(SERVED, JOBS).kit("image", "lock")
    assert (result.status, result.err) == (0, "")
    assert f"skipped, because no host runs it: {NETWORK}" in result.out
    assert set(read_lock(project.folder / "images.lock") or {}) == set(FULL) - {NETWORK}
    assert project.kit("image", "lock", "--check").status == 0
    assert project.kit("render").out.count("note") == 0


def test_a_program_reads_json(project: Project, registries: Registries) -> None:
    locked(project.write(), {TRAINER: digest(8)})
    result = project.kit("image", "lock", "--json")
    assert (result.status, result.err) == (0, "")
    assert json.loads(result.out) == {
        "file": "images.lock",
        "before": {TRAINER: digest(8)},
        "after": {name: FULL[name] for name in (TRAINER, NETWORK)},
        "platforms": {},
    }


def test_a_lock_that_cannot_be_written(project: Project, registries: Registries) -> None:
    with mock.patch("kit.files.replace", side_effect=OSError(28, "No space left on device")):
        result = project.write().kit("image", "lock")
    assert (result.status, result.err) == (
        1,
        "kit: images.lock: cannot be written: No space left on device\n",
    )


# ---- the build

DOCKER = """#!/bin/sh
# Notes its arguments; knows a builder once it was made.
echo "$*" >>"{folder}/calls"
case "$*" in
*"buildx inspect"*) grep -q "buildx create" "{folder}/calls" ;;
*) echo buildx ;;
esac
"""


@pytest.fixture
def calls(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[], list[str]]:
    """The calls of a stand-in for the docker command."""
    docker = tmp_path / "bin" / "docker"
    docker.parent.mkdir()
    docker.write_text(DOCKER.format(folder=tmp_path))
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", f"{docker.parent}:{os.environ['PATH']}")
    monkeypatch.setattr(images, "require", lambda _: None)
    monkeypatch.setattr(Engine, "get", lambda *_: {"Arch": "amd64"})
    monkeypatch.setattr(images, "_require_image", lambda *_: None)
    return lambda: (tmp_path / "calls").read_text().splitlines()


def test_several_platforms_are_built_on_hosts_that_have_them(
    project: Project, calls: Callable[[], list[str]]
) -> None:
    spark = SPARK.replace("192.168.8.114", "192.168.8.114\n    ssh: user2@spark1")
    project.write(spark + "registry: {address: registry.lab:5000, host: pc1}\n")
    arguments = ("image", "build", "--platform", "linux/amd64,linux/arm64", "--push")
    for _ in range(2):
        result = project.kit(*arguments)
        assert (result.status, result.err) == (0, "")
    created = [each.split() for each in calls() if "buildx create" in each]
    assert [each[-1] for each in created][1:] == ["ssh://user2@spark1"]
    assert ["--append" in each for each in created] == [False, True]
    assert [each[each.index("--platform") + 1] for each in created] == [
        "linux/amd64",
        "linux/arm64",
    ]
    builds = [each for each in calls() if "buildx build" in each]
    assert len(builds) == 2
    (name,) = {each[each.index("--name") + 1] for each in created}
    for each in builds:
        assert f"--builder {name}" in each
        assert "--platform linux/amd64,linux/arm64" in each
        assert "--push" in each.split()
        assert f"--tag {TRAINER}" in each
    # The registry has the image: the engine has none to push.
    assert not [each for each in calls() if each.startswith("push") or " push " in each]
    assert "next: kit image lock" in result.out


def test_one_platform_stays_with_the_engine(
    project: Project, calls: Callable[[], list[str]]
) -> None:
    assert project.write(OURS).kit("image", "build", "--platform", "linux/arm64").status == 0
    (call,) = [each for each in calls() if "buildx build" in each]
    assert "--builder default" in call
    assert "--platform linux/arm64" in call
    assert "--push" not in call.split()
    assert "--label org.opencontainers.image.version=" in call
    assert not [each for each in calls() if "buildx create" in each]


@pytest.mark.parametrize("base", ["", "registry.lab:5000/our-pytorch:2.8"])
def test_the_image_names_its_base(
    project: Project, calls: Callable[[], list[str]], base: str
) -> None:
    options = ("--base", base) if base else ()
    assert project.write(OURS).kit("image", "build", *options).status == 0
    (call,) = [each for each in calls() if "buildx build" in each]
    default = "pytorch/pytorch:2.7.1-cuda12.6-cudnn9-runtime"
    assert f"--label org.opencontainers.image.base.name={base or default}" in call


def test_the_nodes_of_a_build() -> None:
    spark = Host("spark1", "10.0.0.2", "user@spark1", (), (), None, 0, (), None, "arm64")
    both = ("linux/amd64", "linux/arm64")

    def nodes(own: str, *hosts: Host) -> list[tuple[str, tuple[str, ...]]]:
        return [
            (each.name, each.platforms) for each in nodes_of(Engine("here", None), own, hosts, both)
        ]

    assert nodes("linux/amd64", spark) == [
        ("here", ("linux/amd64",)),
        ("spark1", ("linux/arm64",)),
    ]
    # Nobody else has them: this engine emulates one.
    assert nodes("linux/amd64") == [("here", both)]
    assert nodes("linux/arm64", spark) == [("here", both)]
    assert builder_name([], "") != builder_name([], "registry.lab:5000")


# ---- the build's context


def test_the_context_is_the_trainer_and_its_dockerfile() -> None:
    trainer = launcher_path().parent
    with images._context(trainer) as folder:
        copies = [path for path in (folder / "trainer").rglob("*") if path.is_file()]
        files = {path.relative_to(folder / "trainer") for path in copies}
        page = {path.relative_to(trainer) for path in trainer.glob("serve/page/*")}
        packages = {
            Path(f"{name}.{kind}") for name in ("packages", "torch") for kind in ("in", "txt")
        }
        code = {path.relative_to(trainer) for path in trainer.rglob("*.py")}
        assert files == code | page | packages
        assert Path("serve/page/index.html") in page
        assert (folder / "Dockerfile").read_text() == (trainer / "Dockerfile").read_text()
        assert (folder / "trainer/launch.py").read_bytes() == launcher_path().read_bytes()
        # Docker's cache and a layer's digest depend on it.
        assert {path.stat().st_mtime for path in (folder / "trainer").rglob("*")} == {0}
        assert {path.stat().st_mode & 0o777 for path in copies} == {0o644}
    assert not folder.exists()


def test_the_images_packages_are_the_trainers_and_locked() -> None:
    trainer = launcher_path().parent
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = {each for name in set(extras) - {"trainer"} for each in extras[name]}
    assert set((trainer / "packages.in").read_text().splitlines()) == wanted
    locked = versions_of(trainer / "packages.txt")
    for each in map(Requirement, wanted):
        versions = locked[each.name.replace(".", "-")]
        assert all(each.specifier.contains(version) for version in versions), each


def versions_of(lock: Path) -> dict[str, set[str]]:
    versions: dict[str, set[str]] = {}
    for line in lock.read_text().splitlines():
        if found := re.match(r"([a-z0-9-]+)==([^ ;]+)", line):
            versions.setdefault(found[1], set()).add(found[2])
    return versions


def test_pytorch_is_locked_for_a_base_without_it() -> None:
    """Its packages are not installed again, in other versions, by the lock of the others."""
    trainer = launcher_path().parent
    torch, others = (versions_of(trainer / f"{name}.txt") for name in ("torch", "packages"))
    assert {"torch", "torchvision"} <= set(torch)
    assert not {"torch", "torchvision"} & set(others), "a base's own PyTorch stays"
    both = set(torch) & set(others)
    assert {name: torch[name] for name in both} == {name: others[name] for name in both}


def test_the_packages_of_an_image_are_listed(tmp_path: Path) -> None:
    status, release = tmp_path / "var/lib/dpkg/status", tmp_path / "etc/os-release"
    for file in (status, release):
        file.parent.mkdir(parents=True)
    release.write_text('NAME="Ubuntu"\nID=ubuntu\n')
    status.write_text(
        "Package: libc6\nStatus: install ok installed\nArchitecture: arm64\n"
        "Version: 2.36-9+deb12u14\n"
        "Description: C library\n of: all\n\n"
        "Package: gone\nStatus: deinstall ok config-files\nVersion: 1\n"
    )
    (libc,) = sbom.debian_packages(tmp_path)
    assert libc["purl"] == "pkg:deb/ubuntu/libc6@2.36-9%2Bdeb12u14?arch=arm64"
    assert list(sbom.debian_packages(tmp_path / "none")) == []
    python = list(sbom.python_packages())
    assert "pydantic" in {each["name"] for each in python}
    document = sbom.document([libc, *python, libc])
    assert document == sbom.document([*reversed(python), libc])
    assert json.dumps(document).count("pkg:deb/ubuntu/libc6") == 1


# ---- registries and logins


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        ("trainer", "docker.io"),
        ("pytorch/pytorch:2.2.2", "docker.io"),
        ("docker.io/pytorch/pytorch", "docker.io"),
        ("localhost/x", "localhost"),
        ("pc1:5000/x", "pc1:5000"),
        ("ghcr.io/a/b@" + digest(1), "ghcr.io"),
    ],
)
def test_whose_an_image_is(image: str, expected: str) -> None:
    assert registry.registry_of(image) == expected


def header(monkeypatch: pytest.MonkeyPatch, folder: Path, config: object, server: str) -> object:
    """Return the login that an engine would get, with this Docker configuration."""
    (folder / "config.json").write_text(json.dumps(config))
    monkeypatch.setenv("DOCKER_CONFIG", str(folder))
    found = registry.login(server)
    return json.loads(base64.urlsafe_b64decode(found["X-Registry-Auth"])) if found else None


AUTH = {"auth": base64.b64encode(b"user:pass:word").decode()}
USER = {"username": "user", "password": "pass:word"}


@pytest.mark.parametrize(
    ("auths", "server", "expected"),
    [
        ({}, "registry.lab:5000", None),
        ({"registry.lab:5000": AUTH}, "registry.lab:5000", USER),
        ({"https://registry.lab:5000/v1/": AUTH}, "registry.lab:5000", USER),
        ({"registry.lab:5001": AUTH}, "registry.lab:5000", None),
        ({"registry.lab:5000": {}}, "registry.lab:5000", None),
        ({"ghcr.io": {**AUTH, "identitytoken": "t"}}, "ghcr.io", {"identitytoken": "t"}),
        ({"https://index.docker.io/v1/": AUTH}, "docker.io", USER),
    ],
)
def test_a_login_that_docker_has_stored(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    auths: object,
    server: str,
    expected: dict[str, str] | None,
) -> None:
    name = "https://index.docker.io/v1/" if server == "docker.io" else server
    told = None if expected is None else {**expected, "serveraddress": name}
    assert header(monkeypatch, tmp_path, {"auths": auths}, server) == told


HELPER = """\
#!/bin/sh
read -r server
[ "$1 $server" = "get ghcr.io" ] || { echo "credentials not found in native keychain"; exit 1; }
echo '{"ServerURL": "ghcr.io", "Username": "%s", "Secret": "s"}'
"""


@pytest.mark.parametrize("key", ["credsStore", "credHelpers"])
@pytest.mark.parametrize("user", ["user", "<token>"])
def test_a_login_of_a_helper(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, key: str, user: str
) -> None:
    helper = tmp_path / "docker-credential-lab"
    helper.write_text(HELPER % user)
    helper.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    config: dict[str, object] = {
        key: "lab" if key == "credsStore" else {"ghcr.io": "lab"},
        "auths": {"ghcr.io": {}},
    }
    known = {"identitytoken": "s"} if user == "<token>" else {"username": user, "password": "s"}
    told = {**known, "serveraddress": "ghcr.io"}
    assert header(monkeypatch, tmp_path, config, "ghcr.io") == told
    assert header(monkeypatch, tmp_path, config, "registry.lab:5000") is None


def test_docker_was_never_configured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    assert registry.login("ghcr.io") == {}


@pytest.mark.parametrize(
    "config",
    [
        "{",
        "[]",
        '{"auths": 1}',
        '{"auths": {"ghcr.io": {"auth": "%%%"}}}',
        '{"auths": {"ghcr.io": {"auth": "/w=="}}}',
        '{"credsStore": "nobody"}',
        '{"credHelpers": {"ghcr.io": "nobody"}}',
    ],
)
def test_a_configuration_that_docker_cannot_use_either(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, config: str
) -> None:
    (tmp_path / "config.json").write_text(config)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    with pytest.raises(InputError, match=f"^{re.escape(str(tmp_path))}/config.json: "):
        registry.login("ghcr.io")
