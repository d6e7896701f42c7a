"""Checks the container and the job, then becomes the agent of this host."""

import fcntl
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import NoReturn

from trainer.contract.allocation import read_allocation
from trainer.launcher.checks import check
from trainer.launcher.container import available_cores, gpu_uuids, list_gpus
from trainer.launcher.data_sets import fetch_data
from trainer.launcher.disk import wait_for_room
from trainer.launcher.errors import FAILURE, LaunchError
from trainer.launcher.interfaces import interface_addresses
from trainer.launcher.last_failure import ask_what_has_failed
from trainer.launcher.limits import Asking, spoken
from trainer.launcher.network import pick_interface, wait_for_rendezvous
from trainer.launcher.output import emit, say
from trainer.launcher.process import raise_open_files, stay_unprivileged
from trainer.launcher.program import PROGRAM
from trainer.launcher.script_files import keeper_variables
from trainer.launcher.session.hold import hold_session
from trainer.launcher.settings import (
    Job,
    Settings,
    endpoint_text,
    read_job,
    read_nnodes,
    read_number,
    read_secrets,
)
from trainer.launcher.tell import notify
from trainer.launcher.workspace import enter_workspace


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


def fetch(settings: Settings, job: Job) -> None:
    """Wait for the job's data sets and its code."""
    folders = fetch_data(settings, job.name)
    if folders:
        os.environ["KIT_DATA_PATHS"] = json.dumps(folders)
        say(f"has {', '.join(folders)}")
    if job.code:
        enter_workspace(settings, job, folders)


def train() -> int:
    """Check the container, fetch data and code; then hold a session, or become an agent."""
    try:
        return check_and_begin()
    except LaunchError as error:
        if error.kind != "rendezvous" and not error.known:  # Only this host knows of it.
            line = str(error).splitlines()[0]
            notify(os.environ, "failed", line, error.exit_code or error.code)
        raise


def check_and_begin() -> int:
    """Check the container and the job, then hold a session or become the agent of this host."""
    os.environ["KIT_BEGAN"] = str(time.time())
    settings = Settings(os.environ)
    raise_open_files()
    job = read_job(settings.job)
    if job.command:
        read_nnodes(os.environ)  # Before anything is fetched.
    meets = "" if job.session else endpoint_text(settings.rendezvous)
    number = 1 if job.framework == "tensorflow" else settings.nproc
    processes = "1 process" if number == 1 else f"{number} processes"
    what = f"{processes} here" if meets else "a session"
    say(f"job {job.name} from {settings.job}, {what}")
    gpus = list_gpus()
    emit("started", gpus=gpu_uuids(gpus))
    if given := read_allocation(os.environ):
        emit("allocated", **given._asdict())
        waited = f"waited for {spoken(given.waited)} in the queue"
        say(f"is {given.owner}'s, has priority {given.priority}, and has {waited}")
    for line in gpus:
        say(f"sees {line.strip()}")
    if job.command:
        ask_what_has_failed(settings)
    asking = Asking(settings, job)
    if meets:
        asking.begin()
    fetch(settings, job)
    # For metrics.jsonl and for the events of the workers.
    os.environ["KIT_GPUS"] = ",".join(gpu_uuids(gpus))
    own = read_secrets(os.environ.get("KIT_SECRETS", ""), Path("/run/secrets"))
    prepare(job.setup, {**os.environ, **own})
    if job.session is not None:
        return hold_session(job, job.session, {**os.environ, **own})
    return become_agent(settings, job, own, asking)


def become_agent(
    settings: Settings, job: Job, secrets: Mapping[str, str], asking: Asking
) -> NoReturn:
    """Become the agent of this host, so that it receives the signals; raises LaunchError."""
    number = 1 if job.framework == "tensorflow" else settings.nproc
    package_root = None if job.command else PROGRAM.parent.parent
    say(f"ready to run {check(settings, job, package_root)}")
    asking.prepared()
    if package_root:
        stay_unprivileged()
        wait_for_room(settings.checkpoints)
    address = wait_for_rendezvous(settings)
    asking.end()
    say(f"coordinator {endpoint_text(settings.rendezvous)} answers")
    addresses = interface_addresses()
    interface = pick_interface(address, addresses, os.environ)
    say(f"connects to the coordinator from {address} on interface {interface}")
    first = next((one for one, name in addresses.items() if name == interface), address)
    if addresses.get(address) == interface and first != address:
        use = f"NCCL and gloo use {first}, the first address of {interface}"
        say(f"{use}: other hosts must be able to reach it")
    if chosen := os.environ.get("KIT_METRICS_PORT") or str(job.metrics_port or ""):
        port = read_number({"KIT_METRICS_PORT": chosen}, "KIT_METRICS_PORT")
        os.environ |= {"KIT_METRICS_AT": endpoint_text((address, port)), "KIT_NAME": job.name}
    if job.files:
        os.environ |= keeper_variables(settings, job, address)
    environ = torchrun_environ(
        {**os.environ, **secrets}, number, interface, package_root, available_cores()
    )
    say("becomes the agent of this host")
    environ |= {"KIT_HOST": settings.host, "KIT_ADDRESS": address}
    rename_variables(environ, installed_torch())
    if job.command:
        agent = [str(PROGRAM), "agent", *job.command]
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
    """Rename variables for a version of torch: newer ones warn of old names on each worker."""
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
