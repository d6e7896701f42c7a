"""`compile: true`: one graph of each model, and buckets that leave during the backward pass."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from functorch.compile import make_boxed_func  # type: ignore[import-untyped]
from torch import distributed
from torch._dynamo import register_backend
from torch._dynamo.backends.common import aot_autograd
from torch.futures import Future

from tests.trainer.hosts import write_job
from tests.trainer.small import noise
from trainer.core import compute
from trainer.core.epoch import rehearse
from trainer.core.job import load_job
from trainer.core.models import build_model
from trainer.core.run import Run
from trainer.core.setup import set_up
from trainer.data.samples import DataSet
from trainer.parallel import replicas
from trainer.parallel.replicas import Replicas
from trainer.parallel.world import World, join_world

EVENTS: list[str] = []


def backward_parts(graph: Any, _: Any) -> Any:
    """Compile a part of a backward pass to a function that records its run."""

    def run(*arguments: Any) -> Any:
        EVENTS.append("part")
        return graph(*arguments)

    return make_boxed_func(run)


def forward_parts(graph: Any, _: Any) -> Any:
    """Leave a part of a forward pass as it is."""
    return make_boxed_func(graph)


register_backend(aot_autograd(fw_compiler=forward_parts, bw_compiler=backward_parts), name="noted")


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    """This process as a world of one, without torchrun."""
    yield join_world({"KIT_HOST": "pc1"}, timedelta(seconds=60))
    distributed.destroy_process_group()


@pytest.fixture(autouse=True)
def _noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compute, "BACKEND", "noted")
    EVENTS.clear()


MODELS: dict[str, tuple[str, DataSet]] = {
    "cnn": ("mnist", noise(1, 28)),
    "lenet": ("mnist", noise(1, 28)),
    "resnet18": ("cifar10", noise(3, 32)),
    "airbench": ("cifar10", noise(3, 32)),
}


def run_of(model: str, world: World, folder: Path, **changes: Any) -> Run:
    """A run of a model that is compiled."""
    dataset, data = MODELS[model]
    job = write_job(folder, dataset=dataset, model=model, batch_size=4, compile=True, **changes)
    return set_up(load_job(job), world, data, folder, 0.0)


@pytest.mark.parametrize("model", MODELS)
def test_a_model_is_one_graph(model: str, world: World, tmp_path: Path) -> None:
    run = run_of(model, world, tmp_path)
    before = {name: value.clone() for name, value in run.model.state_dict().items()}
    rehearse(run)
    assert str(run.compiled) == "1 graph"
    assert EVENTS == ["part"]
    # A rehearsal changes nothing, and the names in a checkpoint are the model's own.
    after = run.model.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(value, before[name]) for name, value in after.items())


def test_buckets_leave_during_the_backward_pass(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = load_job(write_job(tmp_path, dataset="cifar10", model="resnet18", bucket_mib=8))

    def note(_: Any, bucket: distributed.GradBucket) -> Future[torch.Tensor]:  # type: ignore[name-defined]
        EVENTS.append("bucket")
        future: Future[torch.Tensor] = Future()
        future.set_result(bucket.buffer())
        return future

    monkeypatch.setitem(replicas.HOOKS, "alone", note)
    data = MODELS["resnet18"][1]
    model, made = build_model(job.train, data), compute.Compiled()
    # As one of two ranks; the exchange itself is not needed.
    module = made.compile(model, job, several=True)
    ranks = Replicas(model, job.exchange, world, lambda _: None, module)
    for _ in range(2):  # DDP puts its buckets in order by the first.
        EVENTS.clear()
        ranks.forward(torch.rand(2, 3, 32, 32)).sum().backward()  # type: ignore[no-untyped-call]
    buckets = EVENTS.count("bucket")
    assert buckets > 2
    # No bucket waits for parts that have nothing to do with it.
    assert ["part", "bucket"] * buckets == EVENTS
    assert str(made).startswith(f"1 graph in {buckets} parts, so that gradients leave")
