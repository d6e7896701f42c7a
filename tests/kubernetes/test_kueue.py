"""A job in a queue of Kueue: it waits for quota, is suspended for another one, and continues.

Runs where Kueue is installed, and with each kind of job that the cluster has.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.kubernetes.cluster import (
    COMPONENT,
    GPU,
    IMAGE,
    JOB,
    RESTRICTED,
    UNPRIVILEGED,
    Story,
    await_that,
    json_file,
    kubectl,
)

pytestmark = pytest.mark.kubernetes
GROUP = "kueue.x-k8s.io"
RESOURCES = {"Job": "jobs", "JobSet": "jobsets", "TrainJob": "trainjobs"}


def apply(story: Story, *objects: dict[str, Any]) -> None:
    for each in objects:
        kubectl("apply", "-f", json_file(story, each))


@contextmanager
def queue(story: Story) -> Iterator[None]:
    """Make a queue with the quota of the story's GPUs, and two priorities."""
    served = kubectl("api-versions").split()
    version = max(each for each in served if each.startswith(f"{GROUP}/v1beta"))
    name = story.namespace
    quota = {GPU: len(story.hosts), "cpu": 100, "memory": "1Ti"}
    resources = [{"name": each, "nominalQuota": most} for each, most in quota.items()]

    def made(kind: str, named: str, **content: Any) -> dict[str, Any]:
        return {"apiVersion": version, "kind": kind, "metadata": {"name": named}, **content}

    group = {
        "coveredResources": list(quota),
        "flavors": [{"name": name, "resources": resources}],
    }
    spec = {
        "namespaceSelector": {},
        "resourceGroups": [group],
        "preemption": {"withinClusterQueue": "LowerPriority"},
    }
    local = made("LocalQueue", "pool", spec={"clusterQueue": name})
    local["metadata"]["namespace"] = name
    priorities = [
        made("WorkloadPriorityClass", f"{name}-{what}", value=value, description=what)
        for what, value in (("low", 1), ("high", 2))
    ]
    whole = [made("ResourceFlavor", name), made("ClusterQueue", name, spec=spec), *priorities]
    try:
        apply(story, *whole, local)
        yield
    finally:
        for each in reversed(whole):
            kubectl("delete", each["kind"], each["metadata"]["name"], "--wait=false")


def urgent(story: Story) -> dict[str, Any]:
    """A Job with a higher priority that takes all GPUs of the queue."""
    limits = {"limits": {GPU: "1"}, "requests": {"cpu": "10m", "memory": "16Mi"}}
    container = {
        "name": "sleep",
        "image": IMAGE,
        "command": ["sleep", "600"],
        "resources": limits,
        "securityContext": UNPRIVILEGED,
    }
    pod = {"restartPolicy": "Never", "securityContext": RESTRICTED, "containers": [container]}
    labels = {f"{GROUP}/queue-name": "pool", f"{GROUP}/priority-class": f"{story.namespace}-high"}
    number = len(story.hosts)
    spec = {"parallelism": number, "completions": number, "suspend": True}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "urgent", "namespace": story.namespace, "labels": labels},
        "spec": {**spec, "template": {"spec": {**pod, "terminationGracePeriodSeconds": 1}}},
    }


@pytest.mark.parametrize("kind", RESOURCES)
def test_a_job_waits_for_quota_and_continues_after_a_preemption(story: Story, kind: str) -> None:
    known = kubectl("api-resources", "-o", "name").split()
    if f"clusterqueues.{GROUP}" not in known:
        pytest.skip("the cluster has no Kueue")
    if not any(each.startswith(f"{RESOURCES[kind]}.") for each in known):
        pytest.skip(f"the cluster has no {kind}: its controller is not installed")
    text = (story.project.folder / "inventory.yaml").read_text()
    section = f"1GiB, job_kind: {kind}, queue: pool, priority_class: {story.namespace}-low}}"
    story.project.write(text.replace("1GiB}", section), {"digits": JOB}).kit("render")
    number = len(story.hosts)
    with queue(story):
        story.kit("deploy", "digits")
        story.await_world(number)
        story.await_job(lambda job: job["checkpoint"])
        saved = story.job()["progress"]["step"]
        apply(story, urgent(story))
        await_that(lambda: not story.objects("pods", "-l", f"{COMPONENT}=train"))
        assert "waits in its queue" in story.kit("status").out
        kubectl("-n", story.namespace, "delete", "job/urgent")
        job = story.await_world(number)
        assert job["progress"]["step"] >= saved
        story.kit("stop", "digits")
