"""The job file of the built-in training: accepted values, and messages for mistakes."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.hosts import TRAIN, write_job
from trainer.contract.job import Checkpoint, Exchange, Metrics, Train
from trainer.core.job import JobError, load_job


def test_a_job_is_read_as_it_is_written(tmp_path: Path) -> None:
    path = write_job(tmp_path, learning_rate=1, keep=2, mode="diloco", port=9400)
    content = {**json.loads(path.read_text()), "generated": "by kit", "later": {"x": 1}}
    path.write_text(json.dumps(content))
    job = load_job(path)
    assert job.name == "digits"
    assert job.train == Train(**{**TRAIN, "learning_rate": 1.0})
    assert isinstance(job.train.learning_rate, float)
    assert (job.checkpoint, job.exchange, job.metrics) == (
        Checkpoint(keep=2),
        Exchange(mode="diloco"),
        Metrics(port=9400),
    )


@pytest.mark.parametrize(
    ("section", "key", "value", "message"),
    [
        (
            "train",
            "dataset",
            "imagenet",
            "use one of digits, mnist, fashion_mnist, cifar10, cif",
        ),
        ("train", "model", "vgg", "use one of cnn, lenet, resnet18, airbench, gpt"),
        ("train", "model", "lenet", "lenet needs larger images than the 8×8 of digits"),
        ("train", "model", "resnet18", "resnet18 needs larger images than the 8×8 of digits"),
        ("train", "epochs", 0, "0 is out of range; write a number of at least 1"),
        ("train", "epochs", 1.5, "1.5 is not a whole number; write for example `epochs: 10`"),
        ("train", "epochs", True, "true is not a whole number"),
        ("train", "batch_size", "64", "'64' is not a whole number"),
        ("train", "accumulation", 0, "0 is out of range"),
        ("train", "optimizer", "lion", "use one of sgd, adam, adamw"),
        ("train", "learning_rate", -1, "write a number of more than 0"),
        ("train", "learning_rate", float("nan"), "nan is not a number"),
        ("train", "label_smoothing", None, "nothing is not a number"),
        ("train", "schedule", "step", "use one of constant, cosine, triangle"),
        ("train", "on_nan", "hope", "use one of stop, skip"),
        ("train", "seed", -1, "write a number of at least 0"),
        ("train", "momentum", 0.9, "is not a known key"),
        ("train", "model", "gpt", "gpt is for text"),
        ("train", "ema", 1, "1 is not true or false"),
        ("train", "precision", "fp8", "use one of auto, fp32, bf16, fp16"),
        ("train", "balance", True, "true is not known; use one of even, auto"),
        ("exchange", "mode", "never", "use one of every_step, local_sgd, diloco"),
        ("exchange", "every_steps", 0, "write a number of at least 1"),
        ("exchange", "compression", "zip", "use one of none, fp16, bf16, powersgd"),
        ("exchange", "timeout", 0, "write a number of at least 1"),
        ("metrics", "port", -1, "write a number of at least 1024"),
        ("metrics", "path", "/x", "is not a known key"),
        ("checkpoint", "every_epochs", 0, "write a number of at least 1"),
        ("checkpoint", "keep", 0, "write a number of at least 1"),
        ("checkpoint", "shared", 1, "1 is not true or false"),
        ("checkpoint", "asynchronous", "yes", "'yes' is not true or false"),
        ("checkpoint", "path", "/x", "is not a known key"),
    ],
)
def test_a_wrong_value_is_named(
    section: str, key: str, value: Any, message: str, tmp_path: Path
) -> None:
    path = write_job(tmp_path)
    content = json.loads(path.read_text())
    content[section][key] = value
    path.write_text(json.dumps(content))
    with pytest.raises(JobError) as caught:
        load_job(path)
    assert str(caught.value).startswith(f"{path}: {section}.{key}: ")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dataset": "folder"}, "train.path: is missing"),
        ({"path": "x"}, "train.path: digits is found by its name"),
        (
            {"dataset": "folder", "path": "x", "model": "lenet", "image_size": 64},
            "train.model: lenet needs images of 32×32",
        ),
        ({"dataset": "mnist", "model": "airbench"}, "airbench needs colour images"),
        ({"static_graph": True, "accumulation": 2}, "exchange.static_graph: PyTorch cannot"),
        ({"static_graph": True, "global_batch": 192}, "it together with `global_batch`"),
        ({"global_batch": 192, "accumulation": 2}, "train.accumulation: `global_batch` determines"),
        ({"optimizer": "sgd", "beta2": 0.9}, "train.beta2: is for `optimizer: adamw`"),
        (
            {"schedule": "constant", "final_rate": 0.1},
            "train.final_rate: is for `schedule: cosine`",
        ),
        ({"rate_limit": 0.1}, "train.rate_limit: is for a rate that is scaled"),
        ({"sync_batch_norm": True, "mode": "diloco"}, "train.sync_batch_norm: is for replicas"),
        ({"mirror": True}, "train.mirror: is for cifar10, cifar100, folder, shards"),
        ({"skip_limit": 0.5}, "train.skip_limit: is for `on_nan: skip`"),
        (
            {"mode": "diloco", "compression": "powersgd"},
            "exchange.compression: powersgd",
        ),
        ({"mode": "local_sgd", "ema": True}, "train.ema: `ema` needs the same weights"),
    ],
)
def test_what_does_not_go_together_is_named(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path = write_job(tmp_path, **changes)
    with pytest.raises(JobError, match=message):
        load_job(path)


@pytest.mark.parametrize("key", ["dataset", "model", "epochs", "batch_size"])
def test_a_missing_key_is_named(key: str, tmp_path: Path) -> None:
    section = "train"
    path = write_job(tmp_path)
    content = json.loads(path.read_text())
    del content[section][key]
    path.write_text(json.dumps(content))
    with pytest.raises(JobError, match=rf"{section}\.{key}: is missing; add "):
        load_job(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not JSON"),
        ("3", "must be an object"),
        ('{"name": ""}', "name: must be a text of at least one character"),
        ('{"name": "x", "train": []}', "train: must be an object, is []"),
    ],
)
def test_a_wrong_file_is_named(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "job.json"
    with pytest.raises(JobError, match="No such file"):
        load_job(path)
    path.write_text(text)
    with pytest.raises(JobError) as caught:
        load_job(path)
    assert message in str(caught.value)


@pytest.mark.parametrize(("optimizer", "rate"), [("sgd", 0.1), ("adam", 0.006), ("adamw", 0.006)])
def test_the_rate_follows_the_optimizer_unless_it_is_written(
    optimizer: str, rate: float, tmp_path: Path
) -> None:
    path = write_job(tmp_path, optimizer=optimizer)
    assert load_job(path).train.learning_rate == TRAIN["learning_rate"]
    content = json.loads(path.read_text())
    del content["train"]["learning_rate"]
    path.write_text(json.dumps(content))
    assert load_job(path).train.learning_rate == rate
