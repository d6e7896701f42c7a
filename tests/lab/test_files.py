"""`checkpoint: {files: …}` on a real Swarm: a script resumes after its first host is lost."""

from __future__ import annotations

import contextlib
import json
import re
import sys
from collections.abc import Iterator

import pytest

from tests.conftest import Docker
from tests.lab.conftest import Lab, wait_for
from tests.lab.operator import Operator, make_operator
from tests.lab.settings import BASE
from tests.sandbox import ROOT, Project

pytestmark = pytest.mark.lab
TORCH = "registry.lab:5000/torch:lab"
"""Like pytorch/pytorch: PyTorch without kit."""
OWN = f"""\
image: {TORCH}
command: [ddp.py, "4000", "5", --batch_size, "64"]
working_dir: /workspace
checkpoint: {{files: [snapshot.pt]}}
mounts:
  - {{bind: /srv/own, to: /workspace}}
hosts: {{names: [n2, n3], min: 1}}
environment: {{OMP_NUM_THREADS: "1", LAB_PACE: "0.01"}}
"""
# gloo would wait 30 minutes for a host without power.
SCRIPT = (
    (ROOT / "tests" / "trainer" / "ddp.py")
    .read_text(encoding="utf-8")
    .replace('("gloo")', '("gloo", timeout=__import__("datetime").timedelta(seconds=15))')
)


@pytest.fixture
def operator(lab: Lab, project: Project, docker: Docker) -> Iterator[Operator]:
    """A Swarm whose workers have a folder each for the script, and an image with only PyTorch."""
    dockerfile = f"FROM {BASE}\\nENV KIT_LAB_TORCH=/opt/torch PYTHONPATH=/opt/torch"
    build = f"DOCKER_BUILDKIT=0 docker build -q -t {TORCH} -"
    made = lab.ssh("n1", f"printf '{dockerfile}' | {build} && docker push -q {TORCH}")
    assert made.returncode == 0, made.stderr
    lab.do("gpus", "n3", "TITAN RTX")
    for node in ("n2", "n3"):
        lab.ssh(node, f"mkdir -p /srv/own && cat >/srv/own/ddp.py <<'END'\n{SCRIPT}\nEND")
    user = make_operator(lab, project, docker, "swarm")
    user.write({"own": OWN})
    user.kit("swarm", "up", "--yes")
    try:
        yield user
    finally:
        told = user.kit("logs").splitlines(keepends=True)
        sys.stdout.writelines(line for line in told if "] Epoch " not in line)
        for node in ("n2", "n3"):
            lab.do("start", node)
        with contextlib.suppress(AssertionError):
            user.kit("stop")
        for node in ("n2", "n3"):
            lab.ssh(node, "docker volume rm -f kit-test_own-checkpoints; rm -rf /srv/own")
        lab.do("gpus", "n3")


def epochs(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"\] Epoch (\d+) \|", text)]


def test_a_script_resumes_after_its_first_host_is_lost(lab: Lab, operator: Operator) -> None:
    operator.kit("deploy")

    def log(host: str) -> str:
        return operator.kit("logs", "--host", host)

    def last(host: str) -> int:
        return max(epochs(log(host)), default=0)

    def starts(host: str) -> int:
        return log(host).count("in place")

    def held(host: str) -> int:
        """The snapshots that a host has: copies reach it after they are on the first one's disk."""
        volume = "$(docker volume inspect -f '{{.Mountpoint}}' kit-test_own-checkpoints)"
        listed = lab.ssh(host, f"ls {volume}/versions/{host}/*/manifest.json | wc -l")
        return int(listed.stdout)

    def resumed(host: str) -> list[int]:
        """The epochs since the last start."""
        return epochs(log(host).rpartition("in place")[2])

    # A host that starts late joins the other one, and has only then its snapshots.
    wait_for(lambda: min(last("n2"), last("n3")) > 30, "the script to train on both hosts")
    assert re.match(r"version \d", operator.status("own")["checkpoint"])
    first = "n2" if "[RANK0]" in log("n2") else "n3"
    left = "n3" if first == "n2" else "n2"
    wait_for(lambda: held(left) > 1, "copies of the snapshots")
    before = {host: starts(host) for host in (first, left)}
    lab.do("kill", first)
    wait_for(lambda: starts(left) > before[left] and resumed(left), "another start")
    reached = max(epochs(log(left).rpartition("in place")[0]))
    at = resumed(left)[0]
    sys.stdout.write(f"{first} lost at epoch {reached}: {left} resumes at {at}\n")
    assert 0 < at <= reached
    wait_for(lambda: last(left) > reached + 10, "newer snapshots")
    newer = last(left)
    lab.do("start", first)
    wait_for(lambda: starts(first) > before[first] and resumed(first), "the host's return")
    back = resumed(first)[0]
    sys.stdout.write(f"{first} is back, at epoch {back}\n")
    assert back > newer - 10

    operator.kit("stop")
    # Its containers and their logs are gone; what the Swarm keeps of it is still reported.
    without = json.loads(operator.kit("report", "--json"))["without_record"]
    [ended] = [each for each in without if each["job"] == "own"]  # Others are of other tests.
    assert (ended["state"], ended["events"]) == ("stopped", [])
