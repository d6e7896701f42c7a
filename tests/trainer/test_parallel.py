"""Divided models: the same training as one process, for every division of 2 and 4 ranks.

Real processes with gloo. A small GPT, whose last step of an epoch has a smaller batch.
"""

import math
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.ports import free_port
from tests.trainer.hosts import ROOT, hosts, metrics, write_job
from trainer.contract.gpt import gpt_of
from trainer.contract.job import Parallel
from trainer.core.gpt import bounds
from trainer.parallel.grid import NAMES, Grid
from trainer.parallel.halt import HaltError

WAYS = Path(__file__).with_name("ways.py")
GPT = {
    "dataset": "text",
    "path": "words.txt",
    "model": "gpt",
    "context": 16,
    "options": {"layers": 4, "heads": 4, "width": 32, "tied": False, "positions": "rotary"},
    "optimizer": "adamw",
    "learning_rate": 0.003,
    "schedule": "constant",
    "clip_norm": 0.5,
    "activation_checkpointing": True,
}
GLOBAL_BATCH = 24
DIVISIONS = [
    dict(zip(NAMES, sizes, strict=True))
    for ranks in (2, 4)
    for sizes in (
        (data, pipeline, shard, ranks // (data * pipeline * shard))
        for data in (1, 2, 4)
        for pipeline in (1, 2, 4)
        for shard in (1, 2, 4)
        if ranks % (data * pipeline * shard) == 0
    )
]


def named(division: dict[str, int]) -> str:
    return "-".join(f"{name}{size}" for name, size in division.items() if size > 1)


def ranks_of(division: dict[str, int]) -> int:
    return math.prod(division.values())


SHORT = [each for each in DIVISIONS if named(each) == "shard2-tensor2"]
"""Two ways together; `make test-long` has all, and test_text_run.py each by itself."""
TURNS = [each for each in DIVISIONS if named(each) in {"pipeline2", "shard2"}]


def changes_of(division: dict[str, int]) -> dict[str, Any]:
    """The keys of a job that has the same global batch with any division."""
    steps = division["pipeline"]
    parts = division["data"] * division["shard"]
    sizes = {"batch_size": GLOBAL_BATCH // parts // steps, "accumulation": steps}
    return {**GPT, **sizes, **division}


def write_words(folder: Path) -> None:
    draw = random.Random(0)
    words = [draw.choice(("the", "cat", "sat", "on", "a", "mat")) for _ in range(500)]
    (folder / "words.txt").write_text(" ".join(words))


def run(folder: Path, ranks: int, jobs: list[tuple[Path, Path]]) -> str:
    """Train jobs, each with its folder of checkpoints, one after the other; return the output."""
    torchrun = ("-m", "torch.distributed.run", "--master-port", str(free_port()))
    many = [f"{job}:{free_port()}:{where}" for job, where in jobs]
    with hosts(folder) as local:
        argv = [*torchrun, "--nproc-per-node", str(ranks), str(WAYS), *many]
        paths = f"{ROOT}:{folder}"
        task = local.start(f"ranks{ranks}", argv, {"PYTHONPATH": paths, "KIT_DATA": folder})
        assert task.wait() == 0, task.text
        return task.text


def epochs_of(folder: Path) -> list[tuple[float, float]]:
    """The losses of an epoch on the training and the test samples."""
    lines = [line for line in metrics(folder) if line["event"] == "epoch"]
    return [(line["loss"], line["validation_loss"]) for line in lines]


def model_of(folder: Path) -> dict[str, torch.Tensor]:
    newest = max(folder.glob("step-*"))
    model: dict[str, torch.Tensor] = torch.load(newest / "state.pt", weights_only=True)["model"]
    return model


def train_all(folder: Path, divisions: list[dict[str, int]]) -> Path:
    """Train by one process, "plain", and by each division; return the folder."""
    write_words(folder)
    whole = write_job(folder, name="plain", epochs=2, **(GPT | {"batch_size": GLOBAL_BATCH}))
    run(folder, 1, [(whole, folder / "plain")])
    for ranks in sorted(set(map(ranks_of, divisions))):
        chosen = [each for each in divisions if ranks_of(each) == ranks]
        jobs = [write_job(folder, name=named(e), epochs=2, **changes_of(e)) for e in chosen]
        run(folder, ranks, [(job, folder / job.stem) for job in jobs])
    return folder


@pytest.mark.parametrize(
    "divisions", [SHORT, pytest.param(DIVISIONS, marks=pytest.mark.long)], ids=["short", "all"]
)
def test_a_divided_model_learns_as_a_whole_one(
    divisions: list[dict[str, int]], tmp_path: Path
) -> None:
    trained = train_all(tmp_path, divisions)
    plain, whole = epochs_of(trained / "plain"), model_of(trained / "plain")
    assert len(plain) == 2
    for name in map(named, divisions):
        found, model = epochs_of(trained / name), model_of(trained / name)
        assert [*sum(found, ())] == pytest.approx([*sum(plain, ())], rel=1e-4), name
        away = {
            key: float((model[key] - value).norm() / value.norm()) for key, value in whole.items()
        }
        assert max(away.values()) < 1e-3, (name, away)


@pytest.mark.parametrize(
    "divisions", [TURNS, pytest.param(DIVISIONS, marks=pytest.mark.long)], ids=["short", "all"]
)
def test_a_training_goes_on_with_other_divisions(
    divisions: list[dict[str, int]], tmp_path: Path
) -> None:
    write_words(tmp_path)
    plain = {**GPT, "batch_size": GLOBAL_BATCH}
    order = random.Random(1).sample(divisions, len(divisions))
    total = len(order) + 2
    whole = write_job(tmp_path, name="plain", epochs=total, **plain)
    run(tmp_path, 1, [(whole, tmp_path / "plain")])
    # One process first, then each division for an epoch, and one process at the end.
    whole.rename(tmp_path / "all.json")
    turns: list[tuple[int, dict[str, Any]]] = [(1, plain)]
    turns += [(ranks_of(each), changes_of(each)) for each in order] + [(1, plain)]
    for number, (ranks, changes) in enumerate(turns):
        job = write_job(tmp_path, name="plain", epochs=number + 1, **changes)
        text = run(tmp_path, ranks, [(job, tmp_path / "turns")])
        assert f"resumes at step {5 * number}" in text or number == 0, text
    expected, found = epochs_of(tmp_path / "plain"), epochs_of(tmp_path / "turns")
    assert [each[1] for each in found] == pytest.approx([each[1] for each in expected], rel=2e-3)


CONVOLUTIONS = """
import torch
from torch import nn

def build(settings):
    return nn.Sequential(
        nn.Conv2d(1, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU(),
        nn.Conv2d(64, 256, 3, bias=False), nn.BatchNorm2d(256), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 10),
    ).to(memory_format=torch.channels_last)
"""


def test_shards_of_ones_own_model_learn_as_replicas(tmp_path: Path) -> None:
    """A model with buffers, and with strides that shards cannot have."""
    (tmp_path / "mine.py").write_text(CONVOLUTIONS)
    changes: dict[str, Any] = {"model": "mine:build", "epochs": 1, "batch_size": 100}
    jobs = [
        write_job(tmp_path, name="whole", **changes),
        write_job(tmp_path, name="shards", shard=2, **changes),
    ]
    run(tmp_path, 2, [(job, tmp_path / job.stem) for job in jobs])
    expected, found = epochs_of(tmp_path / "whole"), epochs_of(tmp_path / "shards")
    assert [each[1] for each in found] == pytest.approx([each[1] for each in expected], rel=1e-3)
    parts = model_of(tmp_path / "shards")
    for name, value in model_of(tmp_path / "whole").items():
        # Convolutions round differently with other strides.
        assert (parts[name] - value).float().norm() <= 1e-2 * value.float().norm(), name


def test_the_grid_puts_tensor_ranks_side_by_side() -> None:
    wish = Parallel(shard=2, tensor=4, pipeline=2)
    grids = [Grid.of(wish, 32, rank) for rank in range(32)]
    assert grids[0].sizes == {"data": 2, "pipeline": 2, "shard": 2, "tensor": 4}
    for name, span in (("tensor", 4), ("shard", 8), ("pipeline", 16)):
        others = [each for each in NAMES if each != name]
        for start in range(0, 32, span):
            group = grids[start : start + span]
            alike = {tuple(each.place[other] for other in others) for each in group}
            assert len(alike) == span // grids[0].sizes[name]
    assert {each.data_rank for each in grids} == set(range(4))
    assert sum(each.counts for each in grids) == 4


def test_ranks_that_are_no_multiple_are_refused() -> None:
    with pytest.raises(HaltError, match="6 ranks are not a multiple of the 4"):
        Grid.of(Parallel(shard=4), 6, 0)
    with pytest.raises(HaltError, match="8 ranks are not the 4 x 4"):
        Grid.of(Parallel(shard=4, data=4), 8, 0)


@pytest.mark.parametrize(("layers", "stages"), [(4, 2), (5, 2), (7, 3), (12, 5), (4, 4)])
def test_stages_have_all_blocks_in_order(layers: int, stages: int) -> None:
    found = bounds(gpt_of({"layers": layers}), stages)
    assert [block for first, end in found for block in range(first, end)] == list(range(layers))
    sizes = [end - first for first, end in found]
    assert max(sizes) - min(sizes) <= 1
    assert stages == 2 or sizes[0] == min(sizes)
