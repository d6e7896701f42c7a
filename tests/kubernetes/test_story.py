"""A job and a server on the cluster that KUBECONFIG names: deploy, lost pods, resume, rollout.

`make test-kubernetes` runs it in a namespace of its own, which it removes. The nodes must offer
nvidia.com/gpu, real or pretended, and have or get the image KIT_KUBERNETES_IMAGE.
"""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest

from kit.targets.kubernetes.names import MAKERS, MANAGED_BY, PART_OF
from tests.kubernetes.cluster import (
    COMPONENT,
    IMAGE,
    JOB,
    OF_THE_JOB,
    RESTRICTED,
    UNPRIVILEGED,
    Story,
    await_that,
    json_file,
    kubectl,
)
from tests.sandbox import kit_process

pytestmark = pytest.mark.kubernetes
DRIVER = "gpu.nvidia.com"
WEB = """\
import http.server, signal, sys, threading
class Web(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"VERSION")
    def log_message(self, *words):
        pass
server = http.server.ThreadingHTTPServer(("", 8080), Web)
signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown).start())
server.serve_forever()
"""
CLIENT = """\
import sys, time, urllib.request
seen = set()
while seen != {"one", "two"}:
    with urllib.request.urlopen("http://serve-web:8080/", timeout=10) as answer:
        seen.add(answer.read().decode())
    print(len(seen), flush=True)
    time.sleep(0.02)
for _ in range(500):
    urllib.request.urlopen("http://serve-web:8080/", timeout=10).read()
    time.sleep(0.02)
"""
"""Fails at the first lost request; ends some seconds after both versions have answered."""


def test_a_job_survives_its_pods_and_leaves_nothing(story: Story) -> None:
    assert "apply train-digits" in story.kit("deploy", "digits", "--dry-run").out
    assert story.objects("jobs,deployments,services") == []  # Nothing was changed.
    story.kit("deploy", "digits")
    number = len(story.hosts)
    job = story.await_world(number)
    assert {host["host"] for host in job["hosts"]} == set(story.hosts)
    assert "runs already" in story.kit("deploy", "digits").out
    assert "train" in story.kit("shell", "digits", "--", "cat", "/proc/1/cmdline").out

    # As when its node is drained: without another coordinator, no host would join below.
    meets = ("-n", story.namespace, "get", "pods", "-l", "job-name=train-digits-rendezvous")
    first = kubectl(*meets, "-o", "name")
    kubectl("-n", story.namespace, "delete", first.strip())
    await_that(lambda: kubectl(*meets, "-o", "name") not in {"", first})
    await_that(lambda: kubectl(*meets, "-o=jsonpath={.items[*].status.phase}") == "Running")
    serves = ("-n", story.namespace, "logs", "-l", "job-name=train-digits-rendezvous")
    await_that(lambda: "found the running group" in kubectl(*serves))
    lost = story.hosts[-1]
    pods = kubectl("-n", story.namespace, "get", "pods", "-o", "json")["items"]
    (pod,) = [
        each["metadata"]["name"]
        for each in pods
        if each["spec"]["nodeName"] == lost and "train" in each["spec"]["containers"][0]["name"]
    ]
    kubectl("-n", story.namespace, "delete", "pod", pod, "--wait=false")
    story.await_world(number - 1)
    story.await_world(number)
    print(f"longest time between two steps: {story.gaps():.1f} s")

    kubectl("-n", story.namespace, "delete", "job/train-digits-rendezvous")
    before = story.job()["progress"]["step"]
    story.await_job(lambda job: job["progress"]["step"] > before)  # It trains on.
    assert (
        "job/train-digits-rendezvous is missing" in story.kit("deploy", "digits", "--dry-run").out
    )
    story.kit("deploy", "digits")

    story.await_job(lambda job: job["checkpoint"])
    said = story.kit("stop", "digits").out
    assert "digits stopped after" in said
    stopped = story.job()
    assert stopped["state"] == "stopped"
    kinds = "pods,jobs,deployments,services,networkpolicies,poddisruptionbudgets,secrets"
    story.await_job(lambda _: story.objects(kinds) == [])
    # Others are the history and the namespace's own.
    story.await_job(lambda _: story.objects("configmaps", *OF_THE_JOB) == [])
    assert story.objects("pvc") == ["persistentvolumeclaim/train-digits-checkpoints"]

    story.kit("resume", "digits")
    step = int(stopped["checkpoint"].rpartition("-")[2])
    resumed = story.await_job(lambda job: job["state"] == "running" and job["progress"])
    assert resumed["progress"]["step"] >= step
    story.kit("stop", "digits")
    remove_everything(story)


