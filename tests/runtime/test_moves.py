"""A job that moves to other hosts takes its checkpoints along, or the deploy says what is lost."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from kit.errors import KitError
from kit.model import Host
from kit.runtime import moves as module
from kit.runtime.history import Deployment, deployment, read_deployment, undone
from kit.runtime.moves import Move, moves, with_moves
from kit.runtime.source import Source
from kit.runtime.steps import Step
from kit.workload.types import Workload
from tests.sandbox import INVENTORY, JOB, Project

START = Step("swarm", "deploy", "it has changed")
BEFORE = Step("swarm", "label", "")


@pytest.fixture
def planned(project: Project) -> tuple[Workload, dict[str, Host]]:
    """A job of pc1 in a cluster of pc1 and pc2."""
    job = JOB.replace("min: 2", "names: [pc1]")
    lowered = project.write(INVENTORY, {"digits": job + "hosts: {names: [pc1]}\n"}).lowered()
    return lowered.workloads[0], {host.name: host for host in lowered.plan.hosts}


def entry(*hosts: str, job: str = "digits") -> Deployment:
    return Deployment(job, 1.0, "me@pc", "abc", "def", "image:1", hosts=hosts)


@pytest.mark.parametrize(
    ("history", "said"),
    [
        ([], []),
        ([entry("pc2")], [("pc2", "pc1")]),
        ([entry("pc2", "pc1")], []),  # pc1 has them, or gets them from those it trains with.
        ([entry("pc1"), entry("pc2")], []),
        ([entry("pc2", job="other")], []),
        ([entry()], []),  # An earlier version of kit wrote it.
        ([entry("gone", "pc2")], [("pc2", "pc1")]),
    ],
)
def test_who_has_the_checkpoints_is_in_the_history(
    planned: tuple[Workload, dict[str, Host]],
    history: list[Deployment],
    said: list[tuple[str, str]],
) -> None:
    work, hosts = planned
    assert [(each.source.name, each.where) for each in moves(work, history, hosts)] == said


def test_checkpoints_that_nobody_can_bring_end_the_deploy(
    planned: tuple[Workload, dict[str, Host]], monkeypatch: pytest.MonkeyPatch
) -> None:
    work, hosts = planned
    with pytest.raises(KitError, match="on gone, which the inventory no longer has") as caught:
        list(moves(work, [entry("gone")], hosts))
    assert "kit deploy --fresh digits" in caught.value.hint

    def unreachable(_docker: object, _name: str) -> bool:
        raise KitError("pc2: no route to host")

    def deploy() -> tuple[Step, ...]:
        steps = (BEFORE, START)
        begins = lambda step: work.stack if step is START else ""  # noqa: E731
        return with_moves(steps, [work], [entry("pc2")], hosts.values(), begins)

    monkeypatch.setattr(module, "has_volume", unreachable)
    with pytest.raises(KitError, match="on pc2, which cannot be reached"):
        deploy()
    monkeypatch.setattr(module, "has_volume", lambda _docker, _name: True)
    before, move, start = deploy()
    assert (before, start) == (BEFORE, START)
    assert isinstance(move, Move)
    assert move.volume == "kit-lab_digits-checkpoints"
    monkeypatch.setattr(module, "has_volume", lambda _docker, _name: False)
    assert deploy() == (BEFORE, START)  # It has saved none yet.


def test_the_history_is_read_from_other_versions_too(
    planned: tuple[Workload, dict[str, Host]],
) -> None:
    work, _ = planned
    made = deployment(work, 2.0, Source("c0ffee", "Begin", "main"))
    written = asdict(made) | {"hosts": list(made.hosts), "later": 1}
    assert read_deployment(written) == made
    assert read_deployment({**asdict(entry()), "hosts": []}) == entry()


@pytest.mark.parametrize(
    ("commit", "same", "contained", "asks"),
    [
        ("c0ffee", False, False, True),
        ("c0ffee", False, True, False),
        ("c0ffee", True, False, False),  # The same input: nothing is undone.
        ("", False, False, False),
    ],
)
def test_a_deploy_asks_before_it_undoes_an_unknown_commit(
    planned: tuple[Workload, dict[str, Host]],
    commit: str,
    same: bool,
    contained: bool,
    asks: bool,
) -> None:
    work, _ = planned
    run = deployment(work, 2.0, Source(commit))
    if not same:
        run = read_deployment(asdict(run) | {"job_hash": "other"})
    found = list(undone([run, entry()], [work], lambda _: contained))
    assert found == ([run] if asks else [])
