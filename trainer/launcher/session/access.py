"""The ways into a session: sshd for one connection at a time, and JupyterLab on loopback.

Neither can be reached from the network: `kit session` starts sshd by `docker exec`, and leads a
port to JupyterLab by the same way.
"""

import json
import os
import pwd
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from trainer.launcher.errors import FAILURE, LaunchError
from trainer.launcher.output import say
from trainer.launcher.process import die_with_parent

SESSION = "KIT_SESSION"
# The variable with the id of the session, of all that runs in it.
SBIN = ("/usr/sbin", "/usr/local/sbin", "/sbin")
OWN = frozenset({"HOME", "USER", "LOGNAME", "SHELL", "MAIL", "PWD", "OLDPWD", "SHLVL", "TERM", "_"})
# Variables that belong to a login.
NO_SSHD = "its image has no sshd: `RUN apt-get update && apt-get install -y openssh-server` adds it"
NO_JUPYTER = "its image has no JupyterLab: `RUN pip install jupyterlab` adds it"
SSHD_CONFIG = """\
# Written by kit's launcher for a session.
HostKey {notes}/ssh_host_ed25519_key
AuthorizedKeysFile {folder}/authorized_keys
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
# The owner of a volume's folders need not be the user.
StrictModes no
UsePAM no
PrintMotd no
PidFile none
LogLevel ERROR
AcceptEnv LANG LC_*
Subsystem sftp internal-sftp
{variables}
"""


def runtime_folder() -> Path:
    """Return the folder of what a session keeps while its container runs."""
    return Path(tempfile.gettempdir(), f"kit-session-{os.getuid()}")


def find_program(name: str) -> str | None:
    """Return the path of a program that may be in a folder for root."""
    return shutil.which(name, path=os.pathsep.join((os.environ.get("PATH", ""), *SBIN)))


def quoted(name: str, value: str) -> str:
    """Return a variable in the syntax of sshd_config(5)."""
    return '"' + f"{name}={value}".replace("\\", "\\\\").replace('"', '\\"') + '"'


def set_variables(environ: Mapping[str, str]) -> str:
    """Return the line that gives logins the container's variables; one of several lines is not."""
    fit = {name: value for name, value in environ.items() if name not in OWN and "\n" not in value}
    words = [quoted(name, value) for name, value in sorted(fit.items())]
    return f"SetEnv {' '.join(words)}" if words else ""


def require_home(home: Path) -> str:
    """Return the name of this user, whose home must be that of the session; raises LaunchError."""
    try:
        user = pwd.getpwuid(os.getuid())
    except KeyError:
        what = f"the image does not know its user {os.getuid()}, and sshd lets nobody else in"
        raise LaunchError(f"{what}: leave `user:` out, or name a user of the image") from None
    if Path(user.pw_dir) != home:
        what = f"the home of {user.pw_name} is {user.pw_dir} in this image, not {home}"
        raise LaunchError(f"{what}: write `session: {{home: {user.pw_dir}}}`")
    return user.pw_name


def write_private(path: Path, text: str) -> None:
    """Write a file that only this user can read."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)


def prepare_sshd(notes: Path, keys: Sequence[str], environ: Mapping[str, str]) -> str:
    """Write the files of sshd; return why it cannot be used, or "". Raises LaunchError."""
    folder = runtime_folder()
    if not keys:
        return "`session: {keys: […]}` names no key"
    if not find_program("sshd"):
        return NO_SSHD
    key = notes / "ssh_host_ed25519_key"
    if not key.exists():
        make = (find_program("ssh-keygen") or "ssh-keygen", "-q", "-t", "ed25519", "-N", "")
        done = subprocess.run([*make, "-C", "kit", "-f", key], capture_output=True, text=True)
        if done.returncode:
            raise LaunchError(f"ssh-keygen: {done.stderr.strip()}", FAILURE)
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, parents=True, exist_ok=True)
    write_private(folder / "authorized_keys", "".join(f"{each}\n" for each in keys))
    values = {"notes": notes, "folder": folder, "variables": set_variables(environ)}
    write_private(folder / "sshd_config", SSHD_CONFIG.format(**values))
    return ""


def host_key(notes: Path) -> str:
    """Return the public key of sshd here, with its type; "" without sshd."""
    with suppress(OSError):
        return " ".join((notes / "ssh_host_ed25519_key.pub").read_text().split()[:2])
    return ""


def connect() -> None:
    """Become sshd for one connection, whose client is at this process's input and output."""
    config, program = runtime_folder() / "sshd_config", find_program("sshd")
    if program is None:
        raise LaunchError(NO_SSHD)
    if not config.exists():
        raise LaunchError("the session has not begun yet, or has no key: see `kit logs`", FAILURE)
    os.execv(program, [program, "-i", "-e", "-f", str(config)])


def free_port() -> int:
    """Return a port of loopback that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Jupyter:
    """JupyterLab with a token, on loopback; it is started again if it ends."""

    def __init__(self, notes: Path, home: Path, environ: Mapping[str, str]) -> None:
        self._program = find_program("jupyter-lab")
        self._home, self._log = home, notes / "jupyter.log"
        self._port, self._token = free_port(), secrets.token_urlsafe(24)
        self._environ = {**environ, "JUPYTER_TOKEN": self._token, "HOME": str(home)}
        self._process: subprocess.Popen[bytes] | None = None
        self.missing = "" if self._program else NO_JUPYTER

    def keep(self) -> None:
        """Start it, if it does not run; its token is in no command line."""
        if self._program is None or (self._process and self._process.poll() is None):
            return
        if self._process:
            say(f"JupyterLab has ended ({self._process.returncode}): see {self._log}", error=True)
        options = ("--no-browser", "--allow-root", "--ServerApp.ip=127.0.0.1")
        port = (f"--ServerApp.port={self._port}", "--ServerApp.port_retries=0")
        root = f"--ServerApp.root_dir={self._home}"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [self._program, *options, *port, root],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environ,
                preexec_fn=die_with_parent,
            )
        known = json.dumps({"port": self._port, "token": self._token})
        write_private(runtime_folder() / "jupyter.json", known)

    def connected(self) -> int:
        """Return how many tabs are open, or whether a kernel computes, as its API tells."""
        if self._process is None:
            return 0
        with suppress(OSError, ValueError, KeyError):
            found = self._ask("/api/status")
            kernels = self._ask("/api/kernels") if found["kernels"] else []
            busy = any(each["execution_state"] == "busy" for each in kernels)
            return max(int(found["connections"]), int(busy))
        return 0

    def _ask(self, path: str):  # type: ignore[no-untyped-def]
        from urllib.request import Request, urlopen

        request = Request(f"http://127.0.0.1:{self._port}{path}")
        request.add_header("Authorization", f"token {self._token}")
        with urlopen(request, timeout=5) as answer:
            return json.load(answer)


def tell_jupyter() -> None:
    """Print the port and the token of JupyterLab, for `kit session jupyter`."""
    known = runtime_folder() / "jupyter.json"
    if not known.exists():
        missing = find_program("jupyter-lab") is None
        raise LaunchError(NO_JUPYTER if missing else "JupyterLab has not started yet", FAILURE)
    sys.stdout.write(known.read_text() + "\n")
