"""`serve/<name>.yaml`: inference services on the GPUs for inference."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field, Tag, WithJsonSchema

from kit import values
from kit.config.fields import (
    Cpus,
    Duration,
    Image,
    Label,
    Memory,
    SecretPath,
    Section,
    Size,
    User,
    only_key,
    tagged,
    validator_of,
)
from kit.config.job import Environment, own_variable
from kit.model import JobHosts, Secret, Server

TOKEN = "SERVE_TOKEN"  # The name of the secret, not the secret.
"""The name of a file's token inside the container."""
PORT = 8080
TRANSFER_PORT = 8081

Checkpoint = Annotated[
    str,
    BeforeValidator(validator_of(values.checkpoint)),
    WithJsonSchema({"type": "string", "pattern": r"^(newest|best|step-[0-9]{8})$"}),
]
Port = Annotated[int, Field(ge=1, le=65535)]


AllowedHost = Annotated[str, BeforeValidator(validator_of(values.host_name))]


class EnvToken(Section):
    """A token from an environment variable of `kit deploy`."""

    env: Annotated[str, BeforeValidator(validator_of(own_variable))]


class FileToken(Section):
    """A token from a file on the machine that runs `kit deploy`."""

    file: SecretPath


def _token_kind(value: object) -> str | None:
    return "<none>" if value is None else only_key(value, ("env", "file"))


Token = Annotated[
    Annotated[EnvToken, Tag("<env>")]
    | Annotated[FileToken, Tag("<file>")]
    | Annotated[None, Tag("<none>")],
    tagged(
        _token_kind,
        "names the source of the token, not the token itself",
        "write `{env: NAME}` (a variable where kit runs) or `{file: ~/token}`",
    ),
    Field(description="What clients must send as `Authorization: Bearer …`; default: nothing"),
]


class BatchSection(Section):
    """Queued requests are answered in one batch."""

    size: int = Field(64, ge=1, le=4096, description="Largest number of samples; 1 never waits")
    window_ms: float = Field(
        5.0,
        ge=0,
        le=1000,
        allow_inf_nan=False,
        description="Longest wait of a batch's first request for others, in milliseconds",
    )


class ServerHostsSection(Section):
    """The hosts that take part; default: all hosts with GPUs for inference."""

    names: list[str] | None = Field(None, min_length=1, examples=[["pc1", "gpu[001-064]"]])
    gpus_per_host: int | None = Field(
        None, ge=1, examples=[1], description="Default: all GPUs for inference"
    )


class ServerLimitsSection(Section):
    """The limits of a request and of the container."""

    body: Size = Field(8 * 2**20, description="Largest request")
    pixels: int = Field(
        4096 * 3072, ge=1, description="Largest picture, before it is scaled: 12 megapixels"
    )
    memory: Memory | None = Field(
        8 * 2**30, description="Memory of the container; `null`: no limit"
    )
    cpus: Cpus | None = Field(None, examples=[2])


class ServerSection(Section):
    """Answer requests with the newest complete checkpoint of a job, one replica per GPU."""

    image: Image
    job: Label = Field(description="The job whose checkpoints it serves: one with `train:`")
    checkpoint: Checkpoint = Field(
        "newest",
        examples=["newest", "best", "step-00000300"],
        description="`newest`, `best` (by test accuracy), or a checkpoint's name",
    )
    port: Port = Field(PORT, description="Port on each host that serves")
    transfer_port: Port = Field(
        TRANSFER_PORT,
        description="Port at which the job's hosts offer their checkpoints, read-only",
    )
    batch: BatchSection = Field(BatchSection(), examples=[{"size": 64, "window_ms": 5}])
    queue: int = Field(
        256, ge=1, description="Samples that may be queued; more are rejected with 429"
    )
    timeout: Duration = Field(10, ge=1, description="Longest wait of a request")
    limits: ServerLimitsSection = Field(ServerLimitsSection(), examples=[{"body": "8MiB"}])
    token: Token = Field(None, examples=[{"env": "DIGITS_TOKEN"}])
    allowed_hosts: list[AllowedHost] = Field(
        [],
        description="Names of the server for clients and pages, such as a proxy's, besides "
        'addresses, names without a dot and the addresses in the inventory; `"*"`: all names',
        examples=[["digits.example.com"]],
    )
    hosts: ServerHostsSection = Field(ServerHostsSection(), examples=[{"names": ["pc2"]}])
    gpu_memory: Size | None = Field(
        None, description="Smallest memory of a GPU that `kit split` chooses", examples=["8GiB"]
    )
    environment: Environment = Field({})
    user: User | None = Field(
        None,
        examples=["1000:1000"],
        description="User of the containers, which must be able to read the checkpoints; "
        "default: nobody, 65534:65534",
    )


def to_server(section: ServerSection, name: str, file: str) -> Server:
    """Convert the validated file `file` to the server `name`."""
    hosts, limits = section.hosts, section.limits
    return Server(
        name=name,
        file=file,
        image=section.image,
        job=section.job,
        checkpoint=section.checkpoint,
        port=section.port,
        transfer_port=section.transfer_port,
        batch_size=section.batch.size,
        window=section.batch.window_ms,
        queue=section.queue,
        timeout=section.timeout,
        body=limits.body,
        pixels=limits.pixels,
        token=_token(section.token),
        allowed_hosts=tuple(section.allowed_hosts),
        hosts=JobHosts(tuple(hosts.names or ()), hosts.gpus_per_host, None),
        gpu_memory=section.gpu_memory,
        environment=tuple(section.environment.items()),
        memory=limits.memory,
        cpus=limits.cpus,
        user=section.user,
    )


def _token(section: EnvToken | FileToken | None) -> Secret | None:
    if section is None:
        return None
    if isinstance(section, FileToken):
        return Secret(TOKEN, section.file)
    return Secret(section.env, None)
