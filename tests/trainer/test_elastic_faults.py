"""Faults in a running training, whose processes stay: real processes on gloo, real signals."""

import json
import os
import random
import re
import signal
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.hosts import (
    ENDLESS,
    PACE,
    Hosts,
    Task,
    descendants,
    hosts,
    kill,
    kill_all,
    metrics,
    stop,
    wait_until,
    write_job,
)
from trainer.checkpoints.layout import newest_step
from trainer.contract.events import Begin, Epoch, Hung, Member, Regrouped, Resumed
from trainer.elastic import pulse

WITNESS = Path(__file__).with_name("witness.py")
FAULTY = Path(__file__).with_name("faulty.py")
SAMPLES = 1437
NAMES = ("n1", "n2", "n3")


@dataclass
class Cluster:
    """Three hosts that train, of which one is enough; and their coordinator."""

    local: Hosts
    job: Path
    nnodes: str = "1:3"
    spares: tuple[str, ...] = ()
    pace: str = "0.02"
    cold: str = ""
    """The host whose processes import PyTorch themselves: its agent's children are its workers."""
    endpoint: str = ""
    coordinator: Task | None = None
    hosts: dict[str, Task] = field(default_factory=dict)

    def start(self, *names: str) -> None:
        """Start hosts, and the coordinator if there is none."""
        if not self.endpoint:
            self.endpoint = self.local.rendezvous(self.nnodes, spares=len(self.spares))
            self.coordinator = self.local.tasks[-1]
        witness = self.local.folder / "witness"
        witness.mkdir(exist_ok=True)
        for name in names:
            self.local.cold = name == self.cold
            self.hosts[name] = self.local.agent(
                name,
                self.job,
                self.endpoint,
                1,
                program=[WITNESS],
                WITNESS=witness,
                PACE=self.pace,
                **({"KIT_SPARE": "1"} if name in self.spares else {}),
            )

    def pids(self, name: str) -> list[int]:
        """The agent and its workers."""
        task = self.hosts[name]
        return [task.process.pid, *descendants(task.process.pid)]

    def worker(self, name: str) -> int:
        """The process that trains on a host."""
        (found,) = self.hosts[name].workers("witness.py")
        return found

    def begins(self) -> list[Begin | Regrouped]:
        """The beginnings of all groups, in order."""
        tasks = self.local.tasks
        found: list[Begin | Regrouped] = []
        for task in tasks:
            found += [*task.of(Begin), *task.of(Regrouped)]
        return sorted(found, key=lambda begin: begin.time)

    def wait_for(self, size: int, after: int) -> None:
        """Wait until a group of so many processes has begun after so many others."""

        def there() -> bool:
            later = self.begins()[after:]
            return bool(later) and later[-1].world_size == size

        wait_until(there, f"a group of {size} after {after}, {self.begins()}")
        self.wait_for_epoch()

    def wait_for_epoch(self) -> None:
        """Wait until an epoch has ended from now on."""
        now = time.time()

        def later() -> bool:
            tasks = self.local.tasks
            return any(each.time > now for task in tasks for each in task.of(Epoch)[-1:])

        wait_until(later, "an epoch more")

    def end(self) -> None:
        """Stop all hosts that run; each ends well."""
        running = [task for task in self.hosts.values() if task.process.poll() is None]
        for task in running:
            task.process.terminate()
        for task in running:
            assert task.wait() == 128 + signal.SIGTERM, task.text

    def lines(self) -> Iterator[list[Any]]:
        """What the ranks have written down."""
        for file in (self.local.folder / "witness").iterdir():
            for line in file.read_text().splitlines(keepends=True):
                if line.endswith("\n"):  # A killed process may leave a part of one.
                    yield json.loads(line)

    def batches(self) -> dict[int, set[int]]:
        """The numbers of samples of the steps that were taken, by the size of their group."""
        taken: dict[tuple[int, ...], int] = defaultdict(int)
        done: set[tuple[int, ...]] = set()
        for what, generation, epoch, position, _, size, samples in self.lines():
            taken[size, generation, epoch, position] += len(samples)
            done |= {(size, generation, epoch, position)} if what == "has" else set()
        found: dict[int, set[int]] = defaultdict(set)
        for step in done:
            size, _, _, position = step
            found[size].add(SAMPLES if position + taken[step] == SAMPLES else taken[step])
        return found

    def check_samples(self) -> int:
        """Check that the last state has counted every sample of its epochs once.

        It is followed back from step to step; where two groups have taken a step from the same
        position, either may lead there. Return the number of steps.
        """
        taken: dict[tuple[int, int, int], list[int]] = defaultdict(list)
        done: set[tuple[int, int, int]] = set()
        for what, generation, epoch, position, _, _, samples in self.lines():
            taken[generation, epoch, position] += samples
            done |= {(generation, epoch, position)} if what == "has" else set()
        before: dict[tuple[int, int], list[tuple[int, int, int]]] = defaultdict(list)
        for step in done:
            _, epoch, position = step
            end = position + len(taken[step])
            before[(epoch + 1, 0) if end == SAMPLES else (epoch, end)].append(step)
        place, steps = max(before), 0
        found: dict[int, list[int]] = defaultdict(list)
        while place != (0, 0):
            assert before[place], f"no step leads to epoch {place[0]} + {place[1]}"
            step = max(before[place])
            found[step[1]] += taken[step]
            place, steps = step[1:], steps + 1
        for epoch in sorted(found)[:-1]:
            assert sorted(found[epoch]) == list(range(SAMPLES)), f"epoch {epoch}"
        assert len(set(found[max(found)])) == len(found[max(found)])
        return steps


