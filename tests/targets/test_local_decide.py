"""The local engine's decisions on starts and ends, from values: nothing runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import PurePosixPath

import pytest

from kit.errors import KitError
from kit.runtime.steps import Step
from kit.targets.local.decide import (
    DeleteCheckpoints,
    End,
    Machine,
    Start,
    WorkloadState,
    decide,
    version,
)
from kit.targets.local.lower import Places
from kit.workload.types import Workload
from tests.sandbox import INVENTORY, JOB, SERVER, Project

HERE = INVENTORY.replace("engine: swarm", "engine: local")
PLACES = Places(
    "python3",
    PurePosixPath("/kit/launch.py"),
    PurePosixPath("/tree"),
    PurePosixPath("/state"),
    PurePosixPath("/state/data"),
    PurePosixPath("/home/me"),
)
MACHINE = Machine(("GPU-x", "GPU-y", "GPU-z"), 4, PLACES)
NOTHING = {"digits": WorkloadState(), "serve-digits": WorkloadState()}


@pytest.fixture
def both(project: Project) -> tuple[Workload, ...]:
    """A job on two hosts, and a server of it."""
    return project.write(HERE, {"digits": JOB}, {"digits": SERVER}).lowered().workloads


def decided(
    works: Sequence[Workload], seen: dict[str, WorkloadState] | None = None, *, fresh: bool = False
) -> tuple[Step, ...]:
    jobs = {each.name: each for each in works}
    return decide(works, jobs, NOTHING | (seen or {}), MACHINE, fresh=fresh)


def kinds(steps: Sequence[Step]) -> list[type[Step]]:
    return [type(step) for step in steps]


def test_all_that_was_not_deployed_starts_on_gpus_of_its_own(both: tuple[Workload, ...]) -> None:
    job, server = decided(both)
    assert isinstance(job, Start)
    assert isinstance(server, Start)
    given = [
        dict(process.variables)["CUDA_VISIBLE_DEVICES"]
        for step in (job, server)
        for process in step.processes
    ]
    assert given == ["", "GPU-x", "GPU-y", "GPU-z"]
    assert job.what == "start digits as 2 hosts, world size 2"
    assert server.what == "start serve-digits as 1 replica: http://127.0.0.1:8080"
    assert job.cause == "it was not deployed before"


def test_a_job_that_runs_does_not_begin_anew(both: tuple[Workload, ...]) -> None:
    with pytest.raises(KitError, match=r"job digits runs") as refused:
        decided(both, {"digits": WorkloadState(True, True, "old")}, fresh=True)
    assert refused.value.hint == "end it first: `kit stop digits`"
    left = WorkloadState(True, False, "old", (7, 8))
    with pytest.raises(KitError, match="has processes of a supervisor that has ended: 7 8"):
        decided(both, {"digits": left})


@pytest.mark.parametrize("number", [0, 1], ids=["job", "server"])
def test_what_runs_from_the_same_file_is_left_alone(
    both: tuple[Workload, ...], number: int
) -> None:
    kept, other = both[number], both[1 - number]
    now = WorkloadState(True, True, version(kept))
    (start,) = decided(both, {kept.name: now})
    assert isinstance(start, Start)
    assert start == next(each for each in decided(both) if each.what == start.what)
    assert start.workload == other
    changed = decided(both, {kept.name: replace(now, version="older")})
    assert kinds(changed) == [End, Start, Start]
    assert (changed[0].what, changed[0].cause) == (f"end {kept.name}", "it has changed")


def test_a_server_that_lost_its_gpu_is_ended(both: tuple[Workload, ...]) -> None:
    idle = replace(both[1], parts=())
    steps = decided((both[0], idle), {"serve-digits": WorkloadState(True, True, "older")})
    assert [(type(step), step.cause) for step in steps] == [
        (End, "no GPU is given to it"),
        (Start, "it was not deployed before"),
    ]
    assert kinds(decided((both[0], idle))) == [Start]


def test_checkpoints_are_forgotten_where_kit_made_their_folder(project: Project) -> None:
    works = project.write(HERE, {"digits": JOB}).lowered().workloads
    forget, start = decided(works, fresh=True)
    assert isinstance(forget, DeleteCheckpoints)
    assert isinstance(start, Start)
    assert forget.folders == (
        "/state/digits/pc1/kit-digits-checkpoints",
        "/state/digits/pc2/kit-digits-checkpoints",
    )


@pytest.mark.parametrize(
    ("mount", "kept"),
    [("bind: /mine", "/mine, a folder of yours"), ("volume: mine", "mine, a volume of yours")],
)
def test_checkpoints_in_a_place_of_the_users_stay(project: Project, mount: str, kept: str) -> None:
    mine = JOB + f"mounts: [{{{mount}, to: /checkpoints}}]\n"
    works = project.write(HERE, {"digits": mine}).lowered().workloads
    with pytest.raises(KitError, match=f"keeps its checkpoints in {kept}"):
        decided(works, fresh=True)
