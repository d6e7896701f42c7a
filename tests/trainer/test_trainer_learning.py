"""A job that writes a data set, a model and epochs is taught well, and told when it is not."""

import dataclasses
import io
import struct
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from torch import distributed, nn
from torch.nn.functional import interpolate

from tests.trainer.hosts import ROOT, hosts, write_job
from tests.trainer.small import noise
from trainer.checkpoints.format import Progress
from trainer.contract import events
from trainer.contract.batch import rate_factor
from trainer.contract.described import augmentations, how_it_steps
from trainer.contract.gpt import Gpt, gpt_fault
from trainer.contract.job import Checkpoint, Exchange, Metrics, Train, TrainJob
from trainer.core.compute import EPOCHS, STEPS, Learning
from trainer.core.epoch import FEW, Tally, require_few_skipped, train_epoch
from trainer.core.evaluation import entropy_of, evaluate, judge
from trainer.core.gpt import GPT, initialise
from trainer.core.models import cnn, groups_of
from trainer.core.run import Stop
from trainer.core.schedule import learning_rate
from trainer.core.setup import set_up, synchronise_norms
from trainer.core.step import unmoving_norms
from trainer.data.augment import Augmentation
from trainer.data.load import load_data
from trainer.data.pictures import View
from trainer.data.shards import batches, next_batch
from trainer.data.views import test_view as view_of_test
from trainer.parallel.halt import HaltError
from trainer.parallel.world import World, join_world
from trainer.record.telemetry import ByClass


def settings(model: str = "cnn", **changes: Any) -> Train:
    base: dict[str, Any] = {"dataset": "digits", "epochs": 3, "batch_size": 32}
    return Train(model=model, **{**base, **changes})


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    yield join_world({"KIT_HOST": "pc1"}, timedelta(seconds=60))
    distributed.destroy_process_group()


def accuracy(world: World, root: Path, train: Train) -> float:
    """Train in this process, without records; return the accuracy."""
    job = TrainJob("taught", train, Exchange(), Checkpoint(), Metrics())
    progress = Progress()
    with redirect_stdout(io.StringIO()):
        run = set_up(job, world, load_data(train, root), root, 0.0)
        run = replace(run, recorder=mock.Mock())
        while progress.epoch < train.epochs:
            progress = train_epoch(run, progress, Stop()).progress
    return evaluate(run, run.data.test).accuracy or 0.0


@pytest.mark.parametrize(("batch", "epochs", "least"), [(8, 3, 0.94), (32, 5, 0.95), (512, 8, 0.9)])
def test_digits_are_learned_with_any_batch(
    batch: int, epochs: int, least: float, world: World, tmp_path: Path
) -> None:
    """With one rate for all batches, a batch of 8 stayed at 10 %, and one of 512 at 75."""
    train = settings(batch_size=batch, epochs=epochs)
    assert accuracy(world, tmp_path, train) > least


def test_lenet_learns_files_of_mnist(world: World, tmp_path: Path) -> None:
    data = load_data(settings(), tmp_path)
    for part, samples in (("train", data.train), ("t10k", data.test)):
        large = interpolate(samples.inputs * (255 / 16), (28, 28), mode="bilinear").byte()
        kinds = {"images-idx3": large[:, 0], "labels-idx1": samples.labels.byte()}
        for kind, content in kinds.items():
            head = struct.pack(f">HBB{content.ndim}I", 0, 8, content.ndim, *content.shape)
            (tmp_path / f"{part}-{kind}-ubyte").write_bytes(head + content.numpy().tobytes())
    assert accuracy(world, tmp_path, settings("lenet", dataset="mnist", epochs=4)) > 0.93


def test_a_job_file_has_the_recipe_and_is_read_as_it_is() -> None:
    train = settings("gpt", dataset="text", path="t.txt", options={"width": 768})
    known = (train.optimizer, train.learning_rate, train.rate_batch, train.final_rate)
    assert known == ("adamw", 0.00061, 16, 0.1)
    assert Train(**dataclasses.asdict(train)) == train


def test_what_is_written_wins() -> None:
    train = settings(learning_rate=0.2, weight_decay=0.5, warm_up=0.0, clip_norm=0.0)
    assert (train.optimizer, train.rate_batch, train.rate_limit) == ("sgd", None, None)
    assert (train.weight_decay, train.warm_up, train.clip_norm) == (0.5, 0.0, 0.0)
    assert settings("gpt", dataset="text", learning_rate=0.001).optimizer == "adamw"
    assert settings("resnet18", optimizer="adamw").learning_rate == 0.001


@pytest.mark.parametrize(
    ("model", "batch", "rate"),
    [
        *(("resnet18", 256, 0.1), ("resnet18", 8, 0.003125), ("resnet18", 65_536, 3.2)),
        *(("cnn", 64, 0.003), ("cnn", 4096, 0.01), ("airbench", 512, 0.75)),
    ],
)
def test_the_rate_follows_the_batch_up_to_its_end(model: str, batch: int, rate: float) -> None:
    train = settings(model)
    assert train.learning_rate * rate_factor(train, batch) == pytest.approx(rate)


