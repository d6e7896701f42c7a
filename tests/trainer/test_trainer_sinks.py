"""All sinks of a training write the same figures, each once."""

import json
import signal
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from torch import distributed

from tests.trainer.hosts import write_job
from trainer.checkpoints.format import Progress
from trainer.contract import event_lines, events
from trainer.contract.mark import MARK
from trainer.core.job import load_job
from trainer.core.report import begin_record, measure, place_of
from trainer.core.run import Run
from trainer.core.session import report
from trainer.core.setup import set_up
from trainer.data.load import load_data
from trainer.parallel.world import join_world
from trainer.record.telemetry import Evaluation, Trained


@pytest.fixture(params=[0, 1])
def run(request: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """A run that writes everything, as rank 0 or another."""
    monkeypatch.setenv("KIT_METRICS", str(tmp_path))
    before = signal.getsignal(signal.SIGTERM)
    world = replace(join_world({"KIT_HOST": "pc1"}, timedelta(seconds=60)), rank=request.param)
    job = load_job(write_job(tmp_path, tensorboard=True))
    yield set_up(job, world, load_data(job.train, tmp_path), tmp_path, 0.0)
    distributed.destroy_process_group()
    signal.signal(signal.SIGTERM, before)


def test_each_sink_has_an_epoch_once(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    progress, rank = Progress(1, 0, 45), run.world.rank
    begin_record(run, progress, place_of(run, progress))
    shares = {"data": 0.2, "compute": 0.7, "communication": 0.1}
    trained = Trained(0.5, 120.0, (7,), shares, {"rank 2": 1.5})
    figures = replace(
        measure(run, progress, trained), found=Evaluation(8, 0.25, {"accuracy": 0.75})
    )
    report(run, figures)
    run.recorder.close()

    metrics = json.loads((tmp_path / "rank-0.json").read_text())
    assert metrics["values"]["kit_train_validation_accuracy_ratio"] == 0.75
    assert metrics["ratios"] == {"data": 0.2, "compute": 0.7, "exchange": 0.1}
    [file] = tmp_path.glob("records/*/rank*.jsonl")
    records = [json.loads(line) for line in file.read_text().splitlines()]
    epochs = [line for line in records if line["record"] == "epoch"]
    printed = capsys.readouterr().out.splitlines()
    if rank != 0:
        assert (epochs, printed) == ([], [])
        assert not [*tmp_path.glob("metrics.jsonl"), *tmp_path.glob("tensorboard")]
        return
    [epoch], [event] = epochs, [each for each in map(event_lines.parse, printed) if each]
    [line] = map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())
    assert isinstance(event, events.Epoch)
    for found in (epoch, line, vars(event)):
        names = ("epoch", "step", "loss", "accuracy", "images_per_second")
        assert [found[name] for name in names] == [1, 45, 0.5, 0.75, 120.0]
    assert (event.exchange_share, line["shares"], epoch["skipped"]) == (0.1, shares, 1)
    [row, slow] = [each for each in printed if not each.startswith(MARK)]
    assert row.split()[1:4] == ["45", "0.5000", "0.7500"]
    assert slow.startswith("slow: rank 2 takes 1.5 times as long")
    [folder] = (tmp_path / "tensorboard").iterdir()
    board = EventAccumulator(str(folder))
    board.Reload()
    assert [(each.step, each.value) for each in board.Scalars("accuracy/validation")] == [
        (45, 0.75)
    ]
