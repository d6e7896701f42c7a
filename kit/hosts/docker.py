"""The Docker engines of the hosts: python-on-whales for changes, the Engine API for queries.

python-on-whales runs the docker command, over SSH for remote hosts. It is too slow for queries (one
call for each task of a stack), and it would show tokens and secrets in the process list. Both
use the Engine API through the same SSH connection as docker's own.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cached_property
from http.client import HTTPResponse
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

from kit.errors import KitError
from kit.hosts.connection import CLIENT, PATIENCE, SSH, Connection, docker_program, last_line
from kit.hosts.environment import clean
from kit.model import Host

if TYPE_CHECKING:
    from python_on_whales import DockerClient

MOST_CONCURRENT = 32
"""The number of hosts that are queried concurrently: each needs an ssh process here."""

T = TypeVar("T")
R = TypeVar("R")


class Docker:
    """The engine of one host. `url` is None for this machine's own.

    `prelude` is a script that the host's shell runs on connecting, before the first request: its
    output needs no second login. `patience` are the seconds that the engine may take to answer.
    """

    def __init__(
        self, name: str, url: str | None, prelude: str = "", patience: float = PATIENCE
    ) -> None:
        self.name = name
        self.url = url
        self._prelude = prelude
        self._patience = patience
        self._lock = threading.Lock()
        self._streams: set[Connection] = set()

    @classmethod
    def of(cls, host: Host, prelude: str = "") -> Docker:
        """Return the engine of a host of the inventory."""
        return cls(host.name, engine_url(host.ssh), prelude)

    def again(self) -> Docker:
        """Return the same engine with a separate connection."""
        return Docker(self.name, self.url)

    @property
    def options(self) -> tuple[str, ...]:
        """The options with which the docker command reaches the engine."""
        return ("--host", self.url) if self.url else ()

    @property
    def prelude_output(self) -> str:
        """The output of the prelude on the last connection."""
        return self._connection.prelude_output

    @cached_property
    def whales(self) -> DockerClient:
        """The client for changes; its import takes a third of a second."""
        from python_on_whales import DockerClient

        docker_program()
        return DockerClient(host=self.url)

    @contextmanager
    def acting(self, what: str, **options: Any) -> Iterator[DockerClient]:
        """Yield a client; with `options` of DockerClient, yield a new one.

        A failure is reported as a failure to do `what`.

        Raises:
            KitError: The command failed.
        """
        from python_on_whales import DockerClient
        from python_on_whales.exceptions import DockerException

        try:
            yield DockerClient(host=self.url, **options) if options else self.whales
        except DockerException as error:
            raise _failed(self.name, what, error.stderr) from None

    def command(self, what: str, *arguments: str, env: Mapping[str, str] | None = None) -> str:
        """Run docker for options that python-on-whales lacks, and return its output.

        `env` are variables for this call; from kit's environment it gets only what docker needs.

        Raises:
            KitError: The command failed; the message names `what`.
        """
        done = subprocess.run(
            [docker_program(), *self.options, *arguments],
            env={**clean(os.environ), **(env or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
        if done.returncode:
            raise _failed(self.name, what, done.stderr)
        return done.stdout

    def pipe(self, what: str, out: Sequence[str], target: Docker, into: Sequence[str]) -> None:
        """Run docker here and on another engine, the output of one as the input of the other.

        Raises:
            KitError: One of them failed; the message names `what`.
        """
        programs = [
            [docker_program(), *self.options, *out],
            [docker_program(), *target.options, *into],
        ]
        env = clean(os.environ)
        with (
            tempfile.TemporaryFile() as errors,
            subprocess.Popen(
                programs[0],
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
            ) as first,
        ):
            second = subprocess.run(
                programs[1], env=env, stdin=first.stdout, capture_output=True, check=False
            )
            assert first.stdout is not None
            first.stdout.close()  # If the second has failed, the first must not wait for it.
            if second.returncode:
                raise _failed(target.name, what, second.stderr.decode(errors="replace"))
            if first.wait():
                errors.seek(0)
                raise _failed(self.name, what, errors.read().decode(errors="replace"))

    @cached_property
    def _connection(self) -> Connection:
        return Connection(self.name, self.url, prelude=self._prelude)

    def request(
        self,
        method: str,
        path: str,
        body: object = None,
        headers: Mapping[str, str] | None = None,
        /,
        **query: str | dict[str, Any],
    ) -> Any:
        """Send a request to the Engine API and return the parsed answer.

        A `body` of bytes is sent as it is.

        Raises:
            KitError: The engine cannot be reached.
            EngineError: The engine rejects the request.
        """
        content = self._answer(method, path, body, query, headers)
        return json.loads(content) if content else None

    def read(
        self, path: str, patience: float | None = None, /, **query: str | dict[str, Any]
    ) -> bytes:
        """Return an answer that is not JSON and may take `patience` seconds; see `request`.

        Raises:
            KitError: It took longer.
        """
        return self._answer("GET", path, None, query, patience=patience)

    def get(
        self, path: str, headers: Mapping[str, str] | None = None, **query: str | dict[str, Any]
    ) -> Any:
        """Send a GET request; see `request`."""
        return self.request("GET", path, None, headers, **query)

    def post(self, path: str, body: object, **query: str | dict[str, Any]) -> Any:
        """Send a POST request; see `request`. `body` is not visible in the process list."""
        return self.request("POST", path, body, None, **query)

    def _answer(
        self,
        method: str,
        path: str,
        body: object,
        query: dict[str, str | dict[str, Any]],
        headers: Mapping[str, str] | None = None,
        patience: float | None = None,
    ) -> bytes:
        with self._lock:
            self._connection.set_timeout(patience or self._patience)
            with self._connection.ask(method, path, body, query, headers) as response:
                return response.read()

    @contextmanager
    def stream(
        self, path: str, sent: Callable[[], object] | None = None, /, **query: str | dict[str, Any]
    ) -> Iterator[HTTPResponse]:
        """Yield an answer on a separate connection; it may be endless.

        `sent` is called after the request: the answer to a request for new log lines begins with
        the first line.
        """
        connection = Connection(self.name, self.url)
        self._streams.add(connection)
        try:
            with connection.ask("GET", path, None, query, sent=sent) as response:
                connection.disable_timeout()
                yield response
        finally:
            self._streams.discard(connection)
            connection.disconnect()

    def close(self) -> None:
        """Close all connections, also those that other threads read. A new request reconnects."""
        for connection in (*self._streams, self._connection):
            connection.abort()
        with self._lock:
            self._connection.disconnect()


def engine_url(login: str) -> str:
    """Return docker's URL of the engine that a login leads to.

    A URL cannot hold the backslash of a Windows domain, nor the percent sign before the zone of a
    link-local address.
    """
    user, at, host = login.rpartition("@")
    return f"{SSH}{quote(user)}{at}{host.replace('%', '%25')}"


def _failed(name: str, what: str, stderr: str | None) -> KitError:
    """Return the error of a docker command that failed here."""
    if "using podman" in (stderr or "") or "podman --help" in (stderr or ""):
        reason = "the docker command of this machine is Podman, which kit cannot use"
        return KitError(f"{name}: {what}: {reason}", f"remove podman-docker here, and {CLIENT}")
    return KitError(f"{name}: {what}: {last_line(stderr)}")


def concurrently(work: Callable[[T], R], items: Iterable[T]) -> list[R | KitError]:
    """Process all items concurrently; return each result or error."""

    def tried(item: T) -> R | KitError:
        try:
            return work(item)
        except KitError as error:
            return error

    with ThreadPoolExecutor(MOST_CONCURRENT) as pool:
        return list(pool.map(tried, items))


def on_each(hosts: Iterable[Host], work: Callable[[Host], R]) -> dict[str, R | KitError]:
    """Process all hosts concurrently; return each host's result or error."""
    hosts = list(hosts)
    return dict(zip([host.name for host in hosts], concurrently(work, hosts), strict=True))