@contextmanager
def three_hosts(folder: Path, *, cold: str = "") -> Iterator[Cluster]:
    """Three hosts that train."""
    with hosts(folder) as local:
        job = write_job(folder, **ENDLESS, every_epochs=5)
        found = Cluster(local, job, cold=cold)
        found.start(*NAMES)
        found.wait_for(3, 0)
        yield found


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with three_hosts(tmp_path) as found:
        yield found


def test_who_is_lost_or_silent_returns_and_nobody_else_is_started_anew(cluster: Cluster) -> None:
    """A worker, then the host of rank 0, then a host that stands still as without power."""
    workers, now = {name: cluster.worker(name) for name in NAMES}, len(cluster.begins())
    kill(workers.pop("n2"))
    cluster.wait_for(3, now)  # A group of two before it may be short.
    assert {name: cluster.worker(name) for name in workers} == workers

    def restarts() -> list[int]:
        return [cluster.hosts[name].of(Member)[-1].restarts for name in NAMES]

    wait_until(lambda: restarts() == [0, 1, 0], "a restart of n2 alone")

    now = len(cluster.begins())
    cluster.hosts["n1"].end()
    cluster.wait_for(2, now)
    told = [each for task in cluster.hosts.values() for each in task.of(Regrouped)]
    assert any(each.reason == "n1 is lost" for each in told)
    cluster.start("n1")
    cluster.wait_for(3, now + 1)

    workers, now = {name: cluster.worker(name) for name in NAMES}, len(cluster.begins())
    undo = stop(cluster.pids("n2"))
    cluster.wait_for(2, now)
    undo()
    cluster.wait_for(3, now + 1)
    assert {name: cluster.worker(name) for name in NAMES} == workers
    cluster.end()
    assert not any(task.of(Resumed) for task in cluster.local.tasks)  # From a checkpoint.
    cluster.check_samples()


def test_a_global_batch_is_kept_by_those_who_are_left(tmp_path: Path) -> None:
    with hosts(tmp_path) as local:
        train: dict[str, Any] = {
            "epochs": 9999,
            "every_epochs": 20,
            "batch_size": 16,
            "global_batch": 90,
        }
        cluster = Cluster(local, write_job(tmp_path, **train))
        cluster.start(*NAMES)
        cluster.wait_for(3, 0)
        cluster.hosts["n2"].end()
        cluster.wait_for(2, 1)
        cluster.end()
        found = cluster.batches()
        # One may be alone for a moment at the end.
        assert found.keys() - {1} == {2, 3}
        # The 16 steps of an epoch have as equally many samples as its number allows.
        assert set().union(*found.values()) - {SAMPLES} == {89, 90}
        cluster.check_samples()


@pytest.mark.long
def test_a_worker_that_is_silent_is_left_out_and_returns(tmp_path: Path) -> None:
    # An agent watches the process that it has started: there, it must be the one that is stopped.
    with three_hosts(tmp_path, cold="n2") as cluster:
        before = cluster.worker("n2")
        undo = stop([before])
        cluster.wait_for(2, 1)
        undo()
        cluster.wait_for(3, 2)
        assert cluster.worker("n2") == before
        cluster.end()
        cluster.check_samples()