def remove_everything(story: Story) -> None:
    """Delete what `kit stop` leaves, as the page says; nothing stays."""
    kinds = "pvc,configmap,secret,role,rolebinding"
    own = ("-l", f"{MANAGED_BY}=kit,{PART_OF}=test")
    kubectl("-n", story.namespace, "delete", kinds, *own)
    await_that(lambda: not story.objects(f"{kinds},pods,jobs,deployments,services", *own))
    assert story.objects("pvc") == []


@pytest.mark.parametrize(("kind", "resource"), [("JobSet", "jobsets"), ("TrainJob", "trainjobs")])
def test_the_same_job_is_one_object(story: Story, kind: str, resource: str) -> None:
    if f"{resource}." not in kubectl("api-resources", "-o", "name"):
        pytest.skip(f"the cluster has no {kind}: its controller is not installed")
    inventory = (story.project.folder / "inventory.yaml").read_text()
    inventory = inventory.replace("1GiB}", f"1GiB, job_kind: {kind}}}")
    story.project.write(inventory, {"digits": JOB}).kit("render")
    owner = f"{kind.lower()}/train-digits"
    assert "apply train-digits" in story.kit("deploy", "digits", "--dry-run").out
    story.kit("deploy", "digits")
    number = len(story.hosts)
    story.await_world(number)
    story.await_job(lambda job: job["checkpoint"])
    assert "runs already" in story.kit("deploy", "digits").out

    lost = kubectl("-n", story.namespace, "get", "pods", "-o", "name", "-l", COMPONENT + "=train")
    kubectl("-n", story.namespace, "delete", lost.split()[0], "--wait=false")
    story.await_world(number - 1)
    story.await_world(number)
    print(f"{kind}: longest time between two steps: {story.gaps():.1f} s")

    # Everything is told to end at once; the hosts save all the same, and a new one continues.
    saved = story.job()["progress"]["step"]
    kubectl("-n", story.namespace, "delete", owner, "--cascade=background")
    await_that(lambda: not story.objects("pods"))
    story.kit("deploy", "digits")
    resumed = story.await_job(lambda job: job["progress"])
    assert resumed["progress"]["step"] >= saved

    story.project.write(None, {"digits": JOB.replace("keep: 2", "keep: 3")}).kit("render")
    assert f"end {owner}" in story.kit("deploy", "digits").out
    story.await_world(number)
    story.kit("stop", "digits")
    kinds = "pods,jobs,services,networkpolicies,poddisruptionbudgets"
    kinds = ",".join((*MAKERS[kind], kinds))  # Also the runtime of a TrainJob.
    story.await_job(lambda _: story.objects(kinds) == [])
    story.await_job(lambda _: story.objects("configmaps", *OF_THE_JOB) == [])


def gpus_by_claim() -> dict[str, list[str]]:
    """The UUIDs of the GPUs that NVIDIA's DRA driver, or one that plays it, offers by node."""
    if "resourceslices." not in kubectl("api-resources", "-o", "name"):
        return {}
    found: dict[str, list[str]] = {}
    for each in kubectl("get", "resourceslices", "-o", "json")["items"]:
        spec = each["spec"]
        for device in spec["devices"] if spec["driver"] == DRIVER else ():
            found.setdefault(spec["nodeName"], []).append(device["attributes"]["uuid"]["string"])
    return found


def test_a_split_moves_gpus_by_uuid(story: Story) -> None:
    divided = {node: uuids for node, uuids in gpus_by_claim().items() if len(uuids) > 1}
    if not divided:
        pytest.skip(f"no node offers two GPUs by the DRA driver {DRIVER}")
    (node, (one, other, *_)), *_ = divided.items()
    gpus = f"[{{uuid: {one}}}, {{uuid: {other}, use: inference}}]"
    section = f"{{namespace: {story.namespace}, storage_size: 1GiB, device_class: {DRIVER}}}"
    inventory = f"cluster: test\nengine: kubernetes\nkubernetes: {section}\nhosts:\n"
    inventory += f"  {node}: {{address: {node}, gpus: {gpus}}}\n"
    story.project.write(inventory, {"digits": JOB}, {"web": web("one")})
    story.kit("render")
    story.kit("deploy")
    assert story.await_job(has_seen)["hosts"][0]["seen"] == [one]
    assert "WRONG GPUs" not in story.kit("status").out
    story.kit("split", "--train", other, "--infer", one, "--yes")
    story.kit("render")
    story.kit("deploy")
    assert story.await_job(has_seen)["hosts"][0]["seen"] == [other]
    templates = story.objects("resourceclaimtemplates")
    assert len(templates) == 2, templates  # Those of before are gone.


