"""The job file of the built-in training: what is accepted, and how a mistake is named."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.hosts import TRAIN, write_job
from trainer.config import Checkpoint, Exchange, JobError, Metrics, Train, load_job


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
            'digits or mnist or cifar10 or folder or text, is "imagenet"',
        ),
        ("train", "model", "vgg", 'cnn or lenet or resnet18 or airbench or gpt, is "vgg"'),
        ("train", "model", "lenet", "lenet is too deep for digits; use cnn"),
        ("train", "model", "resnet18", "resnet18 is too deep for digits; use cnn"),
        ("train", "epochs", 0, "a whole number of at least 1, is 0"),
        ("train", "epochs", 1.5, "a whole number, is 1.5"),
        ("train", "epochs", True, "a whole number, is true"),
        ("train", "batch_size", "64", 'a whole number, is "64"'),
        ("train", "accumulation", 0, "a whole number of at least 1, is 0"),
        ("train", "optimizer", "lion", 'sgd or adam or adamw, is "lion"'),
        ("train", "learning_rate", -1, "a number of at least 0, is -1"),
        ("train", "learning_rate", float("nan"), "a number of at least 0, is NaN"),
        ("train", "weight_decay", None, "a number, is null"),
        ("train", "schedule", "step", 'constant or cosine or triangle, is "step"'),
        ("train", "on_nan", "hope", 'stop or skip, is "hope"'),
        ("train", "seed", -1, "a whole number of at least 0, is -1"),
        ("train", "momentum", 0.9, "is not a key of the job file"),
        ("train", "model", "gpt", "gpt can not read digits; gpt reads text"),
        ("train", "ema", 1, "true or false, is 1"),
        ("train", "precision", "fp8", 'auto or fp32 or bf16 or fp16, is "fp8"'),
        ("train", "balance", True, "even or auto, is true"),
        ("exchange", "mode", "never", 'every_step or local_sgd or diloco, is "never"'),
        ("exchange", "every_steps", 0, "a whole number of at least 1, is 0"),
        ("exchange", "compression", "zip", 'none or fp16 or bf16 or powersgd, is "zip"'),
        ("exchange", "timeout", 0, "a whole number of at least 1, is 0"),
        ("metrics", "port", -1, "a whole number of at least 0, is -1"),
        ("metrics", "path", "/x", "is not a key of the job file"),
        ("checkpoint", "every_epochs", 0, "a whole number of at least 1, is 0"),
        ("checkpoint", "keep", 0, "a whole number of at least 1, is 0"),
        ("checkpoint", "shared", 1, "true or false, is 1"),
        ("checkpoint", "asynchronous", "yes", 'true or false, is "yes"'),
        ("checkpoint", "path", "/x", "is not a key of the job file"),
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
        ({"dataset": "folder"}, "train.path: must say where a folder or a text is"),
        ({"path": "x"}, "train.path: must say where a folder or a text is"),
        (
            {"dataset": "folder", "path": "x", "model": "lenet", "image_size": 64},
            "train.image_size: lenet takes images of 32",
        ),
        ({"dataset": "mnist", "model": "airbench"}, "airbench takes images in colour"),
        ({"static_graph": True, "accumulation": 2}, "exchange.static_graph: torch can not"),
        ({"mode": "diloco", "compression": "powersgd"}, "exchange.mode: diloco goes with neither"),
        ({"mode": "local_sgd", "ema": True}, "exchange.mode: local_sgd goes with neither"),
    ],
)
def test_what_does_not_go_together_is_named(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path = write_job(tmp_path, **changes)
    with pytest.raises(JobError, match=message):
        load_job(path)


@pytest.mark.parametrize("key", ["dataset", "model", "epochs", "batch_size", "learning_rate"])
def test_a_missing_key_is_named(key: str, tmp_path: Path) -> None:
    section = "train"
    path = write_job(tmp_path)
    content = json.loads(path.read_text())
    del content[section][key]
    path.write_text(json.dumps(content))
    with pytest.raises(JobError, match=rf"{section}\.{key}: is missing; it must be "):
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
