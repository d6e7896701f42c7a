"""The lab's stand-in and the real training, held to one contract by the same checks."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.hosts import (
    EventT,
    Hosts,
    Task,
    complete_steps,
    hosts,
    kill,
    metrics,
    wait_until,
    write_job,
)
from trainer.checkpoints.layout import MANIFEST, STATE, newest_step
from trainer.checkpoints.manifest import check, parse
from trainer.contract import events

STAND_IN = Path(__file__).resolve().parents[1] / "lab" / "stand_in" / "train.py"
PROGRAMS = {"real": ("-m", "trainer.train"), "stand-in": (str(STAND_IN),)}
NAMES = ("pc1", "pc2")


@dataclass
class Pair:
    """Two hosts of one and two processes, and the program that trains on them."""

    local: Hosts
    program: tuple[str, ...]
    tasks: tuple[Task, Task] = field(init=False)

    @property
    def folders(self) -> list[Path]:
        """The hosts' checkpoints."""
        return [self.local.folder / name for name in NAMES]

    def start(self, least: str, epochs: int) -> None:
        # A learning rate at which many steps do no harm.
        changes: dict[str, Any] = {"every_epochs": 1, "keep": 2, "learning_rate": 0.01}
        path = write_job(self.local.folder, epochs=epochs, **changes)
        self.tasks = self.local.pair(path, least, self.program, LAB_PACE="0.01")

    def newest(self, kind: type[EventT]) -> EventT:
        """The newest event of a kind."""
        return max((each for task in self.tasks for each in task.of(kind)), key=lambda e: e.time)

    def epoch(self) -> events.Epoch:
        """The newest epoch; one that has not begun before the first."""
        found = [events.Epoch(epoch=0, epochs=0, step=0, steps=0, world_size=0)]
        found += [each for task in self.tasks for each in task.of(events.Epoch)]
        return max(found, key=lambda each: each.time)


@pytest.fixture(params=PROGRAMS)
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pair]:
    with hosts(tmp_path) as local:
        yield Pair(local, PROGRAMS[request.param])


def test_a_training_keeps_its_contract_with_agent_and_kit(pair: Pair) -> None:
    begins(pair)
    before = pair.epoch().step
    loses_a_worker(pair)
    stopped = stops(pair)
    assert stopped.step > before
    resumes_without_a_disk(pair, stopped)


def begins(pair: Pair) -> None:
    """All ranks tell their places, and rank 0 how it goes."""
    pair.start("1:2", 9999)
    wait_until(lambda: pair.epoch().world_size == 3 and pair.epoch().epoch > 1, "three ranks")

    def ranks() -> list[int]:
        found = {
            (host, each.local_rank): each.rank
            for host, task in zip(NAMES, pair.tasks, strict=True)
            for each in task.of(events.Member)
        }
        return sorted(found.values())

    wait_until(lambda: ranks() == [0, 1, 2], "the places of all ranks")
    assert pair.newest(events.Begin).epochs == 9999
    epoch = pair.epoch()
    assert epoch.steps - epoch.step == (9999 - epoch.epoch) * 15
    assert epoch.accuracy
    assert epoch.checkpoint


def loses_a_worker(pair: Pair) -> None:
    """A worker that is killed comes back; the other processes go on meanwhile."""
    one, two = pair.tasks
    kill(two.workers(Path(pair.program[-1]).name)[0])
    before = pair.epoch().step  # Three ranks take no step from now on.
    wait_until(lambda: pair.epoch().step > before + 30, "the training to go on")
    wait_until(lambda: pair.epoch().world_size == 3, "the worker to be back")
    group = pair.newest(events.Regrouped)
    assert group.step >= before
    assert group.hosts == NAMES
    assert one.of(events.Member)[-1].restarts == 0
    assert "is restarted" in two.text


def stops(pair: Pair) -> events.Stopped:
    """Both hosts end as at `kit stop`; one that is told later may take some steps more."""
    for task in pair.tasks:
        task.process.send_signal(signal.SIGTERM)
    for task in pair.tasks:
        assert task.wait() == 128 + signal.SIGTERM
    stopped = pair.newest(events.Stopped)
    assert max(map(newest_step, pair.folders)) == stopped.step
    for folder in pair.folders:
        assert len(complete_steps(folder)) <= 3  # Of `keep`, and the best one.
        for path in folder.glob("step-*"):
            promise = check(parse((path / MANIFEST).read_bytes()))
            assert promise.job == "digits"
            assert promise.size == (path / STATE).stat().st_size
    assert metrics(*pair.folders)[-1]["event"] == "stop"
    return stopped


def resumes_without_a_disk(pair: Pair, stopped: events.Stopped) -> None:
    """A host that has lost its disk gets the checkpoint of the other; the job ends."""
    shutil.rmtree(min(pair.folders, key=newest_step))
    pair.start("2:2", stopped.epoch + 2)
    texts = [task.text for task in pair.tasks if task.wait()]
    assert texts == []
    resumed, last = pair.newest(events.Resumed), pair.epoch()
    assert (resumed.epoch, resumed.step) == (stopped.epoch, stopped.step)
    assert last.epoch == last.epochs == stopped.epoch + 2
    assert last.step == last.steps
    assert {newest_step(folder) for folder in pair.folders} == {last.step}
    said = "".join(task.text for task in pair.tasks)
    assert "resumes at step" in said
    assert "done: accuracy" in said
    line = metrics(*pair.folders)[-1]
    assert (line["event"], line["step"]) == ("end", last.step)
