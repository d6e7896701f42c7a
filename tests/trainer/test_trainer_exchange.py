"""Exchange modes, balance, precision and reports: real processes on gloo."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from tests.ports import free_port
from tests.trainer.hosts import (
    DEADLINE,
    ROOT,
    Hosts,
    Task,
    complete_steps,
    hosts,
    metrics,
    write_job,
)
from tests.warm import warm_python

FAULTY = Path(__file__).with_name("faulty.py")
WAYS_SCRIPT = Path(__file__).with_name("ways.py")


def launch(local: Hosts, job: Path, processes: int, script: str | Path = "", **more: Any) -> Task:
    """Start processes of one host under torchrun."""
    folder = job.parent / job.stem
    folder.mkdir(exist_ok=True)
    torchrun = ("-m", "torch.distributed.run", "--master-port", str(free_port()))
    what = (script,) if script else ("-m", "trainer.train")
    return local.start(
        job.stem,
        [*torchrun, "--nproc-per-node", str(processes), *what],
        {"KIT_JOB": job, "KIT_CHECKPOINTS": folder, "PYTHONPATH": ROOT, **more},
    )


def result(job: Path) -> dict[str, torch.Tensor]:
    """The parameters at the end."""
    folder = job.parent / job.stem
    state = torch.load(folder / complete_steps(folder)[-1] / "state.pt", weights_only=True)
    model: dict[str, torch.Tensor] = state["model"]
    return model


def distance(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> float:
    """The largest difference of any parameter."""
    return max(float((value - second[name]).abs().max()) for name, value in first.items())


class Way(NamedTuple):
    """A job's changes, and how far its parameters may be from the plain job's."""

    changes: dict[str, Any]
    least: float
    most: float


WAYS = {
    # Another order of the same sums, and nothing more.
    "buckets": Way({"bucket_mib": 1, "static_graph": True}, 0.0, 1e-5),
    "fp16": Way({"compression": "fp16"}, 1e-7, 0.01),
    "bf16": Way({"compression": "bf16"}, 1e-6, 0.05),
    "powersgd": Way({"compression": "powersgd", "warm_up_steps": 4}, 1e-4, 1.0),
    "precision": Way({"precision": "bf16"}, 1e-5, 0.2),
    "local_sgd": Way({"mode": "local_sgd", "every_steps": 4, "warm_up_steps": 8}, 1e-4, 1.0),
    # An exchange after each step: without momentum the mean of the weights is plain training.
    "each_step": Way({"mode": "local_sgd", "every_steps": 1, "warm_up_steps": 29}, 0.0, 1e-5),
    "diloco": Way(
        {"mode": "diloco", "every_steps": 4, "warm_up_steps": 8, "compression": "fp16"}, 1e-4, 1
    ),
    "overlap": Way(
        {"mode": "local_sgd", "every_steps": 4, "warm_up_steps": 8, "overlap": True}, 1e-4, 1
    ),
    # The only round ends with the training: nothing is left to overlap with.
    "at_the_end": Way(
        {"mode": "local_sgd", "every_steps": 1, "warm_up_steps": 29, "overlap": True}, 0.0, 1e-5
    ),
}


@pytest.fixture(scope="module")
def trained_ways(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The jobs of all ways, and a plain one, that two processes have trained for two epochs."""
    folder = tmp_path_factory.mktemp("ways")
    changes: dict[str, dict[str, Any]] = {"plain": {}}
    changes |= {name: way.changes for name, way in WAYS.items()}
    jobs = {
        name: write_job(folder, name=name, epochs=2, batch_size=48, **more)
        for name, more in changes.items()
    }
    torchrun = ("-m", "torch.distributed.run", "--master-port", str(free_port()))
    trained = [f"{job}:{free_port()}" for job in jobs.values()]
    argv = [*torchrun, "--nproc-per-node", "2", str(WAYS_SCRIPT), *trained]
    with hosts(folder) as local:
        task = local.start("ways", argv, {"PYTHONPATH": ROOT})
        assert task.wait() == 0, task.text
    return jobs


@pytest.fixture(scope="module")
def plain(trained_ways: dict[str, Path]) -> Path:
    """A job that two processes have trained for two epochs."""
    return trained_ways["plain"]


@pytest.mark.parametrize("name", WAYS)
def test_every_way_trains_close_to_the_plain_one(
    name: str, trained_ways: dict[str, Path], plain: Path
) -> None:
    job, way = trained_ways[name], WAYS[name]
    assert way.least <= distance(result(plain), result(job)) <= way.most
    # Also fp16, whose first steps overflow, and PowerSGD, which forgets much, have learnt.
    assert metrics(job.with_suffix(""))[-1]["accuracy"] > 0.8


def test_a_local_mode_resumes_with_its_outer_step(tmp_path: Path) -> None:
    """Two epochs at once, and one after the other by a job that grows, are the same."""
    changes: dict[str, Any] = {
        "mode": "diloco",
        "every_steps": 4,
        "warm_up_steps": 0,
        "schedule": "constant",
    }
    whole = write_job(tmp_path, name="whole", epochs=2, **changes)
    parts = write_job(tmp_path, name="parts", epochs=1, **changes)
    with hosts(tmp_path) as local:
        tasks = [launch(local, whole, 1), launch(local, parts, 1)]
        assert [task.wait() for task in tasks] == [0, 0], tasks[0].text
        parts = write_job(tmp_path, name="parts", epochs=2, **changes)
        assert launch(local, parts, 1).wait() == 0
    assert distance(result(whole), result(parts)) == 0
    state = torch.load(
        tmp_path / "parts" / complete_steps(tmp_path / "parts")[-1] / "state.pt", weights_only=True
    )
    assert state["outer"]["state"][0]["momentum_buffer"].abs().max() > 0


