"""The privileges of every service in every rendered file, and the exceptions with their reasons."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.sandbox import COMMAND, INVENTORY, JOB, ROOT, SERVER, Project

NOBODY = "65534:65534"
SCRIPT = "a script of the user's own may install packages, need sudo, or write beside itself"
SERVER_OF_ONES_OWN = "kit does not know what its image needs; `user:` drops all capabilities"
COPIED = "Compose copies secrets into the container, which a read-only file system refuses"
OF_ROOT = "its volume belongs to root; root without capabilities may only read and write own files"
EXCEPTIONS = {
    ("train of a command", "user"): SCRIPT,
    ("train of a command", "capabilities"): SCRIPT,
    ("train of a command", "read_only"): SCRIPT,
    ("train of a command", "new privileges"): SCRIPT,
    ("serve of a command", "user"): SERVER_OF_ONES_OWN,
    ("serve of a command", "capabilities"): SERVER_OF_ONES_OWN,
    ("serve of a command", "read_only"): SERVER_OF_ONES_OWN,
    ("serve of a command", "new privileges"): SERVER_OF_ONES_OWN,
    ("train with folders", "user"): "folders of the user's own may belong to anyone",
    ("train with folders", "capabilities"): "DAC_OVERRIDE alone: to write to them",
    ("train that streams", "read_only"): "its cache of shards may be larger than the memory",
    ("train with secrets", "read_only"): COPIED,
    ("serve with secrets", "read_only"): COPIED,
    ("checkpoints with secrets", "read_only"): COPIED,
    ("grafana with secrets", "read_only"): COPIED,
    ("rendezvous with secrets", "read_only"): COPIED,
    ("registry", "user"): OF_ROOT,
    ("data-agent", "user"): OF_ROOT,
    ("data-storage", "user"): OF_ROOT,
    ("grafana", "user"): "its image's own user is 472",
    ("dcgm-exporter", "user"): "NVIDIA's image; never run here, so as NVIDIA's chart has it",
    ("dcgm-exporter", "read_only"): "NVIDIA's image; never run here, so as NVIDIA's chart has it",
    ("network", "user"): "it has no task",
    ("network", "read_only"): "it has no task",
    ("network", "capabilities"): "it has no task",
    ("node-exporter", "host"): "it reads the host's processes and links, as nobody",
}
"""(service and kind, rule): the reason why the rule does not hold."""
FILES = sorted(
    path for path in (ROOT / "compose").rglob("*.yaml") if "services:" in path.read_text()
)
BIND = "mounts: [{bind: /srv/data, to: /data}]\n"
SECRET = "secrets: {WANDB_API_KEY: env}\n"
NOTIFY = "notify: [{url: {env: HOOK_URL}}]\n"
STREAM = "data: [{name: colours, stream: true}]\n"
EVERYTHING = """\
registry: {address: "registry.lab:5000", host: pc1}
data: {}
monitoring: {}
"""


def services(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The services of a rendered file, with its anchors resolved."""
    yield from yaml.safe_load(path.read_text())["services"].items()


def kinds(path: Path, name: str, service: dict[str, Any]) -> set[str]:
    """A service's name without its group of hosts, and with what it has."""
    compose = path.name.endswith(".compose.yaml")
    first = next(
        (each for each in ("train", "serve", "checkpoints") if name.startswith(each)), name
    )
    found = {first}
    if first == "train":
        mounts = {each.get("target"): each for each in service.get("volumes", [])}
        found |= {"train of a command"} if service["entrypoint"][1] == "/kit/launch.py" else set()
        # kit's own volumes begin with its name.
        own = [
            each
            for each in mounts.values()
            if not str(each.get("source", "kit-")).startswith("kit-")
        ]
        found |= {"train with folders"} if own else set()
        found |= {"train that streams"} if "-streams." in path.name else set()
    if first == "serve" and service["entrypoint"][-1] != "trainer.serve":
        found = {"serve of a command"}
    if compose and service.get("secrets"):
        found.add(f"{first} with secrets")
    return found


