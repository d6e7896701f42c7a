"""Servers of models of one's own: what a checkpoint may name, inputs of numbers, answers."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.trainer.own import REGRESSION, train_job, use, write_module
from trainer.checkpoints import format as checkpoint
from trainer.checkpoints.format import Progress, Saved
from trainer.checkpoints.manifest import UnusableError
from trainer.core.models import build_model
from trainer.data.load import load_data
from trainer.serve.inputs import Limits, read_samples
from trainer.serve.kind import Kind
from trainer.serve.model import Content, Model
from trainer.serve.refusal import Refusal

CPU = torch.device("cpu")
OWN = "mine:build"


def saved(folder: Path, **changes: Any) -> tuple[Saved, torch.nn.Module]:
    """A checkpoint of a model of one's own before any training, and that model."""
    job = train_job(**changes)
    data = load_data(job.train, folder)
    model = build_model(job.train, data)
    about = (data.labels, data.preparation())
    state = {"model": model.state_dict()}
    return checkpoint.pack(state, Progress(1, 0, 7), job, 1, None, *about, loss=0.5), model


def changed(one: Saved, **values: Any) -> Saved:
    manifest = one.content
    for path, value in values.items():
        section, key = path.split("_")
        manifest[section][key] = value
    return Saved(json.dumps(manifest).encode(), one.state)


def test_the_server_builds_the_model_and_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, write_module(tmp_path))
    one, trained = saved(tmp_path, options={"width": 12})
    model = Model(Content(one, OWN), CPU)
    assert (model.kind.shape, model.kind.values, model.kind.answers) == ((5,), "float32", True)
    inputs = torch.randn(3, 5)
    model.warm_up(4)
    with torch.no_grad():
        wanted = trained(inputs)[:, 0].tolist()
    assert model.scores(list(inputs.numpy())) == pytest.approx(wanted)


def test_a_checkpoint_does_not_choose_what_a_server_imports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, write_module(tmp_path))
    one, _ = saved(tmp_path)
    ran = tmp_path / "ran"
    write_module(tmp_path, f"open({str(ran)!r}, 'w')\ndef build(s): ...\n", "other")
    forged = changed(one, job_model="other:build")
    for own in ("", OWN):
        with pytest.raises(UnusableError, match="its model is 'other:build', and this server's"):
            Content(forged, own)
    with pytest.raises(UnusableError, match="this server's job has none of its own"):
        Content(one)
    # The data are described in the checkpoint: their function is not called.
    Model(Content(changed(one, job_dataset="other:data"), OWN), CPU)
    assert not ran.exists()


@pytest.mark.parametrize(
    ("described", "says"),
    [
        ({"shape": [5], "type": "nothing"}, "its inputs are no single tensor of numbers"),
        ({"shape": [], "type": ""}, "its inputs are no single tensor of numbers"),
        ({"shape": [-5], "type": "float32"}, "its inputs are no single tensor of numbers"),
        ({"shape": [2**20, 2**20], "type": "float32"}, "is too large or empty"),
        ({"shape": [6], "type": "float32"}, "its weights are not mine:build's"),
        (None, "its inputs are no single tensor of numbers"),
    ],
)
def test_what_a_checkpoint_says_of_its_inputs_is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, described: Any, says: str
) -> None:
    use(monkeypatch, write_module(tmp_path))
    one, _ = saved(tmp_path)
    with pytest.raises(UnusableError, match=says):
        Model(Content(changed(one, serving_input=described), OWN), CPU)


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (
            REGRESSION.replace("def answer", "def reply"),
            r"mine.py:4: for a server, its module needs",
        ),
        (REGRESSION.replace("outputs[:, 0]\n", "1 / 0\n"), r"in answer: ZeroDivisionError"),
        (REGRESSION.replace("outputs[:, 0]\n", "[1.0]\n"), r"it returned 1 values for 4 samples"),
        (REGRESSION.replace("outputs[:, 0]\n", "[{1}] * len(outputs)\n"), r"TypeError: Object of"),
    ],
)
def test_a_fault_in_the_answers_is_found_before_they_are_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, says: str
) -> None:
    use(monkeypatch, write_module(tmp_path, code))
    one, _ = saved(tmp_path)

    def serve() -> None:
        Model(Content(one, OWN), CPU).warm_up(4)

    with pytest.raises(UnusableError, match=says):
        serve()


FLOATS = Kind("mine:data", OWN, (2, 3), (), 0, "float64", answers=True)
WHOLE = Kind("mine:data", OWN, (3,), (), 0, "int64", answers=True)
LIMITS = Limits(4, 10**6)


def read(content: Any, kind: Kind) -> Any:
    return read_samples(json.dumps(content).encode(), "application/json", kind, LIMITS)[0]


def test_inputs_are_arrays_of_the_shape_of_the_data() -> None:
    found = read({"inputs": [[[1, 2, 3], [-4, 500.5, 6]]]}, FLOATS)
    assert (found.shape, found.dtype) == ((1, 2, 3), np.float32)
    ids = read({"inputs": [[1, 2**40, 3]]}, WHOLE)
    assert (ids.dtype, ids.tolist()) == (np.int64, [[1, 2**40, 3]])


@pytest.mark.parametrize(
    ("content", "kind", "status", "says"),
    [
        ({"inputs": [[1, 2, 3]]}, FLOATS, 422, "inputs: is 1 x 3, not N x 2 x 3"),
        ({"inputs": [[[1, 2, 3]]]}, WHOLE, 422, "inputs: has more than 2 dimensions"),
        ({"inputs": [[1, 2.5, 3]]}, WHOLE, 422, "inputs: has fractions in it"),
        ({"inputs": [[1, "2", 3]]}, WHOLE, 422, "inputs: has something else than numbers"),
        ({"inputs": [[1, 10**30, 3]]}, WHOLE, 422, "inputs: "),
        ({"inputs": [[1, 2, 3]] * 5}, WHOLE, 413, "5 samples in one request"),
        ({"inputs": 3}, WHOLE, 422, "inputs: is single, not N x 3"),
        ({"inputs": []}, WHOLE, 422, "inputs: is empty"),
        ({"image": "AAAA"}, WHOLE, 422, "image: this model takes no pictures"),
    ],
)
def test_other_inputs_are_refused(content: Any, kind: Kind, status: int, says: str) -> None:
    with pytest.raises(Refusal) as caught:
        read(content, kind)
    assert caught.value.status == status
    assert caught.value.error.startswith(says)


def test_a_classifier_of_ones_own_on_pictures_answers_with_classes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = (
        "from torch import nn\n"
        "def build(s): return nn.Sequential(nn.Flatten(), nn.Linear(64, len(s.labels)))\n"
    )
    use(monkeypatch, write_module(tmp_path, code))
    one, _ = saved(tmp_path, dataset="digits")
    model = Model(Content(one, OWN), CPU)
    assert (model.kind.answers, model.kind.labels) == (False, tuple("0123456789"))
    model.warm_up(2)
    assert model.scores([np.zeros((1, 8, 8), np.float32)]).sum() == pytest.approx(1.0)
