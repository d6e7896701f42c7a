"""The cluster that KUBECONFIG names, as the tests see it: its nodes, a namespace, kit in it."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from kit.targets.kubernetes.names import INSTANCE
from tests.sandbox import Project, Result, kit_process

IMAGE = os.environ.get("KIT_KUBERNETES_IMAGE", "registry.lab:5000/stand-in:lab")
GPU = "nvidia.com/gpu"
COMPONENT = "app.kubernetes.io/component"
OF_THE_JOB = ("-l", f"{INSTANCE}=train-digits")
DEADLINE = 180.0
"""Seconds for a state to come."""
RESTRICTED = {
    "runAsNonRoot": True,
    "runAsUser": 65534,
    "seccompProfile": {"type": "RuntimeDefault"},
}
UNPRIVILEGED = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
"""What Pod Security asks of the pods and containers that the tests make."""
JOB = f"""\
image: {IMAGE}
train: {{dataset: digits, model: cnn, epochs: 3000, batch_size: 64}}
checkpoint: {{every_epochs: 5, keep: 2}}
hosts: {{min: 1}}
limits: {{shared_memory: 64MiB}}
stop_grace_period: 20s
"""


def kubectl(*words: str, seconds: float = 150) -> Any:
    """Return what kubectl says within so many seconds; JSON as values."""
    done = subprocess.run(
        ["kubectl", f"--request-timeout={seconds}s", *words],
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout) if "json" in words else done.stdout


def json_file(story: Story, document: dict[str, Any]) -> str:
    path = story.project.folder / "object.json"
    path.write_text(json.dumps(document))
    return str(path)


def await_that(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + DEADLINE
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(1)


@dataclass
class Story:
    """A project whose hosts are nodes of the cluster, and its namespace."""

    project: Project
    namespace: str
    hosts: tuple[str, ...]

    def kit(self, *words: str) -> Result:
        result = kit_process(self.project.folder, *words)
        assert result.status == 0, result.err
        return result

    def job(self, name: str = "digits") -> dict[str, Any]:
        return self.jobs()[name]

    def jobs(self) -> dict[str, dict[str, Any]]:
        jobs = json.loads(self.kit("status", "--json").out)["jobs"]
        return {each["job"]: each for each in jobs}

    def await_job(
        self, holds: Callable[[dict[str, Any]], object], name: str = "digits"
    ) -> dict[str, Any]:
        deadline = time.monotonic() + DEADLINE
        while not holds(job := self.job(name)):
            assert time.monotonic() < deadline, job
            time.sleep(1)
        return job

    def await_world(self, size: int) -> dict[str, Any]:
        return self.await_job(lambda job: job["world_size"] == size and job["progress"])

    def objects(self, kinds: str, *words: str) -> list[str]:
        listed = kubectl("-n", self.namespace, "get", kinds, "-o", "name", *words)
        return sorted(str(listed).split())

    def moments(self) -> list[float]:
        """Return the times of the reported steps, none of which was repeated or lost."""
        lines = self.kit("logs", "digits", "--events").out.splitlines()
        events = [json.loads(line[line.index("{") :]) for line in lines if "@kit {" in line]
        reports = [(each["time"], each["step"]) for each in events if each["event"] == "progress"]
        steps = [step for _, step in sorted(reports)]
        assert all(before < after for before, after in itertools.pairwise(steps)), steps
        return sorted(moment for moment, _ in reports)

    def gaps(self) -> float:
        """Return the longest time between two reported steps, in seconds."""
        return max(after - before for before, after in itertools.pairwise(self.moments()))


def able_nodes() -> list[str]:
    """Return the nodes that offer GPUs, real or pretended."""
    return [
        node["metadata"]["labels"]["kubernetes.io/hostname"]
        for node in kubectl("get", "nodes", "-o", "json")["items"]
        if int(node["status"]["allocatable"].get(GPU, 0))
    ]


@contextmanager
def own_namespace() -> Iterator[str]:
    """Make a namespace that refuses pods which break the rules of Pod Security; remove it."""
    name = f"kit-test-{uuid.uuid4().hex[:8]}"
    kubectl("create", "namespace", name)
    try:
        kubectl("label", "namespace", name, "pod-security.kubernetes.io/enforce=restricted")
        yield name
    finally:
        # A Job would keep its pods: in a namespace that ends, its controller can make no others.
        kubectl("-n", name, "delete", "jobs", "--all", "--wait=false")
        kubectl("delete", "namespace", name, "--wait=false")


def inventory(namespace: str, hosts: Sequence[str]) -> str:
    """Return an inventory of one GPU on each of these nodes."""
    section = f"kubernetes: {{namespace: {namespace}, storage_size: 1GiB}}"
    listed = "".join(f"  {host}: {{address: {host}, gpus: 1}}\n" for host in hosts)
    return f"cluster: test\nengine: kubernetes\n{section}\nhosts:\n{listed}"
