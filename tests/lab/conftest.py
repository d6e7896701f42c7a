"""The lab of the tests: it starts once, and is always removed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests import times
from tests.lab import settings
from tests.lab.host import ANSWER, require
from tests.lab.settings import LabError, Settings
from tests.sandbox import ROOT

WORKER = times.lab_number()
# A lab for each worker, separate from a user's own. The short heartbeat saves time.
NAME = {
    "KIT_LAB_NAME": f"test{WORKER}",
    "KIT_LAB_NET": f"10.78.{WORKER}",
    "KIT_LAB_HEARTBEAT": "2s",
    "KIT_LAB_NODES": "3",
    "KIT_LAB_PYTHON": sys.executable,
}
NODES = ("n1", "n2", "n3")
CLUSTER = "test"
"""The cluster's name in every lab."""
DEADLINE = 600


GOSSIP_IS_FREE = "! grep -qs ':1F0A [0-9A-F:]* 0A ' /proc/net/tcp /proc/net/tcp6"
"""Whether nothing listens on port 7946."""


@dataclass(frozen=True)
class Lab:
    """A lab, used through its command line and a user's tools."""

    settings: Settings
    environ: Mapping[str, str] = field(default_factory=lambda: NAME)

    def call(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "tests.lab", *arguments],
            cwd=ROOT,
            env={**os.environ, **self.environ},
            capture_output=True,
            text=True,
            timeout=DEADLINE,
            check=False,
        )

    def do(self, *arguments: str) -> str:
        """Run a command of the lab, which must succeed."""
        done = self.call(*arguments)
        assert done.returncode == 0, f"lab {' '.join(arguments)}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    def inventory(self) -> str:
        """Return the inventory of the nodes, with the tests' name of the cluster."""
        return self.do("inventory").replace(f"cluster: {self.settings.name}", f"cluster: {CLUSTER}")

    def docker(self, node: str, *arguments: str) -> str:
        """Call a node's engine; the lab's command would do the same, after importing Python."""
        engine = f"unix://{self.settings.socket(node)}"
        done = subprocess.run(
            ["docker", "-H", engine, *arguments],
            capture_output=True,
            text=True,
            timeout=DEADLINE,
            check=False,
        )
        assert done.returncode == 0, f"docker {' '.join(arguments)}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    def ssh(
        self, node: str, command: str, seconds: float = 120
    ) -> subprocess.CompletedProcess[str]:
        """Run a command over SSH, with the lab's configuration."""
        return subprocess.run(
            ["ssh", "-F", str(self.settings.ssh_config), "-o", "BatchMode=yes", node, command],
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )

    def leave_swarm(self, node: str) -> None:
        """Have a node leave its swarm, if it is in one, so that it can join another.

        A busy engine of Docker 26 sometimes keeps the port of its gossip ("Could not close DB:
        timeout waiting for leave broadcast"). It joins the next swarm, but not its networks, until
        it is started anew.
        """
        self.ssh(node, "docker swarm leave --force")
        if self.ssh(node, GOSSIP_IS_FREE).returncode != 0:
            self.do("restart", node)

    def told(self) -> str:
        """What the engines say of nodes, services and containers, for the report of a failure."""
        hosts = ((node, CONTAINERS_NOW) for node in NODES)
        return "".join(self._answer(*each) for each in (("n1", SWARM_NOW), *hosts))

    def _answer(self, node: str, script: str) -> str:
        try:
            return self.ssh(node, script, ANSWER).stdout
        except subprocess.TimeoutExpired:  # A test has paused it.
            return f"{node} has not answered for {ANSWER} s\n"

    def environment(self, node: str) -> dict[str, str]:
        """Variables with which programs find the node's engine over SSH."""
        path = f"{self.settings.folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
        return {"PATH": path, "DOCKER_HOST": f"ssh://root@{node}"}

    def uuids(self, node: str) -> list[str]:
        return [gpu.uuid for gpu in self.settings.gpus(node)]


def wait_for(condition: Callable[[], object], what: str, seconds: float = DEADLINE / 2) -> None:
    """Poll a condition, at most a fifth of the time: a `kit status` takes a second of one core."""
    deadline = time.monotonic() + seconds
    began = time.monotonic()
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}"
        time.sleep(max(0.2, 4 * (time.monotonic() - began)))
        began = time.monotonic()


SWARM_NOW = """\
docker node ls
docker service ls -q | xargs -r docker service ps --no-trunc --format \
    '{{.Name}} {{.Node}}: {{.DesiredState}}, {{.CurrentState}} {{.Error}}'
"""
CONTAINERS_NOW = """\
hostname
docker ps -a --format '  {{.Names}}: {{.Status}}'
"""
SERVICES = """\
docker service ls -q | xargs -r docker service rm
docker config ls -q | xargs -r docker config rm
docker secret ls -q | xargs -r docker secret rm
for node in $(docker node ls -q); do
    form='{{range $key, $_ := .Spec.Labels}} --label-rm {{$key}}{{end}}'
    docker node update --availability active $(docker node inspect --format "$form" $node) $node
done
"""
CONTAINERS = """\
docker ps -aq | xargs -r docker rm -f -v
docker volume ls -q | xargs -r docker volume rm
docker network prune -f
rm -rf /root/.local/share/kit
"""


def empty(lab: Lab) -> None:
    """Remove the workloads of all nodes, and what other files' tests have told the Swarm."""
    for node, script in (("n1", SERVICES), *((node, CONTAINERS) for node in NODES)):
        # Docker refuses what it is just removing itself.
        wait_for(lambda: lab.ssh(node, f"set -e; {script}").returncode == 0, f"{node} to be empty")  # noqa: B023


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Report a failure with the state of its nodes, before the fixtures remove the workloads."""
    report = yield
    lab = getattr(item, "funcargs", {}).get("lab")
    if report.failed and report.when == "call" and lab:
        report.sections.append(("The nodes", lab.told()))
    return report


@pytest.fixture(scope="module", autouse=True)
def standard(lab: Lab) -> None:
    """Each file begins with a whole and empty Swarm, whatever the files before it have left."""
    lab.do("up")
    if lab.call("swarm").returncode:
        for node in reversed(NODES):
            lab.leave_swarm(node)
        lab.do("swarm")
    empty(lab)


@pytest.fixture(scope="package")
def lab() -> Iterator[Lab]:
    """Three nodes in a swarm, with an image in their registry, until the last test of this folder.

    Idle engines take a tenth of a core: the other tests of a worker run without them.
    """
    made = Lab(settings.load({**os.environ, **NAME}))
    status = Path("/proc/self/status").read_text()
    assert "NoNewPrivs:\t0" in status, "a test of this worker has taken sudo from its children"
    try:
        require()
    except LabError as error:
        # In CI, a lab that cannot start is a failure, not a skip.
        if os.environ.get("CI"):
            pytest.fail(str(error))
        pytest.skip(str(error))
    # Tests that were killed with their machine leave GPUs and images that others do not expect.
    made.do("down")
    try:
        made.do("up")
        made.do("swarm")
        made.do("image")
        yield made
    finally:
        left = made.call("down")
        assert left.returncode == 0, left.stderr
        assert not made.settings.folder.exists()
