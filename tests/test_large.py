"""Many hosts: the work of kit grows with their number, not its square.

`tests/bench_render.py` measures the time. Here, calls of functions are counted: their number is the
same on every machine.
"""

from __future__ import annotations

import cProfile
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kit.targets.compose.containers import HostState
from kit.targets.compose.decide import decide as decide_compose
from kit.targets.lowered import Lowered
from kit.targets.swarm.decide import decide as decide_swarm
from kit.targets.swarm.labels import job_label
from kit.targets.swarm.members import steps_up
from kit.targets.swarm.state import Cluster, Member
from kit.targets.swarm.status import host_statuses
from kit.targets.swarm.steps import DeployStack
from tests.bench_render import GPUS, JOB, inventory
from tests.sandbox import Project, kit
from tests.targets import test_compose, test_swarm

Deploy = Callable[[Lowered, str], Callable[[], object]]
FEW, FACTOR = 75, 4
FILE = test_compose.RUNNING.version
"""The hash of the files that run."""
SHARED = """\
monitoring: {}
registry: {address: gpu0000:5000}
data: {}
"""
SERVER = "image: registry.lab:5000/trainer:0.2.0\njob: resnet\n"


def counted(work: Callable[[], object]) -> int:
    """Return the number of calls of Python functions in some work."""
    profile = cProfile.Profile()
    profile.runcall(work)
    return sum(entry.callcount for entry in profile.getstats())


def calls(folder: Path, *arguments: str) -> int:
    """Return the number of calls of a command, which must succeed."""

    def run() -> None:
        result = kit(folder, *arguments)
        assert result.status == 0, result.err

    return counted(run)


def write(project: Project, engine: str, hosts: int, *, listed: bool) -> None:
    """Write a project of so many hosts, whose GPUs are listed with their UUIDs, or counted."""
    text = inventory(hosts).replace("engine: swarm", f"engine: {engine}") + SHARED
    text = text.replace("[manager]", "[manager, storage]", 1)
    if not listed:
        text = re.sub(r"gpus:\n(      - .*\n)+", f"gpus: {GPUS}\n", text)
    project.write(text, {"resnet": JOB}, {"resnet": SERVER} if listed else {})


@pytest.mark.parametrize(
    ("engine", "arguments", "listed"),
    [
        ("swarm", ("render", "--diff"), True),
        ("compose", ("render", "--diff"), True),
        ("swarm", ("render", "--diff"), False),
        ("compose", ("split", "--infer", "50", "--dry-run"), True),
    ],
)
def test_the_work_grows_with_the_hosts(
    engine: str, arguments: tuple[str, ...], listed: bool, project: Project
) -> None:
    write(project, engine, FEW, listed=listed)
    calls(project.folder, *arguments)  # Imports, and templates that are compiled once.
    few = calls(project.folder, *arguments)
    write(project, engine, FACTOR * FEW, listed=listed)
    many = calls(project.folder, *arguments)
    assert many < 1.03 * FACTOR * few, f"{few:,} calls for {FEW} hosts, {many:,} for {FACTOR}×"


def swarm(lowered: Lowered) -> Cluster:
    """A Swarm in which all of a plan runs, each host with its label and its GPUs."""
    labels: dict[str, dict[str, str]] = {host.name: {} for host in lowered.plan.hosts}
    services, tasks = (
        [test_swarm.service("network", "bench-platform", labels=(("kit.file", FILE),))],
        [],
    )
    for work in lowered.workloads:
        owner = (f"kit.{work.kind}", work.name), ("kit.file", FILE)
        for part in work.parts:
            name = f"{work.stack}_{part.name}"
            made = test_swarm.service(part.name, work.stack, id=name, labels=owner)
            services.append(made)
            for host in part.hosts if part in work.working else part.hosts[:1]:
                works: dict[str, Any] = {"devices": ("all",)} if part in work.working else {}
                task = test_swarm.task(part.name, host.name, "running", service=name, **works)
                tasks.append(replace(task, stack=work.stack))
                labels[host.name] |= {job_label(work.name): part.name} if works else {}
    nodes = []
    for host in lowered.plan.hosts:
        node = test_swarm.node(host.name)
        named = tuple(sorted({**dict(node.labels), **labels[host.name]}.items()))
        nodes.append(replace(node, labels=named, gpus=tuple(gpu.resource for gpu in host.gpus)))
    return test_swarm.cluster(*tasks, nodes=tuple(nodes), services=tuple(services))


def compose(lowered: Lowered) -> dict[str, HostState]:
    """Hosts on which all of a plan runs."""
    seen = {
        host.name: replace(test_compose.BARE, gpus=tuple(gpu.id for gpu in host.gpus))
        for host in lowered.plan.hosts
    }
    for work in lowered.workloads:
        mine: dict[str, Any] = {"job": work.name, "kind": work.kind, "cluster": "bench"}
        for part in work.parts:
            for host in part.first_hosts:
                there = seen[host.name]
                own: dict[str, Any] = {"host": host.name, "service": str(part.role)}
                gpus = there.gpus[:1] if part in work.working else ()
                one = replace(test_compose.RUNNING, **mine, **own, devices=gpus)
                seen[host.name] = replace(there, containers=(*there.containers, one))
    return seen


def of_swarm(lowered: Lowered, hash_: str) -> Callable[[], object]:
    """Decide on a deploy of these files over what runs, on what the Swarm lacks, and its status."""
    seen, work = swarm(lowered), lowered.workloads
    versions = {"platform.stack.yaml": FILE}
    versions |= {f"{each.stack}.stack.yaml": hash_ for each in work}
    hosts = [host.name for host in lowered.plan.hosts]
    members = {
        host.name: Member(host, "26.1.5", "active", "", node.id, False, (), node.gpus)
        for host, node in zip(lowered.plan.hosts, seen.nodes, strict=True)
    }

    def run() -> None:
        assert host_statuses(seen, "resnet")
        assert steps_up(lowered, members, replace(seen), FILE)
        steps = decide_swarm("bench", work, replace(seen), versions, {}, hosts, fresh=False)
        assert any(isinstance(step, DeployStack) for step in steps) == (hash_ != FILE)

    return run


def of_compose(lowered: Lowered, hash_: str) -> Callable[[], object]:
    """Decide on a deploy of these files over what runs."""
    seen, work = compose(lowered), lowered.workloads
    versions = {
        (each.name, host): {
            str(part.role): hash_
            for part in each.parts
            if host in {one.name for one in part.first_hosts}
        }
        for each in work
        for host in each.hosts
    }

    def run() -> None:
        steps = decide_compose("bench", work, versions, seen, fresh=False)
        assert bool(steps) == (hash_ != FILE)

    return run


@pytest.mark.parametrize(
    ("engine", "deploy"), [("swarm", of_swarm), ("compose", of_compose)], ids=["swarm", "compose"]
)
@pytest.mark.parametrize("hash_", [FILE, "1111"])
def test_a_deploy_and_a_status_grow_with_the_hosts(
    engine: str,
    deploy: Callable[[Lowered, str], Callable[[], object]],
    hash_: str,
    project: Project,
) -> None:
    """Of files that run already, and of changed ones."""

    def work(hosts: int) -> int:
        write(project, engine, hosts, listed=True)
        return counted(deploy(project.lowered(), hash_))

    few, many = work(FEW), work(FACTOR * FEW)
    assert many < 1.03 * FACTOR * few, f"{few:,} calls for {FEW} hosts, {many:,} for {FACTOR}×"
