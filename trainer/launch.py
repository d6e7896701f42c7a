"""The container's entry point: checks its environment, then becomes torchrun or an agent.

torchrun starts the user's own scripts, or this file those of TensorFlow; elastic/agent.py the
built-in training.

    python3 launch.py               run the training of the job file, as one host of several
    python3 launch.py coordinator   decide which hosts of a built-in training train together
    python3 launch.py rendezvous    decide which hosts of a script run it together
    python3 launch.py health        the container's health check: are the GPUs still there?

One file that uses only the standard library and Python 3.10, so that it can be mounted alone into
any image with torch 2.2 or newer (the built-in training needs 2.6) or with TensorFlow. Each of its
sections can be read alone: output, settings, GPUs, data sets, connection to the rendezvous, start,
rounds, rendezvous, agent, group, silence, torchrun, TensorFlow, the script's files, metrics,
worker, coordinator, subcommands.

    KIT_JOB                  path of the job file (JSON) in the container
    KIT_RENDEZVOUS           host:port or [IPv6]:port where hosts meet; a name has one address
    KIT_NNODES               MIN:MAX hosts of the job, for the coordinator and for scripts; not for
                             hosts of a built-in training: a change must not start them again
    KIT_NPROC                processes on this host: its GPUs, or its CPU workers; of TensorFlow,
                             one process uses as many GPUs
    KIT_SPARES               number of spares, where KIT_NNODES is set; default: 0
    KIT_SPARE                set on a spare: a host that takes part only while others are missing
    KIT_HOST                 this host's name in the log; default: its hostname
    KIT_CHECKPOINTS          folder of checkpoints; default: /checkpoints
    KIT_DATA                 folder of data sets; default: /data
    KIT_DATA_SETS            data sets to fetch first: [{"name": "cifar10", "version": 1}]; the
                             training finds their folders in KIT_DATA_PATHS: {"cifar10": "/…"}
    KIT_DATA_SOCKET          socket of the data agent; default: /datasets/agent.sock
    KIT_SECRETS              names of files in /run/secrets that become variables of the training
    KIT_METRICS_PORT         port of the metrics of this host; default: that of the job file, if any
    KIT_RENDEZVOUS_TIMEOUT   seconds to wait for the rendezvous; default: 300
    KIT_GROUP_TIMEOUT        seconds after which processes of a script that are not connected with
                             each other are told; default: 60
    KIT_ONE_RUN              set if nothing restarts a host: what ends one then ends all

It prints lines for people and, unless standard output is a terminal, events for programs
(contract/events.py). Foreseeable errors are raised as LaunchError; its message says what to do.
Before torchrun starts, the exit code is then 2 for a mistake in the input, 1 for work that failed.
"""

import asyncio
import ctypes
import fcntl
import hashlib
import json
import os
import re
import resource
import secrets
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

if sys.version_info < (3, 10):  # noqa: UP036 - What follows would end with a traceback.
    OLD = f"this image has Python {sys.version_info[0]}.{sys.version_info[1]}, "
    OLD += "and kit's launcher needs 3.10; build it on a newer one, such as pytorch/pytorch"
    failed = {"v": 1, "event": "failed", "kind": "input", "message": OLD}
    sys.stdout.write("@kit " + json.dumps(failed) + "\n")
    sys.stderr.write(f"launch: error: {OLD}\n")
    sys.exit(2)

MISTAKE, FAILURE = 2, 1  # Exit codes: something is wrong in the input; work has failed.


class LaunchError(Exception):
    """A foreseeable error; `kind` is a class of failed events."""

    def __init__(
        self,
        message: str,
        code: int = MISTAKE,
        kind: str = "input",
        rank: int | None = None,
        exit_code: int | None = None,
        fault: str = "",
        host: str = "",
    ) -> None:
        """`rank` and `exit_code` are those of the worker that failed, if one did.

        `fault` is equal for failures of a script at the same place, "" if that says nothing of the
        script. `host` is another host, on which it failed.
        """
        super().__init__(message)
        self.code, self.kind = code, kind
        self.rank, self.exit_code = rank, exit_code
        self.fault, self.host = fault, host

    def values(self) -> dict[str, Any]:
        """The values of its event."""
        line, code = str(self).splitlines()[0], self.exit_code or self.code
        values = {"kind": self.kind, "message": line, "rank": self.rank, "exit_code": code}
        return {**values, "host": self.host}


# -------- Output: lines for people, events for programs

# As in trainer/contract/events.py; a test compares them.
MARK, VERSION = "@kit ", 1


def say(text: str, *, error: bool = False) -> None:
    """Write one line for people."""
    stream = sys.stderr if error else sys.stdout
    stream.write(f"launch {_value(os.environ, 'KIT_HOST', socket.gethostname())}: {text}\n")
    stream.flush()


def event(name: str, **values: object) -> str:
    """The line of an event."""
    content = {"v": VERSION, "event": name, "time": round(time.time(), 3), **values}
    return MARK + json.dumps(content, ensure_ascii=False)


def emit(name: str, **values: object) -> None:
    """Print an event, unless standard output is a terminal."""
    if not sys.stdout.isatty():
        sys.stdout.write(event(name, **values) + "\n")
        sys.stdout.flush()


# -------- Settings: the environment, the job file, secrets


