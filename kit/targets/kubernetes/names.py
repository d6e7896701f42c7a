"""The names and labels of objects in Kubernetes, and its limits for them. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from kit.errors import Fault
from kit.model import Kubernetes
from kit.plan.storage import volume_name
from kit.values import count
from kit.workload.names import stack_of_job
from kit.workload.settings import Config
from kit.workload.types import Kind, Role, Workload

LONGEST_NAME = 63
"""Names of Services, hostnames of pods and values of labels are DNS labels."""
MANAGER = "kit"
"""The manager of the fields that kit applies, and the value of the label `managed-by`."""
LABELS = "app.kubernetes.io"
PART_OF = f"{LABELS}/part-of"
INSTANCE = f"{LABELS}/instance"
COMPONENT = f"{LABELS}/component"
MANAGED_BY = f"{LABELS}/managed-by"
CHECKPOINTS = "checkpoints"
"""The component of the volume claims of jobs, which `kit stop` keeps."""
NODE = "node"
"""Kubeflow Trainer's name for the Job of the hosts, and for its container."""
OWNER = "kit.owner"
"""The annotation of a Job with the object that makes it, by its name for kubectl."""
KUEUE = "kueue.x-k8s.io"
MAKERS = {
    "JobSet": ("jobsets.jobset.x-k8s.io",),
    "TrainJob": ("trainjobs.trainer.kubeflow.org", "trainingruntimes.trainer.kubeflow.org"),
}
"""The kinds of objects that make Jobs, with the resources that kit applies for each."""
MONITORS = ("podmonitors.monitoring.coreos.com", "prometheusrules.monitoring.coreos.com")
DEVICES = "resourceclaimtemplates.resource.k8s.io"
INDEX = "batch.kubernetes.io/job-completion-index"
FILE = "kit.file"
"""The annotation with the hash of a rendered file."""


def labels_of(cluster: str, workload: Workload) -> tuple[tuple[str, str], ...]:
    """Return the labels of all objects of a workload."""
    return (
        (f"{LABELS}/name", workload.name),
        (INSTANCE, workload.stack),
        (PART_OF, cluster),
        (MANAGED_BY, MANAGER),
    )


def queue_labels(settings: Kubernetes) -> tuple[tuple[str, str], ...]:
    """Return the labels of Jobs that wait in a queue of Kueue."""
    pairs = (("queue-name", settings.queue), ("priority-class", settings.priority_class))
    return tuple((f"{KUEUE}/{name}", value) for name, value in pairs if value)


def extras(settings: Kubernetes) -> tuple[str, ...]:
    """Return the resources of the objects that only some inventories have, with their groups."""
    return (
        *MAKERS.get(settings.job_kind, ()),
        *((DEVICES,) if settings.device_class else ()),
        *(MONITORS if settings.prometheus_operator else ()),
    )


def shared_stack(cluster: str) -> str:
    """Return the instance of the objects that all workloads share."""
    return f"kit-{cluster}"


def rendezvous_name(job: str) -> str:
    """Return the name of the Service, and of the Job, at which a job's hosts meet."""
    return f"{stack_of_job(job)}-{Role.RENDEZVOUS}"


def claim_name(job: str) -> str:
    """Return the name of the volume claim with a job's checkpoints."""
    return f"{stack_of_job(job)}-{CHECKPOINTS}"


def secret_name(workload: Workload) -> str:
    """Return the name of the Secret with a workload's secrets."""
    return secret_of(workload.stack)


def secret_of(stack: str) -> str:
    """Return the name of the Secret of a stack."""
    return f"{stack}-secrets"


def own_volume(cluster: str, source: str) -> str:
    """Return the name of a volume of kit's without its prefix, or "" for a volume of the user's."""
    prefix = volume_name(cluster, "")
    return source.removeprefix(prefix) if source.startswith(prefix) else ""


def config_keys(configs: Sequence[Config]) -> Mapping[str, str]:
    """Return the keys of files in their ConfigMaps, by the keys of the configs."""
    return {config.key: config.target.rpartition("/")[2] for config in configs}


def service_names(server: str, namespace: str) -> tuple[str, ...]:
    """Return the names by which clients in the cluster reach a server, the usual one first."""
    short = f"{server}.{namespace}"
    return (f"{short}.svc", short, f"{short}.svc.cluster.local", server)


def title_faults(
    workloads: Sequence[Workload], titles: Mapping[str, Sequence[str]]
) -> Iterator[Fault]:
    """Reject workloads with objects of one kind and name; `titles` are those by workload."""
    owners: dict[str, str] = {}
    for workload in sorted(workloads, key=lambda each: each.name):
        own, kind = titles.get(workload.name, ()), workload.kind
        if title := next((each for each in own if each in owners), ""):
            what = f"{kind} {owners[title]} ({{line}}) has a {title} in Kubernetes too"
            fix = f"rename one of the two files: a {kind} has the name of its file"
            yield Fault(workload.name, (), what, fix, (), owners[title])
        owners.update(dict.fromkeys(own, workload.name))


def name_faults(workloads: Sequence[Workload], jobs: Mapping[str, str]) -> Iterator[Fault]:
    """Reject names that Kubernetes would reject; `jobs` are the longest pods' names by workload."""
    for workload in workloads:
        names = [jobs.get(workload.name, ""), secret_name(workload) if workload.secrets else ""]
        if workload.kind is Kind.JOB:
            names += [claim_name(workload.name), rendezvous_name(workload.name)]
        longest = max(names, key=len)
        if len(longest) > LONGEST_NAME:
            over = count(len(longest) - LONGEST_NAME, "letter")
            what = f"{longest} is too long a name in Kubernetes (at most {LONGEST_NAME})"
            yield Fault(workload.name, (), what, f"shorten the {workload.kind}'s name by {over}")
