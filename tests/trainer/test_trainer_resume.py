"""Interrupted trainings end as uninterrupted ones, bit by bit, judged by the files alone."""

import json
import shutil
import signal
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed

from tests.ports import free_port
from tests.trainer.hosts import ROOT, complete_steps, hosts, wait_until, write_job
from trainer.checkpoints import format as checkpoint
from trainer.checkpoints.format import Progress, Saved
from trainer.checkpoints.parts import mean, prune_parts
from trainer.contract.job import TrainJob
from trainer.core.job import load_job
from trainer.core.run import Stop
from trainer.core.session import train
from trainer.core.setup import set_up
from trainer.core.state import resume, resume_own
from trainer.data.load import load_data
from trainer.parallel.world import World, join_world

SCRIPT = Path(__file__).with_name("resumes.py")
LOCAL: dict[str, Any] = {"every_steps": 4, "warm_up_steps": 3}
# Each exchange with all that a run may have beside: what lacks a part has fewer states to keep.
WAYS: dict[str, dict[str, Any]] = {
    "average": {"ema": True},
    "powersgd": {"compression": "powersgd", "warm_up_steps": 4},
    "adam": {"mode": "local_sgd", **LOCAL, "optimizer": "adam", "learning_rate": 0.003},
    "diloco": {"mode": "diloco", **LOCAL, "compression": "fp16"},
    "overlap": {"mode": "diloco", **LOCAL, "overlap": True},
}
STOPS = (6, 20)
"""In the first epoch of 15 steps, and in the second."""


def content(folder: Path) -> dict[str, Any]:
    """All that the newest checkpoint of a job on two hosts has: the shared part and the ranks'.

    The name of the run is that of its records, and differs.
    """
    names = {complete_steps(folder / host)[-1] for host in ("pc1", "pc2")}
    assert len(names) == 1, names
    name = names.pop()
    shared = [(folder / host / name / "state.pt").read_bytes() for host in ("pc1", "pc2")]
    assert shared[0] == shared[1], "the hosts' files differ"
    parts = {
        file.name: torch.load(file, weights_only=True)
        for file in folder.glob(f"*/ranks-{name[5:]}/*.pt")
    }
    state = torch.load(folder / "pc1" / name / "state.pt", weights_only=True)
    assert state.pop("run")
    return {"shared": state, **parts}


