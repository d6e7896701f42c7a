"""What happens to a host that fails: retried, left out, released, or the end of all."""

import os
import signal
import time
from pathlib import Path

import pytest

from tests.trainer.hosts import ENDLESS, PACE, hosts, wait_until, write_job
from tests.trainer.test_elastic import report
from tests.trainer.test_trainer_faults import FAULTY
from trainer.contract.events import (
    Begin,
    Epoch,
    Failed,
    LeftOut,
    Regrouped,
    Released,
    Resumed,
    Saved,
)
from trainer.contract.job import Faults
from trainer.elastic.agent import read_faults
from trainer.elastic.policy import BACK_OFF, Policy
from trainer.group.decisions import TRAINING, Decisions
from trainer.group.messages import Halt, Order, Report, decode, encode


def test_failures_are_retried_until_there_are_too_many_of_a_kind() -> None:
    policy = Policy(Faults(max_restarts=2, window=100, then="stop"))
    assert [policy.judge("worker", now) for now in (0, 1, 2)] == ["retry", "retry", "stop"]
    assert policy.judge("killed", 3) == "retry"
    # Failures from before the window do not count.
    assert policy.judge("worker", 101.5) == "retry"
    assert policy.judge("worker", 101.6) == "stop"
    kills = [policy.judge("killed", 300 + each) for each in range(21)]
    assert kills == ["retry"] * 20 + ["stop"]
    policy.forgive()
    assert policy.judge("worker", 400) == "retry"


def test_what_the_job_says_is_done() -> None:
    policy = Policy(Faults(memory="leave_out", gpu="retry", max_restarts=0))
    found = [policy.judge(kind, 0) for kind in ("memory", "gpu", "disk", "loss", "input", "data")]
    assert found == ["leave_out", "leave_out", "stop", "stop", "stop", "stop"]


def test_a_process_that_fails_again_at_once_waits_longer_and_longer() -> None:
    policy, pauses = Policy(Faults(max_restarts=9)), []
    for now in range(8):
        policy.judge("worker", now)
        pauses.append(policy.pause(now, ran=0.1))
    assert pauses == [0, 1, 2, 4, 8, 16, 30, 30]
    assert policy.pause(8, ran=BACK_OFF) == 0


def test_the_agent_reads_the_policy_of_the_job(tmp_path: Path) -> None:
    assert read_faults(write_job(tmp_path, memory="retry")) == Faults(memory="retry")
    assert read_faults(tmp_path / "nothing") == Faults()
    (tmp_path / "wrong.json").write_text('{"faults": {"rust": 1}}')
    assert read_faults(tmp_path / "wrong.json") == Faults()


OUT = Halt("parameters", "parameters of rank 1 are not those of rank 0", 1)


def group_of_three(found: Decisions) -> tuple[int, dict[str, Report]]:
    """Three hosts that train; their generation and reports."""
    for name in ("n1", "n2", "n3"):
        found.report(report(name, ready=True))
    group = found.orders()["n1-1"].group
    assert group
    members = tuple(member.agent for member in group.members)
    reports = {
        name: report(name, generation=group.generation, members=members)
        for name in ("n1", "n2", "n3")
    }
    for each in reports.values():
        found.report(each)
    return group.generation, reports


def test_a_host_that_is_left_out_joins_no_group_until_it_is_released() -> None:
    now = [100.0]
    found = Decisions(lambda: now[0], 1, 3)
    now[0] += TRAINING.last_call
    one, _ = group_of_three(found)
    found.report(decode(Report, encode(report("n2", left=one, out=OUT))))
    assert found.orders()["n1-1"] == Order("abort", one, why="n2 is left out")
    for name in ("n1", "n3"):
        found.report(report(name, left=one, ready=True))
    group = found.orders()["n1-1"].group
    assert group
    assert [member.host for member in group.members] == ["n1", "n3"]
    assert group.why == "n2 is left out"
    members = tuple(member.agent for member in group.members)
    for name in ("n1", "n3"):
        found.report(report(name, generation=group.generation, members=members))
    assert {order.kind for order in found.orders().values()} == {"wait"}
    found.report(report("n2", left=one, ready=True))
    now[0] += TRAINING.gather
    assert found.orders()["n1-1"].kind == "leave"


