"""A training from its newest checkpoint to its last epoch."""

from __future__ import annotations

import time
from dataclasses import replace

from trainer.checkpoints.layout import folder_name
from trainer.core.averages import Lookahead
from trainer.core.best import best_weights
from trainer.core.by_class import named_classes
from trainer.core.collapse import guessing, judge
from trainer.core.epoch import EpochResult, train_epoch
from trainer.core.evaluation import Evaluation, evaluate
from trainer.core.figures import append, measure
from trainer.core.live_state import resume_live
from trainer.core.recording import begin_record, record_epoch
from trainer.core.rehearsal import rehearse
from trainer.core.report import introduce, tell_end, tell_epoch, tell_group
from trainer.core.run import Run, Stop
from trainer.core.schedule import require_warm_up_fits
from trainer.core.speed import speed_of
from trainer.core.state import Resumed, resume, resume_own, save
from trainer.core.task import TOP_ACCURACY
from trainer.output import say, say_error

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
    start = measure(run, "start", EpochResult(progress, interrupted=False))
    require_warm_up_fits(run, start.steps)
    run.announcer.speed = run.meter.speed = speed_of(
        run.world, run.job.train, run.data, run.precision
    )
    if live:
        run.announcer.go_on(progress, start.steps, run.age)
    else:
        run.announcer.begin(progress, start.steps)
    run.meter.begin(progress, start.steps, run.job.train.epochs)
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
        introduce(run, progress, start)
    run.learning.guess, run.learning.last = guessing(run), progress.step
    run.reached.progress, run.reached.generation = progress, run.world.generation
    begin_record(run, progress, start)
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
    """Evaluate, report and, if a checkpoint is due, save."""
    progress, settings = epoch.progress, run.job.train
    last = progress.epoch == settings.epochs
    if last and isinstance(run.average, Lookahead):
        run.average.update(run.model, run.average.decay(1))
    began = time.monotonic()
    found = evaluate(run, run.data.measured)
    seconds = time.monotonic() - began
    run.meter.validated(found.accuracy, found.loss)
    due = last or progress.epoch % run.job.checkpoint.every_epochs == 0
    if due:
        save(run, progress, found)
    if last:
        run.saver.wait()
        run.meter.waited()
    figures = measure(run, "epoch", epoch, found.accuracy)
    figures = replace(
        figures,
        validation_loss=found.loss,
        metrics=found.others,
        by_class=found.by_class,
        **run.announcer.speed.figures(figures.images_per_second),
    )
    run.meter.end_epoch(figures.shares, figures.mfu)
    tested = found
    if last and run.data.validation is not None:
        with best_weights(run, folder_name(progress.step)) as best:
            tested = evaluate(run, run.data.test)
            record_epoch(run, figures, progress, seconds, saved=due, tested=tested)
        figures = replace(figures, best=best, test=tested.figures)
    else:
        record_epoch(run, figures, progress, seconds, saved=due, tested=found if last else None)
    run.announcer.know_metrics(tested.accuracy, own_metrics(run, tested), top5_of(run, tested))
    told = (figures.loss, figures.images_per_second)
    by_class = named_classes(run.data.labels, tested.by_class)
    run.announcer.epoch(progress, *told, figures.shares.get("communication"), by_class)
    if run.world.rank == 0:
        tell_epoch(run, figures)
    judge(run, progress, figures.loss, found, saved=due)
    if last and run.world.rank == 0:
        tell_end(run, figures)


def own_metrics(run: Run, found: Evaluation) -> dict[str, float]:
    """Return what events have besides the accuracy: the other metrics, and the loss with them."""
    return {} if run.task.classifies and not run.data.text else {"loss": found.loss, **found.others}


def top5_of(run: Run, found: Evaluation) -> float | None:
    """Return the share of the samples whose class is among the five most probable ones."""
    return found.metrics.get(TOP_ACCURACY) if run.task.classifies else None


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
        append(run.checkpoints, measure(run, "stop", epoch))
        say(f"stopped at step {progress.step}, epoch {progress.epoch} + {progress.position}, saved")
    if stop.goes_on:
        return None
    if stop.requested:
        return 0
    # Another host must end, but not this one: after exit code 0, torchrun would regard the job as
    # complete; after a failure, it restarts this host's workers with the remaining hosts.
    say_error("trainer: another host had to stop; this process ends to be started again")
    return FAILURE
