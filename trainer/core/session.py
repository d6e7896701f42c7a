"""A training from its newest checkpoint to its last epoch, whose process group may change.

This process and its state in memory are kept when the group changes.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from torch import Tensor

from trainer.checkpoints.layout import folder_name
from trainer.checkpoints.newest import is_writer
from trainer.contract import events
from trainer.contract.job import TrainJob
from trainer.core.alike import describe as describe_host
from trainer.core.alike import require_alike
from trainer.core.compute import Lookahead
from trainer.core.divided import resume_live
from trainer.core.epoch import EpochResult, rehearse, train_epoch
from trainer.core.evaluation import best_weights, evaluate, guessing, judge
from trainer.core.report import (
    append,
    begin_record,
    introduce,
    measure,
    place_of,
    record_epoch,
    tell_end,
    tell_epoch,
    tell_group,
)
from trainer.core.run import Run, Stop
from trainer.core.schedule import require_warm_up_fits
from trainer.core.setup import move, set_up
from trainer.core.state import Resumed, resume, resume_own, save
from trainer.core.watch import speed_of
from trainer.data.samples import DataSet
from trainer.elastic.membership import Membership
from trainer.output import emit, say, say_error
from trainer.parallel.world import World, describe, form_world, is_lost_peer, leave_world
from trainer.record.telemetry import NOTHING, Figures

FAILURE = 1  # Exit code for work that failed; torchrun then restarts all workers.


def train(run: Run, stop: Stop) -> int | None:
    """Train from the newest state of any host to the last epoch; return the exit code.

    Return None if the ranks have left their group to form another.
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
    """Evaluate the model and, if a checkpoint is due, save it; then report."""
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
    # Save if no rank has the whole state in memory: the next group needs the checkpoint.
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


Act = Callable[[World], int | None]
"""Trains in a world; returns the exit code, or None if another group follows."""


def folder_of(environ: Mapping[str, str]) -> Path:
    """The folder of this host's checkpoints."""
    return Path(environ.get("KIT_CHECKPOINTS") or "/checkpoints")


class Leave(Stop):
    """The coordinator's request to leave the group after the present step."""

    goes_on = True

    def __init__(self, membership: Membership) -> None:
        self._membership = membership

    @property
    def requested(self) -> bool:  # type: ignore[override]
        """Whether the workers must leave."""
        return self._membership.asked

    def saves(self, world: World) -> bool:
        """Whether a host ends, so that all ranks must save first."""
        return any(world.gather(self._membership.saves))

    def listen(self) -> None:
        """Do nothing: the agent handles signals."""


class GoBackError(Exception):
    """The state in memory is not trusted: the next group resumes from a checkpoint."""


class Session:
    """This process's part in a training, from group to group."""

    def __init__(
        self,
        job: TrainJob,
        data: DataSet,
        weights: dict[str, Tensor] | None,
        started: float,
        membership: Membership,
    ) -> None:
        """`data` are on the CPU, `started` is time.monotonic() at the start of the process."""
        self._job, self._data, self._weights, self._started = job, data, weights, started
        self._membership = membership
        self._timeout = timedelta(seconds=job.exchange.timeout)
        self._run: Run | None = None
        self._distrusts = False  # Whether the state in memory is discarded until the next step.
        self._about: dict[str, Any] = {}
        self._began = started  # Start of the present change of groups.

    def run(self, work: Callable[[World, Act], int | None]) -> int:
        """Train in successive groups; return the exit code.

        `work` calls a function with a world, and ends the process after permanent failures.
        """
        self._prepare(work)
        while True:
            world = None
            try:
                world = self._membership.next_world(self._timeout)
                if world is None:
                    self._save_alone()
                    return 0
                code = work(world, self._train)
            except GoBackError as error:
                assert world
                say(f"resumes from a checkpoint: {error}")
                self._began, self._run, self._distrusts = self._last_step(), None, True
                self._membership.leave(world, broken=True)
                continue
            except RuntimeError as error:
                if not is_lost_peer(error):
                    raise
                self._began = self._last_step()
                if world is None:
                    self._membership.fail()
                else:
                    self._membership.leave(world, broken=True)
                continue
            self._began = self._last_step()
            self._membership.leave(world, done=code is not None)
            if code is not None:
                return code

    def _last_step(self) -> float:
        """The time of this process's last step: a hung peer is detected much later."""
        reached = self._run.reached if self._run else None
        return reached.time if reached and reached.time else time.monotonic()

    def _prepare(self, work: Callable[[World, Act], int | None]) -> None:
        """Run a step alone while others train, for imports, the CUDA context and compilation."""
        world = form_world(os.environ, self._timeout)
        if (code := work(world, self._rehearse)) is not None:
            sys.exit(code)  # The agent knows why.
        leave_world(None)

    def _rehearse(self, world: World) -> None:
        folder = folder_of(os.environ)
        self._about = describe_host(self._job, world.host, self._data, folder)
        if self._job.parallel.used:
            return  # One rank alone cannot have a divided model.
        self._run = set_up(self._job, world, self._data, folder, self._started, self._weights)
        rehearse(self._run)

    def _train(self, world: World) -> int | None:
        os.environ["RANK"] = str(world.rank)  # For messages.
        self._place(world)
        require_alike(world, self._about)
        began = self._began if self._run and self._run.reached.progress else self._started
        self._distrusts = self._distrusts and not (self._run and self._run.reached.progress)
        if any(world.gather(self._distrusts)):
            # Others may have left that group before they knew the reason: they go back, too.
            self._run, self._distrusts = None, True
        if self._run is None or not self._run.ranks.holds_all:
            # The state in memory depends on ranks that may be lost.
            folder = folder_of(os.environ)
            self._run = set_up(self._job, world, self._data, folder, began, self._weights)
        else:
            self._run = move(self._run, world, began)
        return train(self._run, Leave(self._membership))

    def _place(self, world: World) -> None:
        """Report this process's ranks to the launcher and, the first time, in the log."""
        gpus = tuple(uuid for uuid in os.environ.get("KIT_GPUS", "").split(",") if uuid)
        restarts = int(os.environ.get("TORCHELASTIC_RESTART_COUNT") or 0)
        rank, local, size = world.rank, world.local_rank, world.size
        member = events.Member(rank=rank, local_rank=local, world_size=size, restarts=restarts)
        emit(replace(member, gpus=gpus))
        if self._run is None or self._run.reached.progress is None:
            say(describe(world, os.environ))

    def _save_alone(self) -> None:
        """Save the state of the last group when this host ends, unless the group has saved it."""
        run = self._run
        if not run or not run.reached.progress or run.job.checkpoint.shared:
            return
        run.saver.wait()
        if not run.ranks.holds_all or run.saver.step == run.reached.progress.step:
            return
        alone = form_world(os.environ, self._timeout)
        if is_writer(self._job, alone):
            saved = move(run, alone, time.monotonic())
            save(saved, run.reached.progress)
            saved.saver.wait()
        leave_world(None)
