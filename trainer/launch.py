"""The container's entry point: checks the surroundings, then becomes torchrun.

    python3 launch.py               train what the job file says, as one host of several
    python3 launch.py rendezvous    serve the store at which the hosts meet
    python3 launch.py health        the container's health check: are the GPUs still there?

One file of the standard library only, so that it can be mounted alone into any image that has
torch 2.2 or newer; for those images' sake it keeps to Python 3.10.

    KIT_JOB                  path of the job file (JSON) in the container
    KIT_RENDEZVOUS           host:port of the store; the name must have exactly one address
    KIT_NNODES               MIN:MAX hosts of the job
    KIT_NPROC                processes on this host: its GPUs, or its CPU workers
    KIT_HOST                 this host's name in the log; default: its hostname
    KIT_CHECKPOINTS          where checkpoints lie; default: /checkpoints
    KIT_DATA                 where data sets lie; default: /data
    KIT_RENDEZVOUS_TIMEOUT   seconds to wait for the store; default: 300

Exit codes before torchrun takes over: 2 for a mistake in the input, 1 for work that failed.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

MISTAKE = 2
"""Exit code for something wrong in the input."""
FAILURE = 1
"""Exit code for work that failed."""

SIOCGIFADDR = 0x8915
"""Linux ioctl that answers an interface's IPv4 address (linux/sockios.h)."""

# Read by torch.distributed.elastic.rendezvous: c10d_rendezvous_backend.py (is_host) and
# dynamic_rendezvous.py (the others). is_host: the store is a service of its own, and torchrun's
# guess from host names fails in network namespaces. last_call_timeout: seconds in which more than
# the minimum of hosts may still join (30 by default), spent at every start below the maximum.
# keep_alive_interval: seconds between heartbeats (5 by default); three missed ones are a dead host.
RDZV_CONF = "is_host=false,last_call_timeout=2,keep_alive_interval=1"

# torchrun's default is 0, and a host that dies costs each of the others one restart
# (SimpleElasticAgent._invoke_run). More of them would only repeat a script's own mistake: an agent
# that has used its restarts up ends, and its engine starts it again, with as many more.
MAX_RESTARTS = 3

REPEAT = 30
"""Seconds after which the launcher says again what it waits for."""
IN_USE = 2
"""Looks at the store, a second apart, at which an agent must be connected for it to be in use."""
DESERTED = 10
"""Looks without any agent after which the store's run is over."""
ESTABLISHED = "01"
"""State of a connection in /proc/net/tcp (include/net/tcp_states.h)."""


class LaunchError(Exception):
    """Something that the launcher could foresee; the message says what to do."""

    def __init__(self, message: str, code: int = MISTAKE) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class Settings:
    """What the environment says."""

    host: str
    """This host's name in the log."""
    job: Path
    """The job file."""
    rendezvous: tuple[str, int]
    """Name and port of the store."""
    nnodes: str
    """MIN:MAX hosts."""
    nproc: int
    """Processes on this host."""
    checkpoints: Path
    """Where the built-in training writes its checkpoints."""
    data: Path
    """Where the built-in training looks for its data."""
    wait: float
    """Seconds to wait for the store."""


@dataclass(frozen=True)
class Job:
    """What the launcher needs to know of a job."""

    name: str
    """Also the id under which its hosts meet."""
    command: tuple[str, ...]
    """The user's own script and its arguments; empty for the built-in training."""


