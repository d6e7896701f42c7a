"""Compose on hosts with IPv6 addresses: data sets and checkpoints travel between them."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Docker
from tests.lab.conftest import CLUSTER, Lab, wait_for
from tests.lab.operator import Operator, make_operator
from tests.lab.settings import IMAGE
from tests.sandbox import Project
from tests.targets.test_data import write_cifar10

pytestmark = [pytest.mark.lab, pytest.mark.long]
ADDRESSES = {"n1": "fd78::11", "n2": "fd78::12"}
JOB = f"""\
image: {IMAGE}
data: [cifar10]
train: {{dataset: cifar10, model: lenet, epochs: 1, batch_size: 16}}
hosts: {{names: [n2]}}
environment: {{OMP_NUM_THREADS: "1"}}
"""
SERVER = f"image: {IMAGE}\njob: digits\nhosts: {{names: [n1]}}\n"
READY = """\
docker exec $(docker ps -qf name=serve-digits-serve) python3 -c \
    "import urllib.request as u; print(u.urlopen('http://[fd78::11]:8080/ready').read())"
"""
"""The nodes have no HTTP client of their own."""


@pytest.fixture
def six(lab: Lab) -> Iterator[None]:
    """The nodes' cards have an address of IPv6 besides that of IPv4."""
    cards = {
        node: lab.ssh(
            node, f"ip -o -4 addr show to {lab.settings.address(node)} | awk '{{print $2}}'"
        ).stdout.strip()
        for node in ADDRESSES
    }
    for node, card in cards.items():
        # A host reaches its own address over lo.
        cards_of = ("lo", card)
        allow = " && ".join(f"sysctl -qw net.ipv6.conf.{each}.disable_ipv6=0" for each in cards_of)
        add = f"ip -6 addr replace {ADDRESSES[node]}/64 dev {card} nodad"
        done = lab.ssh(node, f"{allow} && {add}")
        assert done.returncode == 0, done.stderr
    try:
        yield
    finally:
        for node, card in cards.items():
            lab.ssh(node, f"ip -6 addr del {ADDRESSES[node]}/64 dev {card}")


@pytest.fixture
def operator(lab: Lab, project: Project, docker: Docker, six: None) -> Iterator[Operator]:
    """n1 stores the data sets and serves, n2 trains."""
    made = make_operator(lab, project, docker, "compose")
    serving = lab.uuids("n1")[0]
    usual = {node: lab.settings.address(node) for node in ADDRESSES}
    made.write(
        {"digits": JOB},
        *((f": {usual[node]}\n", f": {own}\n") for node, own in ADDRESSES.items()),
        (f"uuid: {serving},", f"uuid: {serving}, use: inference,"),
        servers={"digits": SERVER},
    )
    try:
        yield made
    finally:
        with contextlib.suppress(AssertionError):
            made.kit("stop", "--all")
        for node in ADDRESSES:
            volumes = f"kit-{CLUSTER}_datasets kit-{CLUSTER}_digits-checkpoints"
            lab.ssh(node, f"docker volume rm -f {volumes}; rm -rf .local/share/kit")


def test_hosts_fetch_data_sets_and_checkpoints_by_ipv6(
    operator: Operator, lab: Lab, tmp_path: Path
) -> None:
    write_cifar10(tmp_path / "download", samples=200)
    added = operator.kit("data", "add", "cifar10", str(tmp_path / "download"))
    assert "in 6 files on n1" in added

    operator.kit("deploy")
    wait_for(lambda: operator.status()["state"] == "completed", "the end of the training")
    (listed,) = json.loads(operator.kit("data", "ls", "--json"))["datasets"]
    assert sorted(listed["complete"]) == ["n1", "n2"]

    wait_for(lambda: lab.ssh("n1", READY).returncode == 0, "the checkpoint of n2, served on n1")
    # Each of kit's services is on its host's network, and no network was made for it.
    for node in ADDRESSES:
        bridges = lab.docker(node, "network", "ls", "--quiet", "--filter", f"name={CLUSTER}_")
        running = lab.docker(node, "ps", "--format", "{{.Networks}}").split()
        assert (bridges.strip(), set(running)) == ("", {"host"})
