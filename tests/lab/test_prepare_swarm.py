"""`kit host prepare` in a running swarm: a firewall, a job, a lost host."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.conftest import Docker
from tests.lab.conftest import Lab, wait_for
from tests.lab.operator import Operator, make_operator
from tests.lab.settings import IMAGE, STAND_IN
from tests.lab.test_lab import TRAINING
from tests.lab.test_prepare import CONFIG, on
from tests.sandbox import Project

pytestmark = pytest.mark.lab


@pytest.fixture
def operator(lab: Lab, project: Project, docker: Docker) -> Operator:
    return make_operator(lab, project, docker, "swarm")


def availability(lab: Lab, node: str) -> str:
    return lab.docker("n1", "node", "inspect", "--format", "{{.Spec.Availability}}", node)


FIREWALL = """\
flush ruleset inet
table inet lab {
  chain input {
    type filter hook input priority 0; policy drop;
    ct state established,related accept
    iif lo accept
    tcp dport 22 accept
  }
}
"""


def reaches(lab: Lab, node: str, port: int) -> bool:
    """Tell whether n1 can connect to a port of a node."""
    return lab.ssh("n1", f"timeout 5 bash -c '</dev/tcp/{node}/{port}'").returncode == 0


STORES = (
    ("roles: [manager, storage]", "roles: [manager]"),
    ("  n3:\n", "  n3:\n    roles: [storage]\n"),
    ("network:", "data: {image: 'trainer:1'}\nnetwork:"),
)
LISTENS = "import socket, time; s = socket.create_server(('', {port})); time.sleep(200)"


@pytest.fixture
def listener(lab: Lab) -> Iterator[int]:
    """The port of the data server on n3, where a process listens on the host's network."""
    program = LISTENS.format(port=8090)
    pid = on(lab, "n3", f'python3 -c "{program}" </dev/null >/dev/null 2>&1 & echo $!').strip()
    wait_for(lambda: reaches(lab, "n3", 8090), "the listener")
    yield 8090
    on(lab, "n3", f"kill {pid}")


def test_a_firewall_lets_swarm_and_services_pass(
    operator: Operator, lab: Lab, listener: int
) -> None:
    operator.write({}, *STORES)
    operator.kit("host", "prepare", "n3", "--run", "--yes")
    assert reaches(lab, "n3", 7946)
    on(lab, "n3", f"echo '{FIREWALL}' | sed 1d >/etc/nftables.conf; nft -f /etc/nftables.conf")
    try:
        assert not reaches(lab, "n3", 7946)
        assert not reaches(lab, "n3", listener)
        told = operator.kit("host", "prepare", "n3", "--check", status=1)
        assert "  change   nftables: let tcp 7946 8090 and udp 4789 7946 pass from 10." in told
        assert ", for Swarm, the data services; also at boot" in told
        operator.kit("host", "prepare", "n3", "--run", "--yes")
        assert reaches(lab, "n3", 7946)
        assert reaches(lab, "n3", listener)
        assert operator.kit("host", "prepare", "n3", "--check").endswith("nothing to change\n")
        # As at the next boot.
        on(lab, "n3", "nft delete table inet lab; nft -f /etc/nftables.conf")
        assert reaches(lab, "n3", 7946)
    finally:
        on(lab, "n3", "nft delete table inet lab; rm -rf /etc/nftables.*")


@pytest.fixture
def files(lab: Lab) -> Iterator[dict[str, str]]:
    """The nodes' daemon.json; they get them back."""
    before = {node: on(lab, node, f"cat {CONFIG}") for node in ("n1", "n2", "n3")}
    yield before
    on(lab, "n2", "ln -sf /opt/lab/systemctl /usr/local/bin/systemctl; iptables -F OUTPUT")
    for node, text in before.items():
        rest = f"{CONFIG}.* /run/kit-restart-docker /run/missed"
        on(lab, node, f"echo '{text}' >{CONFIG}; rm -f {rest}")
        on(lab, node, "systemctl restart docker")
    lab.do("swarm")
    lab.docker("n1", "node", "update", "--availability", "active", "n2")


# After its first restart, the manager calls the node down until another restart.
MISSED = """\
#!/bin/sh
[ "$1" != restart ] || iptables -F OUTPUT
/opt/lab/systemctl "$@" || exit
[ "$1" = restart ] && [ ! -e /run/missed ] || exit 0
touch /run/missed
until [ "$(docker info --format "{{.Swarm.LocalNodeState}}")" = active ]; do sleep 0.1; done
iptables -I OUTPUT -p tcp --dport 2377 -j DROP
sleep 15 # Three heartbeats are 6 s; a busy manager notices later.
"""


def replace_systemctl(lab: Lab, node: str, text: str) -> None:
    program = "/usr/local/bin/systemctl"
    on(lab, node, f"rm {program}; echo '{text}' >{program}; chmod +x {program}")


def test_hosts_of_a_job_restart_one_after_the_other(
    operator: Operator, lab: Lab, files: dict[str, str]
) -> None:
    job = TRAINING.replace("epochs: 1", "epochs: 9999").replace(IMAGE, STAND_IN)
    job += "environment: {LAB_PACE: '0.1'}\nhosts: {min: 1}\n"
    operator.write({"digits": job})
    operator.kit("swarm", "up", "--yes")
    try:
        operator.kit("deploy")
        wait_for(operator.trains, "a checkpoint")
        for node in ("n1", "n2"):
            on(lab, node, f"""echo '{{"labels": ["rack=7"]}}' >{CONFIG}""")
        replace_systemctl(lab, "n2", MISSED)
        told = operator.kit("host", "prepare", "n1", "n2", "--run", "--yes").splitlines()
        assert "n2: the manager has missed its return: restart it again" in told
        steps = [line for line in told if re.match("wait|n1: (drain|act)|n2: (drain|act)", line)]
        assert steps == [
            "n2: drain it: its tasks end or move",
            "n2: active again",
            "wait until digits runs again on all its hosts",
            "n1: drain it: its tasks end or move",
            "n1: active again",
        ]
        assert [availability(lab, node) for node in ("n1", "n2")] == ["active", "active"]
        for node in ("n1", "n2"):
            assert lab.docker(node, "info", "--format", "{{.Labels}}") == "[rack=7]"
    finally:
        operator.kit("stop", "digits")
        operator.kit("swarm", "down", "--yes")


BROKEN = """\
#!/bin/sh
[ "$1" != restart ] || exec /opt/lab/systemctl stop docker
exec /opt/lab/systemctl "$@"
"""


def test_a_host_that_does_not_come_back_stops_the_others(
    operator: Operator, lab: Lab, files: dict[str, str]
) -> None:
    operator.write({})
    for node in files:
        on(lab, node, f"echo '{{}}' >{CONFIG}")
    # An engine that stops and does not start again.
    replace_systemctl(lab, "n2", BROKEN)
    pid = on(lab, "n1", "cat /run/docker.pid")
    told = operator.kit("host", "prepare", "--run", "--yes", status=1)
    assert "kit: n2: Docker does not start" in told
    assert "not restarted: n1" in told
    assert "n2 is drained; when it is back, on a manager: docker node update" in told
    assert on(lab, "n1", "cat /run/docker.pid") == pid
    assert "n3: active again" in told, told
    assert (availability(lab, "n2"), availability(lab, "n3")) == ("drain", "active")