def test_too_few_hosts_that_are_not_left_out_end_the_training() -> None:
    found = Decisions(lambda: 100.0, 2, 3)
    one, _ = group_of_three(found)
    found.report(report("n2", left=one, out=OUT))
    assert {order.kind for order in found.orders().values()} == {"abort"}
    found.report(report("n3", left=one, out=OUT))
    end = Order("end", halt=Halt(OUT.kind, OUT.message, OUT.code, "n2"))
    assert set(found.orders().values()) == {end}


def test_a_host_with_other_parameters_is_named_left_out_and_released(tmp_path: Path) -> None:
    """Between two checkpoints: the interval finds it, and the others go back to the newest one.

    n3 knows the reason. n1 misses it, as if the others had closed the group before.
    """
    job = write_job(tmp_path, **ENDLESS, every_epochs=3, batch_size=48, compare_every=5)
    with hosts(tmp_path) as local:
        endpoint = local.rendezvous("2:3")
        more: dict[str, str | Path] = {
            "FAULT": "perturbed",
            "FAULT_AT": "40",
            "FAULT_RANK": "1",
            "FAULT_WORLD": "3",
            "FAULT_ONCE": tmp_path / "once",
            "FAULT_MISSES": "n1",
            **PACE,
        }
        n1 = local.agent("n1", job, endpoint, 1, "", [FAULTY], **more)
        n2 = local.agent("n2", job, endpoint, 1, "", [FAULTY], **more)
        # Who joins gets the last rank: rank 1 is on n2 only if n3 is not earlier.
        wait_until(lambda: bool(n1.of(Saved)), "a checkpoint of two hosts")
        n3 = local.agent("n3", job, endpoint, 1, "", [FAULTY], **more)
        wait_until(lambda: bool(n2.of(LeftOut)), "n2 is left out")
        said = "parameters of rank 1 on n2 (cpu) are not those of rank 0 on n1 (cpu)"
        (event,) = n2.of(LeftOut)
        assert (event.kind, said in event.message) == ("parameters", True)
        wait_until(lambda: bool(n1.of(Resumed)), "the others resume")
        assert n1.of(Resumed)[0].epoch % 3 == 0
        assert n1.of(Begin)[-1].world_size == 2
        n3.expect(f"resumes from a checkpoint: {said}")
        assert n2.process.poll() is None
        os.kill(n2.process.pid, signal.SIGUSR1)
        wait_until(lambda: bool(n2.of(Released)), "its release")
        wait_until(lambda: any(e.world_size == 3 for e in n1.of(Regrouped)), "all three")
        epochs = len(n1.of(Epoch))
        wait_until(lambda: len(n1.of(Epoch)) > epochs, "an epoch more")
        for task in (n1, n2, n3):
            task.process.terminate()
        for task in (n1, n2, n3):
            assert task.wait() == 128 + signal.SIGTERM, task.text


@pytest.mark.parametrize("least", ["1:2", "2:2"])
def test_a_host_that_fails_again_and_again_is_left_out(least: str, tmp_path: Path) -> None:
    """Or ends the training, if that needs it."""
    job = write_job(tmp_path, **ENDLESS, batch_size=48, max_restarts=1)
    with hosts(tmp_path) as local:
        endpoint = local.rendezvous(least)
        well = local.agent("n1", job, endpoint, 1, "", [FAULTY], FAULT="", FAULT_AT="0", **PACE)
        more = {"FAULT": "mistake", "FAULT_AT": "20", "FAULT_RANK": "any", **PACE}
        ill = local.agent("n2", job, endpoint, 1, "", [FAULTY], **more)
        said = "exit code 1: ValueError: a mistake in the model"
        if least == "2:2":
            assert (well.wait(), ill.wait()) == (1, 1)
            assert said in well.of(Failed)[-1].message
            return
        wait_until(lambda: bool(ill.of(LeftOut)), "n2 is left out")
        assert said in ill.of(LeftOut)[0].message
        assert ill.text.count("it is restarted") == 1
        began = time.time()
        wait_until(lambda: any(each.time > began for each in well.of(Epoch)), "an epoch more")
        for task in (well, ill):
            task.process.terminate()
        assert (well.wait(), ill.wait()) == (143, 143)
