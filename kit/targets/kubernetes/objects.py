"""Objects of Kubernetes as their templates print them. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from kit.workload.settings import Config
from kit.workload.types import Part, Workload


@dataclass(frozen=True, slots=True)
class EnvVariable:
    """A variable of a container: a `value`, a `field` of the pod, or a key of the Secret `secret`.

    `why` is a comment.
    """

    name: str
    value: str = ""
    field: str = ""
    secret: str = ""
    why: str = ""


@dataclass(frozen=True, slots=True)
class PodVolume:
    """A volume of a pod. `why` is a comment.

    `kind` is `claim` (`source` is its name), `config` (`source` is the key of the file), `empty`,
    or `memory` (`size` is a quantity).
    """

    name: str
    kind: str
    source: str = ""
    size: str = ""
    read_only: bool = False
    why: str = ""


@dataclass(frozen=True, slots=True)
class Mounted:
    """A mount of a container; `key` is a file of the volume, "" for all of it."""

    volume: str
    path: str
    read_only: bool
    key: str = ""


@dataclass(frozen=True, slots=True)
class NamedPort:
    """A port of a container, with its name."""

    name: str
    number: int


@dataclass(frozen=True, slots=True)
class Probe:
    """A check of a container: a `command`, or a GET of `path` at a port. Times are in seconds."""

    kind: str
    command: tuple[str, ...] = ()
    path: str = ""
    port: str = ""
    period: int = 10
    timeout: int = 5
    failures: int = 3
    delay: int = 0
    why: str = ""


@dataclass(frozen=True, slots=True)
class DeviceClaim:
    """The template of a claim, by which each pod gets `count` GPUs among those with these UUIDs."""

    name: str
    device_class: str
    count: int
    uuids: tuple[str, ...]


def literal(text: str) -> str:
    """Escape what Kubernetes would change: `$(NAME)` is a variable, and `$$` is `$`."""
    return text.replace("$", "$$") if "$$" in text or "$(" in text else text


@dataclass(frozen=True, slots=True)
class Pod:
    """The template of a pod with one container, whose name is `container`.

    `hosts` are the nodes that may run it; none: any node, with GPUs of the `product` unless it is
    "". `apart`: a node runs at most one. `gpus` are those of
    each pod. `limits` and `requests` are quantities by resource. `linger` are the seconds in which
    it still answers before it receives SIGTERM, within `grace`, None for the default. `devices`
    claims its GPUs by UUID; without it, `limits` has their number. `near` is the label of nodes of
    which the pods prefer those with the same value. `capabilities` are those that it needs beyond
    Pod Security “restricted”.
    """

    part: Part
    component: str
    container: str
    hosts: tuple[str, ...]
    gpus: int
    user: str
    group: str
    environment: tuple[EnvVariable, ...]
    volumes: tuple[PodVolume, ...]
    mounts: tuple[Mounted, ...]
    ports: tuple[NamedPort, ...]
    probes: tuple[Probe, ...]
    limits: tuple[tuple[str, str], ...]
    requests: tuple[tuple[str, str], ...]
    pull_secret: str
    product: str
    apart: bool
    linger: int
    grace: int | None
    devices: DeviceClaim | None = None
    near: str = ""
    capabilities: tuple[str, ...] = ()
    annotations: tuple[tuple[str, str], ...] = ()

    @property
    def command(self) -> tuple[str, ...]:
        """The program that its container runs."""
        return tuple(map(literal, self.part.launch))

    @property
    def arguments(self) -> tuple[str, ...]:
        """The arguments of the program, or of the image's own."""
        return tuple(map(literal, self.part.arguments))

    @property
    def configs(self) -> tuple[Config, ...]:
        """The files that it mounts."""
        return self.part.configs


@dataclass(frozen=True, slots=True)
class Group:
    """Equal pods: an Indexed Job, or a Deployment.

    `most_failed` is the number of pods that may fail for good, `enough` the number of completed
    pods that completes a job, 0 for all. `hopeless` are exit statuses after which a pod is not
    replaced.
    """

    name: str
    pod: Pod
    replicas: int
    most_failed: int = 0
    enough: int = 0
    hopeless: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Claim:
    """The volume claim of a job's checkpoints; `size` is a quantity, `storage_class` may be ""."""

    name: str
    access: str
    storage_class: str
    size: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """The values of a workload's file. `open_ports` are those that any pod may reach.

    `kind` is that of the object that trains or answers, `owner` its name for kubectl if it makes
    Jobs: the names of its groups are then those of the Jobs in it.
    `coordinator` is that of a job with its Service's name, None without a rendezvous. `queued`
    are the labels by which Kueue knows the Jobs; `resizes`: it lets running ones have other numbers
    of pods. A drain leaves the `least` pods of a job, 0 for a job that needs all.
    """

    workload: Workload
    labels: tuple[tuple[str, str], ...]
    annotations: tuple[tuple[str, str], ...]
    groups: tuple[Group, ...]
    open_ports: tuple[NamedPort, ...]
    kind: str = "Job"
    owner: str = ""
    coordinator: Group | None = None
    claim: Claim | None = None
    queued: tuple[tuple[str, str], ...] = ()
    least: int = 0
    resizes: bool = False
