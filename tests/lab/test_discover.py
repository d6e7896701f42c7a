"""`kit discover` asks the lab's nodes, over real SSH."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from kit.config.load import Sources, read_inventory
from kit.model import Inventory
from tests.conftest import Docker
from tests.lab.conftest import Lab
from tests.lab.operator import Operator, make_operator
from tests.sandbox import Project

pytestmark = pytest.mark.lab
NODES = ("n1", "n2", "n3")


@pytest.fixture
def operator(lab: Lab, project: Project, docker: Docker) -> Operator:
    made = make_operator(lab, project, docker, "swarm")
    (project.folder / "jobs").mkdir(exist_ok=True)
    return made


def read(folder: Path) -> Inventory:
    path = folder / "inventory.yaml"
    return read_inventory(path.read_text(), path, Sources())


def test_hosts_become_an_inventory_and_stay_as_a_person_has_it(
    operator: Operator, lab: Lab
) -> None:
    folder = operator.project.folder
    (folder / "inventory.yaml").unlink(missing_ok=True)
    told = operator.kit("discover", *NODES, "--yes")
    assert "1 × TITAN RTX 24 GiB, 1 × Quadro GV100 32 GiB" in told
    found = read(folder)
    assert [host.name for host in found.hosts] == list(NODES)
    for host in found.hosts:
        assert host.address == lab.settings.address(host.name)
        assert [gpu.id for gpu in host.gpus] == lab.uuids(host.name)
        assert (host.roles == ("manager",)) is (host.name == "n1")
    assert operator.kit("discover").endswith("inventory.yaml: nothing to change\n")

    text = (folder / "inventory.yaml").read_text()
    own = text.replace("GiB}", "GiB, use: inference}  # serves", 1)
    shorter = own[: own.index("  n3:")] + "network: {speed: 10Gbit}\n"
    (folder / "inventory.yaml").write_text(shorter)
    asked = operator.kit("discover", "n3", "--dry-run")
    assert "+  n3:\n" in asked
    assert (folder / "inventory.yaml").read_text() == shorter
    refused = operator.kit("discover", "n3", status=2)
    assert "without a terminal kit cannot ask" in refused
    operator.kit("discover", "n3", "--yes")
    assert (folder / "inventory.yaml").read_text() == own.replace("\nnetwork", "network")


def test_a_host_that_does_not_answer_is_told_and_the_others_are_done(
    operator: Operator, lab: Lab
) -> None:
    folder = operator.project.folder
    (folder / "inventory.yaml").unlink(missing_ok=True)
    told = operator.kit("discover", "n1", "nobody.invalid", "--yes", status=1)
    assert "nobody.invalid: cannot be reached" in told
    assert [host.name for host in read(folder).hosts] == ["n1"]
    document = operator.kit("discover", "n1", "nobody.invalid", "--json", status=1)
    known = json.loads(document)
    assert [host["hostname"] for host in known["hosts"]] == ["n1"]
    assert [gpu["uuid"] for gpu in known["hosts"][0]["gpus"]] == lab.uuids("n1")
    assert known["hosts"][0]["docker"]["default_runtime"] == "nvidia"
    assert len(known["failed"]) == 1


@pytest.mark.parametrize("changed", [False, True])
def test_a_host_key_that_is_not_the_known_one_is_refused(
    operator: Operator, lab: Lab, tmp_path: Path, changed: bool
) -> None:
    known, program = tmp_path / "known_hosts", tmp_path / "bin" / "ssh"
    known.touch()
    if changed:
        make = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "key")]
        subprocess.run(make, check=True)
        known.write_text(f"kit-lab {(tmp_path / 'key.pub').read_text()}")
    program.parent.mkdir()
    usual = lab.settings.folder / "bin" / "ssh"
    program.write_text(f'#!/bin/sh\nexec {usual} -o UserKnownHostsFile={known} "$@"\n')
    program.chmod(0o755)
    path = f"{program.parent}{os.pathsep}{operator.env['PATH']}"
    told = operator.kit("discover", "n1", "--dry-run", status=1, PATH=path)
    what = "has changed" if changed else "is not known here"
    assert f"n1: cannot be reached: its SSH host key {what}" in told
    assert "`ssh n1`" in told
    assert "ssh-keygen -lf" in told
