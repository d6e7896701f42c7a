"""The inventory's section `kubernetes`: which cluster, and where kit's objects belong there."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from kit.config.fields import Label, Section, Size, text_field
from kit.errors import INVENTORY, Fault
from kit.model import Kubernetes, Subject
from kit.values import WrongValueError
from trainer.contract.words import shown

LONGEST_NAME = 253
"""Kubernetes rejects longer names (RFC 1123, subdomain)."""
LONGEST_LABEL = 63
LABEL_VALUE = "[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?"
RESOURCE = f"[-a-z0-9.]+/{LABEL_VALUE}"
LABEL_NAME = f"([-a-z0-9.]+/)?{LABEL_VALUE}"
SUBDOMAIN = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"


def _object_name(name: object) -> str:
    if isinstance(name, str) and len(name) <= LONGEST_NAME and re.fullmatch(SUBDOMAIN, name):
        return name
    what = f"{shown(name)} is not the name of an object of Kubernetes"
    raise WrongValueError(what, "use small letters, digits, - and . (`kubectl get` prints names)")


def _context(name: object) -> str:
    if isinstance(name, str) and re.fullmatch(r"\S+( \S+)*", name) and not name.startswith("-"):
        return name
    what = f"{shown(name)} is not the name of a context"
    raise WrongValueError(what, "write one of `kubectl config get-contexts -o name`")


def _product(name: object) -> str:
    if isinstance(name, str) and len(name) <= LONGEST_LABEL and re.fullmatch(LABEL_VALUE, name):
        return name
    what = f"{shown(name)} is not the value of a label"
    raise WrongValueError(what, "write one of `kubectl get nodes -L nvidia.com/gpu.product`")


def _label_name(name: object) -> str:
    if isinstance(name, str) and len(name) <= LONGEST_NAME and re.fullmatch(LABEL_NAME, name):
        return name
    what = f"{shown(name)} is not the name of a label"
    raise WrongValueError(what, "write one of `kubectl get nodes --show-labels`")


def _resource(name: object) -> str:
    if isinstance(name, str) and len(name) <= LONGEST_NAME and re.fullmatch(RESOURCE, name):
        return name
    what = f"{shown(name)} is not the name of a resource, which has a /"
    raise WrongValueError(what, "write one of `kubectl describe node`, section Allocatable")


def _kubeconfig(path: object) -> str:
    if isinstance(path, str) and re.fullmatch(r"(~/|/)\S.*", path):
        return path
    what = f"{shown(path)} is not the path of a file, which begins with / or ~/"
    raise WrongValueError(what, "write for example ~/.kube/training.yaml")


ObjectName = Annotated[
    str, *text_field(_object_name, f"^{SUBDOMAIN}$", "registry-login", "The name of an object")
]
Context = Annotated[
    str, *text_field(_context, r"^[^-\s]", "training", "A context of the kubeconfig")
]
Product = Annotated[str, *text_field(_product, f"^{LABEL_VALUE}$", "Tesla-T4", "A label")]
LabelName = Annotated[
    str,
    *text_field(_label_name, f"^{LABEL_NAME}$", "example.com/rack", "A label's name"),
]
Resource = Annotated[
    str, *text_field(_resource, f"^{RESOURCE}$", "rdma/hca_shared", "A resource of nodes")
]
Kubeconfig = Annotated[
    str, *text_field(_kubeconfig, r"^(/|~/)", "~/.kube/training.yaml", "A file of kubectl")
]


def _subject(name: object) -> str:
    if isinstance(name, str) and re.fullmatch(r"\S+( \S+)*", name):
        return name
    what = f"{shown(name)} is not the name of a user or of a group"
    raise WrongValueError(what, "write it as `kubectl auth whoami` shows it")


SubjectName = Annotated[
    str, *text_field(_subject, r"^\S+( \S+)*$", "ml-team", "A name that the cluster knows")
]


class Deployers(Section):
    """People and programs that may run kit: the subjects of the RoleBinding in `rbac.yaml`."""

    users: list[SubjectName] = Field(
        default=[], description="Users, as `kubectl auth whoami` shows them", examples=[["anna"]]
    )
    groups: list[SubjectName] = Field(
        default=[], description="Groups of users", examples=[["ml-team"]]
    )
    service_accounts: list[ObjectName] = Field(
        default=[],
        description="Service accounts of the namespace, for example of CI",
        examples=[["ci"]],
    )


class NodesSection(Section):
    """A number of equal nodes of Kubernetes in place of `hosts:`; its scheduler chooses them."""

    count: int = Field(ge=1, le=4096, description="Number of nodes", examples=[4])
    gpus: int = Field(1, ge=1, le=64, description="GPUs of each node", examples=[8])
    product: Product | None = Field(
        None,
        description="Model of the GPUs, by the nodes' label `nvidia.com/gpu.product`, which GPU "
        "feature discovery writes; default: any",
        examples=["NVIDIA-H100-80GB-HBM3"],
    )


def with_hosts(section: object) -> object:
    """Return an inventory with hosts for its `nodes`, unless one of the values is wrong."""
    if not isinstance(section, dict) or "nodes" not in section or "hosts" in section:
        return section
    try:
        nodes = NodesSection.model_validate(section["nodes"])
    except ValidationError:
        return {**section, "hosts": {"node1": {"address": "node1"}}}
    name = _name_of(nodes.count)
    model = {"model": nodes.product} if nodes.product else {}
    gpus = [{"index": index, **model} for index in range(nodes.gpus)]
    return {**section, "hosts": {name: {"address": name, "gpus": gpus}}}


def hosts_or_nodes(schema: dict[str, Any]) -> None:
    """Change the schema of an inventory for editors: `nodes` stand for `hosts`."""
    schema["required"].remove("hosts")
    schema["anyOf"] = [{"required": ["hosts"]}, {"required": ["nodes"]}]


def node_faults(nodes: NodesSection | None, engine: str, hosts: Iterable[str]) -> Iterator[Fault]:
    """Reject nodes without names where they have no meaning."""
    if nodes is None:
        return
    if engine != "kubernetes":
        fix = "describe the machines in `hosts:`, or set `engine: kubernetes`"
        yield Fault(INVENTORY, ("nodes",), f"engine {engine} needs hosts with names", fix)
    if list(hosts) != [_name_of(nodes.count)]:
        what = "an inventory has hosts or nodes, not both"
        yield Fault(INVENTORY, ("nodes",), what, "leave out one of them")


def _name_of(count: int) -> str:
    return f"node[1-{count}]" if count > 1 else "node1"


class KubernetesSection(Section):
    """The cluster of `engine: kubernetes`, and the place of the objects there."""

    namespace: Label = Field(
        description="Namespace of all objects. It must exist; kit does not create it",
        examples=["training"],
    )
    context: Context | None = Field(
        None,
        description="Context of the kubeconfig; default: the current one",
        examples=["training"],
    )
    kubeconfig: Kubeconfig | None = Field(
        None,
        description="Default: the one that kubectl finds (`KUBECONFIG`, `~/.kube/config`)",
        examples=["~/.kube/training.yaml"],
    )
    image_pull_secret: ObjectName | None = Field(
        None,
        description="Secret of the namespace with the login of the images' registry",
        examples=["registry-login"],
    )
    storage_class: ObjectName | None = Field(
        None,
        description="Storage class of the volumes with checkpoints; default: the cluster's",
        examples=["shared"],
    )
    storage_size: Size = Field(
        100 * 2**30, description="Size of each job's volume with checkpoints", examples=["100GiB"]
    )
    storage_access: Literal["ReadWriteMany", "ReadWriteOnce"] = Field(
        "ReadWriteMany",
        description="Access mode of these volumes. The hosts of a job share one: `ReadWriteOnce` "
        "suffices for a cluster of one host",
    )
    queue: ObjectName | None = Field(
        None,
        description="LocalQueue of Kueue in the namespace: jobs wait there until its quota admits "
        "them",
        examples=["team-vision"],
    )
    priority_class: ObjectName | None = Field(
        None, description="WorkloadPriorityClass of Kueue for the jobs", examples=["research"]
    )
    job_kind: Literal["Job", "JobSet", "TrainJob"] = Field(
        "Job",
        description="The object of a job: a `Job` of Kubernetes itself, a `JobSet`, or a "
        "`TrainJob` of Kubeflow Trainer. The cluster must have the last two",
    )
    device_class: ObjectName | None = Field(
        None,
        description="DeviceClass of NVIDIA's DRA driver, which the cluster must have: a workload "
        "that gets some GPUs of a host then gets those of the inventory, by `uuid:`",
        examples=["gpu.nvidia.com"],
    )
    topology: LabelName | None = Field(
        None,
        description="Label of nodes whose value is the same for nodes that are close to each "
        "other: the hosts of a job prefer those. With `queue`, Kueue chooses them, and the "
        "ResourceFlavor of its queue needs a topology with this level",
        examples=["example.com/rack"],
    )
    rdma: Resource | None = Field(
        None,
        description="Resource of a device plugin for InfiniBand and RoCE, one of which each host "
        "of a job gets with `network: {infiniband: true}`",
        examples=["rdma/hca_shared_devices_a"],
    )
    prometheus_operator: bool = Field(
        False,
        description="Render a PodMonitor and the alerts for Prometheus Operator, which the "
        "cluster must have; jobs then have metrics",
    )
    deployers: Deployers | None = Field(
        None,
        description="People and programs that may run kit. `rbac.yaml` gives them the fewest "
        "rights that suffice; an administrator applies it",
    )


def to_kubernetes(
    section: KubernetesSection | None, nodes: NodesSection | None = None
) -> Kubernetes | None:
    """Convert the validated sections to a value."""
    if section is None:
        return None
    return Kubernetes(
        context=section.context,
        kubeconfig=section.kubeconfig,
        namespace=section.namespace,
        image_pull_secret=section.image_pull_secret,
        storage_class=section.storage_class,
        storage_size=section.storage_size,
        storage_access=section.storage_access,
        deployers=tuple(_subjects(section.deployers)),
        queue=section.queue,
        priority_class=section.priority_class,
        job_kind=section.job_kind,
        device_class=section.device_class,
        prometheus_operator=section.prometheus_operator,
        topology=section.topology,
        rdma=section.rdma,
        pool=nodes is not None,
        product=nodes.product if nodes else None,
    )


def _subjects(section: Deployers | None) -> Iterator[Subject]:
    if section is None:
        return
    yield from (Subject("User", each) for each in section.users)
    yield from (Subject("Group", each) for each in section.groups)
    yield from (Subject("ServiceAccount", each) for each in section.service_accounts)
