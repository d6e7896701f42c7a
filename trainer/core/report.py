"""The training's lines for people: its beginning, a table of epochs, its end."""

from __future__ import annotations

import os
import statistics
import time
from dataclasses import replace

from trainer.checkpoints.format import Progress
from trainer.checkpoints.layout import folder_name
from trainer.contract.described import augmentations, how_it_steps
from trainer.core.figures import Figures, append
from trainer.core.run import Run
from trainer.core.speed import Speed
from trainer.data.samples import DataSet
from trainer.output import say

HEADER = "  epoch      step      loss  accuracy {:>10}  elapsed s  data/compute/exchange %"
OWN_HEADER = HEADER.replace("accuracy", "val loss")
"""Without an accuracy."""


def introduce(run: Run, progress: Progress, start: Figures) -> None:
    """Describe the training that begins, and its GPUs."""
    seen = dict(run.world.gather((run.world.host, os.environ.get("KIT_GPUS", ""))))
    if run.world.rank != 0:
        return
    train, exchange = run.job.train, run.job.exchange
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
        f"{start.steps} steps in {train.epochs} epochs"
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
    append(run.checkpoints, replace(start, gpus=gpus))


def tell_group(run: Run, progress: Progress) -> None:
    """Report that the training goes on in another group, and how long the change took."""
    if run.world.rank != 0:
        return
    size, hosts = run.world.size, ", ".join(dict.fromkeys(run.world.hosts))
    who = f"1 process on {hosts} goes on" if size == 1 else f"{size} processes on {hosts} go on"
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
    elapsed = time.monotonic() - run.started
    speed = run.announcer.speed
    append(run.checkpoints, figures)
    say(row(figures, elapsed, speed, classifies=run.task.classifies))
    told = figures.metrics | ({"mfu": figures.mfu} if figures.mfu else {})
    if told:
        say("  " + ", ".join(f"{name} {value:.6g}" for name, value in told.items()))
    for who, factor in figures.slow.items():
        say(f"slow: {who} works {factor} times as long as the others, who wait for it")
    if run.job.train.balance == "auto":
        say("batch: " + "/".join(f"{share * 100:.0f}" for share in figures.batch) + " % by rank")


def tell_end(run: Run, figures: Figures) -> None:
    """Report a training that is complete, with a summary to compare trainings by."""
    elapsed = time.monotonic() - run.started
    speed = run.announcer.speed
    if figures.test:
        words = ", ".join(f"{name} {value:.6g}" for name, value in figures.test.items())
        say(f"tested {figures.best}, the best of the validation, once: {words}")
        accuracy, loss = figures.test.get("accuracy"), figures.test.get("loss")
        figures = replace(figures, accuracy=accuracy, validation_loss=loss)
    append(run.checkpoints, replace(figures, event="end"))
    steps = -(-len(run.data.train) // run.global_batch)
    say(summary(figures, steps, elapsed, speed, classifies=run.task.classifies))
    busy = figures.shares["data"] + figures.shares["compute"]
    seconds = busy * len(run.data.train) / (figures.images_per_second or 1) / steps
    say(f"for kit plan: step_seconds: {seconds:.4g}, {run.parameters} parameters")
    stall = statistics.fmean(run.saver.stalls) * 1000
    say(f"checkpoints: training stood still for {stall:.1f} ms on each of the saves")
    where = run.checkpoints / (figures.best or folder_name(figures.step))
    say(f"done: {score(figures)}, checkpoint {where}, {elapsed:.1f} s")


def score(figures: Figures) -> str:
    """Return the accuracy or, without one, the loss on the test samples."""
    if figures.accuracy is None:
        return f"validation loss {figures.validation_loss:.6g}"
    return f"accuracy {figures.accuracy:.4f}"


def row(figures: Figures, elapsed: float, speed: Speed, *, classifies: bool = True) -> str:
    """One line of the table under `HEADER` or `OWN_HEADER`; `elapsed` in seconds."""
    found = figures.accuracy if classifies else figures.validation_loss
    shares = "/".join(f"{share * 100:.0f}" for share in figures.shares.values())
    return (
        f"{figures.epoch:4d}/{figures.epochs:<4d}{figures.step:8d}{figures.loss or 0:10.4f}"
        f"{found or 0:10.4f}{speed.count(figures.images_per_second or 0):11.0f}{elapsed:11.1f}"
        f"{shares:>24}"
    )


def summary(
    figures: Figures, steps: int, elapsed: float, speed: Speed, *, classifies: bool = True
) -> str:
    """A table to compare trainings by; `steps` of an epoch, `elapsed` in seconds."""
    name, found = ("accuracy", figures.accuracy)
    if not classifies:
        name, found = ("val loss", figures.validation_loss)
    return (
        f"processes  steps/epoch  elapsed s {speed.unit:>10}  {name}\n"
        f"{figures.world_size:9d}{steps:13d}{elapsed:11.1f}"
        f"{speed.count(figures.images_per_second or 0):11.0f}"
        f"{found or 0:10.4f}"
    )
