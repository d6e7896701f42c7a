"""The lab's stand-in and the real training, held to one contract by the same checks."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.trainer.hosts import EventT, Task, complete_steps, hosts, metrics, wait_until, write_job
from trainer.checkpoints.layout import MANIFEST, STATE, newest_step
from trainer.checkpoints.manifest import check, parse
from trainer.contract import events

STAND_IN = Path(__file__).resolve().parents[1] / "lab" / "stand_in" / "train.py"
PROGRAMS = {"real": ("-m", "trainer.train"), "stand-in": (str(STAND_IN),)}


def newest(tasks: Iterable[Task], kind: type[EventT]) -> EventT | None:
    return max((e for task in tasks for e in task.of(kind)), key=lambda e: e.time, default=None)


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_training_keeps_its_contract_with_agent_and_kit(program: str, tmp_path: Path) -> None:
    words = PROGRAMS[program]
    # A learning rate at which many steps do no harm.
    endless = write_job(tmp_path, epochs=9999, every_epochs=1, keep=2, learning_rate=0.01)
    folders = (tmp_path / "pc1", tmp_path / "pc2")
    with hosts(tmp_path) as local:
        both = one, two = local.pair(endless, "1:2", words)
        name = Path(words[-1]).name

        def progress() -> events.Epoch:
            return newest(both, events.Epoch) or events.Epoch(
                epoch=0, epochs=0, step=0, steps=0, world_size=0
            )

        wait_until(lambda: progress().world_size == 3 and progress().epoch > 1, "three ranks")
        ranks = {
            (host, each.local_rank): each.rank
            for host, task in zip(("pc1", "pc2"), both, strict=True)
            for each in task.of(events.Member)
        }
        assert sorted(ranks.values()) == [0, 1, 2]
        begin = next(each for task in both for each in task.of(events.Begin))
        assert begin.epochs == 9999
        figures = progress()
        assert figures.steps - figures.step == (9999 - figures.epoch) * 15
        assert figures.accuracy
        assert figures.checkpoint

        # A worker that is killed comes back; the other processes go on meanwhile.
        before = progress().step
        os.kill(two.workers(name)[0], signal.SIGKILL)
        wait_until(lambda: progress().step > before + 30, "the training to go on")
        wait_until(lambda: progress().world_size == 3, "the worker to be back")
        group = newest(both, events.Regrouped)
        assert group
        assert group.step >= before
        assert group.hosts == ("pc1", "pc2")
        assert one.of(events.Member)[-1].restarts == 0
        assert "is started again" in two.text

        # Both hosts end as at `kit stop`; the one that is told later may take some steps more.
        for task in both:
            task.process.send_signal(signal.SIGTERM)
        for task in both:
            task.wait()
        stopped = newest(both, events.Stopped)
        assert stopped
        assert max(map(newest_step, folders)) == stopped.step
        assert min(map(newest_step, folders)) > before
        for folder in folders:
            assert len(complete_steps(folder)) <= 3  # Of `keep`, and the best one.
            for path in folder.glob("step-*"):
                promise = check(parse((path / MANIFEST).read_bytes()))
                assert promise.job == "digits"
                assert promise.size == (path / STATE).stat().st_size
        assert metrics(*folders)[-1]["event"] == "stop"

        # A host that has lost its disk gets the checkpoint of the other; the job ends.
        shutil.rmtree(min(folders, key=newest_step))
        job = write_job(
            tmp_path, epochs=stopped.epoch + 2, every_epochs=1, keep=2, learning_rate=0.01
        )
        both = one, two = local.pair(job, "2:2", words)
        assert [task.wait() for task in both] == [0, 0], one.text + two.text
        resumed = newest(both, events.Resumed)
        assert resumed
        assert (resumed.epoch, resumed.step) == (stopped.epoch, stopped.step)
        assert progress().epoch == progress().epochs == stopped.epoch + 2
        assert progress().step == progress().steps
        assert len({newest_step(folder) for folder in folders}) == 1
        assert "resumes at step" in one.text + two.text
        assert "done: accuracy" in one.text + two.text
        last = metrics(*folders)[-1]
        assert (last["event"], last["step"]) == ("end", progress().step)
