"""Checkpoints on one host, and a training that is interrupted, in this very process."""

import hashlib
import io
import json
import os
import pickle
import random
import shutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed
from torch.nn import functional

from tests.bench_saves import JOB, kill_saves, saved_state
from tests.trainer.hosts import complete_steps, metrics, write_job
from trainer.checkpoints import format as checkpoint
from trainer.checkpoints import manifest
from trainer.checkpoints.format import Progress, Saved
from trainer.contract.batch import rate_factor
from trainer.contract.job import TrainJob
from trainer.core.evaluation import evaluate
from trainer.core.job import load_job
from trainer.core.run import Run, Stop
from trainer.core.schedule import learning_rate
from trainer.core.session import train
from trainer.core.setup import set_up
from trainer.core.step import StepResult, train_step
from trainer.core.watch import Balance
from trainer.data.load import load_data
from trainer.data.samples import DataSet, Samples
from trainer.parallel.world import World, join_world


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    """This process as a world of one, without torchrun."""
    yield join_world({"KIT_HOST": "pc1"}, timedelta(seconds=60))
    distributed.destroy_process_group()


@pytest.fixture(autouse=True)
def _same_signals() -> Iterator[None]:
    """Trainings listen for SIGTERM; the tests' own process must not go on doing so."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def job(tmp_path: Path) -> TrainJob:
    return load_job(write_job(tmp_path))


def content(job: TrainJob, step: int) -> Saved:
    progress = Progress(step, 7, step)
    state = {"weights": torch.full((3,), step), "progress": vars(progress)}
    return checkpoint.pack(state | {"rng": [{"cpu": torch.get_rng_state()}]}, progress, job, 3)


def fill(folder: Path, job: TrainJob, *steps: int) -> None:
    for step in steps:
        checkpoint.write(folder, content(job, step), job, keep=9)


def found(folder: Path, job: TrainJob) -> tuple[int, list[str]]:
    """The newest step, and the warnings."""
    warnings: list[str] = []
    saved = checkpoint.newest(folder, job, warnings.append)
    return (saved.step if saved else checkpoint.NONE), warnings


def test_a_checkpoint_comes_back(job: TrainJob, tmp_path: Path) -> None:
    path = checkpoint.write(tmp_path / "deep" / "er", content(job, 123), job, keep=1)
    assert path.name == "step-00000123"
    assert sorted(each.name for each in path.iterdir()) == ["COMPLETE", "manifest.json", "state.pt"]
    manifest = json.loads((path / "manifest.json").read_text())
    assert (manifest["step"], manifest["epoch"], manifest["position"]) == (123, 123, 7)
    assert manifest["world_size"] == 3
    assert manifest["torch"] == torch.__version__
    assert manifest["job"]["name"] == "digits"
    assert manifest["files"]["state.pt"]["bytes"] == (path / "state.pt").stat().st_size
    saved = checkpoint.newest(path.parent, job, pytest.fail)
    assert saved is not None
    assert torch.equal(saved.load()["weights"], torch.full((3,), 123))


def test_the_newest_are_kept(job: TrainJob, tmp_path: Path) -> None:
    fill(tmp_path, job, 8, 9, 10, 11)
    checkpoint.write(tmp_path, content(job, 100), job, keep=3)
    assert complete_steps(tmp_path) == ["step-00000010", "step-00000011", "step-00000100"]


def test_the_best_is_kept_until_there_is_a_better_one(job: TrainJob, tmp_path: Path) -> None:
    def write(step: int, accuracy: float | None) -> list[str]:
        progress = Progress(step, 0, step)
        saved = checkpoint.pack({}, progress, job, 1, accuracy)
        checkpoint.write(tmp_path, saved, job, keep=1)
        return [name.lstrip("step-0") for name in complete_steps(tmp_path)]

    assert write(1, 0.5) == ["1"]
    assert write(2, None) == ["1", "2"]
    assert write(3, 0.6) == ["3"]
    assert write(4, 0.6) == ["3", "4"]
    assert write(5, 0.55) == ["3", "5"]
    assert write(6, 0.61) == ["6"]


def test_a_damaged_later_one_takes_nobodys_place(job: TrainJob, tmp_path: Path) -> None:
    fill(tmp_path, job, 10, 20)
    flipped(tmp_path / "step-00000020")
    checkpoint.write(tmp_path, content(job, 15), job, keep=1)
    assert found(tmp_path, job)[0] == 15
    assert complete_steps(tmp_path) == ["step-00000015", "step-00000020"]


def without_complete(path: Path) -> None:
    (path / "COMPLETE").unlink()


def truncated(path: Path) -> None:
    whole = (path / "state.pt").read_bytes()
    (path / "state.pt").write_bytes(whole[:-1])


def flipped(path: Path) -> None:
    whole = bytearray((path / "state.pt").read_bytes())
    whole[len(whole) // 2] ^= 1
    (path / "state.pt").write_bytes(whole)


def without_state(path: Path) -> None:
    (path / "state.pt").unlink()


def without_manifest(path: Path) -> None:
    (path / "manifest.json").write_text("{")


def of_another_step(path: Path) -> None:
    shutil.copytree(path.with_name("step-00000010"), path, dirs_exist_ok=True)


def with_manifest(**values: Any) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        manifest = json.loads((path / "manifest.json").read_text())
        (path / "manifest.json").write_text(json.dumps({**manifest, **values}))

    return damage


def nested(path: Path) -> None:
    (path / "manifest.json").write_text("[" * 100_000)


def with_a_link(path: Path) -> None:
    (path / "state.pt").unlink()
    (path / "state.pt").symlink_to("/dev/zero")


class Runs:
    """Pickled: makes a file where it is loaded."""

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, ("it-ran",)


def archived(state: object) -> bytes:
    file = io.BytesIO()
    torch.save(state, file)
    return file.getvalue()


def foreign(content: bytes) -> Callable[[Path], None]:
    """A state of other content, with the checksum that belongs to it."""

    def damage(path: Path) -> None:
        (path / "state.pt").write_bytes(content)
        about = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        with_manifest(files={"state.pt": about})(path)

    return damage


DAMAGES: list[tuple[Callable[[Path], None], str]] = [
    (without_complete, "it has no COMPLETE"),
    (truncated, "bytes of"),
    (flipped, "state.pt fails its checksum"),
    (without_state, "it cannot be read"),
    (without_manifest, "it cannot be read"),
    (of_another_step, "its manifest is of step-00000010"),
    (nested, "nested too deeply"),
    (with_manifest(step=float("inf")), "step is inf, not a whole number"),
    (with_manifest(files=[]), "files.state.pt.bytes is nothing"),
    (with_manifest(accuracy=float("nan")), "accuracy is nan, not a number of 0 to 1"),
    (with_manifest(job={"name": "../other"}), 'it belongs to another job, {"name": "../other"}'),
    (with_a_link, "it cannot be read"),
    (foreign(b"garbage"), "state.pt is not the state of a training ("),
    (foreign(pickle.dumps(Runs())), "state.pt is not the state of a training ("),
    (foreign(archived(Runs())), "state.pt is not the state of a training ("),
    (foreign(archived([1])), "state.pt is not the state of a training ("),
    (foreign(archived({"model": {}})), "not the state of a training (KeyError: 'progress')"),
    (foreign(archived({"progress": vars(Progress()), "rng": []})), "of a training after step 20"),
]


@pytest.mark.parametrize(("damage", "reason"), DAMAGES)
def test_what_is_damaged_is_passed_over_and_replaced(
    damage: Callable[[Path], None], reason: str, job: TrainJob, tmp_path: Path
) -> None:
    fill(tmp_path, job, 10, 20)
    damage(tmp_path / "step-00000020")
    step, warnings = found(tmp_path, job)
    assert step == 10
    assert len(warnings) == 1
    assert f"skips {tmp_path}/step-00000020: " in warnings[0]
    assert reason in warnings[0]
    fill(tmp_path, job, 20)
    assert found(tmp_path, job) == (20, [])
    assert not Path("it-ran").exists()


def test_a_damaged_one_stays_until_there_is_another(job: TrainJob, tmp_path: Path) -> None:
    for step in (20, 30):
        fill(tmp_path, job, step)
        foreign(b"%d" % step)(tmp_path / f"step-{step:08}")
        fill(tmp_path, job, step)
        (kept,) = tmp_path.glob("damaged-*")
        assert kept.name == f"damaged-step-{step:08}"
        assert (kept / "state.pt").read_bytes() == b"%d" % step


@pytest.mark.parametrize("left", ["COMPLETE", "manifest.json", "state.pt"])
def test_what_an_interrupted_deletion_leaves_is_deleted_later(
    left: str, job: TrainJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path, job, 10, 11)
    for name in {"COMPLETE", "manifest.json", "state.pt"} - {left}:
        (tmp_path / "step-00000010" / name).unlink()

    def killed(path: Path) -> None:
        raise KeyboardInterrupt(path)

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            checkpoint.remove(tmp_path / "step-00000011")
    (tmp_path / "step-by-step").mkdir()  # A folder of the user's own.
    fill(tmp_path, job, 12)
    assert {each.name for each in tmp_path.glob("step-*")} == {"step-00000012", "step-by-step"}


def test_what_is_of_another_job_is_passed_over_and_never_harmed(
    job: TrainJob, tmp_path: Path
) -> None:
    others = [
        load_job(write_job(tmp_path, name="other")),
        load_job(write_job(tmp_path, seed=1)),
        load_job(write_job(tmp_path, optimizer="adam")),
    ]
    for number, other in enumerate(others):
        fill(tmp_path, other, 20 + number)
    step, warnings = found(tmp_path, job)
    assert step == checkpoint.NONE
    assert len(warnings) == 3
    assert 'it belongs to another job, {"name": "other"' in warnings[2]
    checkpoint.write(tmp_path, content(job, 20), job, keep=1)
    assert found(tmp_path, job)[0] == 20
    assert complete_steps(tmp_path) == ["step-00000020", "step-00000021", "step-00000022"]
    assert json.loads((tmp_path / "of-other-step-00000020" / "manifest.json").read_text())


def test_an_interrupted_write_leaves_nothing_that_counts(
    job: TrainJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path, job, 10)

    def no_space(_: Path) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("trainer.store.files.sync", no_space)
        with pytest.raises(OSError, match="No space left"):
            fill(tmp_path, job, 20)
    assert found(tmp_path, job) == (10, [])
    fill(tmp_path, job, 20)
    assert sorted(each.name for each in tmp_path.glob("*step*")) == [
        "step-00000010",
        "step-00000020",
    ]


def start(job: TrainJob, world: World, folder: Path) -> Run:
    return set_up(job, world, load_data(job.train, folder), folder, 0.0)


def parameters(run: Run) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in run.model.state_dict().items()}


def sigterm_before_step(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Send SIGTERM to this process just before a run's step of that number, its last one."""
    done = []

    def counted(*arguments: Any) -> StepResult:
        done.append(number)
        if len(done) == number:
            signal.raise_signal(signal.SIGTERM)
        return train_step(*arguments)

    monkeypatch.setattr("trainer.core.epoch.train_step", counted)


