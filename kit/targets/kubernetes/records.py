"""The records of a job's runs, which are in its volume claim: a program in a pod prints them."""

from __future__ import annotations

import base64
import binascii
import tarfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kit.errors import KitError
from kit.plan.storage import CHECKPOINTS
from kit.runtime.record_files import FOLDER, RecordFile, unpacked
from kit.targets.kubernetes.kubectl import Kubectl
from kit.targets.kubernetes.names import COMPONENT, MANAGED_BY, MANAGER, PART_OF

PROGRAM = f"""\
import base64, io, os, tarfile
out = io.BytesIO()
with tarfile.open(fileobj=out, mode="w:gz") as tar:
    if os.path.isdir("{CHECKPOINTS}/{FOLDER}"):
        tar.add("{CHECKPOINTS}/{FOLDER}", ".")
text = base64.b64encode(out.getvalue()).decode()
for at in range(0, len(text), 4096):
    print(text[at:at + 4096])
"""
"""Lines of text: they come through the log of a pod as through `kubectl exec`."""
READ = 60.0
"""Seconds for the records to come, and for a pod to start that reads them."""
KEPT = 600
"""Seconds after which the cluster deletes a Job that kit could not delete."""
POLL = 0.5


def from_pod(kubectl: Kubectl, pod: str) -> tuple[RecordFile, ...]:
    """Read the records in a pod that runs.

    Raises:
        KitError: It cannot be asked.
    """
    return files_of(kubectl.run("exec", pod, "--", "python3", "-c", PROGRAM, seconds=READ))


def from_claim(
    kubectl: Kubectl, cluster: str, objects: Sequence[Mapping[str, Any]]
) -> tuple[RecordFile, ...]:
    """Read the records of a job that does not run, in a Job of its own with the same claim.

    Raises:
        KitError: It does not complete.
    """
    reader = reader_of(cluster, objects)
    name = f"job/{reader['metadata']['name']}"
    kubectl.create(reader)
    try:
        deadline = time.monotonic() + READ
        while not (kubectl.read(name).get("status") or {}).get("succeeded"):
            if time.monotonic() > deadline:
                what = f"{name} has not read the records of the job within {READ:.0f} s"
                raise KitError(what, "see why: kubectl get events; then try again")
            time.sleep(POLL)
        return files_of(kubectl.run("logs", name, seconds=READ))
    finally:
        kubectl.run("delete", name, "--cascade=background", "--ignore-not-found", "--wait=false")


def reader_of(cluster: str, objects: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the Job that reads what the pods among these objects mount as their checkpoints.

    Raises:
        KitError: They mount none.
    """
    pod, volume = next(_with_checkpoints(objects), (None, {}))
    if pod is None or "persistentVolumeClaim" not in volume:
        raise KitError("the job keeps no checkpoints, and no records, in a volume claim")
    (container,) = pod["containers"]
    labels = {PART_OF: cluster, MANAGED_BY: MANAGER, COMPONENT: "reader"}
    security = container["securityContext"] | {"readOnlyRootFilesystem": True}
    reads = {
        "name": "read",
        "image": container["image"],
        "command": ["python3", "-c", PROGRAM],
        "securityContext": security,
        "resources": {"limits": {"cpu": "1", "memory": "512Mi"}},
        "volumeMounts": [{"name": volume["name"], "mountPath": CHECKPOINTS, "readOnly": True}],
    }
    copied = ("securityContext", "imagePullSecrets", "automountServiceAccountToken")
    spec = {key: pod[key] for key in copied if key in pod}
    spec |= {"restartPolicy": "Never", "containers": [reads], "volumes": [volume]}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": f"kit-read-{uuid.uuid4().hex[:8]}", "labels": labels},
        "spec": {
            "backoffLimit": 2,
            "ttlSecondsAfterFinished": KEPT,
            "template": {"metadata": {"labels": labels}, "spec": spec},
        },
    }


def _with_checkpoints(value: Any) -> Iterator[tuple[Mapping[str, Any], dict[str, Any]]]:
    """Yield the specs of pods that mount checkpoints, wherever they are, with that volume."""
    if isinstance(value, Mapping):
        for container in value.get("containers") or ():
            for mount in container.get("volumeMounts") or ():
                if mount["mountPath"] == CHECKPOINTS:
                    yield value, next(e for e in value["volumes"] if e["name"] == mount["name"])
        value = tuple(value.values())
    if isinstance(value, (list, tuple)):
        for each in value:
            yield from _with_checkpoints(each)


def files_of(text: str) -> tuple[RecordFile, ...]:
    """Return the files in the output of the program.

    Raises:
        KitError: It is not whole: the log of the pod has lost its beginning.
    """
    try:
        return tuple(unpacked("", base64.b64decode("".join(text.split()), validate=True)))
    except (binascii.Error, tarfile.TarError, EOFError, OSError) as error:
        hint = "copy them from a pod that mounts the claim: kubectl cp"
        raise KitError(f"the records came incomplete: {error}", hint) from None