def test_a_group_needs_no_coordinator_until_it_changes(cluster: Cluster) -> None:
    assert cluster.coordinator
    cluster.coordinator.end()
    begun = len(cluster.begins())
    cluster.wait_for_epoch()
    # A new one finds the group, and does not disturb it.
    new = cluster.local.serve(cluster.endpoint, cluster.nnodes)
    new.expect("found the running group")
    cluster.wait_for_epoch()
    assert len(cluster.begins()) == begun
    new.end()
    cluster.hosts["n3"].end()
    time.sleep(1)
    assert cluster.begins()[-1].world_size == 3
    cluster.local.serve(cluster.endpoint, cluster.nnodes)
    cluster.wait_for(2, begun)
    assert not any(task.of(Resumed) for task in cluster.hosts.values())
    cluster.end()
    cluster.check_samples()


def test_all_hosts_that_lose_their_power_resume_from_a_checkpoint(cluster: Cluster) -> None:
    folders = [cluster.local.folder / name for name in NAMES]
    wait_until(lambda: any(newest_step(folder) > 0 for folder in folders), "a checkpoint")
    for task in cluster.local.tasks:
        task.end()
    cluster.endpoint = ""
    cluster.start(*NAMES)
    wait_until(lambda: any(task.of(Resumed) for task in cluster.hosts.values()), "to resume")
    cluster.wait_for_epoch()
    cluster.end()
    assert max(line["epoch"] for line in metrics_of(cluster)) >= 6


def metrics_of(cluster: Cluster) -> list[dict[str, float]]:
    return metrics(*(cluster.local.folder / name for name in NAMES))


@pytest.mark.long
def test_a_job_that_needs_all_hosts_waits_in_memory(tmp_path: Path) -> None:
    with hosts(tmp_path) as local:
        cluster = Cluster(local, write_job(tmp_path, **ENDLESS, every_epochs=9999), "2:2")
        cluster.start("n1", "n2")
        cluster.wait_for(2, 0)
        worker = cluster.worker("n1")
        cluster.hosts["n2"].end()
        assert cluster.coordinator
        cluster.coordinator.expect("aborts group")
        cluster.start("n2")
        cluster.wait_for(2, 1)
        assert cluster.worker("n1") == worker
        assert not cluster.hosts["n1"].of(Resumed)
        cluster.end()
        cluster.check_samples()


def test_a_worker_that_takes_rank_0_anew_gets_the_weights_of_the_others(tmp_path: Path) -> None:
    """The others would get its random ones, if they copied those of rank 0 at the beginning."""
    with hosts(tmp_path) as local:
        cluster = Cluster(local, write_job(tmp_path, **ENDLESS, every_epochs=9999), "2:2")
        cluster.start("n1", "n2")

        def loss() -> float:
            ended = [each for task in local.tasks for each in task.of(Epoch)]
            last = max(ended, key=lambda each: each.time, default=None)
            return last.loss if last and last.loss is not None else 9.0

        wait_until(lambda: loss() < 1, "the training to learn")
        kill(cluster.worker("n1"))
        cluster.wait_for(2, 1)
        assert loss() < 1
        cluster.end()
        cluster.check_samples()


@pytest.mark.long
def test_a_worker_that_hangs_is_left_and_named_and_returns(tmp_path: Path) -> None:
    """Long before the exchange's own timeout."""
    job = write_job(tmp_path, **ENDLESS, timeout=300)
    fault = {"FAULT": "hung", "FAULT_AT": "40", "FAULT_WORLD": "2", "FAULT_JOB": str(job)}
    with hosts(tmp_path) as local:
        endpoint, tasks = local.rendezvous("1:2"), list[Task]()
        for name in ("n1", "n2"):
            local.cold = name == "n2"
            tasks.append(local.agent(name, job, endpoint, 1, program=[FAULTY], **fault, **PACE))

        def alone() -> list[Regrouped]:
            return [each for each in tasks[0].of(Regrouped) if each.world_size == 1]

        wait_until(lambda: bool(alone()), "n1 to go on alone")
        [pause] = alone()[-1:]
        assert pause.reason == "n2 hangs"
        # It counts from the last step before.
        assert pulse.LEAST < pause.seconds < 100
        for words in ("local rank 0 hangs; stack traces", "in forward", "kills local rank"):
            tasks[1].expect(words)
        assert [each.local_rank for each in tasks[1].of(Hung)] == [0]
        wait_until(lambda: tasks[0].of(Regrouped)[-1].world_size == 2, "n2 to return")


