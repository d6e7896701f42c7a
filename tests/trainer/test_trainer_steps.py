"""Single optimizer steps, in this very process: the gradients, and what is done to them."""

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

from tests.trainer.hosts import ROOT, complete_steps, free_port, hosts, write_job
from trainer.checkpoints.format import Progress
from trainer.core.job import load_job
from trainer.core.run import Run, Stop
from trainer.core.setup import set_up
from trainer.core.step import train_step
from trainer.data.load import load_data
from trainer.parallel.world import World, join_world

NORM = 0.05
PLAIN: dict[str, Any] = {"weight_decay": 0.0, "schedule": "constant"}


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    """This process as a world of one, without torchrun."""
    yield join_world({"KIT_HOST": "pc1"}, timedelta(seconds=60))
    distributed.destroy_process_group()


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
    for name, clip_norm in (("plain", None), ("clipped", 1e6)):
        run = start(world, tmp_path, name=name, clip_norm=clip_norm)
        train_step(run, Progress(), torch.arange(32), None, Stop())
        found.append([each.detach() for each in run.model.parameters()])
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True))


def test_gradients_are_clipped_at_their_own_scale(world: World, tmp_path: Path) -> None:
    """The scaler of fp16 multiplies them; the norm is of what they are without it."""
    run = start(world, tmp_path, clip_norm=NORM, precision="fp16")
    run = replace(run, scaler=torch.amp.GradScaler("cpu", init_scale=2.0**8))
    train_step(run, Progress(), torch.arange(32), None, Stop())
    assert norm(run) == pytest.approx(NORM, rel=1e-3)


@pytest.mark.parametrize("mode", ["local_sgd", "diloco"])
def test_local_steps_clip_their_own_gradients(mode: str, world: World, tmp_path: Path) -> None:
    run = start(world, tmp_path, clip_norm=NORM, mode=mode, warm_up_steps=0)
    train_step(run, Progress(), torch.arange(1000), None, Stop())
    assert norm(run) == pytest.approx(NORM, rel=1e-4)


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
