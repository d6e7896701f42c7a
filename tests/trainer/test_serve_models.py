"""From a checkpoint back to a model, and texts by a gpt; most of it in this very process."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.trainer.hosts import hosts
from tests.trainer.servers import Server, start
from trainer.checkpoints import format as checkpoint
from trainer.checkpoints.format import Progress, Saved
from trainer.checkpoints.manifest import UnusableError
from trainer.contract.job import Checkpoint, Exchange, Metrics, Train, TrainJob
from trainer.core.compute import Lookahead
from trainer.core.models import build_model, flip_scores
from trainer.data.load import CIFAR10
from trainer.data.pictures import View
from trainer.serve.kind import Kind
from trainer.serve.model import Content, Model, read_view, stand_in
from trainer.serve.text import choose

CPU = torch.device("cpu")
CHARACTERS = tuple("\n abcdeé€")


def training(dataset: str, model: str, **changes: Any) -> TrainJob:
    path = {"folder": "pets", "text": "words.txt"}.get(dataset, "")
    base = {"dataset": dataset, "model": model, "path": path, "epochs": 1, "batch_size": 1}
    train = Train(**{**base, "learning_rate": 0.1, "image_size": 32, "context": 8, **changes})
    return TrainJob("demo", train, Exchange(), Checkpoint(), Metrics())


def fresh(
    job: TrainJob, labels: tuple[str, ...], shape: tuple[int, ...]
) -> tuple[Saved, torch.nn.Module]:
    """A checkpoint of a model as it is before any training, and that model."""
    torch.manual_seed(1)
    kind = Kind(job.train.dataset, job.train.model, shape, labels, 255)
    model = build_model(job.train, stand_in(kind)).eval()
    state: dict[str, Any] = {"model": model.state_dict()}
    if job.train.ema:
        average = Lookahead(model)
        state = {"average": average.state_dict(), "model": dict.fromkeys(model.state_dict())}
    return checkpoint.pack(state, Progress(1, 0, 7), job, 1, 0.5, labels), model


PETS = ("cat", "dog", "hen")


@pytest.mark.parametrize(
    ("job", "labels", "shape"),
    [
        (training("mnist", "cnn"), tuple("0123456789"), (1, 28, 28)),
        (training("mnist", "lenet"), tuple("0123456789"), (1, 28, 28)),
        (training("cifar10", "resnet18"), CIFAR10, (3, 32, 32)),
        (training("cifar10", "airbench", ema=True, flip_at_test=True), CIFAR10, (3, 32, 32)),
        (training("folder", "resnet18", image_size=16), PETS, (3, 16, 16)),
    ],
    ids=lambda value: (
        f"{value.train.dataset}-{value.train.model}" if hasattr(value, "train") else ""
    ),
)
def test_a_model_comes_back_as_it_was(
    job: TrainJob, labels: tuple[str, ...], shape: tuple[int, ...]
) -> None:
    saved, original = fresh(job, labels, shape)
    content = Content(saved)
    assert (content.kind.shape, content.kind.labels) == (shape, labels)
    model = Model(content, CPU)
    model.warm_up(3)
    images = torch.randint(0, 256, (4, *shape)).float()
    data = stand_in(content.kind)
    with torch.inference_mode():
        inputs = data.prepared(images)
        scores = flip_scores(original, inputs) if job.train.flip_at_test else original(inputs)
        expected = scores.softmax(dim=1)
    found = torch.from_numpy(model.scores(list(images.numpy())))
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-3)
    # In another batch a sample has the same scores.
    alone = torch.from_numpy(model.scores([images[2].numpy()]))
    torch.testing.assert_close(alone, expected[2:3], atol=1e-5, rtol=1e-3)


def changed(saved: Saved, change: Callable[[dict[str, Any]], Any]) -> Saved:
    manifest = json.loads(saved.manifest)
    change(manifest)
    return Saved(json.dumps(manifest).encode(), saved.state)


def test_checkpoints_from_before_labels_were_kept() -> None:
    def forget(manifest: dict[str, Any]) -> None:
        del manifest["serving"]

    cifar10, _ = fresh(training("cifar10", "lenet"), CIFAR10, (3, 32, 32))
    assert Content(changed(cifar10, forget)).kind.labels == CIFAR10
    pets, _ = fresh(training("folder", "lenet"), PETS, (3, 32, 32))
    assert Content(changed(pets, forget)).kind.labels == ("class 0", "class 1", "class 2")
    text, _ = fresh(training("text", "gpt"), CHARACTERS, (8,))
    with pytest.raises(UnusableError, match="does not say its characters"):
        Content(changed(text, forget))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda manifest: manifest["job"].update(model="resnet18"),
            "its weights are not resnet18's",
        ),
        (lambda manifest: manifest["job"].pop("dataset"), "not made by this trainer"),
        (lambda manifest: manifest["job"].update(ema=True), "not made by this trainer"),
    ],
)
def test_what_does_not_fit_is_unusable(change: Callable[[dict[str, Any]], Any], words: str) -> None:
    saved, _ = fresh(training("mnist", "cnn"), tuple("0123456789"), (1, 28, 28))
    with pytest.raises(UnusableError, match=words):
        Model(Content(changed(saved, change)), CPU)


def test_a_model_that_has_diverged_is_not_served() -> None:
    saved, _ = fresh(training("mnist", "cnn"), tuple("0123456789"), (1, 28, 28))
    state = saved.load()
    next(iter(state["model"].values())).fill_(float("nan"))
    job = training("mnist", "cnn")
    bad = checkpoint.pack(state, Progress(1, 0, 7), job, 1, 0.5, tuple("0123456789"))
    with pytest.raises(UnusableError, match="not numbers"):
        Model(Content(bad), CPU).warm_up(1)


def test_texts_of_any_length_share_a_batch() -> None:
    saved, original = fresh(training("text", "gpt"), CHARACTERS, (8,))
    model = Model(Content(saved), CPU)
    texts = [np.arange(length, dtype=np.int64) for length in (1, 5, 8)]
    found = model.scores(texts)
    for scores, text in zip(found, texts, strict=True):
        with torch.inference_mode():
            expected = original(torch.from_numpy(text)[None])[0, :, -1].numpy()
        np.testing.assert_allclose(scores, expected, atol=1e-4)


def test_characters_are_drawn_by_their_scores() -> None:
    scores, draw = np.array([0, np.log(3), -50], np.float32), np.random.default_rng(0)
    assert {choose(scores, 0, draw) for _ in range(9)} == {1}
    drawn = [choose(scores, 1, draw) for _ in range(400)]
    assert 0.65 < np.mean(drawn) < 0.85
    assert 2 not in drawn


def complete(server: Server, **body: Any) -> Any:
    answer = server.ask("POST", "/complete", json.dumps(body), "application/json")
    return answer.json if answer.status == 200 else (answer.status, answer.json["error"])


def test_a_server_goes_on_with_texts(tmp_path: Path) -> None:
    job = training("text", "gpt")
    saved, _ = fresh(job, CHARACTERS, (8,))
    checkpoint.write(tmp_path / "own", saved, job, 1)
    with hosts(tmp_path) as local:
        server = start(local, tmp_path / "own", job="demo")
        first, again, other = (
            complete(server, text="abé", characters=30, seed=seed) for seed in (1, 1, 2)
        )
        assert len(first["completion"]) == 30
        assert set(first["completion"]) <= set(CHARACTERS)
        assert first["completion"] == again["completion"] != other["completion"]
        assert first["checkpoint"]["step"] == 7
        greedy = {complete(server, text="a" * 20, temperature=0, characters=9)["completion"]}
        assert len(greedy) == 1
        assert len(complete(server, text="", characters=3)["completion"]) == 3
        assert complete(server, text="xa€z") == (422, 'text: the model has never seen "x", "z"')
        for key, value in (
            *(("text", 3), ("characters", 0), ("characters", 2001), ("characters", True)),
            *(("temperature", -1), ("temperature", "1"), ("seed", -1), ("seed", 0.5)),
        ):
            status, error = complete(server, **{"text": "a", key: value})
            assert (status, error.partition(":")[0]) == (422, key)
        assert complete(server, txt="a") == (422, '"txt": is no key of this request')
        # Half a character cannot be encoded, not even in an answer: the body is refused.
        status, error = complete(server, text="a\ud800")
        assert status == 400
        assert "surrogates not allowed" in error
        assert complete(server, text="a" * 70_000) == (413, "the text is too large")
        described = server.get("/openapi.json").json["paths"]["/complete"]["post"]["requestBody"]
        assert complete(server, **described["content"]["application/json"]["example"])["completion"]
        assert server.predict([[1]]).status == 404
        model = server.get("/model").json
        assert (model["kind"], model["classes"]) == ("text", list(CHARACTERS))
        assert server.metric("kit_serve_queue_length") == 0


@pytest.mark.parametrize(
    "view",
    [
        {"side": 10**8, "resize": 0, "interpolation": "bilinear"},
        {"side": 64, "resize": 10**8, "interpolation": "bilinear"},
        {"side": 64, "resize": 32, "interpolation": "bilinear"},
        {"side": 0, "resize": 32, "interpolation": "bilinear"},
        {"side": True, "resize": 0, "interpolation": "bilinear"},
        {"side": 64, "resize": 80, "interpolation": "../x"},
    ],
)
def test_a_checkpoint_cannot_ask_for_any_preparation(view: dict[str, Any]) -> None:
    with pytest.raises(UnusableError, match="its pictures cannot be prepared as "):
        read_view({"view": view}, View(32))
    assert read_view({"mean": [0]}, View(32)) == read_view(None, View(32)) == View(32)
    assert read_view({"view": {**view, **USUAL}}, View(32)) == View(64, 80, "bicubic")


USUAL = {"side": 64, "resize": 80, "interpolation": "bicubic"}
