"""A training whose group of processes changes: this process stays, and what it has trained too."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from torch import Tensor

from trainer.checkpoints.newest import is_writer
from trainer.contract import events
from trainer.contract.job import TrainJob
from trainer.core.alike import describe as describe_host
from trainer.core.alike import require_alike
from trainer.core.rehearsal import rehearse
from trainer.core.run import Run, Stop
from trainer.core.setup import move, set_up
from trainer.core.state import save
from trainer.core.training import train
from trainer.data.samples import DataSet
from trainer.elastic.membership import Membership
from trainer.output import emit, say
from trainer.parallel.world import (
    World,
    describe,
    form_world,
    is_lost_peer,
    leave_world,
)

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
        """Whether the workers shall leave."""
        return self._membership.asked

    def saves(self, world: World) -> bool:
        """Whether a host ends, so that all save before."""
        return any(world.gather(self._membership.saves))

    def listen(self) -> None:
        """Signals are the agent's."""


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
        self._distrusts = False  # The state in memory, until another one has been reached.
        self._about: dict[str, Any] = {}
        self._began = started  # Of the present change.

    def run(self, work: Callable[[World, Act], int | None]) -> int:
        """Train in one group after the other; return the exit code.

        `work` calls what it is given in a world, and ends the process at foreseeable failures.
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
                say(f"goes on from a checkpoint: {error}")
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
        """When this process took its last step: a peer that hangs is noticed a long time after."""
        reached = self._run.reached if self._run else None
        return reached.time if reached and reached.time else time.monotonic()

    def _prepare(self, work: Callable[[World, Act], int | None]) -> None:
        """Take a step alone, while others train: imports, the GPU's context and compilation."""
        world = form_world(os.environ, self._timeout)
        if (code := work(world, self._rehearse)) is not None:
            sys.exit(code)  # The agent knows why.
        leave_world(None)

    def _rehearse(self, world: World) -> None:
        folder = folder_of(os.environ)
        self._about = describe_host(self._job, world.host, self._data, folder)
        if self._job.parallel.used:
            return  # One rank alone can not have a divided model.
        self._run = set_up(self._job, world, self._data, folder, self._started, self._weights)
        rehearse(self._run)

    def _train(self, world: World) -> int | None:
        os.environ["RANK"] = str(world.rank)  # For messages.
        self._place(world)
        require_alike(world, self._about)
        began = self._began if self._run and self._run.reached.progress else self._started
        self._distrusts = self._distrusts and not (self._run and self._run.reached.progress)
        if any(world.gather(self._distrusts)):
            # Others may have seen the end of that group before they knew why: they go back, too.
            self._run, self._distrusts = None, True
        if self._run is None or not self._run.ranks.holds_all:
            # The state in memory depends on ranks that may be gone.
            folder = folder_of(os.environ)
            self._run = set_up(self._job, world, self._data, folder, began, self._weights)
        else:
            self._run = move(self._run, world, began)
        return train(self._run, Leave(self._membership))

    def _place(self, world: World) -> None:
        """Tell the launcher this process's place, and people too at the first time."""
        gpus = tuple(uuid for uuid in os.environ.get("KIT_GPUS", "").split(",") if uuid)
        restarts = int(os.environ.get("TORCHELASTIC_RESTART_COUNT") or 0)
        rank, local, size = world.rank, world.local_rank, world.size
        member = events.Member(rank=rank, local_rank=local, world_size=size, restarts=restarts)
        emit(replace(member, gpus=gpus))
        if self._run is None or self._run.reached.progress is None:
            say(describe(world, os.environ))

    def _save_alone(self) -> None:
        """When this host ends: save what the last group has reached, if that has not done it."""
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
