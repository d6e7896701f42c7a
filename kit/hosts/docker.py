"""The Docker engines of the hosts: python-on-whales for changes, the Engine API for queries.

python-on-whales runs the docker command, over SSH for remote hosts. It is too slow for queries (one
call for each task of a stack), and it would show tokens and secrets in the process list. Both
use the Engine API through the same SSH connection as docker's own.
"""

from __future__ import annotations

import base64
import json
import os
import shlex
import shutil
import socket
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cached_property
from http.client import HTTPConnection, HTTPException, HTTPResponse
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, unquote, urlencode

from kit.errors import InputError, KitError
from kit.hosts import ssh
from kit.hosts.environment import clean
from kit.model import Host

if TYPE_CHECKING:
    from python_on_whales import DockerClient

SSH = "ssh://"
MOST_CONCURRENT = 32
"""The number of hosts that are queried concurrently: each needs an ssh process here."""
PATIENCE = 60.0
"""Seconds that an engine may take to begin its answer."""
CLIENT = "install Docker's CLI: docker-ce-cli, or docker-cli of Debian; no engine is needed"
ERROR_TIMEOUT = 2.0
"""Seconds to wait for the error message of docker's command after a failed call."""

T = TypeVar("T")
R = TypeVar("R")


class EngineError(KitError):
    """The engine rejected a request; `status` is the HTTP status."""

    def __init__(self, where: str, status: int, message: str) -> None:
        super().__init__(f"{where}: Docker: {message}")
        self.status = status


class Docker:
    """The engine of one host. `url` is None for this machine's own.

    `prelude` is a script that the host's shell runs on connecting, before the first request: its
    output needs no second login.
    """

    def __init__(self, name: str, url: str | None, prelude: str = "") -> None:
        self.name = name
        self.url = url
        self._prelude = prelude
        self._lock = threading.Lock()
        self._streams: set[_Connection] = set()

    @classmethod
    def of(cls, host: Host, prelude: str = "") -> Docker:
        """Return the engine of a host of the inventory."""
        return cls(host.name, engine_url(host.ssh), prelude)

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

        _program()
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
            [_program(), *self.options, *arguments],
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
        programs = [[_program(), *self.options, *out], [_program(), *target.options, *into]]
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
    def _connection(self) -> _Connection:
        return _Connection(self.name, self.url, prelude=self._prelude)

    def request(
        self,
        method: str,
        path: str,
        body: object = None,
        headers: Mapping[str, str] | None = None,
        **query: str | dict[str, Any],
    ) -> Any:
        """Send a request to the Engine API and return the parsed answer.

        Raises:
            KitError: The engine cannot be reached.
            EngineError: The engine rejects the request.
        """
        content = self._answer(method, path, body, query, headers)
        return json.loads(content) if content else None

    def read(
        self, path: str, patience: float = PATIENCE, /, **query: str | dict[str, Any]
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
        patience: float = PATIENCE,
    ) -> bytes:
        with self._lock:
            self._connection.set_timeout(patience)
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
        connection = _Connection(self.name, self.url)
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


class _Connection(HTTPConnection):
    """HTTP over the standard streams of `docker system dial-stdio`, as docker does over SSH."""

    def __init__(
        self, name: str, url: str | None, patience: float = PATIENCE, prelude: str = ""
    ) -> None:
        super().__init__("docker", timeout=patience)
        self.prelude_output = ""
        self._name = name
        self._url = url
        self._prelude = prelude
        self._process: subprocess.Popen[bytes] | None = None
        self._line: socket.socket | None = None

    def connect(self) -> None:
        self._forget()
        command = _connection_command(self._url, self._prelude)
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                command,
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=subprocess.PIPE,
                start_new_session=True,  # kit handles Ctrl-C, not its ssh process.
            )
        ours.settimeout(self.timeout)
        self.sock = self._line = ours
        if self._prelude:
            self.prelude_output = _read_line(ours)

    def set_timeout(self, seconds: float) -> None:
        """Set the timeout for the beginning of an answer and for pauses."""
        self.timeout = seconds
        if self.sock is not None:
            self.sock.settimeout(seconds)

    def disable_timeout(self) -> None:
        """Allow unlimited pauses in an answer."""
        if self.sock is not None:
            self.sock.settimeout(None)

    def abort(self) -> None:
        """End a connection that another thread reads: closing would wait for that thread."""
        with suppress(OSError):
            if self._line is not None:
                self._line.shutdown(socket.SHUT_RDWR)
        if self._process is not None:
            self._process.kill()  # docker ignores the first SIGTERM.

    def disconnect(self) -> None:
        """End the call. `close`, which http.client also calls, does not end the process."""
        self.abort()
        self.close()
        self._forget()

    def _forget(self) -> None:
        self.abort()
        if self._process is not None:
            self._process.communicate()
            self._process = None

    def _error_output(self) -> str:
        """End a failed call, and return the error output of docker and its ssh."""
        output = b""
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                _, output = self._process.communicate(timeout=ERROR_TIMEOUT)
        self.disconnect()
        return output.decode(errors="replace")

    @contextmanager
    def ask(
        self,
        method: str,
        path: str,
        body: object,
        query: dict[str, str | dict[str, Any]],
        headers: Mapping[str, str] | None = None,
        sent: Callable[[], object] | None = None,
    ) -> Iterator[HTTPResponse]:
        """Send a request and yield the answer, which must be successful."""
        values = {k: v if isinstance(v, str) else json.dumps(v) for k, v in query.items()}
        target = f"{path}?{urlencode(values)}" if values else path
        content = None if body is None else json.dumps(body).encode()
        if self._process is not None and self._process.poll() is not None:
            # The host was down since the last request: reconnect.
            self.disconnect()
        try:
            own = {"Content-Type": "application/json", **(headers or {})}
            self.request(method, target, content, own)
            if sent is not None:
                sent()
            response = self.getresponse()
            if response.status >= 400:
                raise EngineError(self._name, response.status, _message(response.read()))
            yield response
        except KeyboardInterrupt:
            # The answer is still to come: the cleanup, such as the end of a lock, must not read it.
            self.disconnect()
            raise
        except TimeoutError:
            self.disconnect()
            what = f"{self._name}: Docker has not answered for {self.timeout:.0f} s"
            hint = "try again, or look at its log: journalctl -u docker"
            raise KitError(what, hint) from None
        except (HTTPException, OSError) as error:
            output = self._error_output()
            if self._url and self._url.startswith(SSH):
                login = unquote(self._url.removeprefix(SSH))
                if refused := ssh.host_key_error(self._name, login, output):
                    raise refused from None
            raise unreachable(self._name, self._url, last_line(output or str(error))) from None


