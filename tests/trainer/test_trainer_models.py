"""Sizes, shapes and arithmetic of the models: the size determines the cost of an exchange."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.trainer.small import noise, settings
from trainer.contract.gpt import PRESETS, gpt_of
from trainer.core.compute import Lookahead
from trainer.core.gpt import GPT, rotate, rotations
from trainer.core.models import (
    Airbench,
    build_model,
    flip_scores,
    parameter_count,
    parameter_groups,
)
from trainer.data.load import load_data
from trainer.data.samples import DataSet, Samples


@pytest.mark.parametrize(
    ("name", "channels", "side", "count"),
    [
        ("cnn", 1, 8, 53_002),
        ("cnn", 1, 28, 421_642),
        ("cnn", 3, 32, 545_098),
        ("lenet", 1, 28, 61_706),
        ("lenet", 3, 32, 62_006),
        ("resnet18", 1, 28, 11_172_810),
        ("resnet18", 3, 32, 11_173_962),
        # The 1,972,792 of the original, less the weights of the whitening, 24 x 12, and BatchNorm.
        ("airbench", 3, 32, 1_971_352),
    ],
)
def test_size_and_shape(name: str, channels: int, side: int, count: int) -> None:
    model = build_model(settings(model=name), noise(channels, side))
    assert parameter_count(model) == count
    assert model(torch.zeros(2, channels, side, side)).shape == (2, 10)


@pytest.mark.parametrize("name", ["cnn", "lenet", "resnet18", "airbench"])
@pytest.mark.parametrize("side", [28, 33, 64])
def test_models_take_classes_and_sides_of_a_folder(name: str, side: int) -> None:
    model = build_model(settings(model=name), noise(3, side, classes=7, count=2))
    assert model(torch.zeros(2, 3, side, side)).shape == (2, 7)


def test_resnet18_halves_three_times() -> None:
    model = build_model(settings(model="resnet18"), noise(3, 32)).eval()
    stem, blocks = model.get_submodule("stem"), model.get_submodule("blocks")
    features = stem(torch.zeros(1, 3, 32, 32))
    assert features.shape == (1, 64, 32, 32)
    assert blocks(features).shape == (1, 512, 4, 4)


def text(tmp_path: Path, content: str, context: int) -> DataSet:
    (tmp_path / "text").write_text(content)
    return load_data(settings("text", path="text", context=context), tmp_path)


def test_gpt_has_the_size_of_nanogpts(tmp_path: Path) -> None:
    # The 65 characters of Tiny Shakespeare and its 64 positions: nanoGPT reports 0.80 M.
    assert parameter_count(GPT(PRESETS["characters"], classes=65, context=64)) == 804_096


@pytest.mark.parametrize("options", [{}, {"positions": "rotary"}, {"tied": False, "layers": 2}])
def test_parameters_of_a_gpt_are_known_from_its_options(options: dict[str, Any]) -> None:
    size = gpt_of(options)
    assert parameter_count(GPT(size, classes=65, context=16)) == size.parameters(65, 16)


def test_gpt2_has_the_published_size() -> None:
    # 124 M and 1.5 B, without the biases of the published weights.
    assert PRESETS["gpt2"].parameters(50_257, 1024) == 124_337_664
    assert PRESETS["gpt2-xl"].parameters(50_257, 1024) == 1_556_764_800


def test_rotary_positions_depend_on_distances_alone() -> None:
    torch.manual_seed(0)
    query, key = torch.randn(2, 1, 1, 1, 8)
    turned = rotations(20, 8, torch.device("cpu"))
    queries, keys = (rotate(each.expand(1, 1, 20, 8), *turned)[0, 0] for each in (query, key))
    products = queries @ keys.T
    for distance in (0, 1, 7):
        along = products.diagonal(distance)
        assert torch.allclose(along, along[:1].expand_as(along), atol=1e-5)
    assert not torch.allclose(products[0, 0], products[0, 7], atol=1e-3)


def test_recomputed_blocks_give_the_same_gradients() -> None:
    size = gpt_of({"layers": 2, "heads": 2, "width": 16, "positions": "rotary"})
    found = []
    for recompute in (False, True):
        torch.manual_seed(0)
        model = GPT(size, 10, 8, recompute=recompute)
        functional.cross_entropy(model(torch.arange(8)[None]), torch.arange(8)[None]).backward()  # type: ignore[no-untyped-call]
        found.append([each.grad for each in model.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_gpt_learns_a_text_that_repeats(tmp_path: Path) -> None:
    torch.manual_seed(0)
    train = settings("text", "gpt", context=16)
    data = text(tmp_path, "abcdefgh" * 200, 16)
    model = build_model(train, data)
    optimizer = torch.optim.AdamW(parameter_groups(model, train), lr=1e-3)
    windows, following = data.train.take(torch.arange(32), torch.device("cpu"))
    for _ in range(15):
        scores = model(windows)
        assert scores.shape == (32, 8, 16)
        loss = functional.cross_entropy(scores, following)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        for group in optimizer.param_groups:
            group["lr"] = 3e-3
        optimizer.step()
    inputs, labels = data.test.take(torch.arange(len(data.test)), torch.device("cpu"))
    right = (model(inputs).argmax(dim=1) == labels).float().mean()
    assert right > 0.9


def test_gpt_sees_nothing_of_what_comes(tmp_path: Path) -> None:
    model = build_model(settings(model="gpt"), text(tmp_path, "abcd" * 99, 8))
    first = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3]])
    other = torch.tensor([[0, 1, 2, 3, 0, 2, 1, 1]])
    changed = (model(first) - model(other)).abs().amax(dim=1)[0] > 1e-6
    assert changed.tolist() == [False] * 5 + [True] * 3


def test_gpt_begins_near_chance_with_smaller_outputs(tmp_path: Path) -> None:
    data = text(tmp_path, "abcdefgh" * 99, 8)
    model = build_model(settings(model="gpt"), data)
    inputs, labels = data.train.take(torch.arange(len(data.train)), torch.device("cpu"))
    loss = functional.cross_entropy(model(inputs), labels)
    assert float(loss.detach()) == pytest.approx(2.08, abs=0.3)
    inner, outer = (
        model.get_parameter(f"blocks.0.hidden_{end}.weight").detach() for end in ("in", "out")
    )
    assert float(inner.std()) == pytest.approx(0.02, rel=0.1)
    assert float(outer.std()) == pytest.approx(0.02 / 8**0.5, rel=0.1)


def smooth(count: int = 40) -> DataSet:
    """Images whose neighbouring pixels resemble each other, as in photographs."""
    coarse = torch.rand(count, 3, 8, 8, generator=torch.Generator().manual_seed(0)) * 255
    images = functional.interpolate(coarse, scale_factor=4, mode="bilinear").to(torch.uint8)
    samples = Samples(images, torch.zeros(count, dtype=torch.int64))
    values = torch.full((3, 1, 1), 127.0)
    return DataSet(samples, samples, values, values / 2, 10)


def test_airbench_whitens() -> None:
    data = smooth()
    model = Airbench(data)
    patches = functional.unfold(data.prepared(data.train.inputs), 2).transpose(1, 2).flatten(0, 1)
    before = torch.corrcoef(patches.T)
    assert float(before[0, 1]) > 0.5
    with torch.no_grad():
        values = model.whitening(data.prepared(data.train.inputs)).transpose(0, 1).flatten(1)
    torch.testing.assert_close(values[12:], -values[:12], atol=1e-3, rtol=1e-3)
    products = values[:12] @ values[:12].T / values.shape[1]
    off = products - torch.diag(products.diag())
    assert off.abs().max() < 1e-2
    # Those directions of which there is more than noise have the deviation 1.
    assert float(products.diag().max()) == pytest.approx(1, abs=0.02)


def test_airbench_starts_as_the_original_does() -> None:
    model = build_model(settings(model="airbench"), smooth())
    assert isinstance(model, Airbench)
    features = torch.randn(1, 24, 8, 8)
    torch.testing.assert_close(model.blocks[0](features)[:, :24], features)
    kinds = [type(each).__name__ for each in model.blocks][:8]
    group = ["Conv2d", "MaxPool2d", "BatchNorm2d", "GELU", "Conv2d", "Identity"]
    assert kinds == [*group, "BatchNorm2d", "GELU"]
    norms = [each for each in model.modules() if isinstance(each, nn.BatchNorm2d)]
    assert {(norm.momentum, norm.eps) for norm in norms} == {(0.4, 1e-12)}
    assert len(norms) == 6
    frozen = [name for name, each in model.named_parameters() if not each.requires_grad]
    assert "whitening.weight" in frozen
    assert len(frozen) == 7
    weight = model.get_parameter("blocks.8.weight")
    assert weight.is_contiguous(memory_format=torch.channels_last)
    scores = model(torch.zeros(2, 3, 32, 32))
    model.head.weight.data.mul_(9)
    torch.testing.assert_close(model(torch.zeros(2, 3, 32, 32)), scores * 9)


def test_most_models_have_two_groups_that_learn_alike() -> None:
    train = settings(model="resnet18")
    model = build_model(train, noise(3, 32))
    groups = parameter_groups(model, train)
    assert sum(len(group["params"]) for group in groups) == len(list(model.parameters()))
    assert [(group["lr"], group["scale"]) for group in groups] == [(0.1, 1)] * 2
    assert [group["weight_decay"] for group in groups] == [0.01, 0.0]


def test_airbenchs_norms_learn_faster_and_decay_alike() -> None:
    train = settings(model="airbench")
    model = build_model(train, smooth())
    slow, fast = parameter_groups(model, train)
    assert [parameter.shape for parameter in fast["params"]] == [(64,)] * 2 + [(256,)] * 4
    assert {len(parameter.shape) for parameter in slow["params"]} == {1, 2, 4}
    trained = sum(parameter.numel() for group in (slow, fast) for parameter in group["params"])
    assert trained == parameter_count(model)
    assert fast["lr"] == 64 * slow["lr"] == 64 * fast["scale"] * 0.1 / 64
    assert fast["lr"] * fast["weight_decay"] == pytest.approx(slow["lr"] * slow["weight_decay"])
    # The optimizer must accept keys that it does not know.
    torch.optim.SGD([slow, fast], lr=0.1, momentum=0.9, nesterov=True)


def test_lookahead_moves_both_ways() -> None:
    model = nn.Sequential(nn.Linear(1, 1), nn.BatchNorm1d(1))
    weight, mean = model.get_parameter("0.weight").data, model.get_buffer("1.running_mean")
    steps = model.get_buffer("1.num_batches_tracked")
    weight.fill_(1.0)
    ahead = Lookahead(model)
    weight.fill_(2.0)
    mean.fill_(8.0)
    steps.fill_(7)
    ahead.update(model, 0.75)
    assert (float(weight), float(mean), int(steps)) == (1.25, 2.0, 7)
    weight.fill_(3.25)
    saved = {name: value.clone() for name, value in ahead.state_dict().items()}
    ahead.update(model, 0.5)
    assert float(weight) == 2.25
    other = Lookahead(nn.Sequential(nn.Linear(1, 1), nn.BatchNorm1d(1)))
    other.load_state_dict(saved)
    weight.fill_(9.0)
    other.update(model, 1.0)
    assert float(weight) == 1.25
    assert Lookahead.decay(0.5) == pytest.approx(0.95**5 / 8)
    assert Lookahead.decay(1.0) == 1


def test_six_views_are_weighed() -> None:
    image = torch.rand(2, 1, 6, 6)

    class Corner(nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return images[:, 0, 2, 1:2]

    right = image[:, 0, 2, 4:5] + image[:, 0, 2, 1:2]
    shifted = image[:, 0, 1, 0:1] + image[:, 0, 1, 3:4] + image[:, 0, 3, 2:3] + image[:, 0, 3, 5:6]
    expected = right / 4 + shifted / 8
    torch.testing.assert_close(flip_scores(Corner(), image), expected)
