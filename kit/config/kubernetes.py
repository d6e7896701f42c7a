"""The inventory's section `kubernetes`: which cluster, and where kit's objects belong there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from kit.config.fields import Label, Section, Size, text_field
from kit.model import Kubernetes, Subject
from kit.values import WrongValueError
from trainer.contract.words import shown

LONGEST_NAME = 253
"""Kubernetes rejects longer names (RFC 1123, subdomain)."""
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
    deployers: Deployers | None = Field(
        None,
        description="People and programs that may run kit. `rbac.yaml` gives them the fewest "
        "rights that suffice; an administrator applies it",
    )


def to_kubernetes(section: KubernetesSection | None) -> Kubernetes | None:
    """Convert the validated section to a value."""
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
    )


def _subjects(section: Deployers | None) -> Iterator[Subject]:
    if section is None:
        return
    yield from (Subject("User", each) for each in section.users)
    yield from (Subject("Group", each) for each in section.groups)
    yield from (Subject("ServiceAccount", each) for each in section.service_accounts)
