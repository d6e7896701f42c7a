"""Jobs and servers as processes of this machine: pure values, nothing is started here."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kit.engine.state import Process
from kit.plan.storage import CHECKPOINTS, DATA
from kit.plan.types import MountPoint, Placement, Volume
from kit.plan.work import JobPlan, ServerPlan


@dataclass(frozen=True, slots=True)
class Places:
    """Where things lie on this machine: the launcher, the job file, the job's folder, the data."""

    launcher: Path
    job_file: Path
    folder: Path
    data: Path


def processes(
    job: JobPlan, places: Places, devices: Mapping[str, str], cores: int
) -> tuple[Process, ...]:
    """Return the rendezvous and one torchrun agent for each host of the plan.

    `devices` is CUDA_VISIBLE_DEVICES for each host; `cores` are shared among all workers.
    """
    rendezvous = Process(
        host=job.rendezvous.host,
        part="rendezvous",
        workers=0,
        argv=(sys.executable, str(places.launcher), "rendezvous"),
        variables=(("KIT_RENDEZVOUS", job.rendezvous.endpoint), ("CUDA_VISIBLE_DEVICES", "")),
        folder=str(places.folder),
        log=str(places.folder / "rendezvous.log"),
    )
    threads = max(1, cores // job.world_size)
    return (
        rendezvous,
        *(
            _agent(job, placement, places, devices[placement.host.name], threads)
            for placement in job.placements
        ),
    )


def _agent(
    job: JobPlan, placement: Placement, places: Places, devices: str, threads: int
) -> Process:
    host = placement.host.name
    variables = {
        "OMP_NUM_THREADS": str(threads),
        **dict(job.variables),
        "PYTHONUNBUFFERED": "1",
        "KIT_JOB": str(places.job_file),
        "KIT_RENDEZVOUS": job.rendezvous.endpoint,
        "KIT_NNODES": f"{job.nodes[0]}:{job.nodes[1]}",
        "KIT_NPROC": str(placement.processes),
        "KIT_HOST": host,
        "KIT_ONE_RUN": "1",
        "KIT_DATA": str(on_this_machine(DATA, job, host, places)),
        "KIT_CHECKPOINTS": str(on_this_machine(CHECKPOINTS, job, host, places)),
        "NVIDIA_VISIBLE_DEVICES": ",".join(placement.devices),
        "CUDA_VISIBLE_DEVICES": devices,
    }
    return Process(
        host=host,
        part="train",
        workers=placement.processes,
        argv=(sys.executable, str(places.launcher)),
        variables=tuple(variables.items()),
        folder=str(_working_folder(job, host, places)),
        log=str(places.folder / host / "log"),
    )


def _working_folder(job: JobPlan, host: str, places: Places) -> Path:
    if job.job.working_dir is None:
        return Path.cwd()
    return on_this_machine(job.job.working_dir, job, host, places)


def on_this_machine(path: str, job: JobPlan, host: str, places: Places) -> Path:
    """Return where a folder of the container lies here: behind a bind mount, or in a volume.

    The data volume is one for all hosts, as they are one machine; so is what NFS would share.
    """
    for mount in sorted(job.mounts, key=lambda mount: len(mount.target), reverse=True):
        if path == mount.target or path.startswith(mount.target.rstrip("/") + "/"):
            return _source(mount, job.volumes, host, places) / os.path.relpath(path, mount.target)
    return Path(path)


def _source(mount: MountPoint, volumes: Sequence[Volume], host: str, places: Places) -> Path:
    if mount.kind == "bind":
        return Path(mount.source)
    shared = {volume.key for volume in volumes if volume.nfs_address}
    if mount.target == DATA:
        return places.data
    owner = "shared" if mount.source in shared else host
    return places.folder / owner / mount.source


def server_process(server: ServerPlan, places: Places, job: Places, devices: str) -> Process:
    """Return the one process that answers for all hosts of a server, on loopback alone.

    `places` are the server's, `job` those of its job; `devices` is CUDA_VISIBLE_DEVICES.
    """
    host = server.placements[0].host.name
    planned = [device for placement in server.placements for device in placement.devices]
    # Every host of a job has its checkpoints: here they are folders side by side.
    checkpoints = _source(server.holder_mount, server.volumes, server.homes[0], job)
    variables = {
        **dict(server.server.environment),
        "PYTHONUNBUFFERED": "1",
        "KIT_SERVER": str(places.job_file),
        "KIT_HOST": host,
        "KIT_ADDRESS": "127.0.0.1",
        "KIT_REPLICAS": str(server.replicas),
        "KIT_CHECKPOINTS": str(checkpoints),
        "NVIDIA_VISIBLE_DEVICES": ",".join(planned),
        "CUDA_VISIBLE_DEVICES": devices,
    }
    return Process(
        host=host,
        part="serve",
        workers=server.replicas,
        argv=(sys.executable, "-m", "trainer.serve"),
        variables=tuple(variables.items()),
        folder=str(Path.cwd()),
        log=str(places.folder / host / "log"),
    )
