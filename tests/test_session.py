"""Sessions: what is rendered for them, and the entry with which ssh finds them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from kit.session.entry import Entry, alias_of, included, public_keys, remove, write
from tests.sandbox import INVENTORY, Project

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHc0Yz2jSg3s1J0q2wqWQYxkqv4uUqXW0k9yK0m0b0aZ anna@laptop"
SESSION = f"""\
image: research:1
session: {{keys: ["{KEY}"]}}
hosts: {{names: [pc2], gpus_per_host: 1}}
max_duration: 8h
idle: 1h
"""


@pytest.mark.parametrize("engine", ["compose", "swarm"])
def test_a_session_is_one_container_with_a_home(project: Project, engine: str) -> None:
    project.write(INVENTORY.replace("engine: swarm", f"engine: {engine}"), {"anna": SESSION})
    result = project.kit("render")
    assert result.status == 0, result.err
    (tree,) = (project.folder / "compose").iterdir()
    (file,) = tree.rglob("train-anna.*.yaml")
    content = yaml.safe_load(file.read_text())
    ((_, service),) = content["services"].items()
    mounts = {mount["target"]: mount.get("source", "") for mount in service["volumes"]}
    assert mounts["/root"].endswith("_anna-home")
    assert "/checkpoints" not in mounts
    assert not service.get("ports")
    assert "KIT_RENDEZVOUS" not in service["environment"]
    text = (tree / "jobs" / "anna.json").read_text()
    assert '"max_duration": 28800' in text
    assert KEY in text
    plan = project.kit("plan").out
    assert "job anna  a session for 8 h, or until unused for 60 min" in plan
    assert "home        /root" in plan


def test_a_session_has_a_coordinator_only_to_notify(project: Project) -> None:
    project.write(INVENTORY, {"anna": SESSION + "notify: [{url: 'http://hooks.lab/a'}]\n"})
    result = project.kit("render")
    assert result.status == 0, result.err
    (file,) = project.folder.rglob("train-anna.stack.yaml")
    services = yaml.safe_load(file.read_text())["services"]
    coordinator = services.pop("rendezvous")
    assert coordinator["command"] == ["coordinator"]
    assert "hooks.lab" in coordinator["environment"]["KIT_NOTIFY"]
    ((_, service),) = services.items()
    assert "rendezvous:29400" in service["environment"]["KIT_RENDEZVOUS"]


def test_this_machine_has_no_sessions(project: Project) -> None:
    project.write(INVENTORY.replace("engine: swarm", "engine: local"), {"anna": SESSION})
    result = project.kit("render")
    assert result.status == 2
    assert "jobs/anna.yaml:2: session: a session is a container, and engine local has none" in (
        result.err
    )


def test_a_session_beside_jobs_gets_only_what_is_free(project: Project) -> None:
    every = SESSION.replace("{names: [pc2], gpus_per_host: 1}", "{names: [pc1, pc2]}")
    project.write(INVENTORY, {"anna": every})
    result = project.kit("render")
    assert result.status == 2
    assert "a session is on one host, this one on 2; write `hosts: {names: [pc1]}`" in result.err


def test_a_session_without_an_image_or_with_a_name_that_is_taken(project: Project) -> None:
    project.write(INVENTORY, {"anna": SESSION})
    result = project.kit("session", "start", "--name", "anna")
    assert result.status == 2
    assert "jobs/anna.yaml was not written by kit session start" in result.err
    (project.folder / "jobs" / "anna.yaml").unlink()
    result = project.kit("session", "start", "--name", "bob")
    assert "there is no image\nname one, as in `--image IMAGE`" in result.err
    result = project.kit("session", "start", "--name", "bob", "--host", "pc9", "--image", "r:1")
    assert (result.status, "pc9 is not in the inventory" in result.err) == (2, True)
    result = project.kit("session", "start", "--name", "bob", "--idle", "soon", "--image", "r:1")
    assert (result.status, "or never" in result.err) == (2, True)
    assert list((project.folder / "jobs").iterdir()) == []


def test_ssh_reads_the_entry(tmp_path: Path) -> None:
    alias = alias_of("lab", "anna")
    program = ("/opt/my python", "-m", "kit", "session", "connect")
    proxy = (*program, "-i", "/srv/100%/i.yaml", "anna")
    entry = Entry(alias, "root", "ssh-ed25519 AAAA", proxy, tmp_path / "a key")
    file = write(entry, tmp_path)
    ssh = shutil.which("ssh")
    assert ssh is not None
    shown = subprocess.run(
        [ssh, "-G", "-F", str(file), alias], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert "user root" in shown
    assert "stricthostkeychecking true" in shown
    assert "identitiesonly yes" in shown
    assert f"identityfile {tmp_path / 'a key'}" in shown
    (command,) = (line for line in shown if line.startswith("proxycommand "))
    words = "'/opt/my python' -m kit session connect -i /srv/100%%/i.yaml anna"
    assert command == f"proxycommand {words}"
    assert (file.parent / f"{alias}.key").read_text() == f"{alias} ssh-ed25519 AAAA\n"
    assert not included(tmp_path)
    (tmp_path / ".ssh" / "config").write_text("Host a\n  User b\ninclude kit/*.conf\n")
    assert included(tmp_path)
    remove(alias, tmp_path)
    remove(alias, tmp_path)
    assert list(file.parent.iterdir()) == []


def test_the_users_public_keys(tmp_path: Path) -> None:
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "id_rsa.pub").write_text("ssh-rsa AAAAB3 me\n")
    (tmp_path / ".ssh" / "id_ed25519.pub").write_text("ssh-ed25519 AAAAC3 me\n")
    (tmp_path / ".ssh" / "id_ed25519").write_text("private")
    assert public_keys(tmp_path) == ["ssh-ed25519 AAAAC3 me", "ssh-rsa AAAAB3 me"]
