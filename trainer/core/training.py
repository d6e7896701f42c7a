"""A training from its newest checkpoint to its last epoch."""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import replace

from trainer.checkpoints.layout import folder_name
from trainer.core.averages import Lookahead
from trainer.core.best import best_weights
from trainer.core.collapse import guessing, judge
from trainer.core.epoch import EpochResult, train_epoch
from trainer.core.evaluation import evaluate
from trainer.core.figures import append, measure, place_of
from trainer.core.live_state import resume_live
from trainer.core.recording import begin_record, record_epoch
from trainer.core.rehearsal import rehearse
from trainer.core.report import introduce, tell_end, tell_epoch, tell_group
from trainer.core.run import Run, Stop
from trainer.core.schedule import require_warm_up_fits
from trainer.core.speed import speed_of
from trainer.core.state import Resumed, resume, resume_own, save
from trainer.output import say, say_error
from trainer.record.telemetry import NOTHING, Figures

FAILURE = 1  # Exit code for work that failed; torchrun then restarts all workers.


def train(run: Run, stop: Stop) -> int | None:
    """Train from the newest state of any host to the last epoch; return the exit code.

    None: the ranks have left their group, to form another.
    """
    try:
        return train_epochs(run, stop)
    except Exception as error:
        run.recorder.failed(error)
        raise


def train_epochs(run: Run, stop: Stop) -> int | None:
    """Resume, and train each epoch; return the exit code, as `train` does."""
    live = resume_live(run) if run.world.generation else None
    resumed = Resumed(live) if live else resume(run)
    progress = resumed.progress
    place = place_of(run, progress)
    require_warm_up_fits(run, place.steps)
    run.announcer.speed = run.meter.speed = speed_of(
        run.world, run.job.train, run.data, run.precision
    )
    if live:
        run.announcer.go_on(place, run.age)
    else:
        run.announcer.begin(place)
    run.meter.begin(place)
    if progress.epoch >= run.job.train.epochs:
        if run.world.rank == 0:
            say(f"job {run.job.name} has done all of its {progress.epoch} epochs: nothing to do")
        return 0
    run.ranks.require_equal()
    stop.listen()
    if live:
        tell_group(run, progress)
    else:
        rehearse(run)
        resume_own(run, resumed)
        introduce(run, progress)
    run.learning.guess, run.learning.last = guessing(run), progress.step
    run.reached.progress, run.reached.generation = progress, run.world.generation
    begin_record(run, progress, place)
    while progress.epoch < run.job.train.epochs:
        epoch = train_epoch(run, progress, stop)
        progress = epoch.progress
        if progress.position == 0:
            finish_epoch(run, epoch)
            run.reached.progress, run.reached.time = progress, time.monotonic()
        if epoch.interrupted and progress.epoch < run.job.train.epochs:
            return interrupt(run, epoch, stop)
    return 0


def finish_epoch(run: Run, epoch: EpochResult) -> None:
    """Evaluate and, if a checkpoint is due, save; then report."""
    progress = epoch.progress
    last = progress.epoch == run.job.train.epochs
    if last and isinstance(run.average, Lookahead):
        run.average.update(run.model, run.average.decay(1))
    found = evaluate(run, run.data.measured)
    seconds = run.meter.evaluated()
    due = last or progress.epoch % run.job.checkpoint.every_epochs == 0
    if due:
        save(run, progress, found)
    if last:
        run.saver.wait()
        run.meter.waited()
    figures = measure(run, progress, epoch.trained)
    figures = replace(figures, found=found, seconds=seconds, saved=due)
    tests = last and run.data.validation is not None
    with best_weights(run, folder_name(progress.step)) if tests else nullcontext("") as best:
        test = evaluate(run, run.data.test) if best else NOTHING
        figures = replace(figures, best=best, test=test)
        report(run, figures)
    judge(run, progress, figures.trained.loss, found, saved=due)
    if last and run.world.rank == 0:
        append(run.checkpoints, "end", figures)
        tell_end(run, figures)


def report(run: Run, figures: Figures) -> None:
    """Give an epoch's figures to each sink; all ranks must call it."""
    run.meter.epoch(figures)
    record_epoch(run, figures)
    run.announcer.epoch(figures)
    if run.world.rank == 0:
        append(run.checkpoints, "epoch", figures)
        tell_epoch(run, figures)


def interrupt(run: Run, epoch: EpochResult, stop: Stop) -> int | None:
    """Save at the step at which the ranks agreed to stop; return the exit code, as `train` does."""
    progress = epoch.progress
    # A state that no rank has as a whole goes to the next group by a checkpoint.
    if run.ranks.holds_all and not stop.saves(run.world):
        run.recorder.note("stop", progress)
        run.recorder.close()
        return None
    save(run, progress)
    run.saver.wait()
    run.meter.waited()
    run.announcer.stopped(progress)
    run.recorder.note("stop", progress)
    run.recorder.close()
    if run.world.rank == 0:
        append(run.checkpoints, "stop", measure(run, progress, epoch.trained))
        say(f"stopped at step {progress.step}, epoch {progress.epoch} + {progress.position}, saved")
    if stop.goes_on:
        return None
    if stop.requested:
        return 0
    # Another host must end, but not this one: after exit code 0, torchrun would regard the job as
    # complete; after a failure, it restarts this host's workers with the remaining hosts.
    say_error("trainer: another host had to stop; this process ends to be started again")
    return FAILURE
