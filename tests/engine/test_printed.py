"""What is read from the trainer's lines is what the trainer prints."""

from __future__ import annotations

from pathlib import Path

import pytest

from kit.engine import LogLine
from kit.engine.printed import Printed, split
from tests.trainer.hosts import ROOT, hosts, metrics, write_job
from trainer.core.figures import Figures
from trainer.core.report import row

BEGIN = "job j: cnn of 9 parameters, compression none, 40 steps in 10 epochs"
OFTEN = """
import sys
from trainer import train
from trainer.core import live
live.LINE_EVERY = 0
sys.exit(train.main())
"""


def line(
    text: str, host: str = "pc1", time: float | None = None, rank: int | None = None
) -> LogLine:
    return LogLine("j", host, text, rank, time)


def told(*lines: LogLine | str) -> Printed:
    printed = Printed()
    for one in lines:
        printed.read(line(one) if isinstance(one, str) else one)
    return printed


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("[rank12]: hello", (12, "hello")),
        ("[rank0]: ", (0, "")),
        ("[rank0]:   epoch 1/2", (0, "  epoch 1/2")),
        ("[rank1]: [rank1]: Traceback", (1, "[rank1]: Traceback")),
        ("[RANK1] Epoch 2", (None, "[RANK1] Epoch 2")),
        ("plain", (None, "plain")),
        ("", (None, "")),
    ],
)
def test_the_rank_in_front_of_a_line(text: str, parts: tuple[int | None, str]) -> None:
    assert split(text) == parts


def test_a_training_is_read_as_it_is_printed(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    environ: dict[str, str | Path] = {"KIT_CHECKPOINTS": folder, "PYTHONPATH": ROOT}
    printed, clock = Printed(), 100.0
    with hosts(tmp_path) as local:
        for epochs in (2, 3):
            job = write_job(tmp_path, epochs=epochs, batch_size=512, keep=1)
            task = local.start("alone", ["-c", OFTEN], {**environ, "KIT_JOB": job})
            assert task.wait() == 0, task.text
            seen = []
            for text in task.text.splitlines():
                clock += 1
                printed.read(line(text, time=clock))
                seen.append(printed.progress)
            # Steps within an epoch are told too: three of them each.
            steps = {progress.step for progress in seen if progress is not None}
            assert steps == {2: {0, 1, 2, 3, 4, 5, 6}, 3: {0, 6, 7, 8, 9}}[epochs]
            known = metrics(folder)[-1]
            progress = printed.progress
            assert progress is not None
            for name in ("epoch", "epochs", "step", "steps"):
                assert getattr(progress, name) == known[name]
            assert progress.loss == pytest.approx(known["loss"], abs=1e-4)
            assert progress.accuracy == pytest.approx(known["accuracy"], abs=1e-4)
            assert progress.images_per_second == pytest.approx(known["images_per_second"], abs=1)
            assert progress.seconds_left == 0
            assert printed.checkpoint == f"step-{known['step']:08d}"
            assert printed.ranks == {"pc1": (0,)}


@pytest.mark.parametrize("loss", [0.5, float("nan"), float("inf")])
def test_a_row_of_any_width(loss: float) -> None:
    figures = Figures("epoch", 3, 1000, 1234567, 0, 4, 0.5, None, (), loss, 1e9, (), {"data": 1})
    progress = told(BEGIN, row(figures, 1e6)).progress
    assert progress is not None
    assert (progress.epoch, progress.step, progress.accuracy) == (3, 1234567, 0.5)
    assert (progress.loss, progress.images_per_second) == (0.5 if loss == 0.5 else None, 1e9)


def test_the_time_left_is_by_the_speed_since_the_start_or_the_resume() -> None:
    tick = "  epoch 6/10   0 %, step 20, loss 0.1000, 99 images/s"
    progress = told(line(BEGIN, time=100), line(tick, time=140)).progress
    assert progress is not None
    assert progress.seconds_left == 40
    resumed = line("goes on from step 10, epoch 2 + 0", time=100)
    progress = told(line(BEGIN, time=100), resumed, line(tick, time=140)).progress
    assert progress is not None
    assert (progress.epoch, progress.seconds_left) == (5, 80)
    assert told(BEGIN, tick).progress is not None


def test_lines_out_of_the_middle_say_how_many_steps_there_are() -> None:
    first, later = (
        f"  epoch 6/10 {share:3d} %, step {step}, loss 0.1000, 99 images/s"
        for share, step in ((0, 20), (50, 22))
    )
    progress = told(line(first, time=100), line(later, time=110)).progress
    assert progress is not None
    assert (progress.step, progress.steps, progress.epochs) == (22, 40, 10)
    assert progress.seconds_left == 90
    assert told("  epoch 1/10   0 %, step 1, loss 0.1000, 99 images/s").progress is None


def test_ranks_follow_the_last_world() -> None:
    def member(rank: int, size: int, local: int, host: str) -> LogLine:
        return line(f"rank {rank} of {size}, local rank {local} on {host}, cpu, x", host)

    three = [member(1, 3, 0, "b"), member(0, 3, 0, "a"), member(2, 3, 1, "b")]
    assert told(*three).ranks == {"a": (0,), "b": (1, 2)}
    # Host a is gone, then it is back behind b.
    two = [*three, member(0, 2, 0, "b"), member(1, 2, 1, "b")]
    assert told(*two).ranks == {"b": (0, 1)}
    again = [*two, member(2, 3, 0, "a"), member(1, 3, 1, "b"), member(0, 3, 0, "b")]
    assert told(*again).ranks == {"b": (0, 1), "a": (2,)}


def test_a_script_tells_its_ranks_by_the_prefix_alone() -> None:
    printed = told(line("hello", "a", rank=0), line("1/2 3 4 5 6", "b", rank=1))
    assert printed.ranks == {"a": (0,), "b": (1,)}
    assert (printed.progress, printed.checkpoint) == (None, None)


def test_a_stop_is_told() -> None:
    printed = told(BEGIN, "saved step-00000012", "stopped at step 12, epoch 3 + 96, saved")
    assert printed.progress is not None
    assert (printed.progress.epoch, printed.progress.step) == (3, 12)
    assert printed.checkpoint == "step-00000012"
