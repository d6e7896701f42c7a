"""Settings: the environment, the job file, secrets."""

import json
import re
import socket
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from trainer.contract.code import WORKSPACE
from trainer.launcher.errors import LaunchError


class Settings:
    """The variables of trainer/launcher/__init__.py, with their defaults."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.host = read_variable(environ, "KIT_HOST", socket.gethostname())
        self.job = Path(read_variable(environ, "KIT_JOB"))
        self._rendezvous = environ.get("KIT_RENDEZVOUS", "")
        self.nproc = read_number(environ, "KIT_NPROC")
        self.checkpoints = Path(read_variable(environ, "KIT_CHECKPOINTS", "/checkpoints"))
        self.data = Path(read_variable(environ, "KIT_DATA", "/data"))
        self.data_sets = read_data_sets(environ.get("KIT_DATA_SETS") or "[]")
        self.data_socket = Path(read_variable(environ, "KIT_DATA_SOCKET", "/datasets/agent.sock"))
        self.workspace = Path(read_variable(environ, "KIT_WORKSPACE", WORKSPACE))
        self.wait = read_number(environ, "KIT_RENDEZVOUS_TIMEOUT", "300")
        self.group_wait = read_number(environ, "KIT_GROUP_TIMEOUT", "60")

    @property
    def rendezvous(self) -> tuple[str, int]:
        """The endpoint where hosts meet; raises LaunchError without one, as in a session."""
        return parse_endpoint(read_variable({"KIT_RENDEZVOUS": self._rendezvous}, "KIT_RENDEZVOUS"))


QUIET = 600  # Seconds, unless the job has `quiet`.


class Interactive(NamedTuple):
    """A session: its persistent home folder, and the public keys that may log in."""

    home: str
    keys: tuple[str, ...] = ()
    started: str = ""  # Differs between starts of the session.


class Job(NamedTuple):
    """The part of a job that the launcher reads."""

    name: str  # Also part of the rendezvous id.
    command: tuple[str, ...]  # The user's script and arguments; empty: the built-in training.
    metrics_port: int = 0  # 0: no metrics.
    files: tuple[str, ...] = ()  # The script's files that kit keeps in versions.
    keep: int = 3  # Number of versions.
    framework: str = "pytorch"  # The program that starts the script's processes.
    setup: tuple[str, ...] = ()  # Lines for sh that run before.
    code: str = ""  # The SHA-256 of the archive with its code.
    working_dir: str = ""  # In the folder of its code.
    quiet: int = QUIET  # Seconds after which an idle rank is reported; 0: never.
    max_duration: int | None = None  # Seconds after which the job ends.
    idle: int | None = None  # Seconds without work after which it ends.
    stop_grace_period: int = 60  # Seconds for a last checkpoint, if it ends by a limit.
    session: Interactive | None = None  # Instead of a command.


def read_nnodes(environ: Mapping[str, str]) -> tuple[int, int, int]:
    """Read the least and the most hosts of a job, and the number of spares."""
    text = read_variable(environ, "KIT_NNODES")
    bounds = re.fullmatch(r"([1-9]\d*):([1-9]\d*)", text)
    if not bounds or int(bounds[1]) > int(bounds[2]):
        raise LaunchError(f'KIT_NNODES must be MIN:MAX such as 1:2, is "{text}"')
    spares = read_variable(environ, "KIT_SPARES", "0")
    if not re.fullmatch(r"\d{1,4}", spares):
        raise LaunchError(f'KIT_SPARES must be a number such as 1, is "{spares}"')
    return int(bounds[1]), int(bounds[2]), int(spares)


def parse_endpoint(text: str) -> tuple[str, int]:
    """Split host:port."""
    host, _, port = text.rpartition(":")
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise LaunchError(f'KIT_RENDEZVOUS must be host:port such as rendezvous:29400, is "{text}"')
    return host, int(port)


def endpoint_text(endpoint: tuple[str, int]) -> str:
    """Join host and port; an IPv6 address is put in brackets."""
    host, port = endpoint
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def read_variable(environ: Mapping[str, str], name: str, default: str = "") -> str:
    """Read a variable; raises LaunchError if it has no value and no default."""
    value = environ.get(name) or default
    if not value:
        raise LaunchError(f"{name} is not set; the files that kit render writes set it")
    return value


def read_number(environ: Mapping[str, str], name: str, default: str = "") -> int:
    """Read a variable with a whole number of at least 1; raises LaunchError."""
    text = read_variable(environ, name, default)
    if not text.isdecimal() or int(text) < 1:
        raise LaunchError(f'{name} must be a whole number of at least 1, is "{text}"')
    return int(text)


def read_job(path: Path) -> Job:
    """Read the part of the job file that launching needs."""
    try:
        content = json.loads(path.read_text())
    except OSError as error:
        raise LaunchError(f"{path}: {error.strerror}; KIT_JOB must name the job file") from error
    except ValueError as error:
        raise LaunchError(f"{path}: is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise LaunchError(f"{path}: must be an object with the keys name and train or command")
    name, command = content.get("name"), content.get("command", [])
    if not isinstance(name, str) or not name:
        raise LaunchError(f"{path}: name: must be the name of the job")
    if sum(key in content for key in ("train", "command", "session")) != 1:
        raise LaunchError(f"{path}: must have exactly one of train, command and session")
    words = isinstance(command, list) and all(isinstance(word, str) for word in command)
    if not words or ("command" in content and not command):
        raise LaunchError(f'{path}: command: must be a list of words such as ["ddp.py", "50"]')
    metrics = content.get("metrics", {})
    port = metrics.get("port", 0) if isinstance(metrics, dict) else None
    if not isinstance(port, int) or not 0 <= port < 65536:
        raise LaunchError(f"{path}: metrics: port: must be the number of a port")
    framework = content.get("framework", "pytorch")
    if framework not in ("pytorch", "tensorflow"):
        raise LaunchError(f"{path}: framework: must be pytorch or tensorflow")
    setup = content.get("setup", [])
    if not isinstance(setup, list) or not all(isinstance(line, str) for line in setup):
        raise LaunchError(f'{path}: setup: must be a list of lines such as ["pip install tqdm"]')
    files, quiet = read_files(path, content), read_quiet(path, content)
    code = read_code(path, content)
    limits = read_seconds(path, content, "max_duration"), read_seconds(path, content, "idle")
    grace = read_seconds(path, content, "stop_grace_period") or 60
    work = (name, tuple(command), port, *files, framework, tuple(setup), *code, quiet)
    return Job(*work, *limits, grace, read_session(path, content))


def read_session(path: Path, content: Mapping[str, Any]) -> Interactive | None:
    """Read a session; None for other jobs."""
    section = content.get("session")
    if section is None:
        return None
    home, keys = section.get("home"), section.get("keys", [])
    if not isinstance(home, str) or not home.startswith("/"):
        raise LaunchError(f"{path}: session: home: must be an absolute path")
    if not isinstance(keys, list) or not all(isinstance(each, str) for each in keys):
        raise LaunchError(f"{path}: session: keys: must be a list of public keys")
    return Interactive(home, tuple(keys), str(section.get("started", "")))


def read_code(path: Path, content: Mapping[str, Any]) -> tuple[str, str]:
    """Read the SHA-256 of the job's code, and the folder in which its command runs."""
    section = content.get("code", {})
    digest, folder = section.get("sha256", ""), section.get("working_dir", "")
    if not isinstance(digest, str) or not re.fullmatch("([0-9a-f]{64})?", digest):
        raise LaunchError(f"{path}: code: sha256: must be 64 hexadecimal digits")
    if not isinstance(folder, str):
        raise LaunchError(f"{path}: code: working_dir: must be a folder")
    return digest, folder


