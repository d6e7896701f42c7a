"""The Docker engines of the hosts: python-on-whales to act, the Engine API to look.

python-on-whales calls the docker command line, over SSH where a host has a login. For looking that
is too slow (a call for every task of a stack), and for tokens and secrets too open: an argument
shows in the process list. Both go to the Engine API, on the way that docker's own SSH takes.
"""

from __future__ import annotations

import base64
import json
import os
import shlex
import shutil
import socket
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cached_property
from http.client import HTTPConnection, HTTPException, HTTPResponse
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlencode

from kit.errors import InputError, KitError
from kit.hosts import ssh
from kit.hosts.environment import clean
from kit.model import Host

if TYPE_CHECKING:
    from python_on_whales import DockerClient

SSH = "ssh://"
AT_ONCE = 32
"""Hosts that are asked at the same time: each is an ssh process here."""
PATIENCE = 60.0
"""Seconds that an engine may take to begin its answer."""
LAST_WORDS = 2.0
"""Seconds within which docker's command says why a call has failed; its ssh knows before."""

T = TypeVar("T")
R = TypeVar("R")


class EngineError(KitError):
    """The engine refused a request; `status` is HTTP's."""

    def __init__(self, where: str, status: int, said: str) -> None:
        super().__init__(f"{where}: Docker: {said}")
        self.status = status


class SilentError(KitError):
    """The engine took the request and said nothing for too long."""


