"""Single optimizer steps in this process: the gradients and the update."""

import signal
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed
from torch.nn import functional
from torch.nn.utils import clip_grad_norm_

from tests.ports import free_port
from tests.trainer.hosts import ROOT, complete_steps, hosts, write_job
from trainer.checkpoints.format import Progress
from trainer.core.job import load_job
from trainer.core.run import Run, Stop
from trainer.core.schedule import set_rate
from trainer.core.session import train
from trainer.core.setup import set_up
from trainer.core.step import train_step
from trainer.data.load import load_data
from trainer.data.shards import next_size
from trainer.parallel.halt import HaltError
from trainer.parallel.world import World, join_world

NORM = 0.05
PLAIN: dict[str, Any] = {"weight_decay": 0.0, "schedule": "constant"}


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    """This process as a world of one, without torchrun."""
    yield join_world({"KIT_HOST": "pc1"}, timedelta(seconds=60))
    distributed.destroy_process_group()


@pytest.fixture(autouse=True)
def _same_signals() -> Iterator[None]:
    """Trainings listen for SIGTERM; the tests' own process must not go on doing so."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def start(world: World, folder: Path, **changes: Any) -> Run:
    job = load_job(write_job(folder, **(PLAIN | changes)))
    return set_up(job, world, load_data(job.train, folder), folder, 0.0)


def norm(run: Run) -> float:
    found = [each.grad.norm() for each in run.model.parameters() if each.grad is not None]
    return float(torch.stack(found).norm())


@pytest.mark.parametrize("accumulation", [1, 3])
def test_clipping_is_torchs_own(accumulation: int, world: World, tmp_path: Path) -> None:
    run = start(world, tmp_path, clip_norm=NORM, accumulation=accumulation)
    batch = torch.arange(run.global_batch)
    images, labels = run.data.train.take(batch, world.device)
    loss = functional.cross_entropy(run.model(run.data.prepared(images)), labels)
    parameters = list(run.model.parameters())
    for each, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
        each.grad = gradient
    assert clip_grad_norm_(parameters, NORM) > NORM
    expected = [each.grad.clone() for each in parameters if each.grad is not None]
    train_step(run, Progress(), batch, None, Stop())
    assert norm(run) == pytest.approx(NORM, rel=1e-4)
    for each, gradient in zip(parameters, expected, strict=True):
        assert each.grad is not None
        torch.testing.assert_close(each.grad, gradient, atol=1e-6, rtol=1e-4)


def test_small_gradients_stay_as_they_are(world: World, tmp_path: Path) -> None:
    found = []
    for name, clip_norm in (("plain", 0.0), ("clipped", 1e6)):
        run = start(world, tmp_path, name=name, clip_norm=clip_norm)
        train_step(run, Progress(), torch.arange(32), None, Stop())
        found.append([each.detach() for each in run.model.parameters()])
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True))


def test_gradients_are_clipped_at_their_own_scale(world: World, tmp_path: Path) -> None:
    """fp16's scaler multiplies gradients; the norm is that of unscaled gradients."""
    run = start(world, tmp_path, clip_norm=NORM, precision="fp16")
    run = replace(run, scaler=torch.amp.GradScaler("cpu", init_scale=2.0**8))
    train_step(run, Progress(), torch.arange(32), None, Stop())
    assert norm(run) == pytest.approx(NORM, rel=1e-3)


@pytest.mark.parametrize("mode", ["local_sgd", "diloco"])
def test_local_steps_clip_their_own_gradients(mode: str, world: World, tmp_path: Path) -> None:
    run = start(world, tmp_path, clip_norm=NORM, mode=mode, warm_up_steps=0)
    train_step(run, Progress(), torch.arange(1000), None, Stop())
    assert norm(run) == pytest.approx(NORM, rel=1e-4)


def rates(run: Run, steps: int) -> list[float]:
    """The rates of the first steps, as the optimizer is given them."""
    found, progress = [], Progress()
    while progress.step < steps:
        set_rate(run, progress)
        found.append(run.optimizer.param_groups[0]["lr"])
        left = len(run.data.train) - progress.position
        position = progress.position + next_size(left, run.global_batch)
        done = position >= len(run.data.train)
        epoch, position = (progress.epoch + 1, 0) if done else (progress.epoch, position)
        progress = Progress(epoch, position, progress.step + 1)
    return found


def test_the_rate_warms_up_over_steps(world: World, tmp_path: Path) -> None:
    run = start(world, tmp_path, warm_up=4, learning_rate=0.2, batch_size=100, epochs=1)
    assert rates(run, 6) == pytest.approx([0.05, 0.1, 0.15, 0.2, 0.2, 0.2])


def test_the_rate_warms_up_over_a_share(world: World, tmp_path: Path) -> None:
    # 1,437 samples in 15 steps, the first ones of 96; a fifth of two epochs.
    run = start(world, tmp_path, warm_up=0.2, learning_rate=0.2, batch_size=100, epochs=2)
    found, fifth = rates(run, 30), 2 * 1437 * 0.2
    assert found[:5] == pytest.approx([0.2 * done / fifth for done in (96, 192, 288, 384, 480)])
    assert found[5:] == [0.2] * 25


def test_a_warm_up_multiplies_the_schedule(world: World, tmp_path: Path) -> None:
    more: dict[str, Any] = {"schedule": "cosine", "batch_size": 100, "epochs": 1}
    plain = rates(start(world, tmp_path, name="plain", **more), 15)
    warm = rates(start(world, tmp_path, name="warm", warm_up=10, **more), 15)
    assert warm == pytest.approx([rate * min(1, n / 10) for n, rate in enumerate(plain, 1)])


def test_a_warm_up_that_never_ends_is_refused(world: World, tmp_path: Path) -> None:
    run = start(world, tmp_path, warm_up=46, epochs=1)
    with pytest.raises(
        HaltError, match=r"train\.warm_up: 46 steps are more than the 45 of"
    ) as caught:
        train(run, Stop())
    assert caught.value.kind == "input"
    assert train(start(world, tmp_path, warm_up=45, epochs=1), Stop()) == 0


def test_two_ranks_clip_the_gradients_of_both(tmp_path: Path) -> None:
    """Not each its own: the same global batch gives the same parameters on any number of ranks."""
    states = {}
    with hosts(tmp_path) as local:
        for name, processes, changes in (
            ("one", 1, {"clip_norm": NORM, "batch_size": 64}),
            ("two", 2, {"clip_norm": NORM, "batch_size": 32}),
            ("plain", 2, {"batch_size": 32}),
        ):
            job = write_job(tmp_path, name=name, epochs=1, **(PLAIN | changes))
            torchrun = ("-m", "torch.distributed.run", "--master-port", str(free_port()))
            argv = [*torchrun, "--nproc-per-node", str(processes), "-m", "trainer.train"]
            environ = {"KIT_JOB": job, "KIT_CHECKPOINTS": tmp_path / name, "PYTHONPATH": ROOT}
            task = local.start(name, argv, environ)
            assert task.wait() == 0, task.text
            file = tmp_path / name / complete_steps(tmp_path / name)[-1] / "state.pt"
            states[name] = torch.load(file, weights_only=True)["model"]
    for key, value in states["one"].items():
        torch.testing.assert_close(states["two"][key], value, atol=1e-5, rtol=1e-4)
        if key.endswith("weight"):
            assert (states["plain"][key] - value).abs().max() > 0.001
