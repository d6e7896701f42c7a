"""The trainer itself: a job that was stopped and resumed ends with the weights of one that was not.

Runs if KIT_KUBERNETES_TRAINER names an image of it; all other tests have a fake training.
"""

from __future__ import annotations

import json
import os
from functools import partial
from typing import Any

import pytest

from tests.kubernetes.cluster import (
    RESTRICTED,
    UNPRIVILEGED,
    Story,
    await_that,
    inventory,
    json_file,
    kubectl,
)

pytestmark = pytest.mark.kubernetes
JOB = """\
image: {image}
train: {{dataset: digits, model: cnn, epochs: 15, batch_size: 64, seed: 1}}
checkpoint: {{every_epochs: 5, keep: 50}}
hosts: {{names: [{host}]}}
limits: {{shared_memory: 64MiB}}
"""
SUMS = """\
import hashlib, json, pathlib, torch
for job in ("whole", "parts"):
    last = sorted(pathlib.Path("/", job).glob("step-*/manifest.json"))[-1].parent
    weights = torch.load(last / "state.pt", weights_only=True)["model"]
    parts = {name: each.numpy().tobytes() for name, each in sorted(weights.items())}
    sums = {name: hashlib.sha256(part).hexdigest() for name, part in parts.items()}
    print(json.dumps([last.name, sums]))
"""


def reader(story: Story, image: str) -> dict[str, Any]:
    """A pod that prints the last step of both jobs, and the checksums of its weights."""
    jobs = ("whole", "parts")
    container = {
        "name": "reader",
        "image": image,
        "command": ["python3", "-c", SUMS],
        "securityContext": UNPRIVILEGED,
        "volumeMounts": [{"name": job, "mountPath": f"/{job}"} for job in jobs],
    }
    claims = {job: {"claimName": f"train-{job}-checkpoints"} for job in jobs}
    volumes = [{"name": job, "persistentVolumeClaim": claim} for job, claim in claims.items()]
    spec = {"restartPolicy": "Never", "securityContext": RESTRICTED, "volumes": volumes}
    meta = {"name": "reader", "namespace": story.namespace}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": meta,
        "spec": {**spec, "containers": [container]},
    }


def test_a_resumed_job_ends_with_the_same_weights(story: Story) -> None:
    image = os.environ.get("KIT_KUBERNETES_TRAINER")
    if not image:
        pytest.skip("KIT_KUBERNETES_TRAINER names no image of the trainer")
    hosts = story.hosts[:2]
    jobs = {
        name: JOB.format(image=image, host=host)
        for name, host in zip(("whole", "parts"), hosts, strict=True)
    }
    story.project.write(inventory(story.namespace, hosts), jobs)
    story.kit("render")
    story.kit("deploy")
    story.await_job(lambda job: job["checkpoint"], "parts")
    assert "parts stopped" in story.kit("stop", "parts").out
    story.kit("resume", "parts")
    for name in jobs:
        story.await_job(lambda job: job["state"] == "completed", name)
    kubectl("apply", "-f", json_file(story, reader(story, image)))
    read = partial(kubectl, "-n", story.namespace, "logs", "reader")
    phase = ("-n", story.namespace, "get", "pod/reader", "-o=jsonpath={.status.phase}")
    await_that(lambda: kubectl(*phase) in {"Succeeded", "Failed"})
    whole, parts = map(json.loads, read().splitlines())
    assert parts == whole
    story.kit("stop", "--all")
