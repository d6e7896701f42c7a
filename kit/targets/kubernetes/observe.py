"""Queries of a namespace: kit's objects with their pods, and the rendered ones."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from kit.errors import InputError
from kit.runtime.rendered import rendered
from kit.targets.kubernetes.decide import Wanted
from kit.targets.kubernetes.errors import KubectlError
from kit.targets.kubernetes.kubectl import Kubectl
from kit.targets.kubernetes.lower import KUSTOMIZATION, ROLE
from kit.targets.kubernetes.names import (
    COMPONENT,
    FILE,
    INSTANCE,
    MANAGED_BY,
    MANAGER,
    PART_OF,
)
from kit.targets.kubernetes.reasons import refused
from kit.targets.kubernetes.state import Namespace, Object, read_object, read_pod
from kit.workload.types import Role

KINDS = "jobs.batch,deployments.apps,services,poddisruptionbudgets.policy,configmaps,pods"
"""The kinds that kit queries; each workload always has its other objects, under the same names."""
APPLY = ("apply", "--server-side", f"--field-manager={MANAGER}")
COMPARED = 60.0
"""Seconds for the comparison of a workload's objects, one after the other."""
Objects = Mapping[str, tuple[dict[str, Any], ...]]
"""The rendered objects of each workload's stack."""


def connect(tree: Path) -> Kubectl:
    """Return the calls of kubectl for a rendered tree.

    Raises:
        InputError: The tree was rendered for another engine.
    """
    settings = rendered(tree).kubernetes
    if settings is None or not (tree / KUSTOMIZATION).is_file():
        what = f"{tree / KUSTOMIZATION} is not there: the files are for another engine"
        raise InputError(what, "write `engine: kubernetes` in the inventory, run `kit render`")
    return Kubectl(settings, tree / ROLE)


def selector(cluster: str, stack: str = "") -> str:
    """Return the selector of kit's objects of a cluster, or of one workload."""
    own = f",{INSTANCE}={stack}" if stack else ""
    return f"--selector={MANAGED_BY}={MANAGER},{PART_OF}={cluster}{own}"


def observe(kubectl: Kubectl, cluster: str) -> Namespace:
    """Return the objects and the pods of a cluster of kit in the namespace."""
    kinds = ",".join((KINDS, *kubectl.extras))
    found = kubectl.read(kinds, selector(cluster))["items"]
    pods = [each for each in found if each["kind"] == "Pod"]
    others = [each for each in found if each["kind"] != "Pod"]
    namespace = Namespace(tuple(map(read_object, others)), tuple(map(read_pod, pods)))
    if not namespace.lacks_pods:
        return namespace
    return replace(namespace, refused=_refused(kubectl))


def _refused(kubectl: Kubectl) -> Mapping[str, str]:
    """Return why controllers could not create pods, by the names of their objects."""
    chosen = "--field-selector=reason=FailedCreate,type=Warning"
    with suppress(KubectlError):  # The reason is not worth a failure.
        events = kubectl.read("events", chosen)["items"]
        return {each["involvedObject"]["name"]: refused(each["message"]) for each in events}
    return {}


def rendered_objects(kubectl: Kubectl, tree: Path) -> Objects:
    """Return the objects of a rendered tree, as kustomize builds them."""
    built = yaml.safe_load_all(kubectl.run("kustomize", str(tree)))
    by_stack: dict[str, list[dict[str, Any]]] = {}
    for each in built:
        by_stack.setdefault(each["metadata"]["labels"][INSTANCE], []).append(each)
    return {stack: tuple(objects) for stack, objects in by_stack.items()}


def listed(objects: Sequence[Mapping[str, Any]]) -> str:
    """Return objects as one document for kubectl."""
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})


def wanted_of(objects: Sequence[Mapping[str, Any]]) -> Wanted:
    """Return the hash of the file of these objects, and their names."""
    notes = (each["metadata"].get("annotations") or {} for each in objects)
    version = next(own[FILE] for own in notes if FILE in own)
    return Wanted(version, frozenset(map(title_of, objects)))


def title_of(document: Mapping[str, Any]) -> str:
    """Return the name of an object for kubectl."""
    return f"{document['kind'].lower()}/{document['metadata']['name']}"


def by_hand(kubectl: Kubectl, objects: Sequence[Mapping[str, Any]]) -> str:
    """Return the changes of others in objects that kit has applied, or "".

    Raises:
        KubectlError: Others have taken fields over.
    """
    words = ("diff", "--server-side", f"--field-manager={MANAGER}", "--filename=-")
    try:
        kubectl.run(*words, stdin=listed(objects), seconds=COMPARED)
    except KubectlError as error:
        if error.status != 1 or error.stderr.strip():
            raise
        return "changed by hand"
    return ""


def resizes(
    kubectl: Kubectl, works: Sequence[Object], objects: Sequence[Mapping[str, Any]]
) -> bool:
    """Return whether Kubernetes can change the running Jobs `works` into those of a file.

    An Indexed Job can have another number of pods since Kubernetes 1.27, but no other template.

    Raises:
        KubectlError: It has refused them for another reason.
    """
    jobs = [each for each in objects if each["kind"] == "Job" and _trains(each["metadata"])]
    there = {each.name for each in works if each.kind == "Job" and not (each.ended or each.owner)}
    if not jobs or there != {each["metadata"]["name"] for each in jobs} or len(there) < len(works):
        return False
    try:
        words = (*APPLY, "--dry-run=server", "--filename=-")
        kubectl.run(*words, stdin=listed(jobs), seconds=COMPARED)
    except KubectlError as error:
        if error.unchangeable:
            return False
        raise
    return True


def _trains(meta: Mapping[str, Any]) -> bool:
    return bool(meta["labels"][COMPONENT] == Role.TRAIN)
