"""`kit run`: the hosts that it chooses, the file that it writes, and what it leaves as it was."""

from __future__ import annotations

import shutil
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import yaml

from kit.commands import deploy, job_file
from kit.errors import InputError, KitError
from kit.paths import Paths
from kit.plan.free import choose
from kit.runtime.endings import EndedError
from kit.runtime.history import Deployment, current_user
from kit.runtime.status import UNREACHED, HostStatus, JobStatus, State
from kit.runtime.target import Target
from kit.values import WrongValueError
from kit.workload.types import Kind
from tests.sandbox import COMMAND, INVENTORY, JOB, Project, snapshot

FREE = {
    name: [str(gpu) for gpu in range(number)]
    for name, number in {"a": 2, "b": 4, "c": 1, "d": 4}.items()
}


@pytest.mark.parametrize(
    ("hosts", "gpus", "names", "each"),
    [
        (None, None, ("c",), 1),
        (None, 2, ("a",), 2),
        (None, 3, ("b",), 3),
        (None, 8, ("b", "d"), 4),
        (2, 2, ("a", "c"), 1),
        (2, None, ("b", "d"), 4),
        (3, None, ("a", "b", "d"), 2),
        (4, None, ("a", "b", "c", "d"), 1),
    ],
)
def test_as_few_and_as_small_hosts_as_can_be(
    hosts: int | None, gpus: int | None, names: tuple[str, ...], each: int
) -> None:
    chosen = choose(FREE, hosts, gpus)
    gpus_of_each = tuple(str(gpu) for gpu in range(each))
    assert chosen.gpus == tuple((name, gpus_of_each) for name in names)


@pytest.mark.parametrize(("hosts", "gpus"), [(None, 9), (5, None), (2, 3), (3, 12)])
def test_too_few_gpus(hosts: int | None, gpus: int | None) -> None:
    with pytest.raises(WrongValueError, match="free are: a 2, b 4, c 1, d 4"):
        choose(FREE, hosts, gpus)
    with pytest.raises(WrongValueError, match="free are: none"):
        choose({}, hosts, gpus)


