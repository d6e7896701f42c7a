"""kit plan's figures and advice for the exchange between hosts, and for types of GPUs."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from kit.config.job import JobSection, to_job
from kit.model import Gpu, Host, Use
from kit.plan.exchange import FINE, LADDER, WANTED, exchange
from kit.plan.gpus import capability
from kit.plan.traffic import ring_seconds
from kit.plan.types import ExchangePlan, Placement, Traffic
from tests.sandbox import COMMAND, INVENTORY, Project

RESNET = """\
image: registry.lab:5000/trainer:0.2.0
train: {dataset: cifar10, model: resnet18, epochs: 10, batch_size: 64}
"""
MODELS = INVENTORY.replace("GPU-a,", "GPU-a, model: TITAN RTX,").replace(
    "GPU-b", "GPU-b, model: NVIDIA A100-SXM4-40GB"
)

PLAIN = to_job(JobSection.model_validate(yaml.safe_load(RESNET)), "j", "jobs/j.yaml")


def weighed(
    size: int = 44_700_000,
    speed: int = 10**9,
    processes: tuple[int, ...] = (1, 2),
    seconds: float | None = None,
    **own: Any,
) -> ExchangePlan:
    """Compare exchange and computation of a job, only by its numbers."""
    assert PLAIN.exchange is not None
    changed = dataclasses.replace(PLAIN.exchange, **own)
    job = dataclasses.replace(PLAIN, step_seconds=seconds, exchange=changed)
    placements = [
        Placement(host(f"h{at}", speed), 0, gpus(count), True, None)
        for at, count in enumerate(processes)
    ]
    found = exchange(job, placements, Traffic(size // 4, size, "h0", speed, None))
    assert found is not None
    return found


def gpus(count: int) -> tuple[Gpu, ...]:
    return tuple(Gpu(str(index), False, None, None, Use.TRAINING) for index in range(count))


def host(name: str, speed: int) -> Host:
    return Host(name, "10.0.0.1", name, (), (), None, speed, ())


def test_the_arithmetic() -> None:
    plan = weighed()
    chosen = plan.chosen
    assert chosen is not None
    # 3 ranks: each sends 2 x 2/3 of 357.6 Mbit over 1 Gbit/s.
    assert chosen.exchange_seconds == chosen.step_seconds == pytest.approx(0.4768)
    assert chosen.compute_share == pytest.approx(0.060 / 0.5368)
    assert (plan.compute_seconds, plan.assumed) == (0.060, True)
    # The host with 2 of 3 GPUs needs 1.5 steps of 60 ms for the samples of one step of all.
    assert plan.largest_host == "h1"
    assert plan.alone_seconds == pytest.approx(0.090)
    assert chosen.speed_up == pytest.approx(0.090 / 0.5368)


def test_half_the_bytes_take_half_the_time_and_local_steps_share_it() -> None:
    full, local = weighed().chosen, weighed(mode="diloco", compression="bf16").chosen
    assert full is not None
    assert local is not None
    assert local.exchange_bytes * 2 == full.exchange_bytes
    assert local.exchange_seconds == pytest.approx(full.exchange_seconds / 2)
    assert local.step_seconds == pytest.approx(full.step_seconds / 2 / 64)


def test_below_the_break_even_more_than_half_is_exchange() -> None:
    chosen = weighed().chosen
    assert chosen is not None
    at = weighed(seconds=chosen.step_seconds).chosen
    assert at is not None
    assert at.compute_share == pytest.approx(0.5)


def test_powersgd_has_no_figure_here() -> None:
    plan = weighed(compression="powersgd")
    assert (plan.chosen, plan.advice) == (None, None)
    assert plan.ways


sizes = st.integers(4, 10**12)
speeds = st.integers(10**6, 10**12)
ranks = st.integers(2, 10_000)


@given(sizes, ranks, speeds, st.integers(1, 1000))
def test_a_ring_is_monotone_in_bytes_ranks_and_speed(
    size: int, count: int, speed: int, more: int
) -> None:
    seconds = ring_seconds(size, count, speed)
    assert ring_seconds(size * (1 + more), count, speed) > seconds
    assert ring_seconds(size, count, speed * (1 + more)) < seconds
    assert ring_seconds(size, count + more, speed) >= seconds
    # For any number of ranks, no link carries more than twice the bytes.
    assert size * 8 / speed * 0.999 <= seconds <= 2 * size * 8 / speed


settings_ = st.fixed_dictionaries(
    {
        "mode": st.sampled_from(["every_step", "local_sgd", "diloco"]),
        "every_steps": st.integers(1, 2000),
        "compression": st.sampled_from(["none", "fp16", "bf16"]),
        "overlap": st.booleans(),
    }
)
computing = st.floats(1e-4, 100)
hosts = st.lists(st.integers(1, 8), min_size=2, max_size=6).map(tuple)


@given(sizes, speeds, hosts, computing, settings_)
def test_advice_is_the_mildest_that_is_enough(
    size: int, speed: int, processes: tuple[int, ...], seconds: float, own: dict[str, Any]
) -> None:
    plan = weighed(size, speed, processes, seconds, **own)
    chosen, advice = plan.chosen, plan.advice
    assert chosen is not None
    assert 0 < chosen.compute_share <= 1
    if chosen.compute_share >= FINE:
        assert advice is None
    elif advice is not None:
        assert advice.compute_share > chosen.compute_share
        way = (advice.mode, advice.every_steps, advice.compression, advice.overlap)
        milder = LADDER[: LADDER.index(way)]
        for mode, steps, compression, overlap in milder:
            other = weighed(
                size, speed, processes, seconds,
                mode=mode, every_steps=steps, compression=compression, overlap=overlap,
            ).chosen  # fmt: skip
            assert other is not None
            assert other.compute_share < WANTED


@given(sizes, speeds, hosts, computing, settings_, st.integers(2, 100))
def test_shares_are_monotone(
    size: int,
    speed: int,
    processes: tuple[int, ...],
    seconds: float,
    own: dict[str, Any],
    times: int,
) -> None:
    def share(size: int, speed: int, seconds: float, **other: Any) -> float:
        chosen = weighed(size, speed, processes, seconds, **{**own, **other}).chosen
        assert chosen is not None
        return chosen.compute_share

    here = share(size, speed, seconds)
    assert share(size * times, speed, seconds) <= here
    assert share(size, speed * times, seconds) >= here
    assert share(size, speed, seconds * times) >= here
    if own["mode"] != "every_step":
        assert share(size, speed, seconds, every_steps=own["every_steps"] * times) >= here


def test_the_ladder_climbs() -> None:
    shares = []
    for mode, steps, compression, overlap in LADDER:
        chosen = weighed(
            mode=mode, every_steps=steps, compression=compression, overlap=overlap
        ).chosen
        assert chosen is not None
        shares.append(chosen.compute_share)
    assert shares == sorted(shares)


def lines(project: Project, inventory: str, job: str) -> dict[str, str]:
    """Return kit plan's lines of the job by their first word."""
    result = project.write(inventory, {"j": job}).kit("plan")
    assert (result.status, result.err) == (0, "")
    found = [line.split(maxsplit=1) for line in result.out.splitlines()]
    return {words[0]: words[1] for words in found if len(words) == 2}


