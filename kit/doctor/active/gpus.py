"""Containers that are given the GPUs of a workload, as its target gives them."""

from __future__ import annotations

import base64
import json
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from kit.doctor.active.sessions import LOADER, docker_run
from kit.doctor.facts import Report, Use, Wanted
from kit.doctor.results import Computed, VisibleGpus
from kit.errors import KitError
from kit.hosts import ssh
from kit.hosts.gpus import listed_gpus

COMPUTE = Path(__file__).with_name("compute.py")
MARK = "@doctor "
"""The prefix of compute.py's lines: the output also has lines of Docker and torch."""


def look(report: Report, wanted: Wanted, token: str) -> list[VisibleGpus]:
    """Return the GPUs that a container of each workload on a host sees; it only lists them."""
    want = wanted.of(report.host)
    visible_gpus: list[VisibleGpus] = []
    todo: list[tuple[int, Use]] = []
    for number, use in enumerate(want.uses):
        if not use.gpus or use.image not in report.vitals.images:
            continue
        if busy := _busy(report, use):
            visible_gpus.append(VisibleGpus(report.host, use.workload, use.gpus, (), busy=busy))
        else:
            todo.append((number, use))
    if not todo:
        return visible_gpus
    name = f"kit-doctor-{token}-gpus-{report.host}"
    commands = [
        f"printf '@@ {number}\\n'; {_command(use, wanted, f'{name}-{number}')} 2>&1"
        for number, use in todo
    ]
    try:
        printed = ssh.run(want.host, "; ".join([*commands, "true"]))
    except KitError as error:
        return [
            VisibleGpus(report.host, use.workload, use.gpus, (), error.message) for _, use in todo
        ]
    parts = printed.split("@@ ")[1:]
    for (_, use), part in zip(todo, parts, strict=True):
        text = part.partition("\n")[2].strip()
        seen = tuple(listed_gpus(text))
        fault = "" if seen else (text.splitlines() or ["it printed nothing"])[-1]
        visible_gpus.append(VisibleGpus(report.host, use.workload, use.gpus, seen, fault))
    return visible_gpus


def _busy(report: Report, use: Use) -> str:
    """Return the container that uses a GPU of the workload, or ""."""
    default = report.facts.docker.default_runtime
    uuids = {str(gpu.index): gpu.uuid.lower() for gpu in report.facts.gpus}
    wanted = {*map(str.lower, use.gpus), "all"}
    for each in report.vitals.containers:
        held = {uuids.get(device, device.lower()) for device in each.gpus(default)}
        if held and (held & wanted or not use.pinned):
            return each.name
    return ""


def compute(
    report: Report,
    wanted: Wanted,
    token: str,
    images: Collection[str],
    visible_gpus: Iterable[VisibleGpus],
) -> list[Computed]:
    """Use each GPU once that a container of a workload has seen.

    `images` are those with a CUDA build of torch: other images may not have Python.
    """
    seen = {
        each.workload: each.seen for each in visible_gpus if each.host == report.host and each.seen
    }
    computed: list[Computed] = []
    for number, use in enumerate(wanted.of(report.host).uses):
        if use.image in images and use.workload in seen:
            name = f"kit-doctor-{token}-compute-{report.host}-{number}"
            computed += _compute(report.host, use, wanted, name, seen[use.workload])
    return computed


def _compute(
    host: str, use: Use, wanted: Wanted, name: str, devices: tuple[str, ...]
) -> Iterator[Computed]:
    program = base64.b64encode(COMPUTE.read_bytes()).decode()
    arguments = ("-u", "-c", LOADER, *devices)
    options = _options(use, wanted, "compute,utility")
    command = docker_run(name, use.image, options, "python3", arguments)
    try:
        printed = ssh.run(wanted.of(host).host, f"echo {program} | {command} 2>&1; true")
    except KitError as error:
        printed = error.message
    lines = printed.splitlines()
    marked = [line.removeprefix(MARK) for line in lines if line.startswith(MARK)]
    errors = {each["device"]: each["error"] for each in map(json.loads, marked)}
    silent = (lines or ["it printed nothing"])[-1]
    for device in devices:
        yield Computed(host, use.workload, device, errors.get(device, silent))


def _command(use: Use, wanted: Wanted, name: str) -> str:
    options = _options(use, wanted, "utility")
    return docker_run(name, use.image, options, "nvidia-smi", ("-L",), talks=False)


def _options(use: Use, wanted: Wanted, capabilities: str) -> list[str]:
    options = ["--network", "none", "-e", f"NVIDIA_DRIVER_CAPABILITIES={capabilities}"]
    devices = ",".join(use.gpus) if use.pinned else "all"
    if wanted.swarm:
        options += ["-e", f"NVIDIA_VISIBLE_DEVICES={devices}"]
    else:
        options += ["--gpus", f'"device={devices}"' if use.pinned else "all"]
    return options
