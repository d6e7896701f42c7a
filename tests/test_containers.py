"""The privileges and users of containers in the rendered files."""

from typing import Any

import pytest
import yaml

from tests.sandbox import INVENTORY, JOB, SERVER, Project


@pytest.mark.parametrize("engine", ["swarm", "compose"])
def test_a_user_is_a_training_without_privileges(project: Project, engine: str) -> None:
    inventory = INVENTORY.replace("engine: swarm", f"engine: {engine}")
    project.write(inventory, {"digits": JOB + 'user: "1000:1000"\n'})
    for _, service in all_services(project):
        assert (service["user"], service["cap_drop"]) == ("1000:1000", ["ALL"])
        assert service["environment"]["HOME"] == "/tmp"
    # Root is a valid user: some images need it.
    project.write(inventory, {"digits": JOB + "user: root\n"})
    for _, service in all_services(project):
        assert service["user"] == "root"
        assert "cap_drop" not in service


def all_services(project: Project) -> list[tuple[str, dict[str, Any]]]:
    return [
        found
        for path in sorted(project.rendered().rglob("*-digits.*.yaml"))
        for found in yaml.safe_load(path.read_text())["services"].items()
    ]


def test_a_host_has_two_clusters(project: Project) -> None:
    compose = INVENTORY.replace("engine: swarm", "engine: compose")
    files = [
        yaml.safe_load(
            (
                project.write(text).rendered(cluster=name) / "hosts/pc1/train-digits.compose.yaml"
            ).read_text()
        )
        for name, text in (
            ("lab", compose),
            ("pool", compose.replace("cluster: lab", "cluster: pool")),
        )
    ]
    assert [file["name"] for file in files] == ["lab_train-digits", "pool_train-digits"]
    first, second = ({each["name"] for each in file["volumes"].values()} for file in files)
    assert len(first) == 3
    assert not first & second


def offered_at(project: Project, inventory: str) -> list[tuple[str, Any]]:
    """The addresses at which checkpoint endpoints listen, and at which Docker publishes them."""
    project.write(inventory, {"digits": JOB}, {"digits": SERVER})
    return [
        (
            service["environment"].get("KIT_ADDRESS", ""),
            [port["host_ip"] for port in service.get("ports", [])],
        )
        for name, service in all_services(project)
        if name.startswith("checkpoints")
    ]


def test_checkpoints_are_offered_where_servers_ask_for_them_alone(project: Project) -> None:
    first, second = "192.168.8.151", "192.168.8.114"
    assert offered_at(project, INVENTORY) == [("serve-digits-checkpoints", [])] * 2
    host = INVENTORY.replace("{speed: 1Gbit}", "{driver: host}")
    assert offered_at(project, host) == [(first, []), (second, [])]
    compose = INVENTORY.replace("engine: swarm", "engine: compose")
    assert sorted(offered_at(project, compose)) == [("", [second]), ("", [first])]