def differences(first: Any, second: Any, place: str = "") -> list[str]:
    """Where two nested values differ, bit by bit."""
    if isinstance(first, torch.Tensor):
        return [] if first.dtype == second.dtype and torch.equal(first, second) else [place]
    if isinstance(first, dict):
        if first.keys() != second.keys():
            return [f"{place}: {sorted(first.keys() ^ second.keys())}"]
        pairs = [(f"{place}.{key}", first[key], second[key]) for key in first]
    elif isinstance(first, list | tuple):
        pairs = [
            (f"{place}[{n}]", a, b) for n, (a, b) in enumerate(zip(first, second, strict=True))
        ]
    else:
        return [] if first == second else [place]
    return [each for key, a, b in pairs for each in differences(a, b, key)]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All ways on two hosts of 1 + 2 ranks, as a whole and with three interruptions each."""
    folder = tmp_path_factory.mktemp("resumes")
    arguments = []
    for name, changes in WAYS.items():
        for kind, stops in (("whole", ()), ("parts", STOPS)):
            (folder / kind).mkdir(exist_ok=True)
            job = write_job(folder / kind, name=name, epochs=2, keep=9, **changes)
            ports = ":".join(f"{free_port()}:{stop}" for stop in stops)
            arguments.append(f"{job}:{ports}{':' if ports else ''}{free_port()}")
    torchrun = ("-m", "torch.distributed.run", "--master-port", str(free_port()))
    with hosts(folder) as local:
        argv = [*torchrun, "--nproc-per-node", "3", str(SCRIPT), *arguments]
        task = local.start("resumes", argv, {"PYTHONPATH": ROOT})
        assert task.wait(900) == 0, task.text
    return folder


@pytest.mark.parametrize("name", WAYS)
def test_an_interrupted_training_is_bit_equal(name: str, trained: Path) -> None:
    assert differences(content(trained / "whole" / name), content(trained / "parts" / name)) == []
    # It was interrupted, and the other was not.
    kept = [len(complete_steps(trained / kind / name / "pc1")) for kind in ("whole", "parts")]
    assert kept == [2, 4]


def test_another_world_goes_on_with_the_mean(trained: Path, tmp_path: Path) -> None:
    arguments, again = [], {"powersgd": WAYS["powersgd"], "adam": WAYS["adam"]}
    # Also each step, after a mode whose ranks had optimizers of their own.
    again["diloco"] = {}
    for name, changes in again.items():
        shutil.copytree(trained / "whole" / name, tmp_path / name)
        job = write_job(tmp_path, name=name, epochs=3, **changes)
        arguments.append(f"{job}:{free_port()}")
    torchrun = ("-m", "torch.distributed.run", "--master-port", str(free_port()))
    with hosts(tmp_path) as local:
        argv = [*torchrun, "--nproc-per-node", "2", str(SCRIPT), *arguments]
        task = local.start("two", argv, {"PYTHONPATH": ROOT})
        assert task.wait() == 0, task.text
    for had in ("powersgd", "optimizer, scaler"):
        mean = f"2 ranks continue with the mean of the own parts ({had}) of 3 of 3 ranks"
        assert mean in task.text
    assert task.text.count("resumes at step 30, epoch 2 + 0") == 3
    # The ranks began alike, or their parameters would not have been equal at the end.
    assert all(content(tmp_path / name) for name in again)


KILLED: dict[str, Any] = {"mode": "diloco", "every_steps": 4, "warm_up_steps": 3}


@pytest.mark.long
def test_a_training_that_is_killed_is_bit_equal(tmp_path: Path) -> None:
    """Two hosts with folders of their own lose all of their processes, twice, at any moment."""
    for kind in ("whole", "parts"):
        folder = tmp_path / kind
        folder.mkdir()
        job = write_job(folder, epochs=5, keep=2, **KILLED)
        with hosts(folder) as local:
            for epochs in (1, 3) if kind == "parts" else ():
                tasks = local.pair(job)
                wait_for_epochs(folder, epochs)
                for task in tasks:
                    task.end()
            tasks = local.pair(job)
            assert [task.wait() for task in tasks] == [0, 0], tasks[0].text
    assert differences(content(tmp_path / "whole"), content(tmp_path / "parts")) == []


def wait_for_epochs(folder: Path, epochs: int) -> None:
    """Wait until a host has a checkpoint of so many epochs, of 15 steps, on its disk."""

    def steps() -> int:
        names = [name for host in folder.glob("pc*") for name in complete_steps(host)]
        return int(max(names, default="step-0")[5:])

    wait_until(lambda: steps() >= 15 * epochs, f"{epochs} epochs")


# ---- parts that are lost, in this very process


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    """This process as a world of one, without torchrun."""
    yield join_world({"KIT_HOST": "pc1"}, timedelta(seconds=60))
    distributed.destroy_process_group()


@pytest.fixture
def local_job(world: World, tmp_path: Path) -> TrainJob:
    """A job whose three checkpoints, of 30, 60 and 90 steps, have parts."""
    changes: dict[str, Any] = {"mode": "local_sgd", **LOCAL}
    job = load_job(write_job(tmp_path, epochs=3, batch_size=48, **changes))
    run = set_up(job, world, load_data(job.train, tmp_path), tmp_path / "c", 0.0)
    before = signal.getsignal(signal.SIGTERM)
    assert train(run, Stop()) == 0
    signal.signal(signal.SIGTERM, before)
    return job


def resumed(job: TrainJob, world: World, folder: Path) -> tuple[int, bool]:
    """The position at which the job resumes, and whether its rank keeps its momentum."""
    run = set_up(job, world, load_data(job.train, folder), folder / "c", 0.0)
    found = resume(run)
    resume_own(run, found)
    return found.progress.step, bool(run.optimizer.state_dict()["state"])


def test_parts_belong_to_their_checkpoint(
    local_job: TrainJob, world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "c"
    last = folder / "ranks-00000090" / "rank-00000.pt"
    assert resumed(local_job, world, tmp_path) == (90, True)
    assert "optimizer" not in torch.load(folder / "step-00000090" / "state.pt", weights_only=True)
    whole = last.read_bytes()
    # Cut off, damaged, of another step, and gone: the one before has all that it had.
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 1
    other = (folder / "ranks-00000060" / "rank-00000.pt").read_bytes()
    for content in (whole[:-9], bytes(flipped), other, b"", None):
        last.unlink() if content is None else last.write_bytes(content)
        assert resumed(local_job, world, tmp_path) == (60, True)
        said = capsys.readouterr().err
        assert "skips step-00000090: no host has the part of rank 0" in said
    # None has all: the newest is better than nothing.
    shutil.rmtree(folder / "ranks-00000060")
    assert resumed(local_job, world, tmp_path) == (90, False)
    assert "no host has the ranks' own parts" in capsys.readouterr().out


def test_a_checkpoint_from_before_has_no_parts(
    local_job: TrainJob, world: World, tmp_path: Path
) -> None:
    folder = tmp_path / "c" / "step-00000090"
    part = torch.load(tmp_path / "c" / "ranks-00000090" / "rank-00000.pt", weights_only=True)
    state = torch.load(folder / "state.pt", weights_only=True)
    progress = Progress(**state["progress"])
    older = checkpoint.pack(
        {**state, "optimizer": part["own"]["optimizer"]}, progress, local_job, 1
    )
    manifest = {key: value for key, value in older.content.items() if key != "own"}
    saved = Saved(json.dumps(manifest).encode(), older.state)
    checkpoint.write(tmp_path / "c", saved, local_job, 3)
    assert resumed(local_job, world, tmp_path) == (90, True)


def test_parts_go_with_their_checkpoints(local_job: TrainJob, tmp_path: Path) -> None:
    folder = tmp_path / "c"
    stray = folder / "ranks-00000100"
    stray.mkdir()
    shutil.rmtree(folder / "step-00000030")
    prune_parts(folder, 90)
    names = sorted(path.name for path in folder.glob("ranks-*"))
    # A later one may be that of a rank that is ahead.
    assert names == ["ranks-00000060", "ranks-00000090", "ranks-00000100"]


def test_a_mean_is_of_tensors_and_nothing_else() -> None:
    first = {"state": {0: {"step": torch.tensor(3.0), "m": torch.tensor([1.0, 2.0])}}, "lr": 0.1}
    second = {"state": {0: {"step": torch.tensor(3.0), "m": torch.tensor([3.0, 4.0])}}, "lr": 0.2}
    found = mean([first, second, second])
    torch.testing.assert_close(found["state"][0]["m"], torch.tensor([7 / 3, 10 / 3]))
    assert (found["state"][0]["step"], found["lr"]) == (3, 0.1)