class Settings:
    """The variables above, with their defaults filled in."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.host = _value(environ, "KIT_HOST", socket.gethostname())
        self.job = Path(_value(environ, "KIT_JOB"))
        self.rendezvous = parse_endpoint(_value(environ, "KIT_RENDEZVOUS"))
        self.nproc = _number(environ, "KIT_NPROC")
        self.checkpoints = Path(_value(environ, "KIT_CHECKPOINTS", "/checkpoints"))
        self.data = Path(_value(environ, "KIT_DATA", "/data"))
        self.data_sets = read_data_sets(environ.get("KIT_DATA_SETS") or "[]")
        self.data_socket = Path(_value(environ, "KIT_DATA_SOCKET", "/datasets/agent.sock"))
        self.wait = _number(environ, "KIT_RENDEZVOUS_TIMEOUT", "300")
        self.group_wait = _number(environ, "KIT_GROUP_TIMEOUT", "60")


QUIET = 600  # Seconds, unless the job has `quiet`.


class Job(NamedTuple):
    """The part of a job that the launcher reads."""

    name: str  # Also part of the rendezvous id.
    command: tuple[str, ...]  # The user's own script, its arguments; empty: the built-in training.
    metrics_port: int = 0  # 0: no metrics.
    files: tuple[str, ...] = ()  # The script's files that kit keeps in versions.
    keep: int = 3  # Number of versions.
    framework: str = "pytorch"  # What starts the script's processes.
    setup: tuple[str, ...] = ()  # Lines for sh that run before.
    quiet: int = QUIET  # Seconds after which a rank that does nothing is told; 0: never.


def read_nnodes(environ: Mapping[str, str]) -> tuple[int, int, int]:
    """Read the least and the most hosts of a job, and the number of spares."""
    text = _value(environ, "KIT_NNODES")
    bounds = re.fullmatch(r"([1-9]\d*):([1-9]\d*)", text)
    if not bounds or int(bounds[1]) > int(bounds[2]):
        raise LaunchError(f'KIT_NNODES must be MIN:MAX such as 1:2, is "{text}"')
    spares = _value(environ, "KIT_SPARES", "0")
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


def _value(environ: Mapping[str, str], name: str, default: str = "") -> str:
    value = environ.get(name) or default
    if not value:
        raise LaunchError(f"{name} is not set; the files that kit render writes set it")
    return value


def _number(environ: Mapping[str, str], name: str, default: str = "") -> int:
    text = _value(environ, name, default)
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
    if ("train" in content) == ("command" in content):
        raise LaunchError(f"{path}: must have exactly one of train and command")
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
    return Job(name, tuple(command), port, *files, framework, tuple(setup), quiet)


def read_quiet(path: Path, content: Mapping[str, Any]) -> int:
    """Read after how many seconds a rank that does nothing is told; 0: never."""
    quiet = content.get("quiet", QUIET)
    if type(quiet) is not int or quiet < 0:
        raise LaunchError(f"{path}: quiet: must be a number of seconds, or 0")
    return quiet


def read_files(path: Path, content: Mapping[str, Any]) -> tuple[tuple[str, ...], int]:
    """Read which files of a script are kept, and how many versions of them."""
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
        missing = f"the secret {error.filename} can not be read: {error.strerror}"
        raise LaunchError(f"{missing}; kit deploy makes it") from error


# -------- GPUs, CPUs and open files of the container

FIRST_PROCESS = Path("/proc/1/environ")
CGROUP = Path("/sys/fs/cgroup")


def visible_devices() -> str:
    """NVIDIA_VISIBLE_DEVICES, which Docker may have set for the container's first process only.

    A Compose reservation sets it there (moby's setNvidiaGPUs); a health check gets only the
    variables of the image and the Compose file.
    """
    name = "NVIDIA_VISIBLE_DEVICES"
    environ: Mapping[str, str] = os.environ
    if name not in environ:
        with suppress(OSError):
            lines = FIRST_PROCESS.read_bytes().decode(errors="replace").split("\0")
            environ = dict(line.partition("=")[::2] for line in lines)
    return environ.get(name, "")


def list_gpus(number: str = "KIT_NPROC") -> list[str]:
    """The GPUs as nvidia-smi lists them; the variable `number` says how many there must be."""
    if visible_devices() in {"", "void", "none"}:
        return []
    # With this variable there is no container that could lack its GPUs.
    if "CUDA_VISIBLE_DEVICES" in os.environ:
        return chosen_gpus()
    needed = _number(os.environ, number, "1")
    try:
        answer = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=15)
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = f"nvidia-smi does not run ({error}): the container has no GPU"
        fix = "is nvidia the host's default runtime?"
        raise LaunchError(f"{reason}; {fix}", FAILURE, "gpu") from error
    listed = answer.stdout.strip()
    # The instances of a GPU split by MIG are listed below it.
    found = max(len(re.findall("^GPU ", listed, re.MULTILINE)), listed.count("UUID: MIG-"))
    if answer.returncode != 0 or found < needed:
        # A daemon-reload of systemd on the host removes a container's GPUs (NVIDIA Container
        # Toolkit, issue 48): "Failed to initialize NVML".
        left = f"{found} of {needed} GPUs are left ({listed or 'no output'})"
        raise LaunchError(f"{left}; restart the container", FAILURE, "gpu")
    return listed.splitlines()


def chosen_gpus() -> list[str]:
    """The GPUs that CUDA_VISIBLE_DEVICES names by UUID, as nvidia-smi lists them."""
    chosen = [uuid for uuid in os.environ["CUDA_VISIBLE_DEVICES"].split(",") if "-" in uuid]
    if not chosen:
        return []
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=15)
    return [line for line in listed.stdout.splitlines() if any(uuid in line for uuid in chosen)]


def gpu_uuids(listed: Sequence[str]) -> list[str]:
    """The UUIDs in nvidia-smi's lines; for a GPU split by MIG, only those of its instances."""
    found: list[str] = []
    for uuid in re.findall(r"UUID: ([^)]+)", "\n".join(listed)):
        # The instances are listed below their GPU.
        if uuid.startswith("MIG-") and found and not found[-1].startswith("MIG-"):
            found.pop()
        found.append(uuid)
    return found


def check_health() -> None:
    """Check that the container still has its GPUs."""
    list_gpus()


def available_cores() -> int:
    """The number of CPUs that this container may use: `limits.cpus` is a share of CPU time."""
    cores = float(len(os.sched_getaffinity(0)))
    with suppress(OSError, ValueError, ZeroDivisionError):
        if (file := CGROUP / "cpu.max").exists():  # Version 2; version 1 has two files.
            quota, period = file.read_text().split()
        else:
            quota = (CGROUP / "cpu" / "cpu.cfs_quota_us").read_text()
            period = (CGROUP / "cpu" / "cpu.cfs_period_us").read_text()
        if quota != "max" and int(quota) > 0:
            cores = min(cores, int(quota) / int(period))
    return max(1, int(cores))


OPEN_FILES = 65536  # As the rendered files allow; docker run with Docker 29 allows 1,024.


def raise_open_files() -> None:
    """Allow this process and its children more open files: sockets and shared tensors are files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


# -------- Waiting for services that may start later

REPEAT = 30  # Seconds between two lines on what the launcher waits for.
Answer = TypeVar("Answer")


class BrokenAnswerError(OSError):
    """A service has begun its answer and not ended it: it was there."""


def until_answered(
    ask: Callable[[], Answer], names: tuple[str, str, str], wait: float, advice: str, kind: str
) -> Answer:
    """Ask twice a second until there is an answer, and now and then say why there is none.

    `names` are the service, its address, and the beginning of the message if it never answers.
    Raises LaunchError after `wait` seconds of silence.
    """
    service, place, nobody = names
    began, said = time.monotonic(), ("", 0.0)
    while True:
        try:
            return ask()
        except OSError as error:
            reason = error.strerror or str(error) or type(error).__name__
            if isinstance(error, BrokenAnswerError):
                began = time.monotonic()
        waited = time.monotonic() - began
        if waited > wait:
            silence = f"{nobody} {place} for {wait} s ({reason})"
            raise LaunchError(f"{silence}; {advice}", FAILURE, kind)
        if said != (reason, waited // REPEAT):
            say(f"waits {wait - waited:.0f} s for {service} at {place} ({reason})")
            said = reason, waited // REPEAT
        time.sleep(0.5)


# -------- Data sets: the data agent of this host fetches them before the training starts

SILENT = (
    30  # Seconds without a line after which the agent is taken for dead; it sends one a second.
)


class DataAgent(HTTPConnection):
    """A connection to the data agent's Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("agent", timeout=SILENT)
        self._path = path

    def connect(self) -> None:
        """Connect to the socket, whose path may be longer than an address: 107 bytes (unix(7))."""
        folder = os.open(self._path.parent, os.O_PATH)
        try:
            self.sock = socket.socket(socket.AF_UNIX)
            self.sock.settimeout(SILENT)
            self.sock.connect(f"/proc/self/fd/{folder}/{self._path.name}")
        finally:
            os.close(folder)


class FetchProgress:
    """Tells how far the agent is: at once if something changes, else every 10 s."""

    def __init__(self) -> None:
        self._last, self._due = "", 0.0
        self._shown: dict[str, Any] = {}

    @property
    def begun(self) -> bool:
        """Whether the agent has said anything."""
        return bool(self._shown)

    def show(self, line: Mapping[str, Any]) -> None:
        """Say a line of the agent, or not."""
        kind = f"{line['name']}@{line['version']} {line['state']} {line.get('note', '')}"
        if kind == self._last and time.monotonic() < self._due:
            return
        self._last, self._due = kind, time.monotonic() + 10
        numbers = {key: int(line.get(key) or 0) for key in ("bytes", "total", "rate", "peers")}
        self._shown = {"data_set": line["name"], "version": line["version"], **numbers}
        emit("fetch", state=line["state"], **self._shown)
        text = f"data set {line['name']}@{line['version']}: {line['state']}"
        if line["total"]:
            text += f" {show_bytes(line['bytes'])} of {show_bytes(line['total'])}"
        if line["rate"]:
            left = (line["total"] - line["bytes"]) / line["rate"]
            peers = "1 host" if line["peers"] == 1 else f"{line['peers']} hosts"
            source = peers if line["peers"] else "the data server"
            text += f", {show_bytes(line['rate'])}/s from {source}, {left:.0f} s left"
        say(f"{text} ({line['note']})" if line.get("note") else text)

    def end(self) -> None:
        """Report the end of the last fetch, if there was one."""
        if self._shown:
            emit("fetch", state="ready", **(self._shown | {"rate": 0}))


def fetch_data(settings: Settings, job: str) -> dict[str, str]:
    """Wait until this host has the job's data sets; return the folder of each.

    The connection, and a lock on each data set, stay open in the programs that replace this one:
    as long as they are, the agent removes none of these data sets.
    """
    if not settings.data_sets:
        return {}
    return until_answered(
        partial(ask_data_agent, settings, job),
        ("the data agent", str(settings.data_socket), "no data agent answered at"),
        settings.wait,
        "is the data agent of this host running, and its cache mounted here?",
        "data",
    )


def ask_data_agent(settings: Settings, job: str) -> dict[str, str]:
    """Ask the agent for the job's data sets, and wait. OSError: try again later."""
    agent, progress = DataAgent(settings.data_socket), FetchProgress()
    body = json.dumps({"who": job, "data": settings.data_sets})
    agent.request("POST", "/use", body, {"Content-Type": "application/json"})
    try:
        return follow_fetch(settings, agent, progress)
    except (OSError, HTTPException, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise (BrokenAnswerError if progress.begun else OSError)(reason) from error


def follow_fetch(settings: Settings, agent: DataAgent, progress: FetchProgress) -> dict[str, str]:
    """Say how far the agent is until the data sets are there; the connection stays open."""
    sock, answer = agent.sock, agent.getresponse()
    if answer.status != 200:
        found = json.loads(answer.read())
        raise LaunchError(f"KIT_DATA_SETS: {found['error']}; {found['fix']}", kind="data")
    while line := answer.readline():
        found = json.loads(line)
        if found["state"] == "failed":
            message = f"{found['message']}; {found['fix']}"
            raise LaunchError(message, FAILURE, "data")
        if found["state"] == "ready":
            progress.end()
            os.set_inheritable(os.dup(sock.fileno()), True)
            return {name: hold(settings, found, path) for name, path in found["paths"].items()}
        progress.show(found)
    raise OSError("the data agent has ended")


def hold(settings: Settings, answer: Mapping[str, Any], path: str) -> str:
    """Lock a data set against removal; return its folder as this container sees it."""
    with suppress(ValueError):  # Of a path in the store, which is mounted at the same place.
        path = str(settings.data_socket.parent / Path(path).relative_to(answer["cache"]))
    mark = Path(path).parent / "COMPLETE"
    try:
        handle = os.open(mark, os.O_RDONLY)
        os.set_inheritable(handle, True)
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        what = f"{mark} can not be read ({error.strerror})"
        fix = "mount the data agent's folder into this container, and see KIT_DATA_SOCKET"
        raise LaunchError(f"{what}; {fix}", FAILURE, "data") from error
    return path


# -------- The connection to the rendezvous

# Where a socket address has its number, and the length of that (netinet/in.h).
NUMBERS = {int(socket.AF_INET): (4, 4), int(socket.AF_INET6): (8, 16)}


class InterfaceAddress(ctypes.Structure):
    """One address of one interface, as a link of the list of getifaddrs(3)."""


InterfaceAddress._fields_ = [
    ("next", ctypes.POINTER(InterfaceAddress)),
    ("name", ctypes.c_char_p),
    ("flags", ctypes.c_uint),
    ("address", ctypes.c_void_p),
    ("netmask", ctypes.c_void_p),
    ("other_end", ctypes.c_void_p),
    ("data", ctypes.c_void_p),
]


def find_rendezvous(endpoint: tuple[str, int]) -> str:
    """Connect to the store; return this host's local address. OSError: try again later."""
    host, port = endpoint
    found = socket.getaddrinfo(host, port, socket.AF_UNSPEC, socket.SOCK_STREAM)
    # A host may have an IPv4 and an IPv6 address.
    family = min(entry[0] for entry in found)
    addresses = sorted({str(entry[4][0]) for entry in found if entry[0] == family})
    if len(addresses) > 1:
        # Each agent would pick one at random, and torchrun would wait for ever without a message.
        several = f"KIT_RENDEZVOUS: {host} has {len(addresses)} addresses ({', '.join(addresses)})"
        raise LaunchError(f"{several}; name one service with a single replica")
    with socket.create_connection((addresses[0], port), timeout=5) as connection:
        return str(connection.getsockname()[0])


def wait_for_rendezvous(settings: Settings) -> str:
    """Wait until the store answers; return this host's local address of the connection."""
    return until_answered(
        partial(find_rendezvous, settings.rendezvous),
        ("the rendezvous", endpoint_text(settings.rendezvous), "nothing answered at"),
        settings.wait,
        "is the rendezvous service running, and on the same network?",
        "rendezvous",
    )


def interface_addresses() -> dict[str, str]:
    """All addresses of this host, each with its interface, in the order of getifaddrs(3).

    NCCL and gloo find interfaces with the same call, by the same names, and take the first address
    of the one that they are told.
    """
    libc, first = ctypes.CDLL(None), ctypes.POINTER(InterfaceAddress)()
    found: dict[str, str] = {}
    if libc.getifaddrs(ctypes.byref(first)) != 0:
        return found
    entry = first
    while entry:
        one = entry.contents
        family = ctypes.c_ushort.from_address(one.address).value if one.address else 0
        if family in NUMBERS:
            start, length = NUMBERS[family]
            number = ctypes.string_at(one.address + start, length)
            found.setdefault(socket.inet_ntop(family, number), one.name.decode())
        entry = one.next
    libc.freeifaddrs(first)
    return found


def pick_interface(address: str, addresses: Mapping[str, str], environ: Mapping[str, str]) -> str:
    """The interface that has `address`; the user's variable for gloo or NCCL has precedence."""
    if chosen := environ.get("GLOO_SOCKET_IFNAME"):
        return chosen
    names = [addresses[address]] if address in addresses else []
    if chosen := environ.get("NCCL_SOCKET_IFNAME"):
        named = chosen.lstrip("^=").partition(",")[0].partition(":")[0]
        taken = [name for name in addresses.values() if nccl_takes(chosen, name)] or [named]
        names = [name for name in names if name in taken] or taken
    if not names:
        lost = f"no interface has the address {address} that leads to the rendezvous"
        fix = "set NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME"
        raise LaunchError(f"{lost}; {fix}", FAILURE, "rendezvous")
    return names[0]


def nccl_takes(chosen: str, name: str) -> bool:
    """Whether NCCL_SOCKET_IFNAME matches an interface; gloo's variable takes whole names only.

    `eth` is a prefix, `=eth1` an exact name, `^docker` excludes (ncclFindInterfaces).
    """
    without, chosen = chosen.startswith("^"), chosen.removeprefix("^")
    exactly, chosen = chosen.startswith("="), chosen.removeprefix("=")
    words = [word.partition(":")[0] for word in chosen.split(",") if word]
    found = any(name == word or (not exactly and name.startswith(word)) for word in words)
    return found is not without


# -------- The start: check everything, then become torchrun or the agent


# As in trainer/contract/script.py; a test compares them.
SCRIPTS = (".py", ".pyc", ".pyw", ".pyz")
LAUNCHERS = (
    *("torch.distributed.run", "torch.distributed.launch", "torchrun", "torchx", "composer"),
    *("accelerate", "accelerate.commands.launch", "accelerate.commands.accelerate_cli"),
    *("deepspeed", "deepspeed.launcher.runner", "deepspeed.launcher.launch"),
    *("colossalai", "colossalai.cli", "horovod.run", "horovod.runner", "horovod.runner.launch"),
    *("lightning", "lightning.fabric.cli", "lightning_fabric.cli", "paddle.distributed.launch"),
    *("oneflow.distributed.launch", "bagua.distributed.run", "bagua.distributed.launch"),
    *("torch_xla.distributed.xla_dist",),
)


def foreign_start(command: Sequence[str]) -> str:
    """Return what a command begins with in place of a script or a module, or ""."""
    first = command[0]
    if first == "-m":
        module = "".join(command[1:2])
        file = "/" in module or module.lower().endswith(SCRIPTS) or module.startswith("-")
        return f"-m {module}" if file or module in LAUNCHERS or not module else ""
    *folders, name = first.split("/")
    if name.lower().endswith(SCRIPTS):
        paths = (f"/{each.replace('.', '/')}.py" for each in LAUNCHERS if "." in each)
        return first if f"/{first}".endswith(tuple(paths)) else ""
    # A script may have a name without `.py`. Folders named bin have programs.
    return "" if name and "." not in name and folders and folders[-1] != "bin" else first


def check(settings: Settings, job: Job, package_root: Path | None) -> str:
    """Check for mistakes that each restart would repeat; describe what will run."""
    needed, example = "torch 2.2 or newer", "pytorch/pytorch"
    if job.framework == "tensorflow":
        needed, example = "tensorflow", "tensorflow/tensorflow:latest-gpu"
    module = needed.partition(" ")[0]
    if find_spec(module) is None:
        missing = f"this image has no {module} for {sys.executable}"
        raise LaunchError(f"{missing}; build it on an image with {needed}, such as {example}")
    if package_root is None:
        script = job.command[0]
        if script != "-m" and not Path(script).is_file():
            advice = "mount it, and begin with the script itself, without python or torchrun"
            missing = f"{script} is not a file in {Path.cwd()}"
            raise LaunchError(f"{settings.job}: command: {missing}; {advice}")
        if start := foreign_start(job.command):
            advice = "begin with the script itself, or with its own module"
            raise LaunchError(f"{settings.job}: command: begins with {start}; {advice}")
        if job.files:
            with suppress(OSError):  # Then the check fails.
                settings.checkpoints.mkdir(parents=True, exist_ok=True)
            check_checkpoints(settings.checkpoints)
        return " ".join(job.command)
    if not (package_root / "trainer" / "train.py").is_file():
        missing = "needs the trainer package beside launch.py; use the trainer image"
        raise LaunchError(f"{settings.job}: train: {missing}, or give the job a command")
    sys.path.insert(0, str(package_root))
    return check_training(settings)


def prepare(lines: Sequence[str], environ: Mapping[str, str]) -> None:
    """Run the lines of `setup` once in this container, each by sh; raises LaunchError.

    They run again if they have changed, or if one has failed. Hosts that share a machine wait for
    each other.
    """
    if not lines:
        return
    known = hashlib.sha256(json.dumps([*lines, str(Path.cwd())]).encode()).hexdigest()[:12]
    note = Path(tempfile.gettempdir(), f"kit-setup-{os.getuid()}-{known}")
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
    with os.fdopen(os.open(note, flags, 0o600), "r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        if file.read():
            say("setup was done before")
            return
        for line in lines:
            say(f"setup: {line}")
            done = subprocess.run(["sh", "-c", line], env=environ, stdin=subprocess.DEVNULL)
            if done.returncode:
                what = f"`{line}` has ended with exit code {done.returncode}"
                raise LaunchError(f"setup: {what}: see its lines above", FAILURE, "setup")
        file.write("done\n")


def check_training(settings: Settings) -> str:
    """Check for mistakes that would end the built-in training; download data if it may."""
    # These modules too use only the standard library.
    from trainer.core.job import JobError, load_job
    from trainer.core.torch_version import installed_torch, torch_fault
    from trainer.data.fetched import place_data
    from trainer.data.files import DataMissingError, DownloadError, find_files, to_download

    if fault := torch_fault(installed_torch()):
        raise LaunchError(fault)
    try:
        train, data = place_data(load_job(settings.job).train, settings.data, os.environ)
        if to_download(train, data):
            download(train, data, settings.host)
        find_files(train, data, say)
    except JobError as error:
        raise LaunchError(str(error)) from error
    except DataMissingError as error:
        raise LaunchError(str(error), kind="data") from error
    except DownloadError as error:
        raise LaunchError(str(error), FAILURE, "data") from error
    check_checkpoints(settings.checkpoints)
    return f"{train.model} on {train.dataset}"


def check_checkpoints(folder: Path) -> None:
    """Check that the built-in training can write to its folder."""
    if not (folder.is_dir() and os.access(folder, os.W_OK)):
        wrong = f"{folder} is not a folder that can be written to"
        fix = "mount a volume there, or set KIT_CHECKPOINTS"
        raise LaunchError(f"{wrong}; {fix}", kind="disk")
    if foreign := unchangeable(folder):
        user = os.getuid()
        wrong = f"user {user} cannot change {foreign}, which another user wrote"
        run = "docker run --rm -u root -v VOLUME:/v --entrypoint chown IMAGE"
        fix = f"give the volume away: {run} -R {user} /v"
        raise LaunchError(f"{wrong}; {fix}", kind="disk")


def download(train: Any, data: Path, host: str) -> None:
    """Download missing data with torchvision, before the ranks of this host start.

    Raises LaunchError if torchvision cannot be imported, or the errors of the trainer's `download`.
    """
    from trainer.data.files import require_torchvision

    require_torchvision("download")
    try:
        from trainer.vision.downloads import download as download_all
    except Exception as error:  # Of a torchvision that does not match torch.
        raise LaunchError(f"torchvision does not work here: {error}") from error
    os.environ["KIT_HOST"] = host
    download_all(train, data)


WRITTEN = (
    "step-",
    "damaged-",
    ".writing-",
    ".fetching-",
    "metrics.jsonl",
    "records",
    "tensorboard",
    "tokens",
)
"""Beginnings of the names that a training writes in its folder of checkpoints."""


def unchangeable(folder: Path) -> str:
    """What a training has written as another user, which this one can not change, or "".

    Other files are left alone: a disk of its own has lost+found, which belongs to root.
    """
    with os.scandir(folder) as entries:
        ours = (entry for entry in entries if entry.name.startswith(WRITTEN))
        return next((entry.path for entry in ours if not os.access(entry, os.W_OK)), "")


def wait_for_room(folder: Path) -> None:
    """Wait until this host's disk has room for one more checkpoint, as large as the newest.

    Without room, training would fail again at the next checkpoint. The other hosts continue
    without this one, if the job allows that; it joins them when there is room.
    """
    needed = size_of_newest(folder)
    said = 0.0
    while (free := shutil.disk_usage(folder).free) < needed:
        if not said or time.monotonic() - said > REPEAT:
            room = f"{folder} has {show_bytes(free)} free, a checkpoint needs {show_bytes(needed)}"
            emit("failed", kind="disk", message=f"{room}: make room", rank=None, exit_code=None)
            say(f"{room}; waits until there is room", error=True)
            said = time.monotonic()
        time.sleep(1)


def size_of_newest(folder: Path) -> int:
    """The bytes of the newest checkpoint and of its ranks' parts here; 0 if there is none."""
    whole = sorted(folder.glob("step-*/COMPLETE"))
    if not whole:
        return 0
    step = whole[-1].parent
    parts = folder / step.name.replace("step-", "ranks-")
    return sum(each.stat().st_size for each in (*step.iterdir(), *parts.glob("*.pt")))


def show_bytes(number: int) -> str:
    """Format a number of bytes for people."""
    return f"{number / 1e9:.1f} GB" if number >= 1e9 else f"{number / 1e6:.1f} MB"


def torchrun_environ(
    environ: Mapping[str, str], nproc: int, interface: str, package_root: Path | None, cores: int
) -> dict[str, str]:
    """`environ` with torchrun's variables; `package_root` holds the package `trainer` to run."""
    result = {
        "NCCL_SOCKET_IFNAME": f"={interface}",  # "=": an exact name, not a prefix.
        "GLOO_SOCKET_IFNAME": interface,
        "OMP_NUM_THREADS": str(max(1, cores // nproc)),
        # CUDA's own order begins with the fastest GPU: rank and GPU of a metric would not match.
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        **{name: value for name, value in environ.items() if value or not name.endswith("_IFNAME")},
    }
    if package_root:
        paths = (str(package_root), environ.get("PYTHONPATH", ""))
        result["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    return result


def train() -> None:
    """Check everything, then become torchrun or the agent, so that it receives the signals."""
    os.environ["KIT_BEGAN"] = str(time.time())
    settings = Settings(os.environ)
    raise_open_files()
    job = read_job(settings.job)
    if job.command:
        read_nnodes(os.environ)  # Before anything is fetched.
    number = 1 if job.framework == "tensorflow" else settings.nproc
    processes = "1 process" if number == 1 else f"{number} processes"
    say(f"job {job.name} from {settings.job}, {processes} here")
    gpus = list_gpus()
    emit("started", gpus=gpu_uuids(gpus))
    for line in gpus:
        say(f"sees {line.strip()}")
    if job.command:
        ask_what_has_failed(settings)
    if folders := fetch_data(settings, job.name):
        os.environ["KIT_DATA_PATHS"] = json.dumps(folders)
        say(f"has {', '.join(folders)}")
    # For metrics.jsonl and for the events of the workers.
    os.environ["KIT_GPUS"] = ",".join(gpu_uuids(gpus))
    package_root = None if job.command else Path(__file__).resolve().parent.parent
    own = read_secrets(os.environ.get("KIT_SECRETS", ""), Path("/run/secrets"))
    prepare(job.setup, {**os.environ, **own})
    say(f"ready to run {check(settings, job, package_root)}")
    if package_root:
        stay_unprivileged()
        wait_for_room(settings.checkpoints)
    address = wait_for_rendezvous(settings)
    say(f"rendezvous {endpoint_text(settings.rendezvous)} answers")
    addresses = interface_addresses()
    interface = pick_interface(address, addresses, os.environ)
    say(f"reaches it from {address} by interface {interface}")
    first = next((one for one, name in addresses.items() if name == interface), address)
    if addresses.get(address) == interface and first != address:
        say(f"NCCL and gloo take {first}, the first address of {interface}: hosts must reach it")
    if chosen := os.environ.get("KIT_METRICS_PORT") or str(job.metrics_port or ""):
        port = _number({"KIT_METRICS_PORT": chosen}, "KIT_METRICS_PORT")
        os.environ |= {"KIT_METRICS_AT": endpoint_text((address, port)), "KIT_NAME": job.name}
    if job.files:
        os.environ |= keeper_variables(settings, job, address)
    environ = torchrun_environ(
        {**os.environ, **own}, number, interface, package_root, available_cores()
    )
    say("becomes the agent of this host")
    environ |= {"KIT_HOST": settings.host, "KIT_ADDRESS": address}
    rename_variables(environ, installed_torch())
    if job.command:
        agent = [str(Path(__file__).resolve()), "agent", *job.command]
    else:
        agent = ["-m", "trainer.elastic.agent", "-m", "trainer.train"]
    os.execvpe(sys.executable, [sys.executable, *agent], environ)


# New names of torch 2.9 for its flight recorder, and the old ones.
RENAMED = {
    "TORCH_FR_BUFFER_SIZE": "TORCH_NCCL_TRACE_BUFFER_SIZE",
    "TORCH_FR_DUMP_TEMP_FILE": "TORCH_NCCL_DEBUG_INFO_TEMP_FILE",
    "TORCH_FR_CPP_STACK": "TORCH_NCCL_TRACE_CPP_STACK",
}


def installed_torch() -> str:
    """Return the version of torch without importing it; empty if it is unknown."""
    from importlib import metadata

    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return ""


def rename_variables(environ: MutableMapping[str, str], version: str) -> None:
    """Name variables as a version of torch does: newer ones warn of old names on each worker."""
    found = re.match(r"(\d+)\.(\d+)", version)
    for new, old in RENAMED.items():
        if new not in environ and old not in environ:
            continue
        value = environ[new] if new in environ else environ[old]
        if found is None or (int(found[1]), int(found[2])) < (2, 9):
            environ[old] = value
        else:
            environ[new] = value
            environ.pop(old, None)


# -------- Rounds: which hosts of a script run it together

# Each change of the hosts is a new round: torchrun and the workers are started anew on all of them.
# torchrun runs with a fixed number of hosts and without restarts of its own: it would count the
# loss of a host as a restart, and notice a silent one only by the timeouts of the script.
HOST_SILENT = 1.6  # Seconds without a report after which a host is lost.
REPORT_EVERY = 0.4  # Seconds between two reports: four fit in HOST_SILENT.
LOST = 3.0  # Seconds without an answer after which an agent connects anew.
RETURN = 5.0  # Seconds in which the hosts of a round find a new rendezvous; LOST, and more.
STUCK = 30.0  # Seconds after which nobody waits for a host whose workers do not end.
LAST_CALL = 2.0  # Seconds in which hosts above the minimum may come before the first round.
ABSENT = 10.0  # Seconds without a host after which the rendezvous ends; the engine restarts it.
# The same if it has given up hosts: Docker waits up to a minute before it starts a container again.
REMEMBERED = 120.0
TICK = 0.1  # Seconds between two looks at the clock.
# More would only repeat a mistake in a script. A round that ends because a host is lost, joins or
# leaves counts for none.
MAX_RESTARTS = 3
WINDOW = 3600.0  # Seconds within which they count.
# A failure at the same place, so often without a checkpoint between, is a fault of the program.
SAME = 3
SAME_KILLS = 10  # People and kernels also kill processes that are well.
KILLS = ("SIGKILL", "SIGTERM", "SIGINT", "SIGHUP")
VERSIONS = 1000  # Number of checkpoints that are known again.


class Round(NamedTuple):
    """One start of a script on several hosts."""

    number: int
    id: str  # Nobody takes a round of another run, with the same number, for this one.
    agents: list[str]  # In the order of the ranks.
    hosts: list[str]
    address: str  # Of the first host.
    ports: list[int]  # Free ones of the first host: for torchrun, and for the script.
    endpoints: list[str]  # A free one on each host, in the same order.


class Report(NamedTuple):
    """What an agent tells the rendezvous."""

    agent: str  # Unique: a host that was started again is another agent.
    host: str
    address: str
    ports: list[int]
    least: int
    most: int
    state: str  # starts, idle; with a round: runs, done, failed.
    round: Round | None = None
    hopeless: bool = False  # A restart would repeat this failure.
    leaving: bool = False
    once: bool = False  # Nothing restarts this host.
    spare: bool = False  # It takes part only if others are missing.
    spares: int = 0  # Of the job.
    failure: dict[str, Any] | None = None  # The values of its event, if it has failed.
    fault: str = ""  # As in LaunchError.
    saved: str | None = None  # Content of the newest checkpoint; None: nobody would know of it.


def read_round(found: Any) -> Round:
    """Read a round; raises ValueError or TypeError."""
    read = Round(*found)
    texts = (*read.agents, *read.hosts, read.id, read.address, *read.endpoints)
    numbers = (read.number, *read.ports)
    if not all(isinstance(each, str) for each in texts) or len(read.ports) != 2:
        raise ValueError("not a round")
    if not all(type(each) is int for each in numbers) or not read.agents:
        raise ValueError("not a round")
    return read


def read_report(line: bytes) -> Report:
    """Read a report; raises ValueError or TypeError."""
    read = Report(*json.loads(line))
    texts, numbers = (read.agent, read.host, read.address), (*read.ports, *read[4:6], read.spares)
    if not all(isinstance(each, str) for each in texts) or len(read.ports) != 2:
        raise ValueError("not a report")
    if not all(type(each) is int for each in numbers):
        raise ValueError("not a report")
    if read.state not in ("starts", "idle") and not read.round:
        raise ValueError("not a report")
    words = (read.fault, read.saved or "")
    if not all(isinstance(each, str) for each in words) or type(read.failure or {}) is not dict:
        raise ValueError("not a report")
    return read._replace(round=read_round(read.round) if read.round else None)


class Faults:
    """Counts the failures of a script at the same place, since it has saved something new."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._times: dict[str, list[float]] = {}
        self._saved: dict[str, None] = {}

    def note(self, saved: str | None) -> None:
        """Note the content of a checkpoint: one that was never there is progress."""
        if saved and saved not in self._saved:
            self._saved = dict.fromkeys([*self._saved, saved][-VERSIONS:])
            self._times.clear()

    def count(self, faults: Collection[str], *, watched: bool) -> str:
        """Count the faults of a round; return one that was there too often, or "".

        Without `watched` checkpoints, the script may have saved something between two failures:
        they count within WINDOW.
        """
        now = self._clock()
        for fault in faults:
            known = self._times.get(fault, [])
            self._times[fault] = [at for at in known if watched or now - at < WINDOW] + [now]
        return next((each for each in faults if len(self._times[each]) >= most(each)), "")


def most(fault: str) -> int:
    """How often a failure at the same place may be there before no restart helps."""
    return SAME_KILLS if fault in KILLS else SAME


class Rounds:
    """Decides which hosts run a script together, from their reports and from their silence.

    It keeps nothing: after its restart, the reports of a round that runs tell all.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock, self._first = clock, clock() + RETURN  # Before it, a round needs all hosts.
        self.hosts: dict[str, Report] = {}  # The last report of each agent, in order of arrival.
        self._seen: dict[str, float] = {}
        self._round: Round | None = None
        self._why = ""  # The reason for which the last round has ended.
        self._number = self._done = 0  # Of the last round, and of the last that has ended well.
        self._adopted = self._enough = float("-inf")
        self._since = self._clock()  # The end of the last round.
        self._lost: dict[str, str] = {}  # Agents, and how they were lost.
        self._waits = False  # For the hosts above the minimum.
        self._members: set[str] = set()  # Of the round that ended by a failure of the script.
        self._culprits: dict[str, Report] = {}  # Of the last round, by agent.
        self._failures: list[float] = []
        self._faults = Faults(clock)
        self._failure: dict[str, Any] | None = None  # The reason for which the last round ended.
        self._began = 0.0  # The begin of the last round.
        self._told: dict[str, str] = {}  # Agents that must end, and how.
        self.given_up: dict[str, dict[str, Any]] = {}  # Failures for good, by host; "": of all.

    def report(self, report: Report) -> None:
        """Process the report of a host."""
        agent, now = report.agent, self._clock()
        self.hosts[agent], self._seen[agent] = report, now
        if report.round:
            known = self._number > 0
            self._number = max(self._number, report.round.number)
            if not known and report.state != "failed":
                say(f"finds round {report.round.number} with {', '.join(report.round.hosts)}")
                self._round, self._adopted = report.round, now
            if report.round.number <= self._done:
                self._told[agent] = "end"
        if report.state == "failed":
            self._culprits.setdefault(agent, report)
        # Engines start containers again, whatever they ended for.
        if self._for_good(report.host):
            self._told[agent] = "fail"
        self._faults.note(report.saved)
        self.decide()

    def lose(self, agent: str, why: str) -> None:
        """Process the loss of a host."""
        report = self.hosts.pop(agent, None)
        self._seen.pop(agent, None)
        self._told.pop(agent, None)
        if report:
            self._lost[agent] = f"{report.host} {why}"
        self.decide()

    def silent(self) -> list[tuple[str, str]]:
        """The hosts that have not reported for too long, each with that time."""
        now = self._clock()
        return [
            (agent, f"is silent for {now - seen:.1f} s")
            for agent, seen in self._seen.items()
            if now - seen > HOST_SILENT
        ]

    def excuse(self) -> None:
        """This process stood still, not the hosts."""
        self._seen = dict.fromkeys(self._seen, self._clock())

    def order(self, agent: str) -> dict[str, Any]:
        """What an agent must do."""
        if agent in self._told:
            return {"do": self._told[agent], "failure": self._for_good(self.hosts[agent].host)}
        if self._round and agent in self._round.agents:
            return {"do": "run", "round": self._round, "failure": self._failure}
        return {"do": "wait", "why": self._why, "failure": self._failure}

    def _for_good(self, host: str) -> dict[str, Any] | None:
        """The failure after which a host does not begin again."""
        return self.given_up.get(host) or self.given_up.get("")

    def decide(self) -> None:
        """End the round if it must, and begin the next if it can."""
        if self._round:
            self._look_at(self._round)
        if not self._round:
            self._try_to_begin()

    def _look_at(self, around: Round) -> None:
        here = [self.hosts[agent] for agent in around.agents if agent in self.hosts]
        missing = [agent for agent in around.agents if agent not in self.hosts]
        lost = [self._lost[agent] for agent in missing if agent in self._lost]
        if len(lost) < len(missing) and self._clock() - self._adopted < RETURN:
            return  # This is a new rendezvous: they may still find it.
        if here and all(report.state == "done" for report in here):
            say(f"round {around.number} has ended well")
            self._told |= dict.fromkeys(self.hosts, "end")
            self._round, self._why, self._done = None, "", around.number
            return
        if missing:
            self._end_round(", ".join(lost) or "hosts have not come back")
        elif failed := [report for report in here if report.state == "failed"]:
            self._members = {*around.agents}
            self._end_round(f"the script has failed on {failed[0].host}", failed[0])
        joins = [each.host for each in self._ready() if each.agent not in around.agents]
        if self._round and joins and len(around.agents) < self._bounds()[1]:
            self._end_round(f"{', '.join(joins)} joins")

    def _end_round(self, why: str, failed: Report | None = None) -> None:
        assert self._round
        say(f"ends round {self._round.number}: {why}")
        self._round, self._why, self._since = None, why, self._clock()
        ran = round(self._since - self._began, 1)
        self._failure = {**described(failed), "ran": ran} if failed else None

    def _candidates(self) -> list[Report]:
        """The hosts that may take part in the next round."""
        here = (each for each in self.hosts.values() if each.agent not in self._told)
        return [each for each in here if not each.leaving and each.state != "starts"]

    def _ready(self) -> list[Report]:
        return [each for each in self._candidates() if each.state == "idle"]

    def _bounds(self) -> tuple[int, int, int]:
        """The least and the most hosts, and the spares, as the host knows that has come last."""
        last = next(reversed(self.hosts.values()))
        return last.least, last.most, last.spares

    def _try_to_begin(self) -> None:
        ready = self._ready()
        late = self._clock() - self._since > STUCK
        if not ready or (len(ready) < len(self._candidates()) and not late):
            return  # The others are still ending their workers.
        least, most, spares = self._bounds()
        # Before, a spare of a round that runs may still be on its way to a new rendezvous.
        known = not spares or len(ready) == most + spares or self._clock() > self._first
        complete = known and sum(not each.spare for each in ready) >= most
        if self._members:
            self._count_failure({report.agent for report in ready})
        elif len(ready) < least:
            self._waits = False
        elif not self._waits:
            # To a new rendezvous, the hosts of a round that runs may still be on their way.
            self._waits, self._enough = True, max(self._clock(), self._first - LAST_CALL)
        elif complete or self._why or self._clock() > self._enough + LAST_CALL:
            self._begin(sorted(ready, key=lambda each: each.spare)[:most])

    def _count_failure(self, ready: set[str]) -> None:
        """Count a round that ended by the script alone; too many end those that failed."""
        now = self._clock()
        alone = self._members <= ready
        self._failures = [at for at in self._failures if now - at < WINDOW] + [now] * alone
        failed = [*self._culprits.values()]
        if wrong := [each for each in failed if each.hopeless]:
            self._give_up(wrong)
        elif fault := self._repeated(failed) if alone else "":
            note = f"{most(fault)} times at the same place without a checkpoint between"
            self._give_up([each for each in failed if each.fault == fault], f"; {note}: {CORRECT}")
        elif len(self._failures) > MAX_RESTARTS:
            once = {agent for agent, each in self.hosts.items() if each.once}
            self._told |= dict.fromkeys([*self._culprits, *once], "fail")
            self._failures = []
        self._members, self._culprits = set(), {}

    def _repeated(self, failed: Sequence[Report]) -> str:
        faults = dict.fromkeys(each.fault for each in failed if each.fault)
        watched = any(each.saved is not None for each in self.hosts.values())
        return self._faults.count(faults, watched=watched)

    def _give_up(self, wrong: Sequence[Report], note: str = "") -> None:
        """End the hosts on which no restart helps, and all if too few are left."""
        names = {each.host for each in wrong}
        left = [each for each in self._candidates() if each.host not in names]
        every = len(left) < self._bounds()[0] or any(each.once for each in self.hosts.values())
        failure = described(wrong[0])
        failure["message"] += note
        self.given_up |= dict.fromkeys([""] if every else names, failure)
        ends = (agent for agent, each in self.hosts.items() if self._for_good(each.host))
        self._told |= dict.fromkeys(ends, "fail")
        say(f"ends the script on {'all hosts' if every else ', '.join(names)}: no restart helps")

    def _begin(self, chosen: list[Report]) -> None:
        # By name, not by address as torchrun: in an overlay network, addresses change with each
        # start, and the host of rank 0 is the one that keeps what a script saves.
        chosen = sorted(chosen, key=lambda each: (each.spare, natural(each.host)))
        self._number += 1
        name, first, self._waits = f"{self._number}-{secrets.token_hex(4)}", chosen[0], False
        agents, hosts = [each.agent for each in chosen], [each.host for each in chosen]
        ends = [endpoint_text((each.address, each.ports[1])) for each in chosen]
        self._round = Round(self._number, name, agents, hosts, first.address, first.ports, ends)
        self._culprits, self._lost, self._began = {}, {}, self._clock()
        say(f"begins round {self._number} with {', '.join(hosts)}")


CORRECT = "correct the script, then run `kit deploy`"


def described(report: Report) -> dict[str, Any]:
    """The failure of a host, as other hosts tell it."""
    unknown = {"kind": "worker", "message": "the script has failed"}
    return {**unknown, **(report.failure or {}), "host": report.host}


def natural(name: str) -> list[tuple[int, str]]:
    """A key that sorts n2 before n10."""
    return [(int(part or 0), text) for text, part in re.findall(r"(\D*)(\d*)", name)]


# -------- The rendezvous: serves the rounds of a script

# asyncio prints a traceback of a handler that is cancelled at the end of the program.
ENDS_OF_HANDLERS = (asyncio.IncompleteReadError, asyncio.CancelledError)


class RendezvousServer:
    """Takes the reports of the hosts, and answers each by an order."""

    def __init__(self) -> None:
        self._rounds = Rounds(time.monotonic)
        self._writers: dict[str, asyncio.StreamWriter] = {}
        self._sent: dict[str, dict[str, Any]] = {}
        self._ticked = time.monotonic()
        self._stood = float("-inf")  # The last time at which this process stood still.
        self._used = 0.0  # The last time at which a host was there.

    async def serve(self, listener: socket.socket) -> int:
        """Serve until a run is over or SIGTERM or SIGINT arrives; return the signal, or 0."""
        stopped: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def stop(number: int) -> None:
            if not stopped.done():
                stopped.set_result(number)

        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop, number)
        server = await asyncio.start_server(self._host, sock=listener)
        watch = asyncio.create_task(self._watch(stop))
        try:
            return await stopped
        finally:
            watch.cancel()
            server.close()
            for writer in self._writers.values():
                writer.transport.abort()

    async def _watch(self, stop: Callable[[int], None]) -> None:
        while True:
            await asyncio.sleep(TICK)
            self._notice_time()
            for agent, why in self._rounds.silent():
                self._lose(agent, why)
            self._rounds.decide()
            self._tell()
            absent = REMEMBERED if self._rounds.given_up else ABSENT
            if self._rounds.hosts:
                self._used = self._ticked
            elif self._used and self._ticked - self._used > absent:
                stop(0)

    def _notice_time(self) -> None:
        now = time.monotonic()
        if now - self._ticked > HOST_SILENT / 2:
            self._stood = now
            self._rounds.excuse()
        self._ticked = now

    async def _host(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        agent = ""
        with suppress(OSError, ValueError, TypeError, RecursionError, *ENDS_OF_HANDLERS):
            while line := await reader.readline():
                report = read_report(line)
                agent = report.agent
                self._writers[agent] = writer
                self._rounds.report(report)
                self._tell(answer=agent)
        self._notice_time()
        # After a halt, a host has connected anew, and this connection is an old one.
        if self._writers.get(agent) is writer and time.monotonic() - self._stood > LOST:
            self._lose(agent, "has closed its connection")
            self._tell()
        writer.close()

    def _lose(self, agent: str, why: str) -> None:
        self._rounds.lose(agent, why)
        self._sent.pop(agent, None)
        if writer := self._writers.pop(agent, None):
            writer.transport.abort()

    def _tell(self, answer: str = "") -> None:
        """Send each host a new order, and the present one to the host that has just reported."""
        for agent, writer in self._writers.items():
            order = self._rounds.order(agent)
            if agent == answer or order != self._sent.get(agent):
                self._sent[agent] = order
                writer.write(json.dumps(order).encode() + b"\n")


def serve_rendezvous() -> None:
    """Serve the rendezvous, only at its own address, until its run is over or a signal arrives."""
    stay_unprivileged()
    raise_open_files()  # Each host holds a connection.
    host, port = parse_endpoint(_value(os.environ, "KIT_RENDEZVOUS"))
    address = own_address([host])
    listener = listen(address, port)
    say(f"serves the rendezvous on {endpoint_text((address, port))}")
    received = asyncio.run(RendezvousServer().serve(listener))
    reason = signal.Signals(received).name if received else "the end of its run"
    say(f"ends the rendezvous on {reason}")


# -------- The agent of a script: runs torchrun on this host, in the rounds of the rendezvous

GRACE = 2.0  # Seconds in which workers must end when a round does; then they are killed.
PARENT_DEATH_SIGNAL = 1  # Of prctl (linux/prctl.h).


class Agent:
    """Runs one torchrun for each round, and reports how it goes."""

    def __init__(self, environ: Mapping[str, str], folder: Path, command: Sequence[str]) -> None:
        """`folder` is the agent's own, `command` the script and its arguments."""
        self._settings, self._folder, self._command = Settings(environ), folder, command
        self._job, self._address = read_job(self._settings.job), environ["KIT_ADDRESS"]
        self._once = bool(environ.get("KIT_ONE_RUN"))
        self._id = f"{self._settings.host}-{secrets.token_hex(4)}"
        self._state, self._ports = "starts", [0, 0]
        self._round: Round | None = None
        self._starts, self._signal, self._stops = 0, 0, False
        self._failure: LaunchError | None = None
        self._before: dict[str, Any] | None = None  # The failure that ended the round before.
        self._torchrun: asyncio.StreamWriter | None = None  # The process that forks torchrun.
        self._pid = 0
        self._group: Group | None = None
        self._forked, self._ended = asyncio.Event(), asyncio.Event()
        self._rendezvous: asyncio.StreamWriter | None = None
        self._heard = time.monotonic()
        self._over: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._tasks: set[asyncio.Task[None]] = set()
        self.metrics: Metrics | None = None

    async def run(self) -> int:
        """Run until the script is over; return the exit code. Raises LaunchError."""
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._leave, number)
        path = str(self._folder / "torchrun")
        server = await asyncio.start_unix_server(self._serve_torchrun, path)
        argv = [str(Path(__file__).resolve()), self._job.framework, path]
        process = await asyncio.create_subprocess_exec(
            sys.executable, *argv, stdin=subprocess.DEVNULL, start_new_session=True
        )
        try:
            self._start(self._watch_torchrun(process))
            self._start(self._connect())
            self._start(self._watch())
            self._start(self._watch_group())
            self._start(self._watch_silence())
            return await self._over
        finally:
            for task in self._tasks:
                task.cancel()
            if self._state == "runs":
                await self._end_torchrun()
            if process.returncode is None:
                process.kill()
            await process.wait()
            server.close()

    def _start(self, work: Any) -> None:
        async def guarded() -> None:
            try:
                await work
            except Exception as error:
                self._finish(error)

        task = asyncio.get_running_loop().create_task(guarded())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _finish(self, result: int | Exception) -> None:
        if self._over.done():
            return
        if isinstance(result, int):
            self._over.set_result(result)
        else:
            self._over.set_exception(result)

    def _leave(self, number: int) -> None:
        """A signal asks this host to end: torchrun gives its workers the time that they need."""
        self._signal = self._signal or number
        if self.metrics:
            self.metrics.ask_to_end()
        if self._state != "runs":
            self._finish(128 + number)
        self._send(number)
        self._report()

    # ---- torchrun

    async def _watch_torchrun(self, process: asyncio.subprocess.Process) -> None:
        code = await process.wait()
        message = f"the process that starts torchrun has ended with exit code {code}"
        raise LaunchError(message, FAILURE, "worker")

    async def _serve_torchrun(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Talk to the process that forks torchrun."""
        self._torchrun = writer
        self._be_idle()
        with suppress(OSError, *ENDS_OF_HANDLERS):
            while line := await reader.readline():
                message = json.loads(line)
                if "pid" in message:
                    self._pid = int(message["pid"])
                    self._forked.set()
                    if self._signal:
                        self._send(self._signal)
                if "failure" in message:
                    self._failure = LaunchError(*message["failure"])
                if "ended" in message:
                    self._after_torchrun(int(message["ended"]))
        writer.close()

    def _be_idle(self) -> None:
        self._state, self._round, self._ports = "idle", None, free_ports(self._address)
        self._report()

    def _begin(self, around: Round) -> None:
        assert self._torchrun
        self._state, self._round, self._failure = "runs", around, None
        self._stops, self._pid = False, 0
        self._forked.clear()
        self._ended.clear()
        say(f"round {around.number} with {', '.join(around.hosts)}")
        own = {
            "KIT_ROUND": around.id,
            "KIT_MASTER_PORT": str(around.ports[1]),
            "KIT_RESTARTS": str(self._starts),
            "KIT_FAILURE": json.dumps(self._before),
        }
        self._starts += 1
        rank = around.agents.index(self._id)
        self._group = Group(around, rank, self._settings.group_wait)
        worker = [str(Path(__file__).resolve()), "worker", *self._command]
        if self._job.framework == "tensorflow":
            own |= tensorflow_environ(around, rank)
            order: dict[str, Any] = {"argv": worker, "environ": own}
        else:
            argv = torchrun_argv(self._settings.nproc, around, rank, self._job.name)
            argv += ["--log-dir", str(self._folder), *worker]
            store = None if rank else (around.address, around.ports[0])
            order = {"argv": argv, "environ": own, "store": store}
        self._torchrun.write(json.dumps(order).encode() + b"\n")
        self._report()

    def _stop(self, why: str) -> None:
        """Have no workers; they belong to a round that is over."""
        if self._state in ("done", "failed"):
            self._be_idle()
        elif self._state == "runs" and not self._stops:
            self._stops = True
            say(f"ends its workers: {why or 'the round is over'}")
            self._start(self._end_torchrun())

    async def _end_torchrun(self) -> None:
        await self._happens(self._forked)
        for end in (
            partial(self._send, signal.SIGTERM),
            self._kill_workers,
            partial(self._send, signal.SIGKILL),
        ):
            end()
            if await self._happens(self._ended):
                return

    async def _happens(self, event: asyncio.Event) -> bool:
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(event.wait(), GRACE)
        return event.is_set()

    def _send(self, number: int) -> None:
        if self._pid:
            with suppress(ProcessLookupError):
                os.kill(self._pid, number)

    def _kill_workers(self) -> None:
        """Kill the workers, each of which leads a group of processes; torchrun then ends."""
        with suppress(OSError):
            children = Path(f"/proc/{self._pid}/task/{self._pid}/children").read_text()
            for child in children.split():
                os.killpg(int(child), signal.SIGKILL)

    def _after_torchrun(self, code: int) -> None:
        self._ended.set()
        self._pid = 0
        if self._signal:
            self._finish(128 + self._signal)
        if self._stops or self._over.done():
            self._be_idle()
            return
        if code and not self._failure:
            message = f"torchrun has ended with exit code {code}"
            self._failure = LaunchError(message, FAILURE, "worker")
        self._state = "failed" if self._failure else "done"
        if self._failure:
            say(str(self._failure).splitlines()[0], error=True)
            emit("failed", **self._failure.values())
        self._report()

    # ---- The rendezvous

    async def _connect(self) -> None:
        """Hold a connection to the rendezvous; without it, workers go on."""
        lost = 0.0
        while True:
            with suppress(OSError, ValueError, asyncio.TimeoutError):
                opening = asyncio.open_connection(*self._settings.rendezvous)
                reader, self._rendezvous = await asyncio.wait_for(opening, LOST)
                self._report()
                await self._listen(reader)
            if self._rendezvous:
                self._rendezvous.transport.abort()
            self._rendezvous = None
            if not lost or self._heard > lost:
                lost = time.monotonic()
                say("the rendezvous does not answer; workers go on without it")
            silent = time.monotonic() - self._heard
            if self._state == "done" and silent > LOST:
                self._finish(0)
            if self._state != "runs" and silent > self._settings.wait:
                what = f"nothing answered at {endpoint_text(self._settings.rendezvous)}"
                raise LaunchError(f"{what} for {self._settings.wait} s", FAILURE, "rendezvous")
            await asyncio.sleep(0.3)

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        while line := await asyncio.wait_for(reader.readline(), LOST):
            order, self._heard = json.loads(line), time.monotonic()
            if self._signal or self._over.done():
                continue
            self._before = order.get("failure")
            if order["do"] == "end":
                self._finish(0)
            elif order["do"] == "fail":
                closed = "another host has closed this run: see what others say"
                own = self._failure or LaunchError(closed, FAILURE, "rendezvous")
                self._finish(given_up(order, self._settings.host) or own)
            elif order["do"] == "wait":
                self._stop(str(order["why"]))
            elif (around := read_round(order["round"])) != self._round:
                self._take(around)

    def _take(self, around: Round) -> None:
        """Begin a round, once the workers of another have ended."""
        if self._state == "idle":
            self._begin(around)
        else:
            self._stop(f"round {around.number} begins")

    def _report(self) -> None:
        if self._rendezvous:
            settings = self._settings
            least, most, spares = read_nnodes(os.environ)
            report = Report(
                agent=self._id,
                host=settings.host,
                address=self._address,
                ports=self._ports,
                least=least,
                most=most,
                state=self._state,
                round=self._round,
                hopeless=bool(self._failure and self._failure.code == MISTAKE),
                failure=self._failure.values() if self._failure else None,
                fault=self._failure.fault if self._failure else "",
                saved=newest_saved(),
                leaving=self._signal > 0,
                once=self._once,
                spare=bool(os.environ.get("KIT_SPARE")),
                spares=spares,
            )
            self._rendezvous.write(json.dumps(report).encode() + b"\n")

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(REPORT_EVERY)
            self._report()

    async def _watch_silence(self) -> None:
        """Look whether ranks of this host do nothing for long."""
        limit = self._job.quiet
        silence = Silence(self._folder, limit, os.environ.get("KIT_GPUS", ""))
        while limit:
            await asyncio.sleep(min(LOOK_EVERY * 10, limit / 10))
            if pid := self._pid:
                # nvidia-smi and py-spy take seconds.
                seconds = await asyncio.to_thread(silence.look, pid)
                if self.metrics:
                    self.metrics.silent = seconds

    async def _watch_group(self) -> None:
        """Look whether the processes of this host are connected with others of the script."""
        one = self._job.framework == "tensorflow" or self._settings.nproc == 1
        while True:
            await asyncio.sleep(LOOK_EVERY)
            group, pid = self._group, self._pid
            if group and pid and not (one and group.only_host):
                # With thousands of connections, as on a host's own network, it takes its time.
                joined = await asyncio.to_thread(group.look, pid)
                if joined is not None and group is self._group and pid == self._pid:
                    self._group = None if joined else group
                    group.tell(joined)


def given_up(order: Mapping[str, Any], host: str) -> LaunchError | None:
    """The failure after which the rendezvous lets a host not begin again."""
    failure = order.get("failure")
    if order["do"] != "fail" or not failure:
        return None
    where, place = failure["host"], (failure.get("rank"), failure.get("exit_code"))
    other = "" if where == host else where
    return LaunchError(failure["message"], MISTAKE, "input", *place, host=other)


def ask_what_has_failed(settings: Settings) -> None:
    """Ask the rendezvous why the run has failed before: the log of a new container has no past.

    Raises LaunchError if no restart helps: then nothing is prepared.
    """
    least, most, spares = read_nnodes(os.environ)
    asks = f"{settings.host}-asks-{secrets.token_hex(4)}"
    report = Report(asks, settings.host, "", [0, 0], least, most, "starts", spares=spares)
    order: dict[str, Any] = {}
    # It may start later: it is waited for when it is needed.
    opened = partial(socket.create_connection, settings.rendezvous, LOST)
    with suppress(OSError, ValueError), opened() as connection:
        connection.sendall(json.dumps(report).encode() + b"\n")
        order = json.loads(connection.makefile().readline())
    if not (failure := order.get("failure")):
        return
    if wrong := given_up(order, settings.host):
        raise wrong
    emit("failed", **{key: each for key, each in failure.items() if key != "ran"})
    say(f"the round before has failed: {failure['host']}: {failure['message']}")


def newest_saved() -> str | None:
    """The content of the newest version of the script's files; None if none are kept."""
    if "KIT_SAVED" not in os.environ:
        return None
    with suppress(OSError):
        return Path(os.environ["KIT_SAVED"]).read_text()
    return ""


def free_ports(address: str) -> list[int]:
    """Two ports of this host that nobody uses."""
    family = family_of(address)
    free = partial(socket.create_server, (address, 0), family=family)
    with free() as first, free() as second:
        return [each.getsockname()[1] for each in (first, second)]


def run_agent() -> int:
    """Run the script behind `agent`; after a signal the exit code is 128 + its number.

    Raises LaunchError if the script fails for good.
    """
    # torchrun does not remove its folders, torchelastic_…: one for each start.
    with tempfile.TemporaryDirectory(prefix="kit-agent-", ignore_cleanup_errors=True) as folder:
        os.environ["KIT_LAST_WORDS"] = folder
        if os.environ.get("KIT_METRICS_AT"):
            os.environ["KIT_METRICS"] = tempfile.mkdtemp(prefix="metrics-", dir=folder)
        os.environ["KIT_ARMED"] = arm(Path(folder))
        with keeper(folder):
            return asyncio.run(run_rounds(Path(folder), sys.argv[2:]))


async def run_rounds(folder: Path, command: Sequence[str]) -> int:
    """Run the agent; return its exit code. Raises LaunchError."""
    agent = Agent(os.environ, folder, command)
    if at := os.environ.get("KIT_METRICS_AT"):
        agent.metrics = serve_metrics(parse_endpoint(at), Path(os.environ["KIT_METRICS"]))
    code = await agent.run()
    if code > 128:
        say(f"torchrun ended on {signal.Signals(code - 128).name}")
        if agent.metrics:
            await asyncio.to_thread(agent.metrics.wait_for_reader)
    return code


# -------- The group of a script: are its processes connected with each other?

# A script that never forms a group, or one of a single process on each GPU, trains as many models
# as there are GPUs. In a group, each process is connected with the store of rank 0 at MASTER_PORT,
# or with another process of the script.
LOOK_EVERY = 1.0  # Seconds between two looks; none follows once there is a group.
ESTABLISHED, LISTENS = "01", "0A"  # States of a socket (include/net/tcp_states.h).
End = tuple[str, int]


class Socket(NamedTuple):
    """A TCP socket as the kernel lists it."""

    local: End
    remote: End
    state: str
    inode: str


class Group:
    """Watches whether the processes of a host have formed a group with others, in one round."""

    def __init__(self, around: Round, rank: int, wait: int) -> None:
        """`rank` is that of this host among the others, `wait` a time in seconds."""
        others = [end for index, end in enumerate(around.endpoints) if index != rank]
        self._others = {parse_endpoint(end)[0] for end in others}
        self._port, self._first = around.ports[1], rank == 0
        self._began, self._due, self._told = time.monotonic(), float(wait), False

    @property
    def only_host(self) -> bool:
        """Whether the script runs on this host alone."""
        return not self._others

    def look(self, torchrun: int) -> bool | None:
        """Whether a process below torchrun is connected; None if that cannot be seen."""
        try:
            workers, owners = children_of(torchrun), dict[str, int]()
            for pid in workers:
                with suppress(FileNotFoundError, ProcessLookupError):  # It has ended meanwhile.
                    owners |= dict.fromkeys(inodes_of(pid), pid)
            sockets = list_sockets()
        except OSError:
            return None
        # torchrun has sockets: where there are none, the container hides them.
        return self.joined(sockets, owners) if workers and sockets else None

    def joined(self, sockets: Sequence[Socket], owners: Mapping[str, int]) -> bool:
        """Whether a socket connects two ranks; `owners` has those of this host by inode.

        With several hosts, only connections to another one count.
        """
        ends = {(each.local, each.remote): owners.get(each.inode) for each in sockets}
        # A second store of rank 0: each host has a group of its own.
        apart = not self._first and any(
            each.state == LISTENS and each.local[1] == self._port and each.inode in owners
            for each in sockets
        )
        for each in sockets:
            if each.state != ESTABLISHED or each.inode not in owners:
                continue
            other = ends.get((each.remote, each.local))
            if other is not None:
                if self.only_host and other != owners[each.inode]:
                    return True
            elif self._port in (each.local[1], each.remote[1]):
                if not apart:
                    return True
            elif each.remote[0] in self._others:
                return True
        return False

    def tell(self, joined: bool) -> None:
        """Say when there is no group for long, and when there is one after all."""
        waited = time.monotonic() - self._began
        if joined and self._told:
            say(f"the processes of this job have formed a group after {waited:.0f} s")
            emit("grouped", seconds=round(waited, 1))
        elif not joined and waited >= self._due:
            if not self._told:
                none = f"after {waited:.0f} s no two processes of this job have formed a group"
                if not self.only_host:
                    none = f"after {waited:.0f} s this host has formed no group with another one"
                why = "each trains alone, unless the script still loads"
                fix = "does it call init_process_group, with the variables that kit sets?"
                say(f"warning: {none}: {why}; {fix}", error=True)
            self._told, self._due = True, waited + MEMBER_EVERY
            emit("alone", seconds=round(waited, 1))


def children_of(pid: int) -> list[int]:
    """The processes that one has started."""
    files = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for file in files for child in file.read_text().split()]


def inodes_of(pid: int) -> Iterator[str]:
    """The sockets of a process and of all below it."""
    for file in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # It was closed meanwhile.
            kind, _, inode = str(file.readlink()).partition(":")
            if kind == "socket":
                yield inode.strip("[]")
    for child in children_of(pid):
        with suppress(OSError):  # It has ended, and may be a zombie.
            yield from inodes_of(child)


def list_sockets() -> list[Socket]:
    """The TCP sockets of this container, or of the host with its own network."""
    found = []
    for file in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")):
        lines = file.read_text().splitlines()[1:] if file.exists() else []
        for _, local, remote, state, *more in map(str.split, lines):
            found.append(Socket(read_end(local), read_end(remote), state, more[5]))
    return found


def read_end(text: str) -> End:
    """Read an address and a port as the kernel lists them, in words of the machine's order."""
    digits, _, port = text.partition(":")
    words = [int(digits[at : at + 8], 16) for at in range(0, len(digits), 8)]
    packed = b"".join(word.to_bytes(4, sys.byteorder) for word in words)
    family = socket.AF_INET if len(packed) == 4 else socket.AF_INET6
    # PyTorch's sockets are IPv6, also for addresses of IPv4.
    return socket.inet_ntop(family, packed).removeprefix("::ffff:"), int(port, 16)


# -------- Silence: ranks that do nothing for long, and the stacks of their threads

BUSY = 0.05  # Share of a core; threads of PyTorch and NCCL that only wait use less.
GPU_BUSY = 0.01  # Share of time with a running kernel.
SPY = 15.0  # Seconds for py-spy.
PRINTED = 1.0  # Seconds in which the last process prints its stacks.
APART = 0.2  # Seconds between two processes that share a stream.
MOST_STACKS = 16  # Processes below a rank whose stacks are told.
# Not SIGUSR1: scripts of clusters save and exit on it, as Lightning and submitit do.
STACKS = signal.SIGRTMAX - 2
# It also arms the processes that the script starts, and runs what it hides.
SITECUSTOMIZE = """\
# Written by kit's launcher: this process prints the stacks of its threads on a signal.
import os
import sys

own = sys.modules.pop(__name__)
here = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [path for path in sys.path if os.path.abspath(path) != here]
try:
    import faulthandler

    faulthandler.register({signal})
except Exception:
    pass
try:
    import sitecustomize
except ImportError:
    sys.modules[__name__] = own
"""


def arm(folder: Path) -> str:
    """Make a folder for PYTHONPATH, with which a process prints its stacks on a signal."""
    armed = folder / "armed"
    armed.mkdir()
    (armed / "sitecustomize.py").write_text(SITECUSTOMIZE.format(signal=int(STACKS)))
    return str(armed)


class Quiet:
    """Since when a process and all below it have done nothing; times are monotonic."""

    def __init__(self, now: float) -> None:
        self.since = self._at = now
        self._cpu, self._heard = float("-inf"), 0.0
        self.told = float("-inf")  # The time of the last event.

    def look(self, now: float, cpu: float, heard: float, *, gpu: bool) -> float:
        """Return how long it has done nothing.

        `cpu` are its seconds on a processor, `heard` the time of its last line or file.
        """
        worked = cpu - self._cpu > BUSY * (now - self._at)
        if worked or gpu or heard != self._heard:
            self.since = now
        self._at, self._cpu, self._heard = now, cpu, heard
        return now - self.since

    def ignore(self, heard: float) -> None:
        """Do not count what it was asked to print."""
        self._heard = heard


class Silence:
    """Watches whether the ranks of a host do nothing, and tells it with their stacks."""

    def __init__(self, folder: Path, limit: int, gpus: str) -> None:
        """`folder` is the agent's, `limit` a time in seconds."""
        self._folder, self._limit = folder, limit
        self._gpus = [uuid for uuid in gpus.split(",") if uuid]
        self._quiet: dict[int, Quiet] = {}

    def look(self, torchrun: int) -> dict[int, float]:
        """Look at the ranks below torchrun; return for how long local ranks are silent."""
        now, silent = time.monotonic(), dict[int, float]()
        with suppress(OSError):
            ranks = {pid: place for pid in children_of(torchrun) if (place := place_of(pid))}
            self._quiet = {pid: self._quiet.get(pid) or Quiet(now) for pid in ranks}
            busy = busy_gpus(self._gpus) if ranks else [False]
            for pid, (rank, local) in ranks.items():
                # A process on a host's one rank, as TensorFlow's, may have all GPUs.
                gpu = any(busy) if len(ranks) == 1 else local < len(busy) and busy[local]
                quiet = self._quiet[pid]
                seconds = quiet.look(now, cpu_seconds(pid), self._heard(local), gpu=gpu)
                if seconds >= self._limit:
                    silent[local] = seconds
                    self._tell(pid, rank, local, quiet, now)
                elif quiet.told > 0:
                    quiet.told = float("-inf")
                    say(f"rank {rank} does something again")
                    emit("spoke", rank=rank)
        return silent

    def _heard(self, local: int) -> float:
        """The time of a rank's last line, or of its host's last version of the files."""
        return max(map(modified, (self._folder / f"said-{local}", self._folder / "saved")))

    def _tell(self, pid: int, rank: int, local: int, quiet: Quiet, now: float) -> None:
        first, seconds = quiet.told < 0, now - quiet.since
        if not first and now - quiet.told < MEMBER_EVERY:
            return
        quiet.told = now
        emit("silent", rank=rank, seconds=round(seconds, 1))
        if first:
            idle = "it has printed nothing, its processor and its GPU were idle"
            say(f"warning: rank {rank} is silent for {seconds:.0f} s: {idle}", error=True)
            for line in tell_stacks(pid):
                say(f"rank {rank}: {line}", error=True)
            time.sleep(PRINTED)
            quiet.ignore(self._heard(local))


def modified(file: Path) -> float:
    """The time of a file's last change, or 0."""
    with suppress(OSError):
        return file.stat().st_mtime
    return 0.0


def place_of(pid: int) -> tuple[int, int] | None:
    """The rank and the local rank of a worker; None for another process."""
    with suppress(OSError, KeyError, ValueError):
        lines = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
        environ = dict(line.partition("=")[::2] for line in lines)
        return int(environ["RANK"]), int(environ["LOCAL_RANK"])
    return None


def below(pid: int) -> list[int]:
    """A process and all that it and its children have started."""
    found = [pid]
    for child in found:
        with suppress(OSError):  # It has ended meanwhile.
            found += children_of(child)
    return found


def cpu_seconds(pid: int) -> float:
    """The time that a process, and all below it, have had a processor."""
    ticks = 0
    for each in below(pid):
        with suppress(OSError):
            stat = Path(f"/proc/{each}/stat").read_text()
            # utime, stime, and those of children that have ended (proc(5)).
            ticks += sum(map(int, stat.rpartition(")")[2].split()[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def busy_gpus(uuids: Sequence[str]) -> list[bool]:
    """Whether each GPU has run kernels lately; a GPU that does not say so counts as idle."""
    shares: dict[str, float] = {}
    if uuids:
        command = ["nvidia-smi", "--query-gpu=uuid,utilization.gpu"]
        command += ["--format=csv,noheader,nounits"]
        with suppress(OSError, subprocess.TimeoutExpired):
            listed = subprocess.run(command, capture_output=True, text=True, timeout=5).stdout
            for uuid, _, share in (line.partition(", ") for line in listed.splitlines()):
                with suppress(ValueError):
                    shares[uuid] = float(share) / 100
    return [shares.get(uuid, 0.0) > GPU_BUSY for uuid in uuids]


def tell_stacks(pid: int) -> Iterator[str]:
    """The stacks of a rank and of the processes below it, by py-spy where the image has it.

    Otherwise the processes are asked to print them, which goes to the log by itself.
    """
    spy = shutil.which("py-spy")
    for each in below(pid)[:MOST_STACKS]:
        if spy and (stack := spied(spy, each)):
            yield from stack
        elif armed(each):
            with suppress(OSError):
                os.kill(each, STACKS)
                time.sleep(APART)
        else:
            with suppress(OSError):
                name = Path(f"/proc/{each}/comm").read_text().strip()
                yield f"process {each} ({name}) tells no stack"


def spied(spy: str, pid: int) -> list[str]:
    """The lines of py-spy, which must be allowed to trace the process; none if it is not."""
    with suppress(OSError, subprocess.TimeoutExpired):
        command = [spy, "dump", "--pid", str(pid)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=SPY)
        return done.stdout.splitlines() if done.returncode == 0 else []
    return []


def armed(pid: int) -> bool:
    """Whether a process catches the signal for its stacks; it would end any other."""
    with suppress(OSError):
        status = Path(f"/proc/{pid}/status").read_text()
        caught = re.search(r"^SigCgt:\s*([0-9a-f]+)$", status, re.MULTILINE)
        return bool(caught and int(caught[1], 16) >> (int(STACKS) - 1) & 1)
    return False


# -------- torchrun: forked for each round, because its import takes seconds

LAST_WORDS = 0.5  # Seconds in which the other hosts read from the store that all have ended.


def torchrun_argv(nproc: int, around: Round, rank: int, job: str) -> list[str]:
    """The options of torchrun for a round; `rank` is that of this host among the others."""
    argv = ["--nnodes", str(len(around.agents)), "--node-rank", str(rank)]
    argv += ["--nproc-per-node", str(nproc), "--rdzv-backend", "static"]
    argv += ["--rdzv-endpoint", endpoint_text((around.address, around.ports[0]))]
    argv += ["--rdzv-id", f"{job}-{around.id}", "--max-restarts", "0"]
    return [*argv, "--monitor-interval", "0.1"]  # Seconds; 5 in old releases.


def die_with_parent() -> None:
    """Let the kernel kill this process when its parent ends, in whatever way."""
    ctypes.CDLL(None).prctl(PARENT_DEATH_SIGNAL, int(signal.SIGKILL), 0, 0, 0)


def fork_torchrun() -> None:
    """Import torchrun once, and fork it whenever the agent asks for it."""
    die_with_parent()
    from torch.distributed import run as torchrun

    assert torchrun
    serve_forks(run_torchrun)


def serve_forks(act: Callable[[Mapping[str, Any], socket.socket], int]) -> None:
    """Fork a process for each order of the agent: it acts, and exits with the result."""
    with socket.socket(socket.AF_UNIX) as agent:
        agent.connect(sys.argv[2])
        for line in agent.makefile():
            order = json.loads(line)
            if (pid := os.fork()) == 0:
                code = act(order, agent)
                sys.stdout.flush()
                os._exit(code)
            agent.sendall(b'{"pid": %d}\n' % pid)
            _, status = os.waitpid(pid, 0)
            agent.sendall(b'{"ended": %d}\n' % os.waitstatus_to_exitcode(status))


def serve_round(address: str, port: int) -> Any:
    """Serve the store of a round, which torchrun then finds in its process, and does not close.

    torchrun ends its own before the other hosts have read that all have ended.
    """
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    # By default the master listens on all interfaces.
    listener = socket.create_server((address, port), family=family_of(address))
    return TCPStore(
        address,
        port,
        is_master=True,
        wait_for_workers=False,
        multi_tenant=True,
        master_listen_fd=listener.detach(),
    )


def run_torchrun(order: Mapping[str, Any], agent: socket.socket) -> int:
    """Run torchrun in a forked process, without a traceback of its own; tell why it failed."""
    from torch.distributed.elastic import multiprocessing
    from torch.distributed.run import main as torchrun

    die_with_parent()
    os.environ.update(order["environ"])
    failure: LaunchError | None = None
    try:
        store = serve_round(*order["store"]) if order["store"] else None
        torchrun(order["argv"])
        if store is not None:
            time.sleep(LAST_WORDS)
    except multiprocessing.errors.ChildFailedError as error:
        failure = first_failure(error.failures, Path(os.environ["KIT_LAST_WORDS"]))
    except multiprocessing.SignalException as error:
        return 128 + int(error.sigval)
    except Exception as error:
        what = f"torchrun has failed ({type(error).__name__}: {error})".partition("\n")[0]
        failure = LaunchError(what, FAILURE, "rendezvous")
    if failure:
        tell_failure(agent, failure)
    return 0


def tell_failure(agent: socket.socket, failure: LaunchError) -> None:
    """Tell the agent why a script has failed."""
    place = (failure.rank, failure.exit_code, failure.fault)
    values = (str(failure), failure.code, failure.kind, *place)
    agent.sendall(json.dumps({"failure": values}).encode() + b"\n")


# A restart repeats these errors of a script.
HOPELESS = re.compile(r"(ImportError|ModuleNotFoundError|IndentationError|SyntaxError|TabError)\b")


def first_failure(failures: Mapping[int, Any], folder: Path) -> LaunchError:
    """Describe this host's first failed worker: its global rank, and its exception if known.

    `folder` has the workers' exceptions, as `Prefix` writes them.
    """
    # A worker that lost its peer writes no file; torchrun ends the other workers with SIGTERM.
    *_, rank = min(
        (not Path(each.error_file).is_file(), each.exitcode == -signal.SIGTERM, each.timestamp, key)
        for key, each in failures.items()
    )
    code, message = failures[rank].exitcode, failures[rank].message
    who = f"rank {rank} failed first on this host (local rank {failures[rank].local_rank})"
    trace = message["extraInfo"]["py_callstack"] if isinstance(message, dict) else ""
    said = exception_of(trace) or exception_in(folder / str(rank))
    return worker_failure(who, code, said, trace, rank)


def exception_of(trace: str) -> str:
    """The exception of a traceback, and its place, or ""."""
    found = Trace()
    for line in trace.splitlines():
        found.read(line)
    return found.exception


def worker_failure(
    who: str, code: int, said: str, trace: str = "", rank: int | None = None
) -> LaunchError:
    """Describe the end of a worker with an exit code, negative for a signal.

    `said` is its exception, or its last line in quotes, if it is known.
    """
    how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
    said = "" if how in KILLS else said
    text, fault = f"{who}, {how}{f': {said}' if said else ''}", fault_of(how, said)
    if code < 0:
        told = f"{text}\n{trace}".rstrip()
        return LaunchError(told, FAILURE, "killed", rank, 128 - code, fault)
    hopeless = HOPELESS.match(said)
    if hopeless:
        text += "; correct the script, or install what it needs in its image"
    code_of_all, kind = (MISTAKE, "input") if hopeless else (FAILURE, "worker")
    return LaunchError(f"{text}\n{trace}".rstrip(), code_of_all, kind, rank, code, fault)


def fault_of(how: str, said: str) -> str:
    """What is equal in failures at the same place: the exception's type and line, or `how`.

    The words of an exception may have numbers and addresses that differ each time.
    """
    kind, place = re.match(r"[\w.]+", said), re.search(r"\([^()]*:\d+\)$", said)
    return f"{kind[0]} {place[0] if place else ''}".rstrip() if kind else how


def exception_in(file: Path) -> str:
    """The last words that a worker's `Prefix` wrote, a moment after the worker's end, or ""."""
    for _ in range(20):
        with suppress(OSError):
            return file.read_text(errors="replace")
        time.sleep(0.05)
    return ""


# -------- TensorFlow: one process on each host, which uses all GPUs of the host


def tensorflow_environ(around: Round, rank: int) -> dict[str, str]:
    """The variables of the process on the host `rank` of a round.

    TF_CONFIG (tensorflow.org/guide/distributed_training) lists a port of each host; without other
    hosts there is none, as a strategy for several workers would wait for nothing.
    """
    environ = {
        "RANK": str(rank),
        "LOCAL_RANK": "0",
        "GROUP_RANK": str(rank),
        "WORLD_SIZE": str(len(around.agents)),
        "LOCAL_WORLD_SIZE": "1",
        "GROUP_WORLD_SIZE": str(len(around.agents)),
        "MASTER_ADDR": around.address,
    }
    if len(around.agents) > 1:
        task = {"type": "worker", "index": rank}
        environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": around.endpoints}, "task": task})
    return environ


def fork_tensorflow() -> None:
    """Run a script's process for each round, whenever the agent asks for it."""
    die_with_parent()
    serve_forks(run_tensorflow)


def run_tensorflow(order: Mapping[str, Any], agent: socket.socket) -> int:
    """Run one process, and pass on signals to it; tell why it failed."""
    die_with_parent()
    environ = {**os.environ, **order["environ"]}
    received: list[int] = []
    process: subprocess.Popen[bytes] | None = None

    def pass_on(number: int, _: object) -> None:
        received.append(number)
        if process:
            process.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, pass_on)
    argv = [sys.executable, *order["argv"]]
    process = subprocess.Popen(argv, env=environ, start_new_session=True)
    if received:  # Before there was a process.
        process.send_signal(received[0])
    code = process.wait()
    if received:
        return 128 + received[0]
    if code:
        rank = int(environ["RANK"])
        said = exception_in(Path(environ["KIT_LAST_WORDS"], str(rank)))
        tell_failure(agent, worker_failure(f"rank {rank} failed", code, said, rank=rank))
    return 0


# -------- The script's files: a keeper beside torchrun brings the newest to every host

KEEPER_ENDS = 30.0  # Seconds in which it hands on what was written last (keeper.END, and more).
KEEPER_SILENT = 60.0  # Seconds without a sign of life, which it gives every five.


def keeper_variables(settings: Settings, job: Job, address: str) -> dict[str, str]:
    """The variables of keeper.py, without its socket."""
    return {
        "KIT_HOST": settings.host,
        "KIT_CHECKPOINTS": str(settings.checkpoints),
        "KIT_FILES": json.dumps(job.files),
        "KIT_KEEP": str(job.keep),
        "KIT_FILES_AT": address,
    }


@contextmanager
def keeper(folder: str) -> Iterator[None]:
    """Run a keeper, if the job has files for it; its end is that of its standard input."""
    if "KIT_FILES" not in os.environ:
        yield
        return
    os.environ["KIT_KEEPER"] = str(Path(folder, "keeper"))
    os.environ["KIT_SAVED"] = str(Path(folder, "saved"))
    argv = [sys.executable, str(Path(__file__).resolve().with_name("keeper.py"))]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE)
    try:
        yield
    finally:
        assert process.stdin
        process.stdin.close()
        try:
            process.wait(KEEPER_ENDS)
        except subprocess.TimeoutExpired:
            process.kill()


def wait_for_files(environ: Mapping[str, str]) -> None:
    """Wait until the keeper has brought the newest version of the script's files to this host.

    Raises LaunchError if that failed: torchrun then restarts the workers.
    """
    names = {"address": "MASTER_ADDR", "run": "KIT_ROUND"}
    numbers = {"port": "MASTER_PORT", "rank": "GROUP_RANK", "hosts": "GROUP_WORLD_SIZE"}
    numbers |= {"workers": "LOCAL_WORLD_SIZE", "worker": "LOCAL_RANK"}
    place: dict[str, Any] = {key: environ[name] for key, name in names.items()}
    place |= {key: int(environ[name]) for key, name in numbers.items()}
    lost = "the keeper of this host's files has ended"
    try:
        with connect_keeper(environ["KIT_KEEPER"]) as connection:
            connection.sendall(json.dumps(place).encode() + b"\n")
            for line in connection.makefile():
                answer = json.loads(line)
                if answer.get("error"):
                    raise LaunchError(f"{answer['error']}", FAILURE, "peer")
                if answer.get("ready"):
                    return
    except (OSError, ValueError) as error:
        raise LaunchError(f"{lost} ({error})", FAILURE, "peer") from error
    raise LaunchError(lost, FAILURE, "peer")


def connect_keeper(path: str) -> socket.socket:
    """Connect to the keeper, which starts beside torchrun; raises OSError."""
    deadline = time.monotonic() + KEEPER_SILENT
    while True:
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(KEEPER_SILENT)
        try:
            connection.connect(path)
        except OSError as error:
            connection.close()
            died = isinstance(error, ConnectionRefusedError)  # Its socket outlives it.
            if time.monotonic() > deadline - (KEEPER_SILENT - 5 if died else 0):
                raise
        else:
            return connection
        time.sleep(0.05)


# -------- Metrics: one port and one text for all ranks of this host

# Name, type and meaning, as in trainer/contract/metrics.py; a test compares them.
START = ("kit_launcher_start_time_seconds", "gauge", "Start of the launcher in this container")
STOP = (
    "kit_launcher_stop_time_seconds",
    "gauge",
    "Time at which the launcher was asked to end; 0: it was not",
)
WORKERS = {
    "began": ("kit_worker_start_time_seconds", "gauge", "Start of the worker's process"),
    "restarts": (
        "kit_worker_restarts_total",
        "counter",
        "Restarts of this worker",
    ),
    "world_size": ("kit_worker_world_size", "gauge", "Processes over all hosts"),
    "silent": (
        "kit_worker_silent_seconds",
        "gauge",
        "Time for which this rank of a script has done nothing; 0: less than `quiet`",
    ),
}
MIB = 2.0**20
# Columns of `nvidia-smi --query-gpu`, and their units in base units.
GPUS = {
    "utilization.gpu": (
        0.01,
        ("kit_gpu_utilization_ratio", "gauge", "Share of time with a running kernel"),
    ),
    "memory.used": (MIB, ("kit_gpu_memory_used_bytes", "gauge", "Memory in use on the GPU")),
    "memory.total": (MIB, ("kit_gpu_memory_size_bytes", "gauge", "Memory of the GPU")),
    "temperature.gpu": (1.0, ("kit_gpu_temperature_celsius", "gauge", "Temperature of the GPU")),
    "power.draw": (1.0, ("kit_gpu_power_watts", "gauge", "Power that the GPU draws")),
}
GPUS_EVERY = 5.0  # Seconds between two calls of nvidia-smi, which takes up to a second.
READ_EVERY = 5.0  # Seconds between two reads by Prometheus (prometheus.yml).
Family = tuple[str, str, str]  # Name, type, meaning.
Sample = Sequence[Any]  # Suffix of the name, labels, value.


def serve_metrics(endpoint: tuple[str, int], folder: Path) -> "Metrics | None":
    """Serve /metrics in a thread. `folder` has a file of each worker, and one of each rank.

    If the port cannot be used, this only warns: the training does not need it.
    """
    metrics = Metrics(folder, os.environ)

    class Handler(BaseHTTPRequestHandler):
        timeout = 10  # Seconds.

        def do_GET(self) -> None:
            """Answer with the metrics, at one path."""
            found = self.path.partition("?")[0] == "/metrics"
            content = metrics.text().encode() if found else b"see /metrics\n"
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Log nothing: Prometheus asks every few seconds."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        address_family = family_of(endpoint[0])

    try:
        server = Server(endpoint, Handler)
    except OSError as error:
        say(f"warning: no metrics at {endpoint_text(endpoint)}: {error.strerror}", error=True)
        return None
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
    say(f"metrics at http://{endpoint_text(endpoint)}/metrics")
    return metrics


class Metrics:
    """Joins the metrics of the launcher, of its workers and of their GPUs to one text."""

    def __init__(self, folder: Path, environ: Mapping[str, str]) -> None:
        self._folder = folder
        self._stop, self._read = 0.0, float("-inf")  # Times: asked to end, and of the last read.
        self._told = threading.Event()  # The request to end was read.
        self._labels = {"job": environ.get("KIT_NAME", ""), "host": environ.get("KIT_HOST", "")}
        self._labels["host"] = self._labels["host"] or socket.gethostname()
        self._began = float(environ.get("KIT_BEGAN") or time.time())
        self._uuids = [uuid for uuid in environ.get("KIT_GPUS", "").split(",") if uuid]
        self._rows: list[list[str]] = []
        self._due, self._lock = 0.0, threading.Lock()
        self.silent: dict[int, float] = {}  # Seconds, by local rank.

    def text(self) -> str:
        """All metrics in Prometheus' text format (0.0.4): each family in one block."""
        families: dict[Family, list[Sample]] = {
            START: [("", self._labels, self._began)],
            STOP: [("", self._labels, self._stop)],
        }
        for family, sample in [*self._workers(), *self._gpus()]:
            families.setdefault(family, []).append(sample)
        self._read = time.monotonic()
        if self._stop:
            self._told.set()
        return "".join(map(block, families, families.values()))

    def wait_for_reader(self) -> None:
        """After a request to end, wait for Prometheus to read it; else the job seems to fail.

        Without a regular reader there is no wait.
        """
        if self._stop and time.monotonic() - self._read < 4 * READ_EVERY:
            self._told.wait(READ_EVERY + 1)

    def ask_to_end(self) -> None:
        """Record that a signal asked this process to end."""
        self._stop = self._stop or time.time()

    def _workers(self) -> Iterator[tuple[Family, Sample]]:
        for file in sorted(self._folder.glob("worker-*.json")):
            if not (worker := read_object(file)):
                continue
            local = worker["local_rank"]
            worker["silent"] = self.silent.get(local, 0)
            gpu = self._uuids[local] if local < len(self._uuids) else ""
            labels = {**self._labels, "rank": str(worker.get("rank")), "gpu": gpu}
            for key, family in WORKERS.items():
                yield family, ("", labels, worker.get(key, 0))
            rank = read_object(file.with_name(f"rank-{local}.json"))
            for name, kind, meaning, samples in rank.get("families", []):
                for sample in samples:
                    yield (name, kind, meaning), sample

    def _gpus(self) -> Iterator[tuple[Family, Sample]]:
        for uuid, *values in self._query():
            for (factor, family), value in zip(GPUS.values(), values, strict=False):
                with suppress(ValueError):  # [N/A]: this GPU does not measure it.
                    labels = {**self._labels, "gpu": uuid}
                    yield family, ("", labels, float(value) * factor)

    def _query(self) -> list[list[str]]:
        """The rows of nvidia-smi, at most GPUS_EVERY seconds old; none if it does not answer."""
        with self._lock:
            if self._uuids and time.monotonic() >= self._due:
                command = ["nvidia-smi", f"--query-gpu={','.join(('uuid', *GPUS))}"]
                command += ["--format=csv,noheader,nounits"]
                self._rows = []
                with suppress(OSError, subprocess.TimeoutExpired):
                    found = subprocess.run(command, capture_output=True, text=True, timeout=5)
                    rows = [line.split(", ") for line in found.stdout.splitlines()]
                    self._rows = [row for row in rows if row[0] in self._uuids]
                self._due = time.monotonic() + GPUS_EVERY
            return self._rows


def block(family: Family, samples: Sequence[Sample]) -> str:
    """A family in Prometheus' text format."""
    name, kind, meaning = family
    lines = [f"# HELP {name} {meaning}", f"# TYPE {name} {kind}"]
    for suffix, labels, value in samples:
        escaped = {key: json.dumps(each, ensure_ascii=False) for key, each in labels.items()}
        words = ",".join(f"{key}={each}" for key, each in escaped.items())
        lines.append(f"{name}{suffix}{{{words}}} {float(value)!r}")
    return "\n".join(lines) + "\n"


def read_object(file: Path) -> dict[str, Any]:
    """The JSON object of a file; empty if it is gone or being written."""
    with suppress(OSError, ValueError):
        found = json.loads(file.read_text())
        return found if isinstance(found, dict) else {}
    return {}


# -------- The worker: a rank before each line, and the rank's place in the world

LINE = 16384  # Bytes after which a line is split, as in Docker's log.
MESSAGE = 500  # Characters of an exception in messages and events.
MEMBER_EVERY = 60  # Seconds from one event of a member to the next.


def run_worker() -> None:
    """Become the script behind `worker`; each of its lines then begins with its rank."""
    if "KIT_ROUND" in os.environ:
        die_with_parent()
        place_worker(os.environ)
    streams = (sys.stdout.fileno(), sys.stderr.fileno())
    pipes = [os.pipe() for _ in streams]
    # Forked twice, so that the script has no unknown child.
    if os.fork() == 0:
        if os.fork() == 0:
            os.setsid()  # A signal to the script's process group must not end this process.
            for _, end in pipes:
                os.close(end)
            Prefix(os.environ, [begin for begin, _ in pipes], streams).copy()
        os._exit(0)
    os.wait()
    for stream, (begin, end) in zip(streams, pipes, strict=True):
        os.dup2(end, stream)
        os.close(begin)
        os.close(end)
    os.environ["KIT_BORN"] = str(time.time())  # For the metrics.
    if armed := os.environ.pop("KIT_ARMED", ""):
        paths = (armed, os.environ.get("PYTHONPATH", ""))
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    os.environ.pop("KIT_FAILURE", None)  # Of the launcher alone.
    os.execv(sys.executable, [sys.executable, "-u", *sys.argv[2:]])


def place_worker(environ: MutableMapping[str, str]) -> None:
    """Set what a script sees of its round; its own store is on a port that nobody uses yet."""
    environ.update(
        {
            "MASTER_PORT": environ["KIT_MASTER_PORT"],
            "TORCHELASTIC_USE_AGENT_STORE": "False",
            "TORCHELASTIC_RESTART_COUNT": environ["KIT_RESTARTS"],
            "TORCHELASTIC_MAX_RESTARTS": str(MAX_RESTARTS),
        }
    )
    if "KIT_KEEPER" in environ:
        wait_for_files(environ)


# PyTorch puts the rank of the present group before the lines of a traceback, and at each new group
# once more (distributed_c10d._set_pg_excepthook).
TORCHS_RANKS = re.compile(rb"^(\[rank\d+\]: ?)+")


class Prefix:
    """Copies a worker's lines with its rank before each, and prints the worker's events.

    At its end, it writes the exception of a traceback, or the last line of stderr, to the folder
    KIT_LAST_WORDS.
    """

    def __init__(
        self, environ: Mapping[str, str], sources: Sequence[int], targets: Sequence[int]
    ) -> None:
        self._environ = environ
        self._place = {name: self._number(name) for name in ("RANK", "WORLD_SIZE")}
        # A worker of the built-in training learns its rank later, and prints events of it.
        self._learns = "KIT_WORKERS" in environ
        self._words = b"" if self._learns else f"[rank{environ['RANK']}]: ".encode()
        self._targets = dict(zip(sources, targets, strict=True))
        self._rest = dict.fromkeys(sources, b"")
        self._out, self._error = targets[0], targets[-1]
        self._trace = Trace()
        self._note: Path | None = None  # The worker's file for the metrics.
        words = environ.get("KIT_LAST_WORDS")
        self._said = Path(words, f"said-{self._number('LOCAL_RANK')}") if words else None
        self._began = time.time()
        self._due = float("inf") if self._learns else 0.0  # Time of the next event of a member.

    def copy(self) -> None:
        """Copy until all sources have ended."""
        folder, local = self._environ.get("KIT_LAST_WORDS"), self._number("LOCAL_RANK")
        left = Path(folder or os.devnull, self._environ.get("RANK", "none"))
        before = Path(folder or os.devnull, f"local-{local}")  # A restart may change the rank.
        reason = ""
        with suppress(OSError):
            reason = before.read_text(errors="replace")
        for old in (left, before):  # Of the previous start.
            with suppress(OSError):
                old.unlink()
        restarts = self._number("TORCHELASTIC_RESTART_COUNT")
        if restarts and (reason or not local):
            self._write(self._out, event("restart", restarts=restarts, reason=reason).encode())
        self._note_worker(restarts)
        while self._rest:
            if time.monotonic() >= self._due:
                self._write(self._out, self._member(restarts).encode())
                self._due = time.monotonic() + MEMBER_EVERY
            wait = min(MEMBER_EVERY, max(0.0, self._due - time.monotonic()))
            for source in select.select(list(self._rest), [], [], wait)[0]:
                self._take(source)
        with suppress(OSError):
            left.write_text(self._trace.words)
            before.write_text(self._trace.exception)
        if self._note and read_object(self._note).get("copier") == os.getpid():
            self._note.unlink(missing_ok=True)

    def _note_worker(self, restarts: int) -> None:
        """Write the worker's place for the metrics, for as long as it runs."""
        folder, local = self._environ.get("KIT_METRICS"), self._number("LOCAL_RANK")
        self._note = Path(folder, f"worker-{local}.json") if folder else None
        if self._note:
            place = {"local_rank": local, "rank": self._place["RANK"], "began": self._began}
            place |= {"world_size": self._place["WORLD_SIZE"], "restarts": restarts}
            with suppress(OSError):
                self._note.write_text(json.dumps({**place, "copier": os.getpid()}))

    def _member(self, restarts: int) -> str:
        return event(
            "member",
            rank=self._place["RANK"],
            local_rank=self._number("LOCAL_RANK"),
            world_size=self._place["WORLD_SIZE"],
            restarts=restarts,
            gpus=[uuid for uuid in self._environ.get("KIT_GPUS", "").split(",") if uuid],
            failure=self._failure(),
        )

    def _failure(self) -> str:
        """The failure of the round before, until this one has lasted longer."""
        failed = json.loads(self._environ.get("KIT_FAILURE") or "null")
        if not failed or time.time() - self._began >= max(MEMBER_EVERY, failed["ran"]):
            return ""
        return f"{failed['host']}: {failed['message']}"

    def _number(self, name: str) -> int:
        return int(self._environ.get(name) or 0)

    def _take(self, source: int) -> None:
        content = os.read(source, LINE)
        *lines, left = (self._rest[source] + content).split(b"\n")
        if left and (not content or len(left) >= LINE):
            lines, left = [*lines, left], b""
        if content and self._said:
            with suppress(OSError):
                self._said.touch()
        for line in (TORCHS_RANKS.sub(b"", each) for each in lines):
            if self._learns and line.startswith(MARK.encode()):
                self._learn(line)
            self._write(self._targets[source], line)
            if self._targets[source] == self._error:
                self._trace.read(line.decode(errors="replace"))
        self._rest[source] = left
        if not content:
            del self._rest[source]

    def _learn(self, line: bytes) -> None:
        """Read the worker's place, if this is the event of it."""
        with suppress(ValueError, KeyError):
            found = json.loads(line[len(MARK) :])
            if found["event"] == "member":
                self._place = {"RANK": found["rank"], "WORLD_SIZE": found["world_size"]}
                self._words = f"[rank{found['rank']}]: ".encode()
                self._due = time.monotonic() + MEMBER_EVERY
                self._note_worker(found["restarts"])

    def _write(self, target: int, line: bytes) -> None:
        """Write a line; events are not written to a terminal."""
        if line.startswith(MARK.encode()) and os.isatty(target):
            return
        os.write(target, self._words + line + b"\n")


class Trace:
    """Finds the exception of the last Python traceback in a process's stderr."""

    def __init__(self) -> None:
        self.exception = ""  # As Python prints it, and the line that raised it.
        self._last = ""
        self._inside = False
        self._place = ""

    @property
    def words(self) -> str:
        """The exception or, in quotes, the last line: sys.exit and argparse print no traceback."""
        return self.exception or (f'"{self._last[:MESSAGE]}"' if self._last else "")

    def read(self, line: str) -> None:
        """Process one line."""
        self._last = line.strip() or self._last
        if line.startswith("Traceback (most recent call last)"):
            self._inside, self._place = True, ""
        elif found := re.match(r'  File "(.+)", line (\d+)', line):
            self._place = f"{found[1]}:{found[2]}"
        # Errors of compilation are printed without the first line of a traceback.
        elif (self._inside and re.match(r"\w", line)) or re.match(r"\w+Error: ", line):
            place = f" ({self._place})" if self._place else ""
            self.exception, self._inside = f"{line[:MESSAGE]}{place}", False


# -------- What both services of hosts that meet have in common

NO_NEW_PRIVILEGES = 38  # Of prctl (linux/prctl.h).
RESOLVED = 10.0  # Seconds within which a container finds its own name in Docker's DNS.


def own_address(names: Sequence[str]) -> str:
    """The address of this host among those of `names`, to listen only there.

    If there is none, as behind a NAT, this logs that and returns the address of all interfaces.
    """
    deadline = time.monotonic() + RESOLVED
    while True:
        for name in names:
            family = family_of(name)
            with suppress(OSError):
                for entry in socket.getaddrinfo(name, 0, family, socket.SOCK_STREAM):
                    with suppress(OSError), socket.create_server(entry[4], family=family) as own:
                        return str(own.getsockname()[0])
        if time.monotonic() > deadline:
            say(f"listens on every interface: {', '.join(names)} is no address of this host")
            return "0.0.0.0"
        time.sleep(0.2)


def family_of(name: str) -> socket.AddressFamily:
    """The family of an address; IPv4 for a name."""
    return socket.AF_INET6 if ":" in name else socket.AF_INET


def stay_unprivileged() -> None:
    """Set no_new_privileges for this process and its children: Swarm's services lack the option."""
    ctypes.CDLL(None).prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0)


# -------- The coordinator of a built-in training


def coordinate() -> int:
    """Serve the coordinator, only at its own address, until its run is over or a signal arrives."""
    stay_unprivileged()
    raise_open_files()  # Each host holds a connection.
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    from trainer.elastic.coordinator import serve

    host, port = parse_endpoint(_value(os.environ, "KIT_RENDEZVOUS"))
    hosts = read_nnodes(os.environ)
    address = own_address([host])
    listener = listen(address, port)
    say(f"serves the coordinator on {endpoint_text((address, port))}")
    received = serve(listener, hosts, say)
    reason = signal.Signals(received).name if received else "the end of its run"
    say(f"ends the coordinator on {reason}")
    return 0


def listen(address: str, port: int) -> socket.socket:
    """Listen at an address, before anybody is told to come; raises LaunchError."""
    try:
        return socket.create_server((address, port), family=family_of(address))
    except OSError as error:
        reason = str(error).splitlines()[0]
        advice = "end what uses it, or give the job another port: `rendezvous: {port: …}`"
        message = f"port {port} can not be served ({reason}); {advice}"
        raise LaunchError(message, FAILURE, "rendezvous") from error


# -------- Subcommands


def command(arguments: list[str]) -> Callable[[], int | None]:
    """Return the subcommand that the arguments name."""
    commands = {"": train, "coordinator": coordinate, "health": check_health}
    commands["rendezvous"] = serve_rendezvous
    name = " ".join(arguments)
    if arguments[:1] == ["agent"]:
        return run_agent
    if arguments[:1] == ["pytorch"]:
        return fork_torchrun
    if arguments[:1] == ["tensorflow"]:
        return fork_tensorflow
    if arguments[:1] == ["worker"]:
        return run_worker
    if name not in commands:
        raise LaunchError(f"unknown: {name}; give nothing, coordinator, rendezvous or health")
    return commands[name]


def main(arguments: list[str]) -> int:
    """Run one subcommand; return the exit code."""
    return guarded(lambda: command(arguments)())


def guarded(act: Callable[[], int | None]) -> int:
    """Return the exit code of `act`; report a LaunchError."""
    try:
        return act() or 0
    except LaunchError as error:
        emit("failed", **error.values())
        say(f"error: {f'{error.host}: ' if error.host else ''}{error}", error=True)
        return error.code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
