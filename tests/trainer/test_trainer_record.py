"""The record of a run: what the ranks write beside the checkpoints."""

import base64
import json
import re
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kit.report.record import Run
from kit.report.record_lines import lines_of, read_run
from kit.report.run_view import event_rows
from kit.report.usage import Usage, usage_of
from tests.trainer.hosts import ENDLESS, PACE, ROOT, hosts, kill, wait_until, write_job
from trainer.contract import events
from trainer.record import files

Lines = list[dict[str, Any]]


def lines(folder: Path, rank: int) -> Lines:
    """The lines of a rank in the only record of a host."""
    [file] = folder.glob(f"records/*/rank{rank}.jsonl")
    return [json.loads(line) for line in file.read_text().splitlines()]


def of(found: Lines, record: str) -> Lines:
    return [line for line in found if line["record"] == record]


def test_every_rank_records_the_same_windows_of_steps(tmp_path: Path) -> None:
    with hosts(tmp_path) as local:
        job = write_job(tmp_path, epochs=2)
        for task in local.pair(job):
            assert task.wait() == 0, task.text
    found = [
        [json.loads(line) for line in file.read_text().splitlines()]
        for file in sorted(tmp_path.glob("pc*/records/*/rank*.jsonl"))
    ]
    assert len(found) == 3
    assert len({file.parent.name for file in tmp_path.glob("pc*/records/*/rank*.jsonl")}) == 1
    [first] = [each for each in found if each[0]["rank"] == 0]
    steps = [[line["step"] for line in of(each, "steps")] for each in found]
    assert steps[0] == steps[1] == steps[2] == list(range(1, 2 * 15 + 1))
    assert {line["attempt"] for each in found for line in of(each, "begin")} == {
        of(first, "begin")[0]["attempt"]
    }
    # The ranks' samples are those of the data set, and their mean loss is that of the epoch.
    samples = sum(line["samples"] for each in found for line in of(each, "steps"))
    assert samples == pytest.approx(2 * 1437)
    epoch = of(first, "epoch")[-1]
    own = [line for each in found for line in of(each, "steps") if line["step"] > 15]
    mean = sum(line["loss"] * line["samples"] for line in own) / sum(x["samples"] for x in own)
    assert mean == pytest.approx(epoch["loss"], rel=1e-3)
    assert epoch["validation_loss"] > 0
    # The kinds of work are the time of the steps; a busy machine delays single ones between them.
    for each in found:
        lines = of(each, "steps")[1:]
        kinds = sum(line["data"] + line["compute"] + line["communication"] for line in lines)
        assert kinds == pytest.approx(sum(line["seconds"] for line in lines), rel=0.02)
    assert [line["record"] for line in first if line["record"] not in {"begin", "steps"}] == [
        "saved",
        "epoch",
        "saved",
        "epoch",
        "end",
    ]


