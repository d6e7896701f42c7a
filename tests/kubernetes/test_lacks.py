"""What a cluster does not give: rights, quota, GPUs, volumes. kit names what is missing."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.kubernetes.cluster import GPU, JOB, Story, await_that, kubectl
from tests.sandbox import kit_process

pytestmark = pytest.mark.kubernetes


@contextmanager
def deploying(story: Story) -> Iterator[None]:
    """Deploy in the background: it would wait a minute for what is missing."""
    command = [sys.executable, "-m", "kit", "deploy", "digits"]
    process = subprocess.Popen(
        command, cwd=story.project.folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        yield
    finally:
        process.send_signal(signal.SIGINT)
        process.wait()


LACKS = {
    "the quota none of the namespace does not suffice": ("", ""),
    f"no free GPU ({GPU})": ("gpus: 1}", "gpus: 64}"),
    "its volume claim gets no volume": ("1GiB}", "1GiB, storage_class: none-of-this-name}"),
}


@pytest.mark.parametrize("said", LACKS)
def test_what_the_cluster_lacks_is_told(story: Story, said: str) -> None:
    if "quota" in said:
        kubectl("-n", story.namespace, "create", "quota", "none", f"--hard=requests.{GPU}=0")
    text = (story.project.folder / "inventory.yaml").read_text().replace(*LACKS[said])
    story.project.write(text, {"digits": JOB})
    story.kit("render")

    def is_told(job: dict[str, Any]) -> bool:
        return any(said in host["message"] for host in job["hosts"])

    with deploying(story):
        await_that(story.jobs)
        story.await_job(is_told)
    story.kit("stop", "digits")


def own_kubeconfig(story: Story, account: str) -> Path:
    """Return a kubeconfig for a service account without rights."""
    kubectl("-n", story.namespace, "create", "serviceaccount", account)
    token = kubectl("-n", story.namespace, "create", "token", account).strip()
    config = kubectl("config", "view", "--raw", "--minify", "--flatten", "-o", "json")
    config["users"] = [{"name": config["users"][0]["name"], "user": {"token": token}}]
    path = story.project.folder / "kubeconfig.json"
    path.write_text(json.dumps(config))
    return path


def test_the_rendered_role_has_the_rights_that_kit_needs(story: Story) -> None:
    path = own_kubeconfig(story, "ci")
    more = f"1GiB, kubeconfig: {path}, deployers: {{service_accounts: [ci]}}}}"
    text = (story.project.folder / "inventory.yaml").read_text().replace("1GiB}", more)
    story.project.write(text, {"digits": JOB})
    story.kit("render")
    result = kit_process(story.project.folder, "deploy", "digits")
    account = f"system:serviceaccount:{story.namespace}:ci may not"
    assert (result.status, account in result.err, "rbac.yaml" in result.err) == (1, True, True)
    kubectl("apply", "--server-side", "-f", str(story.project.folder / "compose/test/rbac.yaml"))
    story.kit("deploy", "digits", "--dry-run")
    story.kit("deploy", "digits")
    story.await_job(lambda job: job["checkpoint"])
    for words in ("logs digits", "history", "report digits", "shell digits -- true", "top --once"):
        story.kit(*words.split())
    story.kit("stop", "digits")
    story.kit("resume", "digits")
    story.kit("stop", "digits")