def parse_settings(environ: Mapping[str, str]) -> Settings:
    """Read the environment.

    Raises:
        LaunchError: A variable is missing or makes no sense.
    """
    nnodes = _required(environ, "KIT_NNODES")
    bounds = re.fullmatch(r"([1-9]\d*):([1-9]\d*)", nnodes)
    if not bounds or int(bounds[1]) > int(bounds[2]):
        raise LaunchError(f'KIT_NNODES must be MIN:MAX such as 1:2, is "{nnodes}"')
    return Settings(
        host=host_name(environ),
        job=Path(_required(environ, "KIT_JOB")),
        rendezvous=parse_endpoint(_required(environ, "KIT_RENDEZVOUS")),
        nnodes=nnodes,
        nproc=_positive("KIT_NPROC", _required(environ, "KIT_NPROC")),
        checkpoints=Path(environ.get("KIT_CHECKPOINTS") or "/checkpoints"),
        data=Path(environ.get("KIT_DATA") or "/data"),
        wait=_positive("KIT_RENDEZVOUS_TIMEOUT", environ.get("KIT_RENDEZVOUS_TIMEOUT") or "300"),
    )


def host_name(environ: Mapping[str, str]) -> str:
    """This host's name in the log."""
    return environ.get("KIT_HOST") or socket.gethostname()


def parse_endpoint(text: str) -> tuple[str, int]:
    """Split host:port.

    Raises:
        LaunchError: It is not of that form.
    """
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise LaunchError(f'KIT_RENDEZVOUS must be host:port such as rendezvous:29400, is "{text}"')
    return host, int(port)


def _required(environ: Mapping[str, str], name: str) -> str:
    if not environ.get(name):
        raise LaunchError(f"{name} is not set; the files that kit render writes set it")
    return environ[name]