class Docker:
    """The engine of one host. `url` is None for this machine's own.

    `prelude` is a script that the host's shell runs when it is dialled, before the engine is asked:
    what else is to be known of a host needs no second login.
    """

    def __init__(self, name: str, url: str | None, prelude: str = "") -> None:
        self.name = name
        self.url = url
        self._prelude = prelude
        self._lock = threading.Lock()
        self._streams: set[_Dialled] = set()

    @classmethod
    def of(cls, host: Host, prelude: str = "") -> Docker:
        """Return the engine of a host of the inventory."""
        return cls(host.name, f"{SSH}{host.ssh}", prelude)

    @property
    def said(self) -> str:
        """What the prelude printed when the host was dialled last."""
        return self._connection.said

    @cached_property
    def whales(self) -> DockerClient:
        """The client that acts; imported here, as it takes a third of a second."""
        from python_on_whales import DockerClient

        _program()
        return DockerClient(host=self.url)

    @contextmanager
    def acting(self, what: str, **options: Any) -> Iterator[DockerClient]:
        """Yield the client, with `options` of DockerClient one of its own.

        Its failure is told as a failure to do `what`.

        Raises:
            KitError: The command failed.
        """
        from python_on_whales import DockerClient
        from python_on_whales.exceptions import DockerException

        try:
            yield DockerClient(host=self.url, **options) if options else self.whales
        except DockerException as error:
            raise KitError(f"{self.name}: {what}: {last_words(error.stderr)}") from None

    def command(self, what: str, *arguments: str, env: Mapping[str, str] | None = None) -> str:
        """Call docker where python-on-whales lacks an option, and return what it printed.

        `env` are variables for this call; of kit's own it gets what docker itself needs.

        Raises:
            KitError: It failed to do `what`.
        """
        host = ["--host", self.url] if self.url else []
        done = subprocess.run(
            [_program(), *host, *arguments],
            env={**clean(os.environ), **(env or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
        if done.returncode:
            raise KitError(f"{self.name}: {what}: {last_words(done.stderr)}")
        return done.stdout

    @cached_property
    def _connection(self) -> _Dialled:
        return _Dialled(self.name, self.url, prelude=self._prelude)

    def request(
        self,
        method: str,
        path: str,
        body: object = None,
        headers: Mapping[str, str] | None = None,
        **query: str | dict[str, Any],
    ) -> Any:
        """Ask the Engine API and return its answer, parsed.

        Raises:
            KitError: The engine cannot be reached.
            EngineError: It refuses.
        """
        content = self._answer(method, path, body, query, headers)
        return json.loads(content) if content else None

    def read(
        self, path: str, patience: float = PATIENCE, /, **query: str | dict[str, Any]
    ) -> bytes:
        """Ask for what is no JSON, and may take `patience` seconds; see `request`.

        Raises:
            SilentError: It took longer.
        """
        return self._answer("GET", path, None, query, patience=patience)

    def get(
        self, path: str, headers: Mapping[str, str] | None = None, **query: str | dict[str, Any]
    ) -> Any:
        """Ask for what is; see `request`."""
        return self.request("GET", path, None, headers, **query)

    def post(self, path: str, body: object, **query: str | dict[str, Any]) -> Any:
        """Tell it what to do; see `request`. What `body` holds shows in no list of processes."""
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
            self._connection.be_patient(patience)
            with self._connection.ask(method, path, body, query, headers) as response:
                return response.read()

    @contextmanager
    def stream(
        self,
        path: str,
        patience: float | None = None,
        sent: Callable[[], object] | None = None,
        /,
        **query: str | dict[str, Any],
    ) -> Iterator[HTTPResponse]:
        """Yield an answer on a connection of its own; it may go on for ever.

        With `patience` it may pause for so many seconds. `sent` is called when the request is on
        its way: the answer to a request for new log lines begins with the first line.

        Raises:
            SilentError: It did for longer.
        """
        connection = _Dialled(self.name, self.url, patience or PATIENCE)
        self._streams.add(connection)
        try:
            with connection.ask("GET", path, None, query, sent=sent) as response:
                if patience is None:
                    connection.wait_for_ever()
                yield response
        finally:
            self._streams.discard(connection)
            connection.hang_up()

    def close(self) -> None:
        """Hang up; the next request dials anew. What other threads read or wait for ends."""
        for connection in (*self._streams, self._connection):
            connection.cut()
        with self._lock:
            self._connection.hang_up()


class _Dialled(HTTPConnection):
    """HTTP over the standard streams of `docker system dial-stdio`, as docker's own SSH does it."""

    def __init__(
        self, name: str, url: str | None, patience: float = PATIENCE, prelude: str = ""
    ) -> None:
        super().__init__("docker", timeout=patience)
        self.said = ""
        self._name = name
        self._url = url
        self._prelude = prelude
        self._process: subprocess.Popen[bytes] | None = None
        self._line: socket.socket | None = None

    def connect(self) -> None:
        self._forget()
        command = _dial(self._url, self._prelude)
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                command,
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=subprocess.PIPE,
                start_new_session=True,  # Ctrl-C is kit's to handle, not its ssh's.
            )
        ours.settimeout(self.timeout)
        self.sock = self._line = ours
        if self._prelude:
            self.said = _read_line(ours)

    def be_patient(self, seconds: float) -> None:
        """Set how long an answer may take to begin, and pause."""
        self.timeout = seconds
        if self.sock is not None:
            self.sock.settimeout(seconds)

    def wait_for_ever(self) -> None:
        """An answer that has begun may pause for as long as it likes."""
        if self.sock is not None:
            self.sock.settimeout(None)

    def cut(self) -> None:
        """End what another thread reads from: closing would wait for that very thread."""
        with suppress(OSError):
            if self._line is not None:
                self._line.shutdown(socket.SHUT_RDWR)
        if self._process is not None:
            self._process.kill()  # docker's command line takes a first SIGTERM for a wish.

    def hang_up(self) -> None:
        """End the call. `close`, which http.client calls itself, leaves the process to speak."""
        self.cut()
        self.close()
        self._forget()

    def _forget(self) -> None:
        self.cut()
        if self._process is not None:
            self._process.communicate()
            self._process = None

    def _complaint(self) -> str:
        """End a call that has failed; return what docker and its ssh had to say about it."""
        said = b""
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                _, said = self._process.communicate(timeout=LAST_WORDS)
        self.hang_up()
        return said.decode(errors="replace")

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
        """Send a request and yield the answer, which must be good."""
        values = {k: v if isinstance(v, str) else json.dumps(v) for k, v in query.items()}
        target = f"{path}?{urlencode(values)}" if values else path
        content = None if body is None else json.dumps(body).encode()
        if self._process is not None and self._process.poll() is not None:
            # The host was away since the last request: it may be back.
            self.hang_up()
        try:
            own = {"Content-Type": "application/json", **(headers or {})}
            self.request(method, target, content, own)
            if sent is not None:
                sent()
            response = self.getresponse()
            if response.status >= 400:
                raise EngineError(self._name, response.status, _message(response.read()))
            yield response
        except TimeoutError:
            self.hang_up()
            what = f"{self._name}: Docker has said nothing for {self.timeout:.0f} s"
            raise SilentError(what, "try again, or look at its log: journalctl -u docker") from None
        except (HTTPException, OSError) as error:
            said = self._complaint()
            raise unreachable(self._name, self._url, last_words(said or str(error))) from None


def _dial(url: str | None, prelude: str = "") -> list[str]:
    """Return the command that connects its standard streams to an engine."""
    dial = ["docker", "system", "dial-stdio"]
    if url and url.startswith(SSH):
        # As docker does, whose own ssh takes 30 s for a host that is down, for ever if one dies.
        _installed("ssh", "install openssh-client")
        if prelude:
            script = f"({prelude}) | base64 | tr -d '\\n'; echo; exec {' '.join(dial)}"
            dial = [f"exec sh -c {shlex.quote(script)}"]
        return [*ssh.command(url.removeprefix(SSH)), *dial]
    return [_program(), *(["--host", url] if url else []), *dial[1:]]


def _read_line(line: socket.socket) -> str:
    """Read what a prelude printed: a line in base64, to where the engine's words begin.

    It is empty where the connection broke off, which the first request tells.
    """
    found = b""
    while not found.endswith(b"\n"):
        there = line.recv(65536, socket.MSG_PEEK)
        if not there:
            return ""
        end = there.find(b"\n") + 1
        found += line.recv(end or len(there))
    return base64.b64decode(found).decode(errors="replace")


def unreachable(name: str, url: str | None, said: str) -> KitError:
    """Say that a host's engine does not answer, and how to find out why."""
    option = f"-H {url} " if url else ""
    return KitError(f"{name}: Docker cannot be reached: {said}", f"try `docker {option}info`")


def last_words(stderr: str | None) -> str:
    """Return the line of a program's output that says what was wrong."""
    # docker's command puts words of its own in front of its ssh's.
    said = (stderr or "").rpartition("stderr=")[2]
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return lines[-1] if lines else "it does not say why"


def _message(content: bytes) -> str:
    try:
        return str(json.loads(content)["message"])
    except (ValueError, KeyError, TypeError):
        return content.decode(errors="replace").strip() or "no reason given"


def _program() -> str:
    return _installed(
        "docker",
        "install Docker's CLI: docker-ce-cli, or docker-cli of Debian; no engine is needed",
    )


def _installed(program: str, advice: str) -> str:
    found = shutil.which(program)
    if found is None:
        what = f"the {program} command is not installed here, and kit reaches the hosts with it"
        raise InputError(what, advice)
    return found


def at_once(work: Callable[[T], R], items: Iterable[T]) -> list[R | KitError]:
    """Do something with each item at the same time; return the results, or what went wrong."""

    def tried(item: T) -> R | KitError:
        try:
            return work(item)
        except KitError as error:
            return error

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(tried, items))


def on_each(hosts: Iterable[Host], work: Callable[[Host], R]) -> dict[str, R | KitError]:
    """Do something on all hosts at once; return each one's result, or what went wrong there."""
    hosts = list(hosts)
    return dict(zip([host.name for host in hosts], at_once(work, hosts), strict=True))