def test_a_slow_link_is_answered_with_a_line_to_write(project: Project) -> None:
    found = lines(project, INVENTORY, RESNET)
    assert found["exchange"] == (
        "every step, 358 ms a step: with 60 ms of compute (assumed; write step_seconds) 14 % of "
        "the time is compute"
    )
    assert found["break-even"] == (
        "below 358 ms of compute a step, more than half of the time is exchange"
    )
    assert found["ways"] == (
        "every step 358 ms, every step in fp16 179 ms, local_sgd every 8 in fp16 overlapped 0 ms, "
        "diloco every 128 in fp16 overlapped 0 ms a step; powersgd by the weights' shapes"
    )
    advice = "exchange: {mode: local_sgd, every_steps: 4, compression: fp16, overlap: true}"
    assert found["advice"] == f"{advice}  100 % compute"
    found = lines(project, INVENTORY, f"{RESNET}{advice}\nstep_seconds: 0.06\n")
    assert found["exchange"] == (
        "local_sgd every 4 in fp16 overlapped, 0 ms a step: with 60 ms of compute 100 % of the "
        "time is compute: fine"
    )
    assert "advice" not in found


def test_a_fast_link_needs_no_advice(project: Project) -> None:
    found = lines(project, INVENTORY.replace("1Gbit", "100Gbit"), RESNET)
    assert found["exchange"].endswith("94 % of the time is compute: plain DDP is fine")
    assert not {"advice", "ways"} & set(found)


def test_a_hopeless_link_is_called_one(project: Project) -> None:
    slow = INVENTORY.replace("1Gbit", "1Mbit")
    found = lines(project, slow, RESNET)
    assert found["advice"] == (
        "exchange: {mode: diloco, every_steps: 512, compression: fp16, overlap: true}  17 % "
        "compute, the most of all modes"
    )
    job = RESNET + "exchange: {mode: diloco, every_steps: 5000, compression: fp16}\n"
    assert lines(project, slow, job)["advice"].startswith("no other mode is better")


def test_a_script_is_advised_what_it_can_do_itself(project: Project) -> None:
    found = lines(project, INVENTORY, COMMAND + "parameters: 11173962\n")
    assert found["advice"] == (
        "change the script: DDP's fp16_compress_hook leaves 25 % compute, no_sync skips exchanges"
    )
    assert "diloco" not in "".join(found.values())


def test_powersgd_is_named_in_words(project: Project) -> None:
    found = lines(project, INVENTORY, RESNET + "exchange: {compression: powersgd}\n")
    assert found["exchange"].startswith("powersgd: ")
    assert "advice" not in found