@pytest.fixture
def started(project: Project, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The jobs that would be deployed: what follows is that of `kit deploy`."""
    jobs: list[str] = []

    def run_job(_paths: Paths, job: str, _engine: str | None, **_: object) -> tuple[int, None]:
        jobs.append(job)
        return 0, None

    monkeypatch.setattr(job_file, "run_job", run_job)
    stored = INVENTORY.replace("[manager]", "[manager, storage]")
    project.write(f'{stored}data: {{image: "trainer:1"}}\n', {"ddp": COMMAND})
    (project.folder / "jobs" / "ddp.yaml").write_text(f"{COMMAND}hosts: {{names: [pc1]}}\n")
    (project.folder / "train.py").touch()
    return jobs


def test_the_files_are_those_of_a_job_by_hand(project: Project, started: list[str]) -> None:
    result = project.kit("run", "--detach", "--", "train.py", "--epochs", "5", "-h")
    assert (result.status, result.err) == (0, "")
    assert "job train on pc2 (1 GPU), world size 1: train.py --epochs 5 -h" in result.out
    assert started == ["train"]
    text = (project.folder / "jobs" / "train.yaml").read_text()
    assert yaml.safe_load(text) == {
        "image": "pytorch/pytorch:2.2.2-cuda12.1-cudnn8-devel",
        "command": ["train.py", "--epochs", "5", "-h"],
        "code": ".",
        "hosts": {"gpus": {"pc2": ["GPU-b"]}},
    }
    assert project.kit("render", "--check").status == 0
    # Another run has its own GPUs at its disposal.
    project.kit("run", "--detach", "--image", "other", "--", "train.py")
    assert "image: other" in (project.folder / "jobs" / "train.yaml").read_text()


def test_a_pool_without_jobs(project: Project, started: list[str]) -> None:
    shutil.rmtree(project.folder / "jobs")
    (project.folder / "inventory.yaml").write_text(f"{INVENTORY}hots: {{}}\n")
    assert project.kit("run", "--image", "r:1", "--", "train.py").status == 2
    assert not (project.folder / "jobs").exists()
    project.write(None, {})
    shutil.rmtree(project.folder / "jobs")
    stored = INVENTORY.replace("[manager]", "[manager, storage]")
    (project.folder / "inventory.yaml").write_text(f'{stored}data: {{image: "trainer:1"}}\n')
    result = project.kit("run", "--detach", "--image", "r:1", "--", "train.py")
    assert (result.status, started) == (0, ["train"])


def test_a_module_and_a_script_of_the_image(project: Project, started: list[str]) -> None:
    (project.folder / "pack").mkdir()
    for name, code in (("pack", "."), ("elsewhere", None)):
        project.kit("run", "--detach", "--", "-m", f"{name}.main")
        job = yaml.safe_load((project.folder / "jobs" / f"{name}-main.yaml").read_text())
        assert job.get("code") == code
        (project.folder / "jobs" / f"{name}-main.yaml").unlink()
    assert started == ["pack-main", "elsewhere-main"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--gpus", "2", "--", "train.py"), "2 GPUs, the same number on each host, are not free"),
        (("--name", "ddp", "--", "train.py"), "ddp.yaml was not written by kit run"),
        (("--name", "Not_one", "--", "train.py"), "--name: 'Not_one' is not a DNS label"),
        (("--", "bash", "run.sh"), "the command begins with bash"),
        (("--rm", "--detach", "--", "train.py"), "--rm removes the job at its end"),
    ],
)
def test_a_mistake_leaves_everything_as_it_was(
    project: Project, started: list[str], words: tuple[str, ...], said: str
) -> None:
    project.rendered()
    before = snapshot(project.folder)
    result = project.kit("run", *words)
    assert (result.status, started) == (2, [])
    assert said in result.err
    assert snapshot(project.folder) == before


def test_a_refused_deploy_leaves_everything_as_it_was(
    project: Project, started: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise InputError("job train runs, and anna@pc1 has deployed it", "")

    monkeypatch.setattr(job_file, "run_job", refuse)
    project.rendered()
    before = snapshot(project.folder)
    assert project.kit("run", "--rm", "--", "train.py").status == 2
    assert (snapshot(project.folder), started) == (before, [])


GPUS = "".join(f"      - {{uuid: GPU-{each}}}\n" for each in "bde")
MANY = INVENTORY.replace("      - {uuid: GPU-b}\n", GPUS)


def test_a_run_moves_no_job_and_no_job_moves_it(project: Project, started: list[str]) -> None:
    one = f"{COMMAND}hosts: {{names: [pc2], gpus_per_host: 1}}\n"
    stored = MANY.replace("[manager]", "[manager, storage]")
    project.write(f'{stored}data: {{image: "trainer:1"}}\n', {"ddp": one, "later": one})

    def gpus() -> dict[str, list[str]]:
        plan = project.plan()
        return {
            job.name: [gpu.id for each in job.placements for gpu in each.gpus] for job in plan.jobs
        }

    before = gpus()
    assert before == {"ddp": ["GPU-b"], "later": ["GPU-d"]}
    assert project.kit("run", "--detach", "--name", "a", "--", "train.py").status == 0
    assert gpus() == {"a": ["GPU-a"], **before}
    (project.folder / "jobs" / "a.yaml").unlink()
    assert project.kit("run", "--detach", "--name", "b", "--", "train.py").status == 0
    named = f"{COMMAND}hosts: {{gpus: {{pc2: [GPU-b, GPU-e]}}}}\n"
    (project.folder / "jobs" / "zoo.yaml").write_text(named)
    (project.folder / "jobs" / "later.yaml").unlink()
    assert gpus() == {"b": ["GPU-a"], "ddp": ["GPU-d"], "zoo": ["GPU-b", "GPU-e"]}


class There:
    """A target that has, or may have, a job."""

    def __init__(self, status: JobStatus | None, fault: str = "", *, known: bool = True) -> None:
        self.stopped: list[str] = []
        self._status, self._fault, self._known = status, fault, known

    def status(self) -> tuple[JobStatus, ...]:
        return (self._status,) if self._status else ()

    def known(self) -> dict[str, object]:
        return {"train": None} if self._known and self._status else {}

    def stop(self, name: str) -> JobStatus | None:
        self.stopped.append(name)
        if self._fault:
            raise KitError(self._fault)
        return self._status


def runs(state: State, host: str = "") -> JobStatus:
    hosts = (HostStatus("pc1", 1, state, None, message=host),)
    return JobStatus("train", Kind.JOB, state, "", 0.0, None, hosts, None, None)


@pytest.mark.parametrize("there", [There(None), There(runs(State.WAITING))])
def test_a_run_that_cannot_start_leaves_a_file_only_if_something_runs(
    project: Project, started: list[str], monkeypatch: pytest.MonkeyPatch, there: There
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise KitError("pc2 cannot be reached")

    monkeypatch.setattr(job_file, "run_job", fail)
    monkeypatch.setattr(job_file, "target_of", lambda *_: there)
    assert project.kit("run", "--", "train.py").status == 1
    assert (project.folder / "jobs" / "train.yaml").exists() == bool(there.status())


@pytest.mark.parametrize("removes", [False, True])
def test_a_run_that_ends_during_its_deploy_has_the_status_of_its_script(
    project: Project, started: list[str], monkeypatch: pytest.MonkeyPatch, removes: bool
) -> None:
    def end(*_: object, **__: object) -> None:
        raise EndedError("train does not come up", "correct the script", 3)

    monkeypatch.setattr(job_file, "run_job", end)
    monkeypatch.setattr(job_file, "target_of", lambda *_: There(None))
    result = project.kit("run", *(["--rm"] if removes else []), "--", "train.py")
    assert (result.status, "correct the script" in result.err) == (3, True)
    assert (project.folder / "jobs" / "train.yaml").exists() != removes


@pytest.mark.parametrize(
    ("there", "stopped", "removed"),
    [
        (There(None), [], True),
        (There(runs(State.RUNNING)), ["train"], True),
        (There(runs(State.COMPLETED), "it has ended"), ["train"], True),
        (There(runs(State.RUNNING), "no answer"), ["train"], False),
        (There(runs(State.WAITING, UNREACHED), known=False), [], False),
        (There(runs(State.RUNNING, UNREACHED)), ["train"], False),
    ],
)
def test_a_job_is_removed_only_if_nothing_of_it_may_run(
    project: Project,
    monkeypatch: pytest.MonkeyPatch,
    there: There,
    stopped: list[str],
    removed: bool,
) -> None:
    monkeypatch.setattr(job_file, "target_of", lambda *_: there)
    project.write(INVENTORY, {"train": COMMAND})
    file = project.folder / "jobs" / "train.yaml"
    refused = pytest.raises(KitError, match=r"cannot be reached|no answer")
    with nullcontext() if removed else refused:
        job_file.remove(Paths(project.folder / "inventory.yaml", None, None, None), file, None)
    assert (there.stopped, file.exists()) == (stopped, not removed)


@pytest.mark.parametrize(
    ("by", "state", "refused"),
    [
        ("anna@pc1", State.RUNNING, True),
        ("anna@pc1", State.COMPLETED, False),
        (current_user(), State.RUNNING, False),
    ],
)
def test_a_run_replaces_no_job_of_somebody_else(by: str, state: State, refused: bool) -> None:
    status = JobStatus("train", Kind.JOB, state, "", 0.0, None, (), None, None)
    target = SimpleNamespace(
        history=lambda: (Deployment("train", 1.0, by, "", "", ""),), status=lambda: (status,)
    )
    with pytest.raises(InputError, match="give your run") if refused else nullcontext():
        deploy._refuse_of_others(cast(Target, target), "train")


def test_without_an_image_it_asks_for_one(project: Project, started: list[str]) -> None:
    (project.folder / "jobs" / "digits.yaml").write_text(f"{JOB}hosts: {{names: [pc2]}}\n")
    assert "name one, as in `--image pytorch/" in project.kit("run", "--", "train.py").err
    assert not Path(project.folder / "jobs" / "train.yaml").exists()
