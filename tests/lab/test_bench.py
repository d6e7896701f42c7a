"""`kit bench` in the lab: a slow link and a slow host are named, and no container remains."""

from __future__ import annotations

import contextlib
import json
import re
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from tests.conftest import Docker
from tests.lab.conftest import Lab, wait_for
from tests.lab.host import Engine
from tests.lab.operator import Operator, make_operator
from tests.lab.settings import IMAGE
from tests.sandbox import Project

pytestmark = pytest.mark.lab
DIGITS = f"""\
image: {IMAGE}
train: {{dataset: digits, model: cnn, epochs: 2, batch_size: 32}}
"""


@pytest.fixture
def operator(lab: Lab, project: Project, docker: Docker) -> Operator:
    made = make_operator(lab, project, docker, "compose")
    made.write({"digits": DIGITS})
    return made


def document(printed: str, bracket: str) -> Any:
    """Return the JSON between the lines of progress."""
    found, _ = json.JSONDecoder().raw_decode(printed[printed.index(f"\n{bracket}") + 1 :])
    return found


def speeds_of(found: Any) -> dict[tuple[str, str], float]:
    """The speed of each link towards its first host, in bits a second."""
    return {(each["one"], each["other"]): each["backward"] for each in found["links"]}


def measured(operator: Operator) -> Any:
    """Measure again while a busy machine slows down streams: it never makes them faster."""
    found: list[Any] = []

    def is_quiet() -> bool:
        found.append(document(operator.kit("bench", "--json"), "{"))
        speeds = speeds_of(found[-1])
        return speeds["n1", "n3"] > 6e7 and speeds["n1", "n2"] > 3e8

    wait_for(is_quiet, "streams at the speed of their links")
    return found[-1]


def test_a_slow_host_is_found_and_the_plan_counts_with_it(operator: Operator, lab: Lab) -> None:
    lab.do("shape", "n3", "100mbit")
    try:
        found = measured(operator)
        told = operator.kit("plan")
    finally:
        lab.do("shape", "n3", "off")
    assert found["failures"] == []
    speeds = speeds_of(found)
    assert set(speeds) == {("n1", "n2"), ("n1", "n3"), ("n2", "n3")}
    # What n3 sends is limited; what it receives is not.
    assert speeds["n1", "n3"] < 1.1e8
    reduced = {tuple(each["hosts"]): each["seconds"] for each in found["reductions"]}
    assert set(reduced) == {*speeds, ("n1", "n2", "n3")}
    assert "links as measured by `kit bench`" in told
    for node in ("n1", "n2", "n3"):
        assert not lab.docker(node, "ps", "--all", "--quiet", "--filter", "label=kit.bench")


def test_hosts_that_do_not_reach_each_other_are_told(operator: Operator, lab: Lab) -> None:
    drop = f"iptables -I INPUT -p tcp -s {lab.settings.address('n2')} -m state --state NEW -j DROP"
    assert lab.ssh("n3", drop).returncode == 0
    try:
        told = operator.kit("bench", "--host", "n2", "--host", "n3", status=1)
    finally:
        assert lab.ssh("n3", drop.replace("-I", "-D")).returncode == 0
    assert f"failed: n2 does not reach n3 at {lab.settings.address('n3')}: timed out" in told


def test_a_step_is_measured_and_the_speed_of_hosts_predicted(operator: Operator) -> None:
    printed = operator.kit("bench", "step", "digits", "--seconds", "1", "--json")
    (first, *_) = document(printed, "[")
    assert (first["host"], first["gpu"]) == ("n1", "TITAN RTX")
    plan = json.loads(operator.kit("plan", "--json"))
    (job,) = plan["jobs"]
    assert [len(each["hosts"]) for each in job["prediction"]["forecasts"]] == [1, 2]
    assert "worth it" in operator.kit("plan")


def test_nothing_is_left_by_an_interrupted_measurement(operator: Operator, lab: Lab) -> None:
    def containers() -> list[str]:
        own = ("ps", "--all", "--quiet", "--filter", "label=kit.bench")
        return [each for node in ("n1", "n2", "n3") for each in lab.docker(node, *own).split()]

    process = operator.start("bench")
    assert process.stdout is not None
    # All containers have answered; most of the measurement is still to come.
    assert any(line.strip().startswith("links: round 1") for line in process.stdout)
    process.send_signal(signal.SIGINT)
    printed, _ = process.communicate(timeout=240)
    assert (process.returncode, "Traceback" in printed) == (130, False), printed
    wait_for(lambda: not containers(), "the end of the containers")


@contextlib.contextmanager
def second_network(lab: Lab, *nodes: str) -> Iterator[dict[str, str]]:
    """Connect nodes by a network of their own; the name of the interface on each."""
    engine, name = Engine(lab.settings), f"{lab.settings.bridge}-two"
    addresses = ("--subnet", lab.settings.network.replace("10.78.", "10.79.") + ".0/24")
    engine.docker("network", "create", "--internal", *addresses, name)
    own = [lab.settings.container(node) for node in nodes]
    try:
        for each in own:
            engine.docker("network", "connect", name, each)
        found = [json.loads(lab.ssh(node, "ip -json -4 address").stdout) for node in nodes]
        yield {node: links[-1]["ifname"] for node, links in zip(nodes, found, strict=True)}
    finally:
        for each in own:
            engine.docker("network", "disconnect", "--force", name, each, check=False)
        engine.docker("network", "rm", name)


@pytest.mark.long
def test_two_ports_are_measured_together_and_one_that_is_dead_is_named(
    operator: Operator, lab: Lab
) -> None:
    with second_network(lab, "n2", "n3") as second:
        inventory = operator.project.folder / "inventory.yaml"
        text = inventory.read_text()
        for node, port in second.items():
            text = text.replace(
                f"ssh: root@{node}", f"ssh: root@{node}\n    interface: [eth0, {port}]"
            )
        inventory.write_text(text)
        pair = ("bench", "--host", "n2", "--host", "n3")
        for node, port in second.items():
            lab.do("shape", node, "50mbit")
            limit = "root tbf rate 50mbit burst 256k latency 50ms"
            assert lab.ssh(node, f"tc qdisc replace dev {port} {limit}").returncode == 0
        try:
            found = document(operator.kit(*pair, "--json"), "{")
            assert lab.ssh("n3", f"ip link set {second['n3']} down").returncode == 0
            told = operator.kit(*pair, status=1)
        finally:
            for node in second:
                lab.do("shape", node, "off")
    (link,) = found["links"]
    # Each port alone sends 47.5 Mbit/s of payload.
    assert [link["forward"], link["backward"]] == pytest.approx([95e6, 95e6], rel=0.1)
    assert found["failures"] == []
    assert re.search(r"failed: n[23] .*(no IPv4 address|does not reach)", told), told
