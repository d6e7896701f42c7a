"""A Compose cluster whose hosts have IPv6 addresses: what must reach the others, can."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import Docker
from tests.ports import free_port
from tests.sandbox import JOB, ROOT, SERVER, Project
from trainer.contract.listening import open_listener

SIX = """\
cluster: lab
engine: compose
hosts:
  a: {address: "fd00::1", roles: [manager, storage], gpus: [{index: 0}]}
  b: {address: "fd00::2", gpus: [{index: 0}, {index: 1, use: inference}, {index: 2, use: inference}]}
registry: {address: "[fd00::1]:5000", host: a}
data: {image: "[fd00::1]:5000/trainer:1"}
monitoring: {alertmanager: "[fd00::9]:9093"}
"""  # noqa: E501
FOUR = SIX.replace('"[fd00::1]:5000"', '"10.0.0.1:5000"').replace("[fd00::1]", "10.0.0.1")
FOUR = FOUR.replace("[fd00::9]", "10.0.0.9").replace("fd00::", "10.0.0.")
JOBS = {
    "one": JOB + "hosts: {names: [a]}\n",
    "two": "image: pytorch/pytorch:2\ncommand: [ddp.py]\nhosts: {names: [b], gpus_per_host: 1}\n",
}
SERVERS = {
    "digits": SERVER.replace("digits", "one") + "hosts: {names: [b], gpus_per_host: 1}\n",
    "own": "image: vllm/vllm-openai:v0.11.0\ncommand: [vllm, serve, /model]\nport: 8000\n"
    "hosts: {names: [b], gpus_per_host: 1}\n",
}


def services(tree: Path) -> dict[str, dict[str, Any]]:
    """The services of all Compose files, by host, file and name."""
    return {
        f"{file.parent.name}/{file.name.partition('.')[0]}/{name}": service
        for file in sorted(tree.glob("hosts/*/*.compose.yaml"))
        for name, service in yaml.safe_load(file.read_text())["services"].items()
    }


@pytest.fixture
def tree(project: Project) -> Path:
    return project.write(SIX, JOBS, SERVERS).rendered()


def test_what_fetches_from_ipv6_addresses_is_not_on_a_bridge_without_ipv6(tree: Path) -> None:
    found = services(tree)
    for name, service in found.items():
        if name in {"b/serve-own/serve", "a/registry/registry"}:
            assert "network_mode" not in service, name
            assert service["ports"], name
        else:
            assert (service.get("network_mode"), service.get("ports")) == ("host", None), name
    assert {name.rpartition("/")[2] for name in found} >= {"data-server", "prometheus", "serve"}


def test_they_listen_where_they_were_published(tree: Path) -> None:
    found = services(tree)
    for name, address in {
        "a/data/data-server": "fd00::1",
        "a/data/data-storage": "fd00::1",
        "b/data/data-agent": "fd00::2",
    }.items():
        command = found[name]["command"]
        assert command[command.index("--address") + 1] == address
    offered = found["a/serve-digits/checkpoints"]["environment"]
    assert offered["KIT_ADDRESS"] == "fd00::1"
    assert "--web.listen-address=127.0.0.1:9090" in found["a/monitoring/prometheus"]["command"]
    daemon = json.loads((tree / "hosts/a/daemon.json").read_text())
    assert (daemon["metrics-addr"], daemon["insecure-registries"]) == (
        "[::]:9323",
        ["[fd00::1]:5000"],
    )


def test_an_ipv4_cluster_keeps_its_bridges(project: Project) -> None:
    found = services(project.write(FOUR, JOBS, SERVERS).rendered())
    bridged = {name for name, service in found.items() if "network_mode" not in service}
    exporters = {name for name in found if name.endswith("-exporter")}
    assert bridged == found.keys() - exporters


def test_docker_takes_the_files(tree: Path, docker: Docker) -> None:
    for file in sorted(tree.glob("hosts/*/*.compose.yaml")):
        result = docker.run("compose", "-f", str(file), "config", "--quiet")
        assert (result.returncode, result.stderr) == (0, ""), file


def test_a_port_of_root_is_refused_where_docker_no_longer_publishes_it(project: Project) -> None:
    servers = {"digits": SERVERS["digits"] + "port: 80\n"}
    result = project.write(SIX, JOBS, servers).kit("plan")
    assert result.status == 2
    assert "only root may listen on port 80 of a host's own network" in result.err
    assert project.write(FOUR, JOBS, servers).kit("plan").status == 0


def test_the_data_server_is_healthy_at_its_ipv6_address(project: Project, tmp_path: Path) -> None:
    inventory = SIX.replace("fd00::1", "::1").replace("[manager, storage]", "[manager]")
    alone = "".join(line for line in inventory.splitlines(True) if not line.startswith("  b:"))
    port = free_port()
    inventory = alone.replace("data: {", f"data: {{port: {port}, ")
    found = services(project.write(inventory, {"one": JOBS["one"]}).rendered())
    service = found["a/data/data-server"]
    (store := tmp_path / "store").mkdir()
    words = [{"/store": str(store)}.get(word, word) for word in service["command"]]
    command = [sys.executable, *service["entrypoint"][1:], *words]
    with subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(ROOT)}) as server:
        try:
            _, _, *check = service["healthcheck"]["test"]
            deadline = time.monotonic() + 60
            while subprocess.run([sys.executable, *check], capture_output=True).returncode:
                assert time.monotonic() < deadline
                time.sleep(0.2)
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", port))
        finally:
            server.terminate()


def test_a_server_answers_at_all_addresses_of_both_families() -> None:
    with closing(open_listener("", 0)) as listener:
        port = listener.getsockname()[1]
        for address in ("127.0.0.1", "::1"):
            socket.create_connection((address, port)).close()
    with closing(open_listener("::1", 0)) as listener:
        assert listener.getsockname()[0] == "::1"