@pytest.mark.long
def test_a_slow_worker_does_not_hang(tmp_path: Path) -> None:
    """It computes for longer than a worker may stand still."""
    seconds = 2 * pulse.LEAST
    job = write_job(tmp_path, **ENDLESS, timeout=300)
    fault = {"FAULT": "busy", "FAULT_AT": "40", "FAULT_WORLD": "2", "FAULT_SECONDS": str(seconds)}
    with hosts(tmp_path, cold=True) as local:
        endpoint = local.rendezvous("1:2")
        once = tmp_path / "once"
        tasks = [
            local.agent(name, job, endpoint, 1, program=[FAULTY], FAULT_ONCE=once, **fault)
            for name in ("n1", "n2")
        ]
        tasks[1].expect("has computed for long")
        now = time.time()

        def goes_on() -> bool:
            return any(each.time > now for task in tasks for each in task.of(Epoch)[-1:])

        wait_until(goes_on, "an epoch after it")
        assert not [each for task in tasks for each in task.of(Regrouped)]


def test_a_spare_takes_the_place_of_a_lost_host(tmp_path: Path) -> None:
    with hosts(tmp_path) as local:
        job = write_job(tmp_path, **ENDLESS, every_epochs=9999)
        cluster = Cluster(local, job, "2:2", spares=("s1",))
        cluster.start("n1", "n2", "s1")
        cluster.wait_for(2, 0)
        worker = cluster.worker("n2")
        cluster.hosts["n1"].end()
        cluster.wait_for(2, 1)
        # It comes back, and stands by until the spare is lost.
        cluster.start("n1")
        cluster.hosts["n1"].expect("is ready, and waits")
        cluster.hosts["s1"].end()
        cluster.wait_for(2, 2)
        assert cluster.coordinator
        groups = re.findall(r"begins group \d+ with ([^\n(]+)", cluster.coordinator.text)
        assert [each.strip() for each in groups] == ["n1, n2", "n2, s1", "n2, n1"]
        assert cluster.worker("n2") == worker
        assert not any(task.of(Resumed) for task in local.tasks)
        cluster.end()
        cluster.check_samples()


@pytest.mark.long
def test_a_new_start_begins_with_the_checkpoint_of_a_spare(tmp_path: Path) -> None:
    with hosts(tmp_path) as local:
        job = write_job(tmp_path, **ENDLESS, every_epochs=1, batch_size=16)
        cluster = Cluster(local, job, "1:2", spares=("s1",))
        cluster.start("n1", "n2", "s1")
        cluster.wait_for(2, 0)
        for name in ("n1", "n2"):
            cluster.hosts[name].end()
        there = max(newest_step(tmp_path / name) for name in ("n1", "n2"))
        wait_until(lambda: newest_step(tmp_path / "s1") > there, "a checkpoint of the spare")
        for task in local.tasks:
            task.end()
        saved = newest_step(tmp_path / "s1")
        cluster.endpoint = ""
        cluster.start("n1", "n2", "s1")
        resumed = [*cluster.hosts.values()]
        wait_until(lambda: any(task.of(Resumed) for task in resumed), "the new start")
        assert max(each.step for task in resumed for each in task.of(Resumed)) == saved


@pytest.mark.long
@pytest.mark.parametrize("seed", range(int(os.environ.get("KIT_FAULTS_SEEDS", "1"))))
def test_many_faults_lose_no_sample_and_no_step(seed: int, cluster: Cluster) -> None:
    """Twelve faults at random, also while the last one is being dealt with."""
    draw, gone = random.Random(seed), list[str]()
    for _ in range(12):
        time.sleep(draw.uniform(0, 3))
        running = [name for name in NAMES if name not in gone]
        name = draw.choice(running)
        kind = draw.choice(("worker", "host", "back", "back", "stop", "coordinator"))
        if kind == "worker":
            kill_all(cluster.hosts[name].workers("witness.py"))
        elif kind == "host" and len(running) > 1:
            cluster.hosts[name].end()
            gone.append(name)
        elif kind == "back" and gone:
            cluster.start(gone.pop())
        elif kind == "stop" and len(running) > 1:
            cluster.hosts[name].process.terminate()
            cluster.hosts[name].wait()
            gone.append(name)
        elif kind == "coordinator":
            assert cluster.coordinator
            cluster.coordinator.end()
            cluster.coordinator = cluster.local.serve(cluster.endpoint, cluster.nnodes)
    cluster.start(*gone)
    wait_until(lambda: cluster.begins()[-1].world_size == 3, "all hosts")
    cluster.wait_for_epoch()
    cluster.end()
    assert cluster.check_samples() > 100
    texts = "".join(task.text for task in cluster.local.tasks)
    assert not re.search("Traceback", texts), texts[-3000:]
