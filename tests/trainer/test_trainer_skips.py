"""A step that is skipped leaves everything as it was before it, in every exchange and precision."""

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.ports import free_port
from tests.trainer.hosts import ROOT, complete_steps, hosts, write_job
from tests.trainer.test_trainer_resume import LOCAL, differences

SCRIPT = Path(__file__).with_name("skips.py")
WAYS: dict[str, dict[str, Any]] = {
    "every_step": {"ema_decay": 0.9},
    "fp16": {"compression": "fp16"},
    "bf16": {"compression": "bf16"},
    "powersgd": {"compression": "powersgd", "warm_up_steps": 4},
    "local_sgd": {"mode": "local_sgd", **LOCAL},
    "diloco": {"mode": "diloco", **LOCAL},
    "overlap": {"mode": "diloco", **LOCAL, "overlap": True},
}
PRECISIONS = ("fp32", "fp16")
"""bf16 takes the way of fp32."""
FAULTS = ("loss", "gradient")
TRAIN = {"epochs": 1, "on_nan": "skip", "learning_rate": 0.02, "batch_size": 4}


CASES = [*itertools.product(FAULTS, WAYS, PRECISIONS)]
PAIRS = [
    case
    for case in CASES
    if (FAULTS.index(case[0]) + [*WAYS].index(case[1]) + PRECISIONS.index(case[2])) % 2 == 0
]
"""Each fault, each precision and each two of all three; `make test-long` has the rest."""
REST = [case for case in CASES if case not in PAIRS]


def name_of(fault: str, way: str, precision: str) -> str:
    return f"{fault}-{way}-{precision}"


def train(folder: Path, cases: list[tuple[str, str, str]]) -> Path:
    """Train with the faults of all cases, and without the step; return the folder."""
    arguments = []
    for fault, way, precision in dict.fromkeys(
        each for case in cases for each in (("left", *case[1:]), case)
    ):
        name = name_of(fault, way, precision)
        job = write_job(folder, name=name, precision=precision, **TRAIN, **WAYS[way])
        arguments.append(f"{fault}:{job}:{free_port()}")
    torchrun = ("-m", "torch.distributed.run", "--master-port", str(free_port()))
    with hosts(folder) as local:
        argv = [*torchrun, "--nproc-per-node", "2", str(SCRIPT), *arguments]
        task = local.start("skips", argv, {"PYTHONPATH": ROOT, "KIT_HOST": "pc1"})
        assert task.wait(900) == 0, task.text
    return folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("skips"), PAIRS)


@pytest.fixture(scope="module")
def trained_rest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("skips"), REST)


def state(folder: Path) -> dict[str, Any]:
    """What the last checkpoint has of weights, buffers and averages."""
    step = complete_steps(folder)[-1]
    found: dict[str, Any] = torch.load(folder / step / "state.pt", weights_only=True)
    return {name: found[name] for name in ("model", "progress")}


@pytest.mark.parametrize(("fault", "way", "precision"), PAIRS)
def test_a_skipped_step_changes_nothing(
    fault: str, way: str, precision: str, trained: Path
) -> None:
    check(fault, way, precision, trained)


@pytest.mark.long
@pytest.mark.parametrize(("fault", "way", "precision"), REST)
def test_a_skipped_step_changes_nothing_in_other_combinations(
    fault: str, way: str, precision: str, trained_rest: Path
) -> None:
    check(fault, way, precision, trained_rest)


def check(fault: str, way: str, precision: str, trained: Path) -> None:
    bad, left = (state(trained / name_of(each, way, precision)) for each in (fault, "left"))
    if (fault, precision) == ("gradient", "fp16"):
        # The scale is lower from here on, and small figures are rounded otherwise.
        for name, value in left["model"].items():
            torch.testing.assert_close(bad["model"][name], value, rtol=1e-3, atol=1e-4)
        return
    assert differences(left, bad) == []
