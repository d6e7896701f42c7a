"""The inference services as values. `kit.config` makes them, `kit.plan` reads them."""

from __future__ import annotations

from dataclasses import dataclass

from kit.jobs import CodeFile
from kit.model import JobHosts, Mount, Secret


@dataclass(frozen=True, slots=True)
class OwnServer:
    """The settings that a custom server adds to its `Server`, which has no job.

    `command` is the whole command. The server is healthy as soon as it answers a GET of `health`
    with a status below 400, `start_timeout` seconds after its start at the latest. `shared_memory`
    is in bytes, `grace` in seconds.
    """

    command: tuple[str, ...]
    health: str
    start_timeout: int
    mounts: tuple[Mount, ...]
    secrets: tuple[Secret, ...]
    working_dir: str | None
    shared_memory: int
    grace: int


@dataclass(frozen=True, slots=True)
class Proxy:
    """One address for the hosts of a server: a port of `host` (None: the first manager)."""

    port: int
    host: str | None
    image: str


@dataclass(frozen=True, slots=True)
class Server:
    """An inference service, which answers with a checkpoint of a job.

    `own` is set for a custom server: then `job` is "", and settings of checkpoints and of the
    built-in server are unused. `name` begins with SERVER_PREFIX. `checkpoint` is `newest`,
    `best` or a checkpoint's name. The job's hosts offer checkpoints at `transfer_port`.
    `window` is in milliseconds, `timeout` in seconds, `body` (of a request) and `gpu_memory` (the
    smallest of a GPU) in bytes, `pixels` per image. Clients must send `token`, unless it is None.
    `allowed_hosts` are names of the server for clients besides its hosts' own. `user` is the
    containers' user (None: nobody, or the image's). `handler` is a custom class that
    answers with the files of a script, `module:class`, `code` its file. `access_log` is `lines`,
    `json` or `none`.
    """

    name: str
    file: str
    image: str
    job: str
    checkpoint: str
    port: int
    transfer_port: int
    batch_size: int
    window: float
    queue: int
    timeout: int
    body: int
    pixels: int
    token: Secret | None
    allowed_hosts: tuple[str, ...]
    hosts: JobHosts
    gpu_memory: int | None
    environment: tuple[tuple[str, str], ...]
    memory: int | None
    cpus: float | None
    user: str | None
    own: OwnServer | None = None
    handler: str | None = None
    access_log: str = "lines"
    proxy: Proxy | None = None
    code: tuple[CodeFile, ...] = ()

    @property
    def short_name(self) -> str:
        """Its name in its file."""
        return self.name.removeprefix(SERVER_PREFIX)


SERVER_PREFIX = "serve-"
"""The prefix of servers' names in commands and stacks. No job's name begins with it."""