def test_weights_that_are_trained_already_get_a_tenth() -> None:
    train = settings("torchvision/resnet18", dataset="folder", weights="IMAGENET1K_V1")
    assert train.learning_rate == pytest.approx(0.01)


def test_the_plan_tells_what_was_chosen() -> None:
    said = how_it_steps(settings("resnet18"), 32)
    assert said.startswith("sgd at 0.0125 (0.1 for a batch of 256), warm-up of 5 %, cosine, ")
    assert "1512.03385" in said
    assert "the rate is the job's own" in how_it_steps(settings(learning_rate=0.1), 32)
    folder = settings(dataset="folder", path="x", augmentation="trivial", mixup=0.2)
    assert augmentations(folder) == "cropped at random, not mirrored, policy trivial, mixup 0.2"
    assert augmentations(settings(dataset="cifar10")) == "shifted at random, mirrored"
    assert augmentations(settings()) == ""


def test_the_test_has_the_interpolation_of_the_training() -> None:
    folder = {"dataset": "folder", "path": "x", "image_size": 64}
    cropped = settings("torchvision/resnet18", **folder)
    assert view_of_test(cropped)[0] == View(64, 64, "bilinear")
    assert view_of_test(replace(cropped, interpolation="bicubic"))[0] == View(64, 64, "bicubic")
    # Those of the trainer's own models are scaled in one way in both parts.
    assert view_of_test(settings("resnet18", **folder))[0] == View(64)


def test_decay_is_of_matrices_alone() -> None:
    size = Gpt(layers=1, heads=2, width=8)
    model = GPT(size, 10, 8)
    train = settings("gpt", dataset="text", weight_decay=0.1)
    decays = {name: decay for name, _, (_, decay) in groups_of(model, train)}
    assert decays.pop("embedding.weight") == decays.pop("positions.weight") == 0.0
    assert {decay for name, decay in decays.items() if "norm" in name} == {0.0}
    assert {decay for name, decay in decays.items() if "norm" not in name} == {0.1}
    network, written = cnn(1, 8, 10), settings(weight_decay=0.1, bias_weight_decay=0.2)
    found = {each.ndim > 1: decay for _, each, (_, decay) in groups_of(network, written)}
    assert found == {True: 0.1, False: 0.2}


@pytest.mark.parametrize(("samples", "most"), [(1437, 1436), (1437, 720), (7, 3), (6, 3), (2, 9)])
def test_the_steps_of_an_epoch_have_equally_many_samples(samples: int, most: int) -> None:
    order = torch.randperm(samples)
    found = list(batches(order, most))
    sizes = [len(batch) for batch in found]
    assert torch.equal(torch.cat(found), order)
    assert (len(sizes), max(sizes) - min(sizes)) == (
        -(-samples // most),
        min(samples % len(sizes), 1),
    )
    # A training that resumes within an epoch takes the same steps.
    for number, batch in enumerate(found):
        assert torch.equal(next_batch(order[sum(sizes[:number]) :], most), batch)


def test_samples_that_do_not_count_leave_the_statistics() -> None:
    """A rank without samples computes with one that is another's."""
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.BatchNorm1d(2))
    model[3].eval()  # As a frozen one.
    with unmoving_norms(model):
        model(torch.randn(1, 1, 3, 3)).sum().backward()
    assert model[1].num_batches_tracked == 0
    assert (model[1].training, model[3].training) == (True, False)
    assert model[1].weight.grad is not None


def test_norms_of_all_samples_are_for_gpus() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2))
    with pytest.raises(HaltError, match="PyTorch synchronises BatchNorm on GPUs alone"):
        synchronise_norms(model, torch.device("cpu"))
    assert isinstance(synchronise_norms(model, torch.device("cuda"))[1], nn.SyncBatchNorm)  # type: ignore[index]


def test_learning_is_judged_by_the_loss_of_guessing() -> None:
    guess = 2.3
    never = Learning(guess)
    steps = STEPS // EPOCHS + 1
    found = [never.note(2.31, step * steps, warm=True) for step in range(1, EPOCHS + 1)]
    assert found[:-1] == [""] * (EPOCHS - 1)
    assert found[-1] == "learns nothing: its loss 2.31 is that of guessing (2.3) after 3 epochs"
    lost = Learning(guess)
    assert [lost.note(loss, step, warm=True) for step, loss in ((9, 1.0), (18, 2.2))] == ["", ""]
    assert lost.note(2.3, 27, warm=True).startswith("has lost what it had learned: its loss 2.3 is")
    slow = Learning(guess)
    assert not any(slow.note(2.3, 1000 * step, warm=False) for step in range(1, 9))
    assert not any(Learning(None).note(9.0, 1000 * step, warm=True) for step in range(1, 9))
    assert entropy_of(torch.tensor([0, 0, 1, 1])) == pytest.approx(np.log(2))
    assert entropy_of(torch.zeros(5, dtype=torch.int64)) == 0.0
    one, both = 0.95, 0.05
    smoothed = -(one * np.log(one) + both * np.log(both))
    assert entropy_of(torch.zeros(5, dtype=torch.int64), 2, 0.1) == pytest.approx(smoothed)


