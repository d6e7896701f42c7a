"""Tokens a second and the share of the GPUs' peak, from formula to events and kit's words."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from kit.runtime.status import Progress
from tests.trainer.small import noise
from trainer.contract.gpt import PRESETS, Gpt
from trainer.contract.gpus import SHEETS
from trainer.contract.job import Train
from trainer.core.gpt import GPT
from trainer.core.watch import Speed, own_peak, speed_of
from trainer.data.samples import DataSet, Samples

CUDA = torch.device("cuda")


@pytest.mark.parametrize("tied", [True, False])
def test_the_operations_follow_the_weights_that_multiply(tied: bool) -> None:
    size = Gpt(layers=3, heads=2, width=16, tied=tied)
    with torch.device("meta"):
        model = GPT(size, 100, 8)
    names = ("query_key_value", "attention_out", "hidden_in", "hidden_out")
    multiplied = sum(
        each.numel() for name, each in model.named_parameters() if name.split(".")[-2] in names
    )
    assert model.embedding
    scores = model.head.weight if model.head else model.embedding.weight
    multiplied += scores.numel()
    assert size.operations(100, 8) == 6 * multiplied + 12 * 3 * 16 * 8


def test_gpt2_takes_as_many_operations_as_nanogpt_counts() -> None:
    # nanoGPT's estimate_mfu: 6 N + 12 L H Q T, N without positions, but with norms.
    parameters = 124_337_664 - 1024 * 768
    expected = 6 * parameters + 12 * 12 * 768 * 1024
    assert PRESETS["gpt2"].operations(50257, 1024) == pytest.approx(expected, rel=0.01)


def test_samples_become_tokens_and_a_share_of_the_peak() -> None:
    assert Speed().figures(10) == {"tokens_per_second": None, "mfu": None}
    assert Speed(64).figures(10) == {"tokens_per_second": 640, "mfu": None}
    assert Speed(64, 1e9).figures(10)["mfu"] is None
    assert Speed(64, 1e9, 2e12).figures(10) == {"tokens_per_second": 640, "mfu": 0.32}
    assert Speed(64).figures(None) == {"tokens_per_second": None, "mfu": None}
    assert (Speed(64).unit, Speed(64).count(2)) == ("tokens/s", 128)
    assert (Speed().unit, Speed().count(2)) == ("images/s", 2)


@pytest.mark.parametrize(
    ("name", "precision", "expected"),
    [
        ("NVIDIA H100 80GB HBM3", "bf16", SHEETS["H100"].operations),
        ("NVIDIA A100-SXM4-80GB", "fp16", SHEETS["A100"].operations),
        ("NVIDIA H100 80GB HBM3", "fp32", 0),  # The table has half precision only.
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "bf16", 0),
        ("GeForce GTX 1080", "fp16", 0),
    ],
)
def test_the_peak_is_that_of_the_gpu(
    name: str, precision: str, expected: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: name)
    assert own_peak(CUDA, precision) == expected


@pytest.mark.parametrize(
    ("peaks", "expected"), [([989e12, 125e12], 1114e12), ([989e12, 0.0], 0), ([0.0], 0)]
)
def test_the_peak_is_summed_over_unequal_gpus(peaks: list[float], expected: float) -> None:
    world = cast(Any, SimpleNamespace(gather=lambda _: peaks, device=torch.device("cpu")))
    samples = Samples(torch.zeros(1, 8, dtype=torch.int64), torch.zeros(1, 8, dtype=torch.int64))
    data = DataSet(samples, samples, torch.zeros(1), torch.ones(1), 320)
    train = Train(dataset="text", path="a", model="gpt", context=8, epochs=1, batch_size=1)
    found = speed_of(world, train, data, "bf16")
    assert found == Speed(8, Gpt().operations(320, 8), expected)
    images = noise(1, 8)
    assert speed_of(world, train, images, "bf16") == Speed()


def test_people_read_the_speed_of_their_data() -> None:
    plain = Progress(1, 2, 3, 4, None, None, 1234.5)
    assert plain.speed == "1,234 images/s"
    text = Progress(1, 2, 3, 4, None, None, 10.0, tokens_per_second=20480.0)
    assert text.speed == "20,480 tokens/s"
    known = Progress(1, 2, 3, 4, None, None, 10.0, tokens_per_second=20480.0, mfu=0.4123)
    assert known.speed == "20,480 tokens/s, MFU 41.2%"
    assert Progress(1, 2, 3, 4, None, None, None).speed == ""
