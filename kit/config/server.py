"""`serve/<name>.yaml`: inference services on the GPUs for inference."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema, field_validator, model_validator

from kit import addresses, values
from kit.config.command import server_words
from kit.config.fields import (
    AbsolutePath,
    Cpus,
    Duration,
    Image,
    Label,
    Memory,
    Section,
    Size,
    User,
    validator_of,
    wrong,
)
from kit.config.mounts import Mounts, to_mounts
from kit.config.variables import Environment, Secrets, Token, to_secrets, to_token
from kit.model import JobHosts
from kit.servers import OwnServer, Proxy, Server
from trainer.contract.own import REFERENCE, reference_fault

PORT = 8080
TRANSFER_PORT = 8081

Checkpoint = Annotated[
    str,
    BeforeValidator(validator_of(values.checkpoint)),
    WithJsonSchema({"type": "string", "pattern": r"^(newest|best|step-[0-9]{8})$"}),
]
Port = Annotated[int, Field(ge=1, le=65535)]


AllowedHost = Annotated[str, BeforeValidator(validator_of(addresses.host_name))]


HAPROXY = "haproxy:3.2"
"""The image of the proxy; `kit image lock` pins its digest."""


class BatchSection(Section):
    """The server answers queued requests together, in batches."""

    size: int = Field(
        64,
        ge=1,
        le=4096,
        description="Maximum number of samples; with 1 no request waits for others",
    )
    window_ms: float = Field(
        5.0,
        ge=0,
        le=1000,
        allow_inf_nan=False,
        description="Longest time, in milliseconds, that the first request of a batch waits for "
        "others",
    )


class ServerHostsSection(Section):
    """The hosts that take part; default: all hosts with GPUs for inference."""

    names: list[str] | None = Field(None, min_length=1, examples=[["pc1", "gpu[001-064]"]])
    gpus_per_host: int | None = Field(
        None, ge=1, examples=[1], description="Default: all GPUs for inference"
    )


class ProxySection(Section):
    """One address for all hosts, with Swarm: HAProxy sends each request to a ready host."""

    port: Annotated[Port, Field(examples=[80])]
    host: str | None = Field(
        None, examples=["pc1"], description="The host with the address; default: the first manager"
    )
    image: Image = HAPROXY


class ServerLimitsSection(Section):
    """The limits of a request and of the container."""

    body: Size = Field(8 * 2**20, description="Maximum size of a request")
    pixels: int = Field(
        4096 * 3072,
        ge=1,
        description="Maximum pixels of a picture before it is scaled; the default is 12 megapixels",
    )
    memory: Memory | None = Field(
        8 * 2**30,
        description="Memory of the container; `null`: no limit; with `command` the default is no "
        "limit",
    )
    cpus: Cpus | None = Field(None, examples=[2])
    shared_memory: Size = Field(
        2**30, description="Size of /dev/shm, with `command`; Docker's default is only 64 MiB"
    )


BUILT_IN = (
    *("checkpoint", "transfer_port", "batch", "queue", "timeout", "token", "allowed_hosts"),
    *("handler", "access_log"),
    *("limits.body", "limits.pixels"),
)
"""Keys that only the built-in server has."""
OWN = (
    *("health", "start_timeout", "mounts", "secrets", "working_dir"),
    *("stop_grace_period", "limits.shared_memory"),
)
"""Keys that only a custom server has."""
HttpPath = Annotated[
    str,
    BeforeValidator(validator_of(addresses.http_path)),
    WithJsonSchema({"type": "string", "pattern": r"^/[!-~]*$"}),
]


def _handler(value: object) -> str:
    if not isinstance(value, str):
        raise values.WrongValueError(f"{value} is not a class", "write for example mymodel:Handler")
    if fault := reference_fault(value, "mymodel:Handler"):
        raise values.WrongValueError(*fault)
    return value


HandlerName = Annotated[
    str,
    BeforeValidator(validator_of(_handler)),
    WithJsonSchema({"type": "string", "pattern": f"^{REFERENCE}$"}),
]


class ServerSection(Section):
    """A server: `job` for the built-in server, or `command` for any other.

    The built-in server answers with the best checkpoint of the job, with one replica per GPU.
    """

    image: Image
    job: Label | None = Field(None, description="The job whose checkpoints it serves")
    command: list[str] | None = Field(
        None,
        min_length=1,
        examples=[["vllm", "serve", "/model", "--port", "8000"]],
        description="Your own server: the program and its arguments. They replace the image's "
        "entrypoint and command",
    )
    health: HttpPath = Field(
        "/health",
        examples=["/v2/health/ready"],
        description="With `command`: path that the server answers with a status below 400 when it "
        "is ready",
    )
    start_timeout: Duration = Field(
        600,
        ge=1,
        description="With `command`: longest time that `kit deploy` waits until the server is "
        "healthy",
    )
    working_dir: AbsolutePath | None = Field(None, description="The folder in which `command` runs")
    mounts: Mounts = Field(
        [],
        examples=[[{"bind": "/srv/models/qwen", "to": "/model", "read_only": True}]],
        description="With `command`: mounts of the server",
    )
    secrets: Secrets = Field(
        {},
        examples=[{"HF_TOKEN": "env"}],
        description="With `command`: files `/run/secrets/NAME`; with `engine: local`, variables. "
        "`env` reads their values from the environment of `kit deploy`, `{file: PATH}` from a file "
        "on that machine",
    )
    stop_grace_period: Duration = Field(
        20, description="With `command`: time for open requests after the stop signal"
    )
    checkpoint: Checkpoint = Field(
        "best",
        examples=["newest", "best", "step-00000300"],
        description="`best` (highest accuracy or, for a text, lowest loss; the newest until one is "
        "measured), `newest`, or the name of a checkpoint",
    )
    port: Port = Field(PORT, description="Port of the server on each of its hosts")
    transfer_port: Port = Field(
        TRANSFER_PORT,
        description="Port on which the job's hosts offer their checkpoints, read-only",
    )
    batch: BatchSection = Field(BatchSection(), examples=[{"size": 64, "window_ms": 5}])
    queue: int = Field(
        256, ge=1, description="Maximum number of queued samples; the server rejects more with 429"
    )
    timeout: Duration = Field(10, ge=1, description="Longest time that a request waits")
    limits: ServerLimitsSection = Field(ServerLimitsSection(), examples=[{"body": "8MiB"}])
    handler: HandlerName | None = Field(
        None,
        examples=["mymodel:Handler"],
        description="Your own class, which answers with the files of a job with `command:`",
    )
    access_log: Literal["lines", "json", "none"] = Field(
        "lines", description="One line for each answered request, as text or as JSON"
    )
    token: Token = Field(None, examples=[{"env": "DIGITS_TOKEN"}])
    allowed_hosts: list[AllowedHost] = Field(
        [],
        description="Additional names by which clients and pages may address the server, for "
        "example a proxy's. Always allowed: addresses, names without a dot, addresses of the "
        'inventory. `"*"`: all names',
        examples=[["digits.example.com"]],
    )
    hosts: ServerHostsSection = Field(ServerHostsSection(), examples=[{"names": ["pc2"]}])
    proxy: ProxySection | None = Field(None, examples=[{"port": 80, "host": "pc1"}])
    gpu_memory: Size | None = Field(
        None,
        description="`kit split` chooses only GPUs with at least this memory",
        examples=["8GiB"],
    )
    environment: Environment = Field({})
    user: User | None = Field(
        None,
        examples=["1000:1000"],
        description="User of the containers; the user must be able to read the checkpoints. "
        "Default: nobody, 65534:65534; with `command` the image's user",
    )

    @field_validator("command", mode="before")
    @classmethod
    def _words(cls, command: object) -> object:
        return server_words(command)

    @field_validator("command")
    @classmethod
    def _program(cls, command: list[str] | None) -> list[str] | None:
        if command and not command[0]:
            raise wrong("names no program", "write for example `command: [vllm, serve, /model]`")
        return command

    @model_validator(mode="after")
    def _one_server(self) -> ServerSection:
        if (self.job is None) == (self.command is None):
            fix = "write exactly one of `job:` (the built-in server) and `command:` (any other)"
            raise wrong(
                "job and command are both given" if self.job else "there is nothing to run", fix
            )
        own = self.command is not None
        for key in BUILT_IN if own else OWN:
            section, _, part = key.rpartition(".")
            given = self.limits.model_fields_set if section else self.model_fields_set
            if part in given:
                whose = "the built-in server, with `job:`" if own else "a server with `command:`"
                raise wrong(f"is for {whose}", "leave it out", *key.split("."))
        if own and "port" not in self.model_fields_set:
            raise wrong("there is no port", "write `port:`, the one on which `command` listens")
        for name in self.secrets:
            if name in self.environment:
                raise wrong("is in `environment` too", "keep one of the two", "secrets", name)
        return self


def to_server(section: ServerSection, name: str, file: str) -> Server:
    """Convert the validated file `file` to the server `name`."""
    hosts, limits, own, proxy = section.hosts, section.limits, _own(section), section.proxy
    return Server(
        name=name,
        file=file,
        image=section.image,
        job=section.job or "",
        checkpoint=section.checkpoint,
        port=section.port,
        transfer_port=section.transfer_port,
        batch_size=section.batch.size,
        window=section.batch.window_ms,
        queue=section.queue,
        timeout=section.timeout,
        body=limits.body,
        pixels=limits.pixels,
        token=to_token(section.token),
        allowed_hosts=tuple(section.allowed_hosts),
        hosts=JobHosts(tuple(hosts.names or ()), hosts.gpus_per_host, None),
        gpu_memory=section.gpu_memory,
        environment=tuple(section.environment.items()),
        memory=limits.memory if not own or "memory" in limits.model_fields_set else None,
        cpus=limits.cpus,
        user=section.user,
        own=own,
        handler=section.handler,
        access_log=section.access_log,
        proxy=Proxy(proxy.port, proxy.host, proxy.image) if proxy else None,
    )


def _own(section: ServerSection) -> OwnServer | None:
    if section.command is None:
        return None
    return OwnServer(
        command=tuple(section.command),
        health=section.health,
        start_timeout=section.start_timeout,
        mounts=to_mounts(section.mounts),
        secrets=to_secrets(section.secrets),
        working_dir=section.working_dir,
        shared_memory=section.limits.shared_memory,
        grace=section.stop_grace_period,
    )
