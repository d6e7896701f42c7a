"""SSH access to a session: one sshd for each connection.

sshd does not listen on the network: `kit session` starts it by `docker exec`.
"""

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from trainer.launcher.errors import FAILURE, LaunchError

SESSION = "KIT_SESSION"
# The variable with the id of the session, in all processes of the session.
SHADOW = Path("/etc/shadow")
HOST_KEY = "ssh_host_ed25519_key"
SBIN = ("/usr/sbin", "/usr/local/sbin", "/sbin")
OWN = frozenset({"HOME", "USER", "LOGNAME", "SHELL", "MAIL", "PWD", "OLDPWD", "SHLVL", "TERM", "_"})
# Variables that belong to a login.
NO_SSHD = "its image has no sshd: `RUN apt-get update && apt-get install -y openssh-server` adds it"
SSHD_CONFIG = """\
# Written by kit's launcher for a session.
HostKey {folder}/{key}
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
# A laptop that sleeps is no connection after two minutes.
ClientAliveInterval 30
ClientAliveCountMax 4
AcceptEnv LANG LC_*
Subsystem sftp internal-sftp
{variables}
"""


def runtime_folder() -> Path:
    """Return the folder for files that a session keeps while its container runs."""
    return Path(tempfile.gettempdir(), f"kit-session-{os.getuid()}")


def find_program(name: str) -> str | None:
    """Return the path of a program, which may be in a folder for root's programs."""
    return shutil.which(name, path=os.pathsep.join((os.environ.get("PATH", ""), *SBIN)))


def quoted(name: str, value: str) -> str:
    """Return a variable in the syntax of sshd_config(5)."""
    return '"' + f"{name}={value}".replace("\\", "\\\\").replace('"', '\\"') + '"'


def set_variables(environ: Mapping[str, str]) -> str:
    """Return the line that sets the container's variables for logins, except multi-line ones."""
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


def prepare_sshd(notes: Path, keys: Sequence[str], environ: Mapping[str, str], user: str) -> str:
    """Write the files of sshd; return why it cannot be used, or ""."""
    program = find_program("sshd")
    if not keys:
        return "`session: {keys: […]}` names no key"
    if program is None:
        return NO_SSHD
    if is_locked(user):
        return f"{user} is locked in its image: `RUN usermod -p '*' {user}` lets keys open it"
    try:
        return make_host_key(notes) or write_config(program, notes, keys, environ)
    except OSError as error:
        return f"{error.filename or 'sshd'}: {error.strerror}"


def is_locked(user: str, shadow: Path = SHADOW) -> bool:
    """Whether sshd without PAM refuses this user; False if the file cannot be read."""
    with suppress(OSError):
        for line in shadow.read_text().splitlines():
            name, _, rest = line.partition(":")
            if name == user:
                return rest.startswith("!")
    return False


def make_host_key(notes: Path) -> str:
    """Make the host key of sshd, which is kept after the container; return an error, or ""."""
    key = notes / HOST_KEY
    if key.exists():
        return ""
    make = (find_program("ssh-keygen") or "ssh-keygen", "-q", "-t", "ed25519", "-N", "")
    done = subprocess.run([*make, "-C", "kit", "-f", key], capture_output=True, text=True)
    return f"ssh-keygen: {done.stderr.strip()}" if done.returncode else ""


def write_config(program: str, notes: Path, keys: Sequence[str], environ: Mapping[str, str]) -> str:
    """Write the configuration of sshd; return what this version of sshd refuses, or ""."""
    folder = runtime_folder()
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, parents=True, exist_ok=True)
    write_private(folder / "authorized_keys", "".join(f"{each}\n" for each in keys))
    # A copy: logins still work if a person removes kit's folder in the home.
    write_private(folder / HOST_KEY, (notes / HOST_KEY).read_text())
    values = {"folder": folder, "key": HOST_KEY, "variables": set_variables(environ)}
    write_private(folder / "sshd_config", SSHD_CONFIG.format(**values))
    test = [program, "-t", "-f", str(folder / "sshd_config")]
    done = subprocess.run(test, capture_output=True, text=True)
    said = done.stderr.strip().splitlines() or [f"`sshd -t` ends with {done.returncode}"]
    return f"sshd refuses its configuration: {said[-1]}" if done.returncode else ""


def host_key(notes: Path) -> str:
    """Return the public key of sshd here, with its type; "" without sshd."""
    with suppress(OSError):
        return " ".join((notes / f"{HOST_KEY}.pub").read_text().split()[:2])
    return ""


def connect() -> None:
    """Become sshd for one connection, over this process's standard input and output."""
    config, program = runtime_folder() / "sshd_config", find_program("sshd")
    if program is None:
        raise LaunchError(NO_SSHD)
    if not config.exists():
        raise LaunchError("the session has not begun yet, or has no key: see `kit logs`", FAILURE)
    os.execv(program, [program, "-i", "-e", "-f", str(config)])