def test_data_of_ones_own_can_tell_its_models_size(project: Project) -> None:
    job = "image: t:1\ntrain: {dataset: text, path: a.txt, model: gpt, epochs: 1, batch_size: 8}\n"
    assert "exchange" not in lines(project, INVENTORY, job)
    assert "compute" in lines(project, INVENTORY, job + "parameters: 11173962\n")["exchange"]


def test_a_slower_cluster_than_its_largest_host_is_noted(project: Project) -> None:
    plan = project.write(jobs={"j": RESNET}).plan()
    assert plan.notes == (
        "j: one host alone is faster: a step takes 418 ms on 2 hosts (60 ms of it computing, "
        "assumed, the rest exchange), and pc1 alone processes the same samples in 120 ms",
    )
    assert project.write(jobs={"j": RESNET + "step_seconds: 0.4\n"}).plan().notes == ()


def test_one_host_exchanges_nothing(project: Project) -> None:
    plan = project.write(jobs={"j": RESNET + "hosts: {names: [pc1]}\n"}).plan()
    assert plan.jobs[0].exchange is None


def test_json_has_what_the_table_shows(project: Project) -> None:
    result = project.write(jobs={"j": RESNET}).kit("plan", "--json")
    (job,) = json.loads(result.out)["jobs"]
    exchange = job["exchange"]
    assert math.floor(exchange["chosen"]["compute_share"] * 100) == 14
    assert exchange["assumed"] is True
    advice = exchange["advice"]
    assert (advice["mode"], advice["every_steps"], advice["overlap"]) == ("local_sgd", 4, True)
    assert "exchange" not in json.loads((project.rendered() / "plan.json").read_text())["jobs"][0]


CAPABILITIES = [
    ("TITAN V", "Volta"),
    ("Quadro GV100", "Volta"),
    ("Tesla V100-SXM2-16GB", "Volta"),
    ("V100S", "Volta"),
    ("TITAN RTX", "Turing"),
    ("NVIDIA GeForce RTX 2080 Ti", "Turing"),
    ("Quadro RTX 6000", "Turing"),
    ("Tesla T4", "Turing"),
    ("GeForce GTX 1660 SUPER", "Turing"),
    ("RTX A6000", "Ampere"),
    ("A100 MIG 1g.5gb", "Ampere"),
    ("GeForce RTX 3090", "Ampere"),
    ("NVIDIA RTX 6000 Ada Generation", "Ada"),
    ("NVIDIA RTX 4000 SFF Ada Generation", "Ada"),
    ("L40S", "Ada"),
    ("NVIDIA H100 80GB HBM3", "Hopper"),
    ("NVIDIA B200", "Blackwell"),
    ("GeForce RTX 5090", "Blackwell"),
    ("RTX 6000", None),
    ("TITAN Xp", None),
    ("GTX 1080 Ti", None),
    ("T400", None),
    ("A1000", None),
]


@pytest.mark.parametrize(("model", "generation"), CAPABILITIES)
def test_generations(model: str, generation: str | None) -> None:
    known = capability(model)
    assert (known[0] if known else None) == generation


def test_auto_follows_the_oldest_gpu(project: Project) -> None:
    job = project.write(MODELS, {"j": RESNET}).plan().jobs[0]
    assert job.precision is not None
    assert (job.precision.type, job.precision.gpu) == ("fp16", "TITAN RTX")
    assert lines(project, MODELS, RESNET)["precision"] == (
        "fp16 by the oldest GPU, TITAN RTX on pc1"
    )
    newer = MODELS.replace("TITAN RTX", "RTX A6000")
    assert lines(project, newer, RESNET)["precision"].startswith("bf16 by the oldest GPU, NVIDIA A")


@pytest.mark.parametrize(
    ("inventory", "job"),
    [
        (INVENTORY, RESNET),
        (MODELS.replace("TITAN RTX", "TITAN Z"), RESNET),
        (MODELS.replace("swarm", "local"), RESNET),
        (MODELS, RESNET.replace("epochs: 10", "epochs: 10, precision: fp32")),
        (MODELS, COMMAND),
    ],
)
def test_what_auto_means_is_not_guessed(project: Project, inventory: str, job: str) -> None:
    assert project.write(inventory, {"j": job}).workload().precision is None


def test_bf16_on_gpus_without_it_is_noted(project: Project) -> None:
    job = RESNET.replace("epochs: 10", "epochs: 10, precision: bf16") + "step_seconds: 1\n"
    assert project.write(MODELS, {"j": job}).plan().notes == (
        "j: precision bf16, but TITAN RTX on pc1: Volta and Turing have no bf16 arithmetic; "
        "use fp16",
    )
    assert project.write(MODELS.replace("TITAN RTX", "A40"), {"j": job}).plan().notes == ()
