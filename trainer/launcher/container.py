"""The GPUs and the CPUs of the container."""

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from trainer.launcher.errors import FAILURE, LaunchError
from trainer.launcher.settings import read_number

FIRST_PROCESS = Path("/proc/1/environ")
CGROUP = Path("/sys/fs/cgroup")
CONTROL = Path("/dev/nvidiactl")
"""The device of NVIDIA's driver that every container with a GPU has."""


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


def has_gpus() -> bool:
    """Whether this container should have GPUs.

    Devices of the Container Device Interface, as from Kubernetes and DRA, set `void` so that
    NVIDIA's hook adds no others (nvidia-container-toolkit, pkg/nvcdi).
    """
    visible = visible_devices()
    return CONTROL.exists() if visible == "void" else visible not in {"", "none"}


def list_gpus(number: str = "KIT_NPROC") -> list[str]:
    """The GPUs as nvidia-smi lists them; the variable `number` is the required number."""
    if not has_gpus():
        return []
    # With this variable, the job does not run in a container.
    if "CUDA_VISIBLE_DEVICES" in os.environ:
        return chosen_gpus()
    needed = read_number(os.environ, number, "1")
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
    """The number of CPUs that this container may use: `limits.cpus` limits CPU time."""
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
