"""What a job gets: hosts, resources of its containers, and the port at which its hosts meet."""

from __future__ import annotations

from pydantic import Field

from kit.config.fields import Cpus, Memory, Section, Size, Ulimit


class JobHostsSection(Section):
    """The hosts that take part; default: all hosts with GPUs for training."""

    names: list[str] | None = Field(None, min_length=1, examples=[["pc1", "gpu[001-064]"]])
    gpus_per_host: int | None = Field(
        None, ge=1, examples=[1], description="Default: all GPUs for training"
    )
    # There is no `max`: one below the plan's number would leave planned GPUs idle, and the plan
    # would not show which. A host stands by with `use: spare`.
    min: int | None = Field(
        None,
        ge=1,
        examples=[1],
        description="Smallest number of hosts with which the job continues; default: all its hosts",
    )


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
    """The rendezvous of the hosts."""

    port: int | None = Field(None, ge=1024, le=65535, examples=[29400])
