"""The output of a training: log lines, figures in metrics.jsonl, and the record of a run."""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from trainer.checkpoints.format import Progress
from trainer.checkpoints.layout import folder_name
from trainer.contract.described import augmentations, how_it_steps
from trainer.contract.own import is_own
from trainer.core.alike import sources_of_trainer
from trainer.core.evaluation import outputs_of
from trainer.core.run import Run
from trainer.data.samples import DataSet
from trainer.output import say
from trainer.record.predictions import predict
from trainer.record.telemetry import Evaluation, Figures, Place, Trained
from trainer.record.texts import write_text
from trainer.text.vocabulary import vocabulary_of


def place_of(run: Run, progress: Progress) -> Place:
    """Return the position in the whole job."""
    samples, batch, epochs = len(run.data.train), run.global_batch, run.job.train.epochs
    # The last step of an epoch may have a smaller batch.
    todo = (epochs - progress.epoch) * -(-samples // batch)
    if progress.position:
        todo += -(-(samples - progress.position) // batch) - -(-samples // batch)
    return Place(progress.epoch, epochs, progress.step, progress.step + todo, run.world.size)


def measure(run: Run, progress: Progress, trained: Trained | None = None) -> Figures:
    """The figures at a position, without those of an evaluation."""
    saver = run.saver
    stall = saver.stalls[-1] if saver.stalls and saver.step == progress.step else None
    shares = tuple(round(share, 4) for share in run.balance.shares)
    return Figures(place_of(run, progress), shares, stall, trained or Trained())


def append(
    folder: Path, event: str, figures: Figures, gpus: Mapping[str, list[str]] | None = None
) -> None:
    """Add a line to metrics.jsonl; `event` is start, epoch, stop or end.

    `gpus` are, at the start, the UUIDs of the GPUs that each host's container sees. If there is
    a validation, the figures are of its samples: only `test` and the end's accuracy and loss are of
    the test samples.
    """
    found, test = figures.found, figures.test.figures
    line: dict[str, Any] = {
        "time": round(time.time(), 3),  # In seconds since 1970.
        "event": event,
        **vars(figures.place),
        "accuracy": found.accuracy,
        "stall": figures.stall,
        "batch": figures.batch,
        **vars(figures.trained),
        "validation_loss": found.loss if found.samples else None,
        "metrics": found.others,
        "by_class": asdict(found.by_class),
        "best": figures.best,
        "test": test,
        "gpus": gpus or {},
    }
    if event == "end" and test:
        line |= {"accuracy": test.get("accuracy"), "validation_loss": test.get("loss")}
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "metrics.jsonl").open("a") as stream:
        stream.write(json.dumps(line) + "\n")


HEADER = "  epoch      step      loss  accuracy {:>10}  elapsed s  data/compute/exchange %"
OWN_HEADER = HEADER.replace("accuracy", "val loss")
"""Without an accuracy."""


def introduce(run: Run, progress: Progress) -> None:
    """Describe the training that begins, and its GPUs."""
    seen = dict(run.world.gather((run.world.host, os.environ.get("KIT_GPUS", ""))))
    if run.world.rank != 0:
        return
    train, exchange, start = run.job.train, run.job.exchange, measure(run, progress)
    numbers = f"{len(run.data.train):,} samples"
    if run.data.validation is not None:
        numbers = f"{len(run.data.train):,} and, to validate, {len(run.data.validation):,} samples"
    at_most = "at most " if train.global_batch else ""
    who = "replicas or shards" if run.job.parallel.used else "processes"
    sizes = f"{at_most}{train.batch_size} x {run.ranks.data_size} {who} x {run.micro_steps}"
    say(
        f"job {run.job.name}: {train.model} of {run.parameters:,} parameters, "
        f"{numbers} of {train.dataset}, global batch {run.global_batch} = "
        f"{sizes}, {run.precision}, exchange {exchange.mode}, compression {exchange.compression}, "
        f"{start.place.steps} steps in {train.epochs} epochs"
    )
    say(f"steps: {how_it_steps(train, run.global_batch)}")
    if changes := augmentations(train):
        say(f"training images are {changes}")
    if text := enlargement(run.data):
        say(text)
    if run.compiled:
        say(f"compiled to {run.compiled}")
    if progress.step:
        say(f"resumes at step {progress.step}, epoch {progress.epoch} + {progress.position}")
    header = HEADER if run.task.classifies else OWN_HEADER
    say(header.format(run.announcer.speed.unit))
    gpus = {host: uuids.split(",") for host, uuids in seen.items() if uuids}
    append(run.checkpoints, "start", start, gpus)


def tell_group(run: Run, progress: Progress) -> None:
    """Report that the training continues in another group, and how long the change took."""
    if run.world.rank != 0:
        return
    size, hosts = run.world.size, ", ".join(dict.fromkeys(run.world.hosts))
    who = (
        f"1 process on {hosts} continues" if size == 1 else f"{size} processes on {hosts} continue"
    )
    where = f"step {progress.step}, epoch {progress.epoch} + {progress.position}"
    why = f" ({run.world.why})" if run.world.why else ""
    say(f"{who} at {where}, after a pause of {run.age:.2f} s{why}")


def enlargement(data: DataSet) -> str:
    """Describe how images are enlarged to a model's inputs; "" if they are not."""
    channels, side, *_ = (*data.train.inputs.shape[1:], 0, 0)
    if not data.side or (channels, side) == (3, data.side):
        return ""
    repeated = ", their channel three times" if channels == 1 else ""
    inputs = f"3×{data.side}×{data.side}{repeated}"
    return f"images of {channels}×{side}×{side} become inputs of {inputs}"


def tell_epoch(run: Run, figures: Figures) -> None:
    """Report an epoch."""
    trained = figures.trained
    say(row(run, figures))
    told = figures.found.others | ({"mfu": trained.mfu} if trained.mfu else {})
    if told:
        say("  " + ", ".join(f"{name} {value:.6g}" for name, value in told.items()))
    for who, factor in trained.slow.items():
        say(f"slow: {who} takes {factor} times as long as the other ranks, which wait for it")
    if run.job.train.balance == "auto":
        say("batch: " + "/".join(f"{share * 100:.0f}" for share in figures.batch) + " % by rank")


def tell_end(run: Run, figures: Figures) -> None:
    """Report a complete training, with a summary for comparing trainings."""
    elapsed, trained = run.age, figures.trained
    if figures.best:
        words = ", ".join(f"{name} {value:.6g}" for name, value in figures.test.figures.items())
        say(f"tested {figures.best}, the best of the validation, once: {words}")
    steps = -(-len(run.data.train) // run.global_batch)
    say(summary(run, figures, steps, elapsed))
    busy = trained.shares["data"] + trained.shares["compute"]
    seconds = busy * len(run.data.train) / (trained.images_per_second or 1) / steps
    say(f"for kit plan: step_seconds: {seconds:.4g}, {run.parameters} parameters")
    stall = statistics.fmean(run.saver.stalls) * 1000
    say(f"checkpoints: a save paused the training for {stall:.1f} ms on average")
    where = run.checkpoints / (figures.best or folder_name(figures.place.step))
    say(f"done: {score(figures.newest)}, checkpoint {where}, {elapsed:.1f} s")


def score(found: Evaluation) -> str:
    """Return the accuracy or, without one, the loss."""
    if found.accuracy is None:
        return f"validation loss {found.loss:.6g}"
    return f"accuracy {found.accuracy:.4f}"


def shown(run: Run, found: Evaluation) -> float:
    """Return the figure of the tables: the accuracy, or the loss of a model that has none."""
    return (found.accuracy if run.task.classifies else found.loss) or 0.0


def row(run: Run, figures: Figures) -> str:
    """One line of the table under `HEADER` or `OWN_HEADER`."""
    place, trained = figures.place, figures.trained
    shares = "/".join(f"{share * 100:.0f}" for share in trained.shares.values())
    speed = run.announcer.speed.count(trained.images_per_second or 0)
    return (
        f"{place.epoch:4d}/{place.epochs:<4d}{place.step:8d}{trained.loss or 0:10.4f}"
        f"{shown(run, figures.found):10.4f}{speed:11.0f}{run.age:11.1f}{shares:>24}"
    )


def summary(run: Run, figures: Figures, steps: int, elapsed: float) -> str:
    """A table for comparing trainings; `steps` are those of an epoch, `elapsed` is in seconds."""
    name, speed = "accuracy" if run.task.classifies else "val loss", run.announcer.speed
    return (
        f"processes  steps/epoch  elapsed s {speed.unit:>10}  {name}\n"
        f"{figures.place.world_size:9d}{steps:13d}{elapsed:11.1f}"
        f"{speed.count(figures.trained.images_per_second or 0):11.0f}"
        f"{shown(run, figures.newest):10.4f}"
    )


def begin_record(run: Run, progress: Progress, place: Place) -> None:
    """Begin the record of this process's part of the run; all ranks must call it."""
    about = {
        "steps": place.steps,
        "epochs": place.epochs,
        "global_batch": run.global_batch,
        "parameters": run.parameters,
        "precision": run.precision,
        "trainer": sources_of_trainer(),
    }
    run.recorder.begin(progress, run.data, about, run.watch.read)


def record_epoch(run: Run, figures: Figures) -> None:
    """Record an epoch, a generated text if the model was saved, and at the end its predictions.

    All ranks must call it.
    """
    run.recorder.epoch(figures)
    place = figures.place
    text = run.data.text
    alone = not run.job.parallel.used  # One rank of a divided model cannot write by itself.
    if text and alone and not is_own(run.job.train.model) and figures.saved and run.world.rank == 0:
        train, data = run.job.train, run.data
        vocabulary = vocabulary_of(data.labels, data.tokenizer)
        written = write_text(run.tested, vocabulary, train.context, run.world.device)
        run.recorder.note("sample", place, text=written)
    if not place.last:
        return
    began = time.monotonic()
    if not text and run.task.classifies and not is_own(run.job.train.dataset):
        run.recorder.evaluation(predict(run.world, run.data, run.checkpoints, outputs_of(run)))
    run.recorder.note("end", place, evaluation=time.monotonic() - began)
    run.recorder.close()