def broken(name: str, service: dict[str, Any], *, compose: bool) -> set[str]:
    """The rules that a service does not follow."""
    found = set()
    if str(service.get("user", "root")).partition(":")[0] in {"root", "0"}:
        found.add("user")
    if service.get("read_only") is not True:
        found.add("read_only")
    if service.get("cap_drop") != ["ALL"] or set(service.get("cap_add", [])) - {"IPC_LOCK"}:
        found.add("capabilities")
    if compose and service.get("security_opt") != ["no-new-privileges:true"]:
        found.add("new privileges")
    if service.get("privileged") or service.get("pid") or service.get("ipc"):
        found.add("host")
    sources = [
        str(each.get("source", "") if isinstance(each, dict) else each)
        for each in service.get("volumes", [])
    ]
    if any("docker" in source for source in sources):
        found.add("docker")
    if "/" in sources and name != "node-exporter":
        found.add("host")
    return found


def check(path: Path) -> set[tuple[str, str]]:
    """Check a file's services; return the exceptions that they need."""
    compose, used = path.name.endswith(".compose.yaml"), set[tuple[str, str]]()
    for name, service in services(path):
        known = kinds(path, name, service)
        for rule in broken(name, service, compose=compose):
            reasons = {(kind, rule) for kind in known} & EXCEPTIONS.keys()
            assert reasons, f"{path}: {name}: {rule}"
            used |= reasons
    return used


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT / "compose")))
def test_rendered_examples_follow_the_rules(path: Path) -> None:
    check(path)


def test_every_service_follows_the_rules(project: Project) -> None:
    """And every exception is needed: another one would hide a mistake."""
    used = set[tuple[str, str]]()
    for engine in ("swarm", "compose"):
        for driver in ("overlay", "host"):
            found = set[str]()
            for path in rendered(project, engine, driver):
                used |= check(path)
                found |= {name.partition("-")[0] for name, _ in services(path)}
            assert found >= {
                *["train", "serve", "checkpoints", "rendezvous", "registry", "data", "grafana"]
            }
    assert used == EXCEPTIONS.keys()


def rendered(project: Project, engine: str, driver: str) -> list[Path]:
    """The files of a cluster with every service."""
    text = INVENTORY.replace("engine: swarm", f"engine: {engine}") + EVERYTHING
    jobs = {
        "digits": JOB + SECRET + NOTIFY + "hosts: {names: [pc1]}\n",
        "own": COMMAND + "hosts: {names: [pc2]}\n",
        "folders": JOB + BIND + "hosts: {names: [pc3]}\n",
        "streams": JOB.replace("digits", "shards") + STREAM + "hosts: {names: [pc4]}\n",
    }
    text = text.replace("roles: [manager]", "roles: [manager, storage]")
    text = text.replace("{speed: 1Gbit}", f"{{speed: 1Gbit, driver: {driver}}}")
    text = text.replace("network:", "  pc3: {address: 192.168.8.3, gpus: 1}\nnetwork:")
    text = text.replace("network:", "  pc4: {address: 192.168.8.4, gpus: 1}\nnetwork:")
    gpu = "{uuid: GPU-own, use: inference}"
    text = text.replace("network:", f"  pc5: {{address: 192.168.8.5, gpus: [{gpu}]}}\nnetwork:")
    servers = {
        "digits": SERVER + "token: {env: TOKEN}\nhosts: {names: [pc2]}\n",
        "own": "image: own:1\ncommand: [serve]\nport: 9000\nhosts: {names: [pc5]}\n",
    }
    project.write(text, jobs, servers)
    result = project.kit("render")
    assert result.status == 0, result.err
    tree = project.folder / "compose" / "lab"
    return [path for path in tree.rglob("*.yaml") if "services:" in path.read_text()]


@pytest.mark.parametrize("engine", ["swarm", "compose"])
def test_folders_of_the_users_own_keep_one_capability(project: Project, engine: str) -> None:
    inventory = INVENTORY.replace("engine: swarm", f"engine: {engine}")
    for more, user, added in [
        ("", NOBODY, None),
        (BIND, None, ["DAC_OVERRIDE"]),
        (BIND.replace("/data}", "/data, read_only: true}"), NOBODY, None),
        (BIND + 'user: "1000:1000"\n', "1000:1000", None),
    ]:
        project.write(inventory, {"digits": JOB + more})
        (train,) = [
            service
            for path in project.rendered().rglob("train-digits.*.yaml")
            for name, service in services(path)
            if name.startswith("train")
        ][:1]
        assert (train.get("user"), train.get("cap_add")) == (user, added)
        assert (train["cap_drop"], train["read_only"]) == (["ALL"], True)