def test_predictions_are_those_of_the_test_samples(trained: Path) -> None:
    [file] = trained.glob("records/*/evaluation.json")
    found = json.loads(file.read_text())
    truth, predicted = (base64.b64decode(found[key]) for key in ("truth", "predicted"))
    right = sum(truth[n : n + 2] == predicted[n : n + 2] for n in range(0, len(truth), 2))
    accuracy = of(lines(trained, 0), "epoch")[-1]["accuracy"]
    assert right / (len(truth) // 2) == pytest.approx(accuracy)
    assert len(truth) // 2 == found["samples"] == 360
    wrong = [n for n in range(360) if truth[2 * n : 2 * n + 2] != predicted[2 * n : 2 * n + 2]]
    assert {str(number) for number in wrong} <= found["pictures"].keys()
    for content in found["pictures"].values():
        assert base64.b64decode(content).startswith(b"\x89PNG\r\n")
    assert file.stat().st_size < 100_000


def test_a_restart_continues_the_record_of_its_run(tmp_path: Path) -> None:
    since = time.time() - 3600
    with hosts(tmp_path) as local:
        job = write_job(tmp_path, epochs=60)
        environ = alone(tmp_path, job)
        # A job of the queue keeps its GPUs over a restart.
        environ |= {"KIT_OWNER": "anna", "KIT_PRIORITY": "50", "KIT_NPROC": "2"}
        environ |= {"KIT_SINCE": f"{since:.3f}", "KIT_WAITED": "12.5"}
        task = local.start("first", ["-m", "trainer.train"], {**environ, **PACE})
        task.expect("saved step-00000090")
        task.process.send_signal(signal.SIGKILL)
        task.wait()
        write_job(tmp_path, epochs=6)
        assert local.start("second", ["-m", "trainer.train"], environ).wait() == 0
    begins = of(lines(tmp_path / "n1", 0), "begin")
    assert [begin["step"] > 0 for begin in begins] == [False, True]
    assert begins[0]["attempt"] < begins[1]["attempt"]
    assert of(lines(tmp_path / "n1", 0), "end")
    run = read(tmp_path)
    used = usage_of(run)
    assert used is not None
    assert used.gpu_hours == pytest.approx(2 * (run.ended - since) / 3600, abs=0.001)
    assert replace(used, gpu_hours=0.0) == Usage("anna", 50, 12.5, 0.0)


def test_an_attempt_that_saved_nothing_is_of_the_same_run(tmp_path: Path) -> None:
    files.rank_file(tmp_path, "a", 0).parent.mkdir(parents=True)
    file = files.rank_file(tmp_path, "a", 0)
    files.append(file, [files.line("begin", {"job": {"name": "digits"}})])
    assert files.unfinished(tmp_path, {"name": "digits"}) == "a"
    assert files.unfinished(tmp_path, {"name": "other"}) is None
    files.append(file, [files.line("saved", {"step": 3})])
    assert files.unfinished(tmp_path, {"name": "digits"}) is None


def test_old_records_are_deleted(tmp_path: Path) -> None:
    for number in range(files.KEEP + 3):
        files.rank_file(tmp_path, f"run-{number:02}", 0).parent.mkdir(parents=True)
    files.prune(tmp_path)
    left = sorted(path.name for path in (tmp_path / files.FOLDER).iterdir())
    assert left == [f"run-{number:02}" for number in range(3, files.KEEP + 3)]


def test_a_full_disk_does_not_end_the_training(tmp_path: Path) -> None:
    with hosts(tmp_path) as local:
        (tmp_path / "n1").mkdir()
        (tmp_path / "n1" / "records").write_text("not a folder")
        task = local.start(
            "n1", ["-m", "trainer.train"], alone(tmp_path, write_job(tmp_path, epochs=1))
        )
        assert task.wait() == 0, task.text
    assert task.text.count("no record for kit report") == 1


def test_a_text_is_written_at_each_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("to be or not to be, that is the question\n" * 60)
    changes = {"dataset": "text", "path": "text.txt", "model": "gpt", "optimizer": "adamw"}
    job = write_job(tmp_path, epochs=2, batch_size=8, context=16, learning_rate=0.003, **changes)
    with hosts(tmp_path) as local:
        environ = {**alone(tmp_path, job), "KIT_DATA": tmp_path}
        task = local.start("n1", ["-m", "trainer.train"], environ)
        assert task.wait() == 0, task.text
    written = [line["text"] for line in of(lines(tmp_path / "n1", 0), "sample")]
    assert len(written) == 2
    assert all(len(text) == 240 and set(text) <= set("to be or not to be, that is the question\n")
               for text in written)  # fmt: skip


def test_tensorboard_reads_the_event_files(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with hosts(tmp_path) as local:
        job = write_job(tmp_path, epochs=2, tensorboard=True)
        task = local.start("n1", ["-m", "trainer.train"], alone(tmp_path, job))
        assert task.wait() == 0, task.text
    [folder] = (tmp_path / "n1" / "tensorboard").iterdir()
    found = EventAccumulator(str(folder))
    found.Reload()
    accuracies = [each.value for each in found.Scalars("accuracy/validation")]
    epochs = of(lines(tmp_path / "n1", 0), "epoch")
    assert accuracies == pytest.approx([epoch["accuracy"] for epoch in epochs])
    assert [each.step for each in found.Scalars("loss/train")] == list(range(1, 91))


def test_ranks_report_their_pace(tmp_path: Path) -> None:
    job = write_job(tmp_path, **ENDLESS)
    with hosts(tmp_path) as local:
        task = local.start("n1", ["-m", "trainer.train"], {**alone(tmp_path, job), **PACE})
        wait_until(lambda: bool(task.of(events.Pace)), "a pace")
    pace = task.of(events.Pace)[0]
    assert pace.rank == 0
    assert 0 < pace.compute_seconds <= pace.step_seconds * 1.2


def alone(folder: Path, job: Path) -> dict[str, str | Path]:
    """The variables of a training of one process."""
    return {"KIT_JOB": job, "KIT_CHECKPOINTS": folder / "n1", "PYTHONPATH": ROOT, "KIT_HOST": "n1"}


def read(folder: Path) -> Run:
    """The only run of all hosts below a folder, as `kit report` reads it."""
    ranks = [file.read_bytes() for file in folder.glob("*/records/*/rank*.jsonl")]
    found = read_run("run", "digits", [lines_of(each) for each in ranks], None)
    assert found is not None
    return found


def test_a_report_names_the_rank_that_was_killed(tmp_path: Path) -> None:
    job = write_job(tmp_path, **ENDLESS)
    with hosts(tmp_path) as local:
        first, second = local.pair(job, **PACE)
        second.expect("rank 2")
        wait_until(lambda: "saved step-" in first.text + second.text, "a checkpoint")
        pid = second.workers()[1]
        [local_rank] = re.findall(rb"LOCAL_RANK=(\d+)", Path(f"/proc/{pid}/environ").read_bytes())
        killed = 1 + int(local_rank)  # pc1 has rank 0.
        kill(pid)
        wait_until(lambda: bool(first.of(events.Regrouped)), "another group")
        told = f"rank {killed} on pc2 ended without a message: killed, or"
        wait_until(
            lambda: any(each.reason.startswith(told) for each in read(tmp_path).attempts),
            "the end of an attempt",
        )


def test_a_report_has_the_exception_that_ended_a_training(tmp_path: Path) -> None:
    with hosts(tmp_path) as local:
        environ = alone(tmp_path, write_job(tmp_path, epochs=9, learning_rate=1e30))
        assert local.start("n1", ["-m", "trainer.train"], environ).wait() != 0
    run = read(tmp_path)
    assert run.attempts[0].reason.startswith("rank 0 on n1: HaltError: the loss is not finite in")
    rows = [words for _, words, *_ in event_rows(run)]
    assert rows[-1] == f"interrupted: {run.attempts[0].reason}"