def test_an_interrupted_training_ends_as_an_uninterrupted_one(
    world: World,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = load_job(write_job(tmp_path, epochs=3, batch_size=100))
    whole = start(job, world, tmp_path / "whole")
    assert train(whole, Stop()) == 0
    # 15 steps an epoch: inside the first, before the first step of the second, inside the last.
    for number, epoch, position in ((4, 0, 384), (11, 1, 0), (20, 2, 480)):
        with monkeypatch.context() as patch:
            sigterm_before_step(number, patch)
            assert train(start(job, world, tmp_path / "parts"), Stop()) == 0
        event = metrics(tmp_path / "parts")[-1]
        assert (event["event"], event["epoch"]) == ("stop", epoch)
        assert event["steps"] == 45
        assert f"epoch {epoch} + {position}, saved" in capsys.readouterr().out
    rest = start(job, world, tmp_path / "parts")
    assert train(rest, Stop()) == 0
    assert complete_steps(tmp_path / "parts")[-1] == "step-00000045"
    for name, value in parameters(whole).items():
        assert torch.equal(parameters(rest)[name], value), name
    again = start(job, world, tmp_path / "parts")
    assert train(again, Stop()) == 0
    assert "has done all of its 3 epochs: nothing to do" in capsys.readouterr().out


def test_accumulation_changes_nothing(world: World, tmp_path: Path) -> None:
    results = []
    for name, size, accumulation in (("plain", 96, 1), ("three", 32, 3), ("five", 32, 5)):
        path = write_job(tmp_path, name=name, epochs=1, batch_size=size, accumulation=accumulation)
        run = start(load_job(path), world, tmp_path / name)
        train(run, Stop())
        results.append(parameters(run))
    for name, value in results[0].items():
        torch.testing.assert_close(results[1][name], value, atol=1e-5, rtol=1e-4)
    assert not all(
        torch.allclose(results[2][name], value, atol=1e-3) for name, value in results[0].items()
    )


@pytest.mark.parametrize("changes", [{"optimizer": "adam", "learning_rate": 0.003}, {"seed": 7}])
def test_settings_matter_and_seeds_repeat(
    changes: dict[str, Any], world: World, tmp_path: Path
) -> None:
    outcomes = []
    for name, own in (("first", changes), ("again", changes), ("plain", {})):
        run = start(
            load_job(write_job(tmp_path, name=name, epochs=2, **own)), world, tmp_path / name
        )
        train(run, Stop())
        outcomes.append(parameters(run))
    assert all(torch.equal(outcomes[0][name], value) for name, value in outcomes[1].items())
    assert not all(torch.equal(outcomes[0][name], value) for name, value in outcomes[2].items())


def test_batchnorm_and_augmentation_train(world: World, tmp_path: Path) -> None:
    job = load_job(write_job(tmp_path, dataset="cifar10", model="resnet18", epochs=2, batch_size=3))
    labels = torch.arange(8) % 10
    samples = Samples(torch.randint(0, 256, (8, 3, 32, 32), dtype=torch.uint8), labels)
    ones = torch.ones(3, 1, 1)
    data = DataSet(samples, samples, ones * 128, ones * 64, classes=10, padding=4)
    run = set_up(job, world, data, tmp_path, 0.0)
    before = parameters(run)
    assert train(run, Stop()) == 0
    assert all(not torch.equal(before[name], value) for name, value in parameters(run).items())
    assert [line["steps"] for line in metrics(tmp_path)] == [6, 6, 6, 6]
    resumed = set_up(job, world, data, tmp_path, 0.0)
    assert train(resumed, Stop()) == 0
    assert all(
        torch.equal(parameters(run)[name], value) for name, value in parameters(resumed).items()
    )


def test_the_rate_falls_with_the_share_that_is_done(job: TrainJob) -> None:
    rates = [learning_rate(job.train, done) for done in (0, 0.5, 1)]
    assert rates == pytest.approx([0.1, 0.05, 0.0])
    triangle = replace(job.train, schedule="triangle")
    assert [rate_factor(job.train, samples) for samples in (32, 96)] == [1, 1]
    train = replace(job.train, rate_batch=96)
    assert [rate_factor(train, samples) for samples in (48, 96, 192)] == [0.5, 1, 2]
    assert rate_factor(replace(train, optimizer="adamw"), 24) == 0.5
    rates = [learning_rate(triangle, done) for done in (0, 0.115, 0.23, 1)]
    assert rates == pytest.approx([0.02, 0.06, 0.1, 0.007])


def test_a_rank_without_samples_adds_nothing(world: World, job: TrainJob, tmp_path: Path) -> None:
    run = start(job, world, tmp_path)
    before = parameters(run)
    # Rounding gives the only sample of the step to the second of two ranks.
    first = replace(world, rank=0, size=2)
    lonely = replace(run, world=first, balance=Balance(first, run.watch, 2, auto=False))
    loss = train_step(lonely, Progress(), torch.tensor([5]), None, Stop()).loss
    assert float(loss) == 0
    gradients = [parameter.grad for parameter in run.model.parameters()]
    assert all(gradient is not None and not gradient.any() for gradient in gradients)
    # A step without gradients is the decay of the weights alone.
    for name, value in parameters(run).items():
        torch.testing.assert_close(value, before[name], atol=1e-3, rtol=1e-3)


def test_a_short_batch_counts_by_its_own_size(world: World, job: TrainJob, tmp_path: Path) -> None:
    run = start(job, world, tmp_path)
    batch = torch.arange(5)
    assert len(batch) < run.global_batch
    images, labels = run.data.train.inputs[batch], run.data.train.labels[batch]
    mean = functional.cross_entropy(run.model(run.data.prepared(images)), labels)
    expected = torch.autograd.grad(mean, list(run.model.parameters()))
    loss = train_step(run, Progress(), batch, None, Stop()).loss
    assert float(loss) == pytest.approx(5 * float(mean.detach()), rel=1e-4)
    for parameter, gradient in zip(run.model.parameters(), expected, strict=True):
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad, gradient, atol=1e-6, rtol=1e-4)


