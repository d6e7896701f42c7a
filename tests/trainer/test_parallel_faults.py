"""Faults of trainings whose model is divided: real processes with gloo, real signals."""

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.hosts import Hosts, Task, hosts, kill, metrics, wait_until, write_job
from tests.trainer.test_parallel import GPT, write_words
from trainer.contract.events import Begin, Epoch, Failed, Resumed, Saved

SIZES: dict[str, Any] = {**GPT, "batch_size": 6, "epochs": 9999}


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Hosts]:
    write_words(tmp_path)
    with hosts(tmp_path) as found:
        yield found


def start(
    local: Hosts, job: Path, processes: int, endpoint: str, names: tuple[str, ...] = ("n1", "n2")
) -> list[Task]:
    data = local.folder
    return [local.agent(name, job, endpoint, processes, KIT_DATA=data) for name in names]


def wait_for_saves(task: Task, count: int) -> None:
    before = len(task.of(Saved))
    wait_until(lambda: len(task.of(Saved)) >= before + count, f"{count} more checkpoints")


def test_replicas_go_on_from_their_own_shards_when_a_host_is_lost(local: Hosts) -> None:
    """Each of two hosts has a whole replica in two shards; one host goes on alone."""
    job = write_job(local.folder, shard=2, **SIZES)
    endpoint = local.rendezvous("1:2")
    first, second = start(local, job, 2, endpoint)
    wait_for_saves(first, 2)
    before = len(first.of(Resumed))
    second.end()
    wait_until(lambda: first.of(Begin)[-1].world_size == 2, "a group of two ranks")
    wait_until(lambda: len(first.of(Resumed)) > before, "resumed from a checkpoint")
    ended = first.of(Epoch)[-1].epoch
    wait_until(lambda: first.of(Epoch)[-1].epoch > ended + 1, "an epoch of two ranks")
    (back,) = start(local, job, 2, endpoint, ("n2",))
    wait_until(lambda: first.of(Begin)[-1].world_size == 4, "four ranks again")
    wait_for_saves(first, 1)
    for task in (first, back):
        task.process.terminate()
    assert [task.wait() for task in (first, back)] == [128 + signal.SIGTERM] * 2
    losses = [line["loss"] for line in metrics(local.folder / "n1") if line["event"] == "epoch"]
    assert losses[-1] < losses[0]
    assert not first.of(Failed)


@pytest.mark.long
def test_shards_across_hosts_need_all_of_them(local: Hosts) -> None:
    """Each host has one shard: a lost worker returns, and both resume from the checkpoint."""
    job = write_job(local.folder, shard=2, **SIZES)
    first, second = start(local, job, 1, local.rendezvous("2:2"))
    wait_for_saves(first, 2)
    (worker,) = second.workers()
    kill(worker)
    wait_until(lambda: len(first.of(Resumed)) == 1, "resumed from a checkpoint")
    wait_for_saves(first, 2)
    for task in (first, second):
        task.process.terminate()
    assert [task.wait() for task in (first, second)] == [128 + signal.SIGTERM] * 2


def test_a_lost_disk_with_the_only_shard_is_told(local: Hosts) -> None:
    """What was on it cannot come from elsewhere: the training does not begin anew by itself."""
    job = write_job(local.folder, shard=2, **SIZES)
    tasks = start(local, job, 1, local.rendezvous("2:2"))
    wait_for_saves(tasks[0], 2)
    for task in tasks:
        task.process.terminate()
        task.wait()
    for part in (local.folder / "n2").glob("ranks-*/*"):
        part.unlink()
    tasks = start(local, job, 1, local.rendezvous("2:2"))
    assert [task.wait() for task in tasks] == [1, 1]
    assert "no host has the part of rank 1" in tasks[0].text
    assert "bring its disk back" in tasks[0].text
