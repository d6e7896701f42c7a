"""HTTP to a Docker engine, through the docker command or ssh.

Docker's own connection by ssh waits 30 s for a host that is down, and for ever for a host that dies
while Docker reads its log. kit therefore runs the same command, `docker system dial-stdio`, on the
host through an ssh with time limits.
"""

from __future__ import annotations

import base64
import json
import shlex
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse
from typing import Any
from urllib.parse import unquote, urlencode

from kit.errors import InputError, KitError
from kit.hosts import ssh

SSH = "ssh://"
PATIENCE = 60.0
"""Seconds that an engine may take to begin its answer."""
CLIENT = "install Docker's CLI: docker-ce-cli, or docker-cli of Debian; no engine is needed"
ERROR_TIMEOUT = 2.0
"""Seconds to wait for the error message of docker's command after a failed call."""


class EngineError(KitError):
    """The engine rejected a request; `status` is the HTTP status."""

    def __init__(self, where: str, status: int, message: str) -> None:
        super().__init__(f"{where}: Docker: {message}")
        self.status = status


class Connection(HTTPConnection):
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
        """Start the command, and speak through its standard streams."""
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
        content = body if isinstance(body, bytes | None) else json.dumps(body).encode()
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
            # The answer is unread: requests of the cleanup, such as an unlock, must not read it.
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
    return [docker_program(), *(["--host", url] if url else []), *dial[1:]]


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


def docker_program() -> str:
    """Return the path of the docker command; raises InputError."""
    return _installed("docker", CLIENT)


def _installed(program: str, advice: str) -> str:
    path = shutil.which(program)
    if path is None:
        what = f"the {program} command is not installed here, and kit reaches the hosts with it"
        raise InputError(what, advice)
    return path
