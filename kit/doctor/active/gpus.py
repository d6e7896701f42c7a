"""Containers that are given the GPUs of a workload, as its target gives them."""

from __future__ import annotations

from kit.doctor.active.sessions import docker_run
from kit.doctor.facts import Report, Use, Wanted
from kit.doctor.tried import Sight
from kit.errors import KitError
from kit.hosts import ssh
from kit.hosts.gpus import listed_gpus


def look(report: Report, wanted: Wanted, token: str) -> list[Sight]:
    """Return what a container of each workload on a host sees; it only lists the GPUs."""
    want = wanted.of(report.host)
    found: list[Sight] = []
    todo: list[tuple[int, Use]] = []
    for number, use in enumerate(want.uses):
        if not use.gpus or use.image not in report.vitals.images:
            continue
        if busy := _busy(report, use):
            found.append(Sight(report.host, use.workload, use.gpus, (), busy=busy))
        else:
            todo.append((number, use))
    if not todo:
        return found
    name = f"kit-doctor-{token}-gpus-{report.host}"
    commands = [
        f"printf '@@ {number}\\n'; {_command(use, wanted, f'{name}-{number}')} 2>&1"
        for number, use in todo
    ]
    try:
        printed = ssh.run(want.host, "; ".join([*commands, "true"]))
    except KitError as error:
        return [Sight(report.host, use.workload, use.gpus, (), error.message) for _, use in todo]
    parts = printed.split("@@ ")[1:]
    for (_, use), part in zip(todo, parts, strict=True):
        text = part.partition("\n")[2].strip()
        seen = tuple(listed_gpus(text))
        fault = "" if seen else (text.splitlines() or ["it printed nothing"])[-1]
        found.append(Sight(report.host, use.workload, use.gpus, seen, fault))
    return found


def _busy(report: Report, use: Use) -> str:
    """Return the container that uses a GPU of the workload, or ""."""
    default = report.facts.docker.default_runtime
    for each in report.vitals.containers:
        held = set(each.gpus(default))
        if held and (held & {*use.gpus, "all"} or not use.pinned):
            return each.name
    return ""


def _command(use: Use, wanted: Wanted, name: str) -> str:
    options = ["--network", "none", "-e", "NVIDIA_DRIVER_CAPABILITIES=utility"]
    devices = ",".join(use.gpus) if use.pinned else "all"
    if wanted.swarm:
        options += ["-e", f"NVIDIA_VISIBLE_DEVICES={devices}"]
    else:
        options += ["--gpus", f'"device={devices}"' if use.pinned else "all"]
    return docker_run(name, use.image, options, "nvidia-smi", ("-L",), talks=False)
