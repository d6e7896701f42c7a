"""Sizes and shapes of the models: their size decides what a gradient exchange costs."""

import pytest
import torch

from trainer.models import build_model, parameter_count


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
    ],
)
def test_size_and_shape(name: str, channels: int, side: int, count: int) -> None:
    model = build_model(name, channels, side)
    assert parameter_count(model) == count
    assert model(torch.zeros(2, channels, side, side)).shape == (2, 10)


def test_resnet18_halves_three_times() -> None:
    model = build_model("resnet18", 3, 32).eval()
    stem, blocks = model.get_submodule("stem"), model.get_submodule("blocks")
    features = stem(torch.zeros(1, 3, 32, 32))
    assert features.shape == (1, 64, 32, 32)
    assert blocks(features).shape == (1, 512, 4, 4)