def test_evaluation_counts(world: World, job: TrainJob, tmp_path: Path) -> None:
    run = start(job, world, tmp_path)
    found = evaluate(run, run.data.test)
    images = run.data.prepared(run.data.test.inputs)
    with torch.no_grad():
        answers = run.model(images).argmax(dim=1)
    correct = int((answers == run.data.test.labels).sum())
    assert (found.samples, found.accuracy) == (360, correct / 360)


def test_a_manifest_says_what_serving_needs(job: TrainJob, tmp_path: Path) -> None:
    inputs = {"mean": [124.0], "deviation": [58.0], "side": 64}
    saved = checkpoint.pack({}, Progress(1, 0, 1), job, 1, 0.5, ("cat", "dog"), inputs)
    assert json.loads(saved.manifest)["serving"] == {
        "labels": ["cat", "dog"],
        "input": inputs,
        "precision": "auto",
        "flip_at_test": False,
    }
    # Nothing that makes it another job's: those from before have no such key, and are gone on from.
    older = {key: value for key, value in json.loads(saved.manifest).items() if key != "serving"}
    path = checkpoint.write(tmp_path, Saved(json.dumps(older).encode(), saved.state), job, 1)
    assert checkpoint.read(path, job).state == saved.state


def test_a_kill_in_the_middle_of_a_save_leaves_the_one_before(tmp_path: Path) -> None:
    found = kill_saves(tmp_path, 25, random.Random(1))
    assert found.kills == 25
    assert found.interrupted > 0
    checkpoint.write(tmp_path, saved_state(10**7), JOB, keep=2)
    assert len(list(tmp_path.glob("step-*"))) <= 2, "nothing is left of interrupted deletions"


def test_the_best_of_a_text_has_the_least_loss() -> None:
    """Its accuracy counts likeliest tokens alone."""

    def known(dataset: str, accuracy: float | None, loss: float | None) -> float | None:
        files = {"state.pt": {"bytes": 1, "sha256": "0" * 64}}
        job = {"name": "a", "dataset": dataset}
        content = {"step": 1, "epoch": 1, "accuracy": accuracy, "validation_loss": loss}
        return manifest.check({**content, "job": job, "files": files}).score

    assert [known("text", 0.9, 2.5), known("text", 0.9, None)] == [-2.5, 0.9]
    assert [known("digits", 0.9, 2.5), known("mine:data", None, 2.5)] == [0.9, -2.5]
    assert (known("digits", None, None), known("text", 0.9, 0.0)) == (None, 0.0)
    with pytest.raises(manifest.UnusableError, match="validation_loss is 'low', not a number"):
        known("text", 0.9, "low")  # type: ignore[arg-type]
