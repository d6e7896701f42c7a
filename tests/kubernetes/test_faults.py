"""What a training and kit's commands do while nodes and the API server fail.

KIT_KUBERNETES_FAULTS is a program that disturbs the cluster: `kill NODE`, `start NODE`, `cable NODE
out`, `cable NODE in`, `api out` and `api in`. Without it, only the drain runs.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from tests.kubernetes.cluster import COMPONENT, Story, await_that, kubectl
from tests.kubernetes.test_scale import pool
from tests.sandbox import kit_process

pytestmark = [pytest.mark.kubernetes, pytest.mark.alone]
OUTAGE = 30.0
"""Seconds without the API server."""
OF_JOBS = "--pod-selector=app.kubernetes.io/instance=train-digits"


def disturb(*words: str) -> None:
    program = shlex.split(os.environ.get("KIT_KUBERNETES_FAULTS", ""))
    if not program:
        pytest.skip("KIT_KUBERNETES_FAULTS names no program")
    subprocess.run([*program, *words], check=True)


@contextmanager
def disturbed(words: Sequence[str], back: Sequence[str]) -> Iterator[None]:
    disturb(*words)
    try:
        yield
    finally:
        disturb(*back)


def trains(story: Story) -> int:
    """Deploy the job; return its number of hosts when all of them train."""
    story.kit("deploy", "digits")
    number = len(story.hosts)
    story.await_world(number)
    return number


def await_controllers() -> None:
    """The node may have run a controller whose webhooks the other tests need."""
    if kubectl("get", "deployments", "-A", "-o", "json")["items"]:
        kubectl("wait", "--for=condition=Available", "deployments", "--all", "-A", "--timeout=120s")


def states(job: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {each["host"]: (each["state"], each["message"]) for each in job["hosts"]}


def test_the_others_train_while_a_node_is_dead(story: Story) -> None:
    number, dead = trains(story), story.hosts[-1]
    with disturbed(("kill", dead), ("start", dead)):
        story.await_world(number - 1)
        words = "its node does not answer"
        story.await_job(lambda job: states(job)[dead] == ("waiting", words))
        assert words in story.kit("status").out
    story.await_world(number)
    await_controllers()
    print(f"a killed node: longest time between two steps: {story.gaps():.1f} s")
    story.kit("stop", "digits")


def test_a_node_that_was_only_unreachable_does_not_train_too(story: Story) -> None:
    """Two pods have one index then: that of the node, which runs on, and its replacement."""
    number = len(story.hosts) - 1
    pool(story, number)
    story.kit("deploy", "digits")
    before = {each["host"] for each in story.await_world(number)["hosts"]}
    found = kubectl("-n", story.namespace, "get", "pods", "-o", "json")["items"]
    meets = [each["spec"]["nodeName"] for each in found if "rendezvous" in each["metadata"]["name"]]
    cut = sorted(before - {*meets})[0]
    with disturbed(("cable", cut, "out"), ("cable", cut, "in")):
        story.await_world(number - 1)
        job = story.await_world(number)
        now = {each["host"] for each in job["hosts"] if each["state"] == "running"}
        assert (cut in now, len(now)) == (False, number)
    pods = ("-n", story.namespace, "get", "pods", "-l", f"{COMPONENT}=train", "-o", "name")
    await_that(lambda: len(kubectl(*pods).split()) == number)  # The node ends its own.
    await_controllers()
    job = story.await_world(number)
    assert {each["host"] for each in job["hosts"]} == now
    print(f"an unreachable node: longest time between two steps: {story.gaps():.1f} s")
    story.kit("stop", "digits")


def test_a_drain_leaves_the_hosts_that_the_job_needs(story: Story) -> None:
    number, (last, *others) = trains(story), story.hosts
    drain = ("drain", OF_JOBS, "--delete-emptydir-data", "--ignore-daemonsets")
    try:
        for count, node in enumerate(others, 1):
            kubectl(*drain, node, "--timeout=60s")
            story.await_world(number - count)
        # `hosts: {min: 1}`: the budget keeps the last one.
        kubectl("cordon", last)
        refused = subprocess.run(
            ["kubectl", *drain, last, "--timeout=4s"], capture_output=True, text=True, check=False
        )
        assert "disruption budget" in refused.stderr
        assert "been cordoned (kubectl uncordon)" in story.kit("status", "--json").out
    finally:
        kubectl("uncordon", *story.hosts)
    story.await_world(number)
    print(f"drained nodes: longest time between two steps: {story.gaps():.1f} s")
    story.kit("stop", "digits")


def test_a_training_does_not_notice_that_the_api_server_is_away(story: Story) -> None:
    trains(story)
    with disturbed(("api", "out"), ("api", "in")):
        begin = time.time()
        result = kit_process(story.project.folder, "status")
        assert (result.status, "what runs there continues" in result.err) == (1, True), result.err
        time.sleep(max(0.0, begin + OUTAGE - time.time()))
        end = time.time()
    await_that(lambda: kit_process(story.project.folder, "status").status == 0)
    meanwhile = [moment for moment in story.moments() if begin < moment < end]
    # It reports once a second: a pause as long as a fifth of the outage would be a loss.
    assert len(meanwhile) > OUTAGE / 5

    # Controllers with webhooks for all Jobs, such as Kueue's, start again after such an outage.
    await_that(lambda: "runs already" in kit_process(story.project.folder, "deploy", "digits").out)
    await_controllers()
    story.kit("stop", "digits")