def read_quiet(path: Path, content: Mapping[str, Any]) -> int:
    """Read the seconds after which an idle rank is reported; 0: never."""
    quiet = content.get("quiet", QUIET)
    if type(quiet) is not int or quiet < 0:
        raise LaunchError(f"{path}: quiet: must be a number of seconds, or 0")
    return quiet


def read_seconds(path: Path, content: Mapping[str, Any], key: str) -> int | None:
    """Read a time after which a job ends; None without one."""
    seconds = content.get(key)
    if seconds is not None and (type(seconds) is not int or seconds < 1):
        raise LaunchError(f"{path}: {key}: must be a number of seconds")
    return seconds


def read_files(path: Path, content: Mapping[str, Any]) -> tuple[tuple[str, ...], int]:
    """Read the paths of a script's kept files, and the number of versions."""
    section = content.get("checkpoint", {}) if "command" in content else {}
    files, keep = section.get("files", []), section.get("keep", 3)
    if not isinstance(files, list) or not all(isinstance(each, str) for each in files):
        raise LaunchError(f'{path}: checkpoint: files: must be a list such as ["snapshot.pt"]')
    if type(keep) is not int or keep < 1:
        raise LaunchError(f"{path}: checkpoint: keep: must be a number of at least 1")
    return tuple(files), keep


def read_data_sets(text: str) -> list[Any]:
    """Read KIT_DATA_SETS; the data agent checks names and versions."""
    with suppress(ValueError):
        found = json.loads(text)
        if isinstance(found, list) and all(isinstance(each, dict) for each in found):
            return found
    form = '[{"name": "cifar10", "version": 1}]'
    raise LaunchError(f"KIT_DATA_SETS must be a list such as {form}, is {text}")


def read_secrets(names: str, folder: Path) -> dict[str, str]:
    """Read the files of `names`, a list separated by commas."""
    try:
        return {name: (folder / name).read_text() for name in names.split(",") if name}
    except OSError as error:
        missing = f"the secret {error.filename} cannot be read: {error.strerror}"
        raise LaunchError(f"{missing}; kit deploy makes it") from error
