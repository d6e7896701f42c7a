"""The sections for a job's hosts, the resources of its containers, and its coordinator."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field, model_validator

from kit.config.fields import Cpus, Memory, Section, Size, Ulimit, wrong
from kit.model import JobHosts


def _gpu_id(value: object) -> object:
    """Return the id of a GPU; its index on the host may be written as a number."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


GpuId = Annotated[str, BeforeValidator(_gpu_id, json_schema_input_type=int | str)]


class JobHostsSection(Section):
    """The hosts that take part; default: all hosts with GPUs for training."""

    names: list[str] | None = Field(None, min_length=1, examples=[["pc1", "gpu[001-064]"]])
    gpus_per_host: int | None = Field(
        None, ge=1, examples=[1], description="Default: all GPUs for training"
    )
    gpus: dict[str, Annotated[list[GpuId], Field(min_length=1)]] | None = Field(
        None,
        min_length=1,
        examples=[{"pc1": [0, 1]}],
        description="Certain GPUs of each host, by index or UUID, instead of `names` and "
        "`gpus_per_host`. Other jobs get the rest",
    )
    min: int | None = Field(
        None,
        ge=1,
        examples=[1],
        description="Smallest number of hosts with which the job continues; default: all its "
        "hosts, with `queue` 1",
    )
    # Without a queue, it would leave planned GPUs idle. A host stands by with `use: spare`.
    max: int | None = Field(
        None,
        ge=1,
        examples=[4],
        description="Largest number of hosts of a job with `queue`; default: all its hosts",
    )

    @model_validator(mode="after")
    def _one_choice(self) -> JobHostsSection:
        other = "names" if self.names else "gpus_per_host"
        if self.gpus and (self.names or self.gpus_per_host):
            raise wrong("names its hosts and GPUs already", f"leave `{other}` out", "gpus")
        for host, gpus in (self.gpus or {}).items():
            if len(set(gpus)) < len(gpus):
                raise wrong("names a GPU twice", "name it once", "gpus", host)
        if self.max is not None and self.max < (self.min or 1):
            raise wrong(f"is smaller than `min`, {self.min}", f"write at least {self.min}", "max")
        return self


def to_hosts(section: JobHostsSection) -> JobHosts:
    """Convert the section to a value."""
    gpus = tuple((host, tuple(ids)) for host, ids in (section.gpus or {}).items())
    names = tuple(section.names or (host for host, _ in gpus))
    return JobHosts(names, section.gpus_per_host, section.min, gpus)


class LimitsSection(Section):
    """Resources of one container."""

    shared_memory: Size = Field(
        16 * 2**30, description="Size of /dev/shm; Docker's default is only 64 MiB"
    )
    memory: Memory | None = None
    cpus: Cpus | None = Field(None, examples=[8])
    memlock: Ulimit | None = Field(
        None, description="Maximum of locked memory; default: unlimited with InfiniBand"
    )
    stack: Ulimit | None = None


class RendezvousSection(Section):
    """The coordinator of the hosts: its service has the name `rendezvous`."""

    port: int | None = Field(None, ge=1024, le=65535, examples=[29400])
