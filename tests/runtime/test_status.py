"""`kit status`: its names, what is not deployed, the places of GPUs."""

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from kit.commands import status as command
from kit.errors import KitError
from kit.runtime.status import HostStatus, JobStatus, State
from kit.targets.swarm.status import lacking
from kit.workload.types import Kind
from tests.sandbox import JOB, SERVER, Project, Result
from tests.targets.test_swarm import cluster

HOSTS = (
    HostStatus("pc1", 1, State.RUNNING, None, devices=("GPU-A",), seen=("GPU-a",)),
    HostStatus("pc2", 1, State.RUNNING, None, devices=("GPU-b",), seen=("GPU-b",)),
)
DIGITS = JobStatus("digits", Kind.JOB, State.RUNNING, "", 0, None, HOSTS, None, None)
SERVING = JobStatus(
    "serve-demo",
    Kind.SERVER,
    State.RUNNING,
    "",
    0,
    None,
    (HostStatus("pc2", 1, State.RUNNING, None, devices=("GPU-c",), seen=("GPU-d",)),),
    None,
    None,
)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    found = Project(tmp_path).write(jobs={"digits": JOB}, servers={"demo": SERVER})
    found.rendered()
    return found


def unreachable() -> None:
    """The status is told without the place of the history."""
    raise KitError("pc1: no route to host")


def ask(
    project: Project,
    monkeypatch: pytest.MonkeyPatch,
    *names: str,
    there: Sequence[JobStatus] = (DIGITS, SERVING),
    missing: Sequence[str] = (),
) -> Result:
    """Ask for the status; the Swarm has `there`."""
    target = SimpleNamespace(
        on_hosts=True,
        status=lambda: tuple(there),
        missing=lambda: tuple(missing),
        history=unreachable,
    )
    monkeypatch.setattr(command, "target_for", lambda *_: target)
    monkeypatch.setenv("COLUMNS", "200")
    return project.kit("status", *names)


def test_only_the_named_ones_are_shown(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = ask(project, monkeypatch, "digits", "--json")
    found = json.loads(alone.out)
    assert [each["job"] for each in found["jobs"]] == ["digits"]
    assert (found["servers"], found["missing"], alone.status) == ([], [], 0)
    # The server's container sees another GPU than it was given.
    assert "WRONG GPUs" in ask(project, monkeypatch, "serve-demo").out
    assert ask(project, monkeypatch).status == 1


@pytest.mark.parametrize(
    ("name", "hint"), [("digit", "did you mean digits?"), ("demo", "use one of digits, serve-demo")]
)
def test_an_unknown_name_is_refused(
    project: Project, monkeypatch: pytest.MonkeyPatch, name: str, hint: str
) -> None:
    result = ask(project, monkeypatch, name)
    assert (result.status, result.out) == (2, "")
    assert result.err == f"kit: there is no job or server {name}\n{hint}\n"


def test_what_the_swarm_does_not_have_is_told(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after `docker stack rm`."""
    line = "digits: not deployed: `kit deploy digits` starts it"
    left = ask(project, monkeypatch, there=[SERVING], missing=["pc1 is not a node"])
    assert line in left.out
    assert "pc1 is not a node" in left.out
    none = ask(project, monkeypatch, there=[])
    server = "serve-demo: not deployed: `kit deploy serve-demo` starts it"
    assert none.out.splitlines() == [line, server]
    named = ask(project, monkeypatch, "digits", there=[SERVING], missing=["pc1 is not a node"])
    assert named.out.splitlines() == [line]


def test_hosts_and_stacks_that_a_swarm_lacks_are_told() -> None:
    seen = cluster()
    known = next(iter(seen.nodes)).name
    assert lacking(seen, [known], []) == ()
    assert lacking(seen, [known, "m2"], ["lab-monitoring"]) == (
        "m2 is not a node of the swarm: `kit swarm up`",
        "the stack lab-monitoring is not there: `kit swarm up`",
    )


def test_gpus_have_their_places(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    out = ask(project, monkeypatch).out
    for gpu in ("0: GPU-A", "0: GPU-b", "1: GPU-c"):
        assert gpu in out