@pytest.mark.long
def test_a_job_goes_on_with_another_exchange_and_precision(plain: Path, tmp_path: Path) -> None:
    shutil.copytree(plain.parent / "plain", tmp_path / "plain")
    changes: dict[str, Any] = {"mode": "diloco", "warm_up_steps": 0, "precision": "fp16"}
    job = write_job(tmp_path, name="plain", epochs=3, **changes)
    with hosts(tmp_path) as local:
        task = launch(local, job, 3)
        assert task.wait() == 0, task.text
    assert "resumes at step 30, epoch 2 + 0" in task.text
    assert "fp16, exchange diloco" in task.text
    assert metrics(tmp_path / "plain")[-1]["accuracy"] > 0.9


def test_a_loss_that_is_not_finite_ends_a_local_mode_together(tmp_path: Path) -> None:
    changes: dict[str, Any] = {
        "mode": "local_sgd",
        "every_steps": 8,
        "warm_up_steps": 0,
        "batch_size": 96,
    }
    job = write_job(tmp_path, epochs=2, **changes)
    with hosts(tmp_path) as local:
        more = {"FAULT": "nan", "FAULT_AT": "2", "FAULT_JOB": job}
        halt = tmp_path / "halt"
        halt.touch()
        task = launch(local, job, 2, FAULTY, KIT_HALT=halt, **more)
        assert task.wait() == 0
    # In the second step; the ranks speak to each other after the eighth.
    assert re.search(
        r"error: the loss is not finite in step 8, epoch 1: rank 1 on .*, samples \[", task.text
    )
    assert "rank 1" in halt.read_text()


def test_a_slow_rank_gets_fewer_samples_and_the_result_stays(tmp_path: Path) -> None:
    """The ranks measure a simulated time, of which rank 1 needs twice as much for each sample."""
    jobs = {
        balance: write_job(tmp_path, name=balance, epochs=2, batch_size=48, balance=balance)
        for balance in ("even", "auto")
    }
    more = {"FAULT": "half", "FAULT_SIMULATED": "1", "FAULT_SECONDS": "1"}
    with hosts(tmp_path) as local:
        tasks = [launch(local, job, 2, FAULTY, FAULT_JOB=job, **more) for job in jobs.values()]
        for task in tasks:
            assert task.wait() == 0, task.text
    # It is divided in the first epoch: in the second one, each step has the new shares.
    even, auto = (metrics(tmp_path / balance)[-1] for balance in jobs)
    assert even["batch"] == [0.5, 0.5]
    assert auto["batch"] == pytest.approx([2 / 3, 1 / 3], abs=0.01)
    assert "batch: 67/33 % by rank" in tasks[1].text
    # A step lasts as long as a third of its samples on the slow rank, not half of them.
    speeds = auto["images_per_second"], even["images_per_second"]
    assert speeds[0] / speeds[1] == pytest.approx(1.5, rel=0.05)
    assert distance(result(jobs["even"]), result(jobs["auto"])) < 1e-3


def test_a_rank_that_is_silent_is_named(tmp_path: Path) -> None:
    job = write_job(tmp_path, epochs=3, timeout=20)
    more = {"FAULT": "silent", "FAULT_AT": "20", "FAULT_RANK": "2", "FAULT_JOB": job}
    with hosts(tmp_path) as local:
        task = launch(local, job, 3, FAULTY, KIT_HOST="pc1", **more)
        assert task.wait() == 1
    # Rank 0 asks, and knows.
    assert "error: rank 2 on pc1 (cpu) did not take part in an exchange; a restart" in task.text
    assert "error: rank 1" not in task.text


def test_a_bar_on_a_terminal_and_lines_in_a_log(tmp_path: Path) -> None:
    job = write_job(tmp_path, epochs=2)
    environ = {"KIT_JOB": str(job), "KIT_CHECKPOINTS": str(tmp_path / "c"), "FAULT": "half"}
    environ |= {"PYTHONPATH": str(ROOT), "FAULT_JOB": str(job), "PATH": "/usr/bin:/bin"}
    environ["OMP_NUM_THREADS"] = "1"
    line = f"{warm_python().executable} {FAULTY}"
    # script(1) gives the process a terminal.
    shown = subprocess.run(
        ["script", "--quiet", "--return", "--command", line, "/dev/null"],
        env=environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=True,
        timeout=DEADLINE,
    ).stdout.decode()
    bars = re.findall(r"\r\x1b\[K\[(#*)(-*)\] epoch 1/2 +\d+ %, step \d+, loss [\d.]+, \d+", shown)
    assert len({len(done) for done, _ in bars}) > 1
    assert {len(done) + len(left) for done, left in bars} == {24}
    # The row is not behind a bar; "saved" of a checkpoint may come between the two.
    assert re.search(r"(\x1b\[K|\n)   1/2", shown)
    assert "\x1b" not in json.dumps(metrics(tmp_path / "c"))
