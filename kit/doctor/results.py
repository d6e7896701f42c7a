"""The results of the containers that the doctor starts on the hosts. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TrialContainer:
    """A container with the options of a task, without GPUs, on a host.

    `image` is "" if no image of the plan is on the host, `fault` the error if it did not start.
    Sizes in bytes; `files` is the limit of open files, `gpus` the number of devices that it sees.
    """

    host: str
    image: str
    fault: str = ""
    shm: int = 0
    files: int = 0
    gpus: int = 0
    udp_fault: str = ""


@dataclass(frozen=True, slots=True)
class Link:
    """The link from one host to another; errors are "" for success.

    `tcp` are errors by port. `udp` are the ports at which packets arrived. `sent` are errors of
    sending by port and size. `source` is the own address that the kernel chose. `passed` are the
    sizes of the packets that arrived, with their IP header.
    """

    start: str
    end: str
    tcp: Mapping[int, str]
    udp: frozenset[int]
    tried: frozenset[int]
    passed: tuple[int, ...]
    refused: str
    source: str


@dataclass(frozen=True, slots=True)
class VisibleGpus:
    """A container that was given the GPUs of a workload: what `nvidia-smi -L` lists in it.

    `busy` is the reason why it was not started.
    """

    host: str
    workload: str
    given: tuple[str, ...]
    seen: tuple[str, ...]
    fault: str = ""
    busy: str = ""


@dataclass(frozen=True, slots=True)
class Computed:
    """The first use of a GPU in a container of a workload; `fault` is CUDA's error, or ""."""

    host: str
    workload: str
    device: str
    fault: str


@dataclass(frozen=True, slots=True)
class Torch:
    """The PyTorch of an image: its CUDA ("" for a CPU build) and architectures, such as `sm_80`."""

    image: str
    version: str
    cuda: str
    archs: tuple[str, ...]
    fault: str = ""


@dataclass(frozen=True, slots=True)
class Listing:
    """Files of a workload on a host; `name` is a folder or `data set`.

    `missing` is the trainer's error.
    """

    host: str
    workload: str
    name: str
    missing: str
    files: int
    bytes: int
    digest: str


@dataclass(frozen=True, slots=True)
class ContainerResults:
    """The results of all containers. `overlay` and `reached` are errors by start and end.

    `overlay` is None if there is no overlay network.
    """

    containers: tuple[TrialContainer, ...]
    links: tuple[Link, ...]
    overlay: Mapping[tuple[str, str], str] | None
    reached: Mapping[tuple[str, str], str]
    visible_gpus: tuple[VisibleGpus, ...]
    torches: tuple[Torch, ...]
    listings: tuple[Listing, ...]
    computed: tuple[Computed, ...] = ()