def engine_url(login: str) -> str:
    """Return docker's URL of the engine that a login leads to.

    A URL cannot hold the backslash of a Windows domain, nor the percent sign before the zone of a
    link-local address.
    """
    user, at, host = login.rpartition("@")
    return f"{SSH}{quote(user)}{at}{host.replace('%', '%25')}"


def _connection_command(url: str | None, prelude: str = "") -> list[str]:
    """Return the command that connects its standard streams to an engine."""
    dial = ["docker", "system", "dial-stdio"]
    if url and url.startswith(SSH):
        # docker's own ssh has no timeout: it takes 30 s for a host that is down and may hang.
        _installed("ssh", "install openssh-client")
        if prelude:
            script = f"({prelude}) | base64 | tr -d '\\n'; echo; exec {' '.join(dial)}"
            dial = [f"exec sh -c {shlex.quote(script)}"]
        return [*ssh.command(unquote(url.removeprefix(SSH))), *dial]
    return [_program(), *(["--host", url] if url else []), *dial[1:]]


def _read_line(line: socket.socket) -> str:
    """Read the prelude's output: one line in base64, before the first answer of the engine.

    Return "" if the connection was closed; the first request reports it.
    """
    encoded = b""
    while not encoded.endswith(b"\n"):
        peeked = line.recv(65536, socket.MSG_PEEK)
        if not peeked:
            return ""
        end = peeked.find(b"\n") + 1
        encoded += line.recv(end or len(peeked))
    return base64.b64decode(encoded).decode(errors="replace")


def unreachable(name: str, url: str | None, message: str) -> KitError:
    """Return the error for an engine that does not answer, with a command to find the cause."""
    if "podman" in message.lower():
        what = f"{name}: Docker cannot be reached: the docker command there is Podman ({message})"
        return KitError(what, f"kit doctor {name} says what to do")
    option = f"-H {url} " if url else ""
    return KitError(f"{name}: Docker cannot be reached: {message}", f"try `docker {option}info`")


def _failed(name: str, what: str, stderr: str | None) -> KitError:
    """Return the error of a docker command that failed here."""
    if "using podman" in (stderr or "") or "podman --help" in (stderr or ""):
        reason = "the docker command of this machine is Podman, which kit cannot use"
        return KitError(f"{name}: {what}: {reason}", f"remove podman-docker here, and {CLIENT}")
    return KitError(f"{name}: {what}: {last_line(stderr)}")


def last_line(stderr: str | None) -> str:
    """Return the last line of a program's error output."""
    # docker's command adds its own text before the output of ssh.
    output = (stderr or "").rpartition("stderr=")[2]
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return lines[-1] if lines else "no reason given"


def _message(content: bytes) -> str:
    try:
        return str(json.loads(content)["message"])
    except (ValueError, KeyError, TypeError):
        return content.decode(errors="replace").strip() or "no reason given"


def _program() -> str:
    return _installed("docker", CLIENT)


def _installed(program: str, advice: str) -> str:
    path = shutil.which(program)
    if path is None:
        what = f"the {program} command is not installed here, and kit reaches the hosts with it"
        raise InputError(what, advice)
    return path


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