def test_a_warm_up_of_steps_is_waited_for() -> None:
    """Its epochs are short, and their rates so low that nothing can be learned yet."""
    run: Any = SimpleNamespace(
        learning=Learning(2.3), job=SimpleNamespace(train=settings(warm_up=900, epochs=99)),
        data=SimpleNamespace(labels=()),
    )  # fmt: skip
    found: Any = SimpleNamespace(by_class=ByClass())
    for epoch in range(1, 10):
        judge(run, Progress(epoch, 0, 100 * epoch), 2.3, found, saved=False)
    assert run.learning.epochs == 0
    judge(run, Progress(10, 0, 1000), 2.3, found, saved=False)
    judge(run, Progress(11, 0, 1100), 2.3, found, saved=False)
    with pytest.raises(HaltError, match="learns nothing"):
        judge(run, Progress(12, 0, 1200), 2.3, found, saved=False)


def test_a_training_that_learns_nothing_is_ended_or_told(tmp_path: Path) -> None:
    wild: dict[str, Any] = {"learning_rate": 3.0, "warm_up": 0.0, "clip_norm": 0.0, "epochs": 3}
    wild |= {"optimizer": "adamw", "batch_size": 16}
    with hosts(tmp_path) as local:
        tasks = {}
        for name in ("stop", "continue"):
            job = write_job(tmp_path, name, on_collapse=name, **wild)
            places = {"KIT_JOB": job, "KIT_CHECKPOINTS": tmp_path / name, "PYTHONPATH": ROOT}
            tasks[name] = local.start(name, ["-m", "trainer.train"], places)
        codes = {name: task.wait() for name, task in tasks.items()}
    assert codes == {"stop": 1, "continue": 0}, tasks["continue"].text
    (failed,) = tasks["stop"].of(events.Failed)
    assert failed.kind == "loss"
    assert "is that of guessing" in failed.message
    assert "to continue anyway: `on_collapse: continue`" in failed.message
    assert "done:" not in tasks["stop"].text
    told = tasks["continue"].of(events.Untaught)
    assert told
    assert "is that of guessing" in told[-1].message


def test_a_training_that_skips_too_much_is_ended() -> None:
    run: Any = SimpleNamespace(
        data=SimpleNamespace(train=range(1000)), global_batch=10,
        job=SimpleNamespace(train=settings(on_nan="skip")),
    )  # fmt: skip
    tally: Any = Tally.__new__(Tally)
    tally.skipped = tuple(range(10))
    require_few_skipped(run, tally)
    tally.skipped = tuple(range(11))
    with pytest.raises(HaltError, match="11 of an epoch's 100 steps had a loss that is not finite"):
        require_few_skipped(run, tally)
    run.job.train = settings(on_nan="skip", skip_limit=0.5)
    require_few_skipped(run, tally)
    run.global_batch, tally.skipped = 1000, tuple(range(FEW))
    require_few_skipped(run, tally)


def test_a_seed_does_not_choose_the_test(tmp_path: Path) -> None:
    """Else a training from another one's weights is tested on what that one has seen."""
    first, second, other = (
        load_data(settings(seed=seed, split_seed=split), tmp_path)
        for seed, split in ((0, None), (1, None), (0, 1))
    )
    assert torch.equal(first.test.inputs, second.test.inputs)
    assert not torch.equal(first.test.inputs, other.test.inputs)
    seen = first.train.inputs.float()
    assert first.mean.item() == pytest.approx(seen.mean().item(), rel=1e-5)
    assert first.deviation.item() == pytest.approx(seen.std().item(), rel=1e-5)


@pytest.mark.parametrize(
    ("dataset", "mirror", "some"),
    [
        *(("cifar10", None, True), ("cifar10", False, False)),
        *(("folder", None, False), ("folder", True, True)),
    ],
)
def test_images_are_mirrored_where_it_is_right(
    dataset: str, mirror: bool | None, some: bool
) -> None:
    train = settings(
        "resnet18", dataset=dataset, path="x" if dataset == "folder" else "", mirror=mirror
    )
    found = Augmentation.of_epoch(train, replace(noise(3, 32), padding=4), 0)
    assert found.crops
    assert bool(found.crops.mirrored.any()) == some


def test_a_cosine_ends_at_its_share() -> None:
    train = settings(learning_rate=0.4, final_rate=0.1)
    assert [round(learning_rate(train, done), 6) for done in (0.0, 0.5, 1.0)] == [0.4, 0.22, 0.04]


def test_dropout_is_for_training() -> None:
    model = GPT(Gpt(layers=1, heads=2, width=16, dropout=0.5), 10, 8)
    initialise(model, 0)
    tokens = torch.arange(8)[None]
    assert not torch.equal(model(tokens), model(tokens))
    model.eval()
    assert torch.equal(model(tokens), model(tokens))
    assert gpt_fault({"dropout": 0.1}) is None
    assert gpt_fault({"dropout": 1})
    assert gpt_fault({"dropout": True})
