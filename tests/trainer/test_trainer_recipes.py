"""What recipes of image classifiers need: averages, frozen layers, groups, figures of classes."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import nn

from tests.trainer.hosts import complete_steps, hosts, metrics, write_job
from tests.trainer.small import noise, settings
from trainer.checkpoints.format import Progress
from trainer.contract import events
from trainer.core.compute import MovingAverage
from trainer.core.job import JobError
from trainer.core.models import build_model, freeze, head_of, parameter_groups, train_mode
from trainer.core.run import Run
from trainer.core.schedule import warm_up
from trainer.core.task import Counts, classification_sums, named_classes, untaught
from trainer.record.telemetry import ByClass


def test_the_decay_is_that_of_torchvisions_script() -> None:
    # 8 GPUs, 128 images each, 600 epochs, an average every 32 steps: the same for one step is about
    # 1/32 of the way.
    script = 1 - 8 * 128 * 32 / 600 * (1 - 0.99998)
    assert MovingAverage.decay(0.99998, 8 * 128, 600) ** 32 == pytest.approx(script, abs=1e-6)
    assert MovingAverage.decay(0.5, 100, 10) == 0  # At most all of the way.


def test_an_average_follows_parameters_and_buffers_and_changes_neither() -> None:
    model: Any = nn.Sequential(nn.Linear(1, 1, bias=False), nn.BatchNorm1d(1))
    with torch.no_grad():
        model[0].weight.fill_(1)
    average = MovingAverage(model)
    with torch.no_grad():
        model[0].weight.fill_(3)
        model[1].running_mean.fill_(10)
        model[1].num_batches_tracked.fill_(7)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    average.update(model, 0.75)
    own = average.average.state_dict()
    assert float(own["0.weight"]) == 1.5
    assert (float(own["1.running_mean"]), int(own["1.num_batches_tracked"])) == (2.5, 7)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any(each.requires_grad for each in average.parameters())


def test_frozen_layers_get_no_gradient_and_their_batchnorm_stays() -> None:
    model = build_model(settings(model="resnet18", freeze=("stem", "blocks.0")), noise(3, 32))
    free = {name for name, each in model.named_parameters() if each.requires_grad}
    assert not any(name.startswith(("stem.", "blocks.0.")) for name in free)
    assert {"blocks.1.convolutions.0.weight", "head.weight"} <= free
    train_mode(model, ("stem", "blocks.0"))
    norms = {
        n: each.training for n, each in model.named_modules() if isinstance(each, nn.BatchNorm2d)
    }
    assert {name: on for name, on in norms.items() if not on}.keys() == {
        "stem.1", "blocks.0.convolutions.1", "blocks.0.convolutions.4",
    }  # fmt: skip
    groups = parameter_groups(model, settings(model="resnet18"))
    assert sum(len(group["params"]) for group in groups) == len(free)
    train_mode(model, None)
    assert all(each.training for each in model.modules())


def test_the_backbone_is_all_but_the_last_layer() -> None:
    model = build_model(settings(model="cnn", freeze=("backbone",)), noise(3, 32))
    assert head_of(model) == "9"
    free = {name for name, each in model.named_parameters() if each.requires_grad}
    assert free == {"9.weight", "9.bias"}
    own = nn.ModuleDict(
        {"backbone": nn.Linear(2, 2), "middle": nn.Linear(2, 2), "head": nn.Linear(2, 1)}
    )
    freeze(own, ["backbone"])  # A layer of this name is meant.
    assert own["middle"].weight.requires_grad


def test_names_of_no_layer_are_told_with_what_there_is() -> None:
    data = noise(3, 32)
    for names, message in (
        (("stam",), "train.freeze: the model has no layer stam; did you mean stem?"),
        (("xyzzy",), "has no layer xyzzy; use one of stem, blocks, head"),
        (("block",), "has no layer block; did you mean blocks?"),
        (("stem", "blocks", "head"), "train.freeze: stem, blocks, head leaves nothing to train"),
    ):
        with pytest.raises(JobError, match=message):
            build_model(settings(model="resnet18", freeze=names), data)


def test_normalisation_has_its_own_weight_decay() -> None:
    model = build_model(settings(model="resnet18"), noise(3, 32))
    groups = parameter_groups(model, settings(model="resnet18", norm_weight_decay=0.02))
    by_decay = {group["weight_decay"]: group["params"] for group in groups}
    norms = [each for each in model.modules() if isinstance(each, nn.BatchNorm2d)]
    assert by_decay.keys() == {0.01, 0.02, 0.0}  # Of weights, of norms, of the head's bias.
    assert len(by_decay[0.02]) == 2 * len(norms)
    assert sum(each.numel() for each in by_decay[0.02]) == sum(2 * n.num_features for n in norms)


def test_the_rate_rises_from_its_start() -> None:
    def factor(step: int, start: float | None, length: float = 10) -> float:
        train = settings(warm_up=length, warm_up_start=start)
        samples = SimpleNamespace(train=range(100))
        run = SimpleNamespace(
            job=SimpleNamespace(train=train), data=samples, global_batch=1
        )  # fmt: skip
        return warm_up(cast("Run", run), Progress(0, step, step))

    assert factor(0, None) == 0.1
    assert factor(0, 0.2) == pytest.approx(0.28)
    assert factor(9, 0.2) == factor(50, 0.2) == 1
    assert factor(4, 0.2) == pytest.approx(0.6)
    assert factor(4, 0.2, 0.1) == pytest.approx(0.6)


def test_five_chances_are_counted_from_six_classes_on() -> None:
    draw = torch.Generator().manual_seed(0)
    scores, labels = torch.randn(50, 8, generator=draw), torch.randint(8, (50,), generator=draw)
    ranks = (scores > scores.gather(1, labels[:, None])).sum(dim=1)
    sums = classification_sums(scores, labels)
    assert int(sums["top5_accuracy"]) == int((ranks < 5).sum())
    assert int(sums["accuracy"]) == int((ranks == 0).sum())
    assert "top5_accuracy" not in classification_sums(scores[:, :5], labels % 5)
    assert "top5_accuracy" not in classification_sums(torch.randn(2, 8, 4), labels[:8].view(2, 4))


def test_classes_are_counted_over_all_ranks() -> None:
    ranks = [Counts() for _ in range(3)]
    scores = torch.eye(4)
    ranks[0].add(scores, torch.tensor([0, 1, 2, 2]))
    ranks[0].add(scores[:1], torch.tensor([1]))
    ranks[1].add(scores, torch.tensor([0, 0, 0, 0]))  # The third has no samples.
    gathered = [each._counts.tolist() if each._counts is not None else None for each in ranks]
    world = cast("Any", SimpleNamespace(gather=lambda _: gathered))
    found = ranks[0].combined(world)
    assert found == ByClass((5, 2, 2, 0), (2, 1, 1, 0))
    assert found.accuracy == (0.4, 0.5, 0.5, None)
    assert named_classes(("a", "b"), found) == {"a": (0.4, 5), "2": (0.5, 2), "b": (0.5, 2)}
    many = ByClass((1,) * 30, tuple(number % 2 for number in range(30)))
    assert len(named_classes((), many)) == 20


@pytest.mark.parametrize(
    ("samples", "correct", "says"),
    [
        ((5, 3), (5, 0), "5 of 8 test samples are right, and the answer cat to all .* for 5;"),
        ((0, 50, 50), (0, 0, 0), "0 of 100 .* the answer dog to all would be right for 50;"),
        ((5, 3), (5, 1), ""),
        ((5, 0), (4, 0), ""),  # The test has one class.
        ((), (), ""),
    ],
)
def test_a_model_that_has_learned_nothing_is_told(
    samples: tuple[int, ...], correct: tuple[int, ...], says: str
) -> None:
    found = untaught(("cat", "dog"), ByClass(samples, correct))
    assert re.search(says, found)
    assert bool(found) == bool(says)


def test_digits_have_figures_of_all_classes_on_any_number_of_ranks(tmp_path: Path) -> None:
    with hosts(tmp_path) as local:
        job = write_job(tmp_path, "digits", epochs=2, ema_decay=0.999)
        tasks = [local.agent(f"c{count}", job, local.rendezvous("1:1"), count) for count in (1, 3)]
        for task in tasks:
            assert task.wait() == 0, task.text
    for count, task in zip((1, 3), tasks, strict=True):
        first, last = task.of(events.Epoch)
        assert first.top5_accuracy is not None
        assert last.top5_accuracy is not None
        assert last.accuracy is not None
        assert last.accuracy <= last.top5_accuracy <= 1
        assert last.class_accuracy.keys() == {str(digit) for digit in range(10)}
        assert sum(last.class_samples.values()) == 360
        total = sum(share * last.class_samples[name] for name, share in last.class_accuracy.items())
        assert total / 360 == pytest.approx(last.accuracy)
        line = metrics(tmp_path / f"c{count}")[-1]
        assert line["metrics"]["top5_accuracy"] == pytest.approx(last.top5_accuracy)
        assert sum(line["by_class"]["samples"]) == 360
        assert sum(line["by_class"]["correct"]) / 360 == pytest.approx(last.accuracy)
        assert complete_steps(tmp_path / f"c{count}")