def _positive(name: str, text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise LaunchError(f'{name} must be a whole number of at least 1, is "{text}"')
    return int(text)


def read_job(path: Path) -> Job:
    """Read of the job file what launching needs.

    Raises:
        LaunchError: The file can not be read, or a key is missing or wrong.
    """
    try:
        content = json.loads(path.read_text())
    except OSError as error:
        raise LaunchError(f"{path}: {error.strerror}; KIT_JOB must name the job file") from error
    except ValueError as error:
        raise LaunchError(f"{path}: is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise LaunchError(f"{path}: must be an object with the keys name and train or command")
    name = content.get("name")
    if not isinstance(name, str) or not name:
        raise LaunchError(f"{path}: name: must be the name of the job")
    if ("train" in content) == ("command" in content):
        raise LaunchError(f"{path}: must have exactly one of train and command")
    command = content.get("command", [])
    words = isinstance(command, list) and all(isinstance(word, str) for word in command)
    if not words or ("command" in content and not command):
        raise LaunchError(f'{path}: command: must be a list of words such as ["ddp.py", "50"]')
    return Job(name, tuple(command))


def find_rendezvous(endpoint: tuple[str, int]) -> str:
    """Connect to the store once; return the local address that this host has on the way there.

    Raises:
        LaunchError: The name has several addresses.
        OSError: It can not be resolved or reached now; later may be better.
    """
    host, port = endpoint
    found = socket.getaddrinfo(host, port, socket.AF_INET, socket.SOCK_STREAM)
    addresses = sorted({str(entry[4][0]) for entry in found})
    if len(addresses) > 1:
        # Each agent would pick one at random, and torchrun then waits for ever without a word.
        raise LaunchError(
            f"KIT_RENDEZVOUS: {host} has {len(addresses)} addresses ({', '.join(addresses)}); "
            "name one service with a single replica"
        )
    with socket.create_connection((addresses[0], port), timeout=5) as connection:
        return str(connection.getsockname()[0])


def wait_for_rendezvous(settings: Settings) -> str:
    """Wait until the store answers; return this host's address on the way there.

    Raises:
        LaunchError: The name has several addresses, or nothing answered in time.
    """
    host, port = settings.rendezvous
    deadline = time.monotonic() + settings.wait
    said, repeat = "", settings.wait
    while True:
        try:
            return find_rendezvous(settings.rendezvous)
        except OSError as error:
            reason = error.strerror or str(error)
        if time.monotonic() > deadline:
            raise LaunchError(
                f"nothing answered at {host}:{port} for {settings.wait:g} s ({reason}); "
                "is the rendezvous service running, and on the same network?",
                FAILURE,
            )
        left = deadline - time.monotonic()
        if reason != said or left < repeat:
            place = f"{host}:{port}"
            say(settings.host, f"waits {left:.0f} s for the rendezvous at {place} ({reason})")
            said, repeat = reason, left - REPEAT
        time.sleep(0.5)


def interface_addresses() -> dict[str, str]:
    """The interfaces of this host that have an IPv4 address, and that address."""
    addresses = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode())
            try:
                answer = fcntl.ioctl(probe.fileno(), SIOCGIFADDR, request)
            except OSError:
                continue
            addresses[name] = socket.inet_ntoa(answer[20:24])
    return addresses


def pick_interface(address: str, addresses: Mapping[str, str], environ: Mapping[str, str]) -> str:
    """The interface that has `address`; what the user set for NCCL or gloo goes first.

    Raises:
        LaunchError: No interface has it.
    """
    chosen = environ.get("NCCL_SOCKET_IFNAME") or environ.get("GLOO_SOCKET_IFNAME")
    if chosen:
        return chosen
    for name, own in addresses.items():
        if own == address:
            return name
    raise LaunchError(
        f"no interface has the address {address} that leads to the rendezvous; "
        "set NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME",
        FAILURE,
    )


def check_command(command: tuple[str, ...], job: Path) -> str:
    """Check that the user's script is there; return what will run.

    Raises:
        LaunchError: It is not. torchrun would fail and restart without end.
    """
    if command[0] != "-m" and not Path(command[0]).is_file():
        raise LaunchError(
            f"{job}: command: {command[0]} is not a file in {Path.cwd()}; mount it, and begin "
            "with the script itself, without python or torchrun"
        )
    return " ".join(command)


def check_training(settings: Settings, package_root: Path) -> str:
    """Check job file, data and checkpoint folder of the built-in training; return what will run.

    Raises:
        LaunchError: One of them is not as it must be.
    """
    if not (package_root / "trainer" / "train.py").is_file():
        raise LaunchError(
            f"{settings.job}: train: needs the trainer package beside launch.py; use the trainer "
            "image, or give the job a command"
        )
    sys.path.insert(0, str(package_root))
    # These two modules are of the standard library too.
    from trainer.config import JobError, load_job
    from trainer.files import DataMissingError, find_files

    try:
        training = load_job(settings.job)
        find_files(training.train, settings.data)
    except (JobError, DataMissingError) as error:
        raise LaunchError(str(error)) from error
    if not os.access(settings.checkpoints, os.W_OK):
        raise LaunchError(
            f"{settings.checkpoints} is not a folder that can be written to; mount a volume there, "
            "or set KIT_CHECKPOINTS"
        )
    return f"{training.train.model} on {training.train.dataset}"


def torchrun_argv(settings: Settings, job: Job, local_address: str) -> list[str]:
    """The command line of torchrun for this host."""
    host, port = settings.rendezvous
    return [
        *(sys.executable, str(Path(__file__).resolve()), "agent"),
        *("--nnodes", settings.nnodes),
        *("--nproc-per-node", str(settings.nproc)),
        *("--rdzv-backend", "c10d"),
        *("--rdzv-endpoint", f"{host}:{port}"),
        *("--rdzv-id", job.name),
        *("--rdzv-conf", RDZV_CONF),
        *("--max-restarts", str(MAX_RESTARTS)),
        # Otherwise rank 0 tells the others its full host name, which they may not resolve.
        *("--local-addr", local_address),
        *(job.command or ("-m", "trainer.train")),
    ]


def torchrun_environ(
    environ: Mapping[str, str], nproc: int, interface: str, package_root: Path | None, cores: int
) -> dict[str, str]:
    """The environment of torchrun: `environ` with what is not set in it.

    Args:
        environ: This process's own.
        nproc: Processes on this host.
        interface: The network interface between the hosts.
        package_root: The folder that holds the package `trainer`, when that is to be run.
        cores: Cores that this host's processes share.
    """
    result = {
        "NCCL_SOCKET_IFNAME": interface,
        "GLOO_SOCKET_IFNAME": interface,
        "OMP_NUM_THREADS": str(max(1, cores // nproc)),
        # Otherwise the workers' store lives in the agent of rank 0's host, and when that host
        # dies the whole job dies with it.
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        **{name: value for name, value in environ.items() if value or not name.endswith("_IFNAME")},
    }
    if package_root:
        paths = (str(package_root), environ.get("PYTHONPATH", ""))
        result["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    return result


def train() -> NoReturn:
    """Check everything, then become torchrun, so that signals reach it.

    Raises:
        LaunchError: Something is not as it must be.
    """
    settings = parse_settings(os.environ)
    job = read_job(settings.job)
    processes = "1 process" if settings.nproc == 1 else f"{settings.nproc} processes"
    say(settings.host, f"job {job.name} from {settings.job}, {processes} here")
    package_root = None if job.command else Path(__file__).resolve().parent.parent
    if package_root:
        what = check_training(settings, package_root)
    else:
        what = check_command(job.command, settings.job)
    say(settings.host, f"ready to run {what}")
    address = wait_for_rendezvous(settings)
    say(settings.host, "rendezvous {}:{} answers".format(*settings.rendezvous))
    interface = pick_interface(address, interface_addresses(), os.environ)
    say(settings.host, f"reaches it from {address} by interface {interface}")
    cores = len(os.sched_getaffinity(0))
    environ = torchrun_environ(os.environ, settings.nproc, interface, package_root, cores)
    argv = torchrun_argv(settings, job, address)
    say(settings.host, f"becomes torchrun for {settings.nnodes} hosts")
    os.execvpe(argv[0], argv, environ)


def run_agent() -> NoReturn:
    """Be torchrun, with the arguments behind `agent`, and end without a traceback of its own.

    Raises:
        LaunchError: A worker failed more often than it is started again, or left word in the file
            KIT_HALT that starting again is of no use.
        SystemExit: As torchrun ends; 128 and the signal's number after a signal.
    """
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous import RendezvousError
    from torch.distributed.run import main as torchrun

    with tempfile.NamedTemporaryFile("r") as word:
        os.environ["KIT_HALT"] = word.name
        try:
            torchrun(sys.argv[2:])
        except ChildFailedError as error:
            raise LaunchError(first_failure(error.failures), FAILURE) from None
        except RendezvousError as error:
            reason = f"the rendezvous was lost or closed ({type(error).__name__})"
            raise LaunchError(f"{reason}: see what other hosts say", FAILURE) from None
        except SignalException as error:
            say(host_name(os.environ), f"torchrun ended on {signal.Signals(error.sigval).name}")
            sys.exit(128 + error.sigval)
        if reason := word.read():
            raise LaunchError(reason, FAILURE)
    sys.exit(0)


def first_failure(failures: Mapping[int, ProcessFailure]) -> str:
    """Who of this host's workers, by global rank, failed first, how, and its traceback if left."""

    def order(rank: int) -> tuple[bool, bool, int]:
        each = failures[rank]
        # Who only lost a peer leaves no file; torchrun ends the others by SIGTERM.
        left = Path(each.error_file).is_file()
        return not left, each.exitcode == -signal.SIGTERM, each.timestamp

    rank = min(failures, key=order)
    code, message = failures[rank].exitcode, cast("Any", failures[rank].message)
    how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
    trace = message["extraInfo"]["py_callstack"] if isinstance(message, dict) else ""
    local = failures[rank].local_rank
    return f"rank {rank} failed first on this host (local rank {local}), {how}\n{trace}".rstrip()


def connections(port: int, tables: tuple[str, ...] = ("tcp", "tcp6")) -> int:
    """The connections that are established to a port of this network namespace."""
    count = 0
    for table in tables:
        lines = Path("/proc/net", table).read_text().splitlines()[1:]
        for _, local, _, state, *_ in map(str.split, lines):
            count += state == ESTABLISHED and int(local.rpartition(":")[2], 16) == port
    return count


class Attendance:
    """Tells from the connections to the store, counted each second, whether its run is over."""

    def __init__(self) -> None:
        self._nobody = sys.maxsize
        self._present = 0
        self._absent = 0
        self._used = False

    def over(self, count: int) -> bool:
        """Take in one more count; return whether agents have come and all are gone."""
        # The store has a client of its own, always there: the lowest count is nobody's.
        self._nobody = min(self._nobody, count)
        here = count > self._nobody
        self._present = self._present + 1 if here else 0
        self._absent = 0 if here else self._absent + 1
        self._used = self._used or self._present >= IN_USE
        return self._used and self._absent >= DESERTED


def serve_rendezvous() -> None:
    """Serve the store on all interfaces until a run is over, or SIGTERM or SIGINT comes.

    torchrun closes a rendezvous for good when its job ends, so each run needs a fresh store: the
    engine starts this service again.

    Raises:
        LaunchError: The port can not be served.
    """
    _, port = parse_endpoint(_required(os.environ, "KIT_RENDEZVOUS"))
    # Blocked before the store starts its threads: they inherit it, and the signal waits for us.
    ends = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    try:
        # The master listens on every interface; the name is only what its own client connects to.
        store = TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
    except (RuntimeError, OSError) as error:
        reason = str(error).splitlines()[0]
        raise LaunchError(
            f"port {port} can not be served ({reason}); end what uses it, or change the port",
            FAILURE,
        ) from error
    host = host_name(os.environ)
    say(host, f"serves the rendezvous on port {store.port}")
    attendance = Attendance()
    received = None
    while received is None and not attendance.over(connections(port)):
        received = signal.sigtimedwait(ends, 1)
    reason = signal.Signals(received.si_signo).name if received else "the end of its run"
    say(host, f"ends the rendezvous on {reason}")


def check_health() -> None:
    """Check that the container still has its GPUs, where it was given any.

    Raises:
        LaunchError: It has lost them.
    """
    if os.environ.get("NVIDIA_VISIBLE_DEVICES", "") in {"", "void", "none"}:
        return
    needed = _positive("KIT_NPROC", os.environ.get("KIT_NPROC") or "1")
    try:
        answer = subprocess.run(
            ["nvidia-smi", "-L"], capture_output=True, text=True, timeout=15, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LaunchError(
            f"nvidia-smi does not run ({error}); restart the container", FAILURE
        ) from error
    lines = answer.stdout.splitlines()
    whole = sum(line.startswith("GPU ") for line in lines)
    # The instances of a GPU that is split by MIG are listed below it.
    found = max(whole, sum("UUID: MIG-" in line for line in lines))
    if answer.returncode != 0 or found < needed:
        # A daemon-reload of systemd on the host takes a container's GPUs away (nvidia-container
        # -toolkit #48): "Failed to initialize NVML".
        raise LaunchError(
            f"{found} of {needed} GPUs are left ({answer.stdout.strip() or 'no output'}); "
            "restart the container",
            FAILURE,
        )


def say(host: str, text: str) -> None:
    """Write one line of progress."""
    sys.stdout.write(f"launch {host}: {text}\n")
    sys.stdout.flush()


def command(arguments: list[str]) -> Callable[[], None]:
    """The subcommand that the arguments name.

    Raises:
        LaunchError: They name none.
    """
    commands = {"": train, "rendezvous": serve_rendezvous, "health": check_health}
    name = " ".join(arguments)
    if arguments[:1] == ["agent"]:
        return run_agent
    if name not in commands:
        raise LaunchError(f"unknown: {name}; give nothing, rendezvous or health")
    return commands[name]


def main(arguments: list[str]) -> int:
    """Run one subcommand; return the exit code."""
    try:
        command(arguments)()
    except LaunchError as error:
        sys.stderr.write(f"launch {host_name(os.environ)}: error: {error}\n")
        return error.code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
