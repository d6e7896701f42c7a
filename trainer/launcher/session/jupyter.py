"""JupyterLab of a session, on loopback: `kit session jupyter` forwards it by `docker exec`."""

import json
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from trainer.launcher.errors import FAILURE, LaunchError
from trainer.launcher.output import say
from trainer.launcher.process import die_with_parent
from trainer.launcher.session.access import find_program, runtime_folder, write_private

NO_JUPYTER = "its image has no JupyterLab: `RUN pip install jupyterlab` adds it"
AGAIN = 60.0
# Seconds between two starts, if it ends at once.


def free_port() -> int:
    """Return a free port of loopback."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Jupyter:
    """JupyterLab with a token, on loopback; it is restarted if it ends."""

    def __init__(self, notes: Path, home: Path, environ: Mapping[str, str]) -> None:
        self._program = find_program("jupyter-lab")
        self._home, self._log = home, notes / "jupyter.log"
        self._port, self._token = free_port(), secrets.token_urlsafe(24)
        self._environ = {**environ, "JUPYTER_TOKEN": self._token, "HOME": str(home)}
        self._process: subprocess.Popen[bytes] | None = None
        self._again, self._said = float("-inf"), ""
        self.missing = "" if self._program else NO_JUPYTER

    def keep(self) -> None:
        """Start it, if it does not run and was not started recently."""
        if self._process is not None:
            if self._process.poll() is None:
                return
            self._tell(f"JupyterLab has ended ({self._process.returncode}): see {self._log}")
            self._process = None
        now = time.monotonic()
        if self._program is None or now < self._again:
            return
        self._again = now + AGAIN
        try:
            self._process = self._start(self._program)
            self.missing = ""
        except OSError as error:
            what = f"{error.filename or self._program}: {error.strerror}"
            self.missing = f"it cannot be started: {what}"
            self._tell(f"JupyterLab cannot be started: {what}")

    def _tell(self, what: str) -> None:
        if what != self._said:
            self._said = what
            say(what, error=True)

    def _start(self, program: str) -> "subprocess.Popen[bytes]":
        """Start it; no command line has its token."""
        options = ("--no-browser", "--allow-root", "--ServerApp.ip=127.0.0.1")
        port = (f"--ServerApp.port={self._port}", "--ServerApp.port_retries=0")
        root = f"--ServerApp.root_dir={self._home}"
        self._log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        known = json.dumps({"port": self._port, "token": self._token})
        write_private(runtime_folder() / "jupyter.json", known)
        with self._log.open("wb") as log:
            return subprocess.Popen(
                [program, *options, *port, root],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environ,
                preexec_fn=die_with_parent,
            )

    def connected(self) -> int:
        """Return the number of open tabs, or whether a kernel computes, from its API."""
        if self._process is None:
            return 0
        from http.client import HTTPException

        with suppress(OSError, HTTPException, ValueError, KeyError, TypeError):
            found = self._ask("/api/status")
            kernels = self._ask("/api/kernels") if found["kernels"] else []
            busy = any(each["execution_state"] == "busy" for each in kernels)
            return max(int(found["connections"]), int(busy))
        return 0

    def _ask(self, path: str) -> Any:
        # urllib would use a proxy of the environment, and send it the token.
        from http.client import HTTPConnection

        connection = HTTPConnection("127.0.0.1", self._port, timeout=5)
        try:
            connection.request("GET", path, headers={"Authorization": f"token {self._token}"})
            answer = connection.getresponse()
            return json.load(answer) if answer.status == 200 else {}
        finally:
            connection.close()


def tell_jupyter() -> None:
    """Print the port and the token of JupyterLab, for `kit session jupyter`."""
    known = runtime_folder() / "jupyter.json"
    if not known.exists():
        missing = find_program("jupyter-lab") is None
        raise LaunchError(NO_JUPYTER if missing else "JupyterLab has not started yet", FAILURE)
    sys.stdout.write(known.read_text() + "\n")