def has_seen(job: dict[str, Any]) -> bool:
    return bool(job["hosts"] and job["hosts"][0]["seen"] and job["progress"])


def test_a_mistake_in_the_job_is_told_and_removed(story: Story) -> None:
    job = JOB.replace("dataset: digits", "dataset: mnist")  # Its files are not in /data.
    story.project.write(None, {"digits": job}).kit("render")
    result = kit_process(story.project.folder, "deploy", "digits")
    assert result.status == 1
    assert "it was ended, because no restart can help" in result.err
    assert story.objects("jobs,deployments") == []


def test_an_image_that_is_not_there_is_told(story: Story) -> None:
    job = JOB.replace(IMAGE, "registry.invalid/none:1")
    story.project.write(None, {"digits": job}).kit("render")
    result = kit_process(story.project.folder, "deploy", "digits")
    assert result.status == 1
    assert "the node cannot get the image" in result.err
    story.kit("stop", "digits")


def test_what_others_have_changed_is_told(story: Story) -> None:
    story.kit("deploy", "digits")
    words = ("job/train-digits-rendezvous", "--field-manager=anna")
    kubectl("-n", story.namespace, "patch", *words, '-p={"spec":{"backoffLimit":2}}')
    result = kit_process(story.project.folder, "deploy", "digits")
    assert (result.status, "anna has changed .spec.backoffLimit" in result.err) == (1, True)
    story.kit("stop", "digits")


def web(version: str) -> str:
    words = json.dumps(["python3", "-c", WEB.replace("VERSION", version)])
    return f'image: {IMAGE}\ncommand: {words}\nport: 8080\nuser: "65534:65534"\nhealth: /\n'


def client(namespace: str) -> dict[str, Any]:
    """A pod that asks the server until it has answered by both versions."""
    container = {
        "name": "client",
        "image": IMAGE,
        "command": ["python3", "-c", CLIENT],
        "securityContext": UNPRIVILEGED,
    }
    spec = {"restartPolicy": "Never", "securityContext": RESTRICTED, "containers": [container]}
    meta = {"name": "client", "namespace": namespace}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}


def test_a_server_is_replaced_without_a_lost_request(story: Story) -> None:
    inventory = story.project.folder / "inventory.yaml"
    serves = inventory.read_text().replace("gpus: 1", "gpus: [{index: 0, use: inference}]")
    story.project.write(serves, {}, {"web": web("one")})
    story.kit("render")
    story.kit("deploy")
    kubectl("apply", "-f", json_file(story, client(story.namespace)))
    phase = partial(
        kubectl, "-n", story.namespace, "get", "pod/client", "-o=jsonpath={.status.phase}"
    )
    await_that(lambda: phase() == "Running" and kubectl("-n", story.namespace, "logs", "client"))
    story.project.write(None, {}, {"web": web("two")})
    story.kit("render")
    story.kit("deploy")
    await_that(lambda: phase() != "Running")
    assert phase() == "Succeeded", kubectl("-n", story.namespace, "logs", "client")
    story.kit("stop", "serve-web")


def test_the_files_alone_suffice(story: Story) -> None:
    tree = story.project.folder / "compose" / "test"

    def apply(job: str) -> None:
        story.project.write(None, {"digits": job})
        story.kit("render")
        kubectl("apply", "--server-side", "--field-manager=kit", "-k", str(tree))

    def has(condition: str, job: str) -> bool:
        words = ("-n", story.namespace, "get", f"job/{job}", "-o", "json")
        conditions = kubectl(*words)["status"].get("conditions", ())
        return any((each["type"], each["status"]) == (condition, "True") for each in conditions)

    apply(JOB.replace("epochs: 3000", "epochs: 3"))
    await_that(lambda: has("Complete", "train-digits"))
    await_that(lambda: has("Complete", "train-digits-rendezvous"))
    story.kit("stop", "digits")
    apply(JOB.replace("dataset: digits", "dataset: mnist"))  # Its files are not in /data.
    await_that(lambda: has("Failed", "train-digits"))
