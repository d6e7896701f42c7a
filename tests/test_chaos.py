"""The fault suite's own judgement: it finds what a training has done wrong."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.lab.chaos.checks import is_unfinished
from tests.lab.chaos.faults import FAULTS
from tests.lab.chaos.measure import Look, lie, noticed, steps_again
from tests.lab.chaos.steps import Taken, Witness, count_samples, is_whole, lost
from tests.lab.chaos.world import Said, moment

SAMPLES = 8


def step(number: int, generation: int = 1, *, size: int = 2, batch: int = 4) -> list[Taken]:
    """A step of all ranks of a group; epochs have eight samples."""
    epoch, position = divmod((number - 1) * batch, SAMPLES)
    samples = tuple(range(position, position + batch))
    each = batch // size
    return [
        Taken(
            time=number + generation / 10,
            host=f"n{rank + 1}",
            rank=rank,
            size=size,
            generation=generation,
            epoch=epoch,
            position=position,
            step=number,
            batch=samples,
            own=samples[rank * each : (rank + 1) * each],
        )
        for rank in range(size)
    ]


def steps(numbers: Iterable[int], generation: int = 1) -> list[Taken]:
    return [taken for number in numbers for taken in step(number, generation)]


def test_a_run_without_faults_counts_each_sample_once() -> None:
    counted = count_samples(steps(range(1, 6)), SAMPLES)
    assert (counted.steps, counted.epochs, counted.wrong) == (5, 3, ())
    assert lost(steps(range(1, 6))) == set()


def test_a_step_that_one_rank_had_is_not_lost() -> None:
    alone = step(4)[:1]
    run = [*steps(range(1, 4)), *alone, *steps(range(4, 7), 2)]
    assert lost(run) == set()
    assert count_samples(run, SAMPLES).wrong == ()


def test_steps_that_all_ranks_had_are_lost_if_they_are_taken_again() -> None:
    run = [*steps(range(1, 5)), *steps(range(3, 7), 2)]
    assert lost(run) == {(1, 3), (1, 4)}
    assert count_samples(run, SAMPLES).wrong == ()


def test_samples_that_count_twice_or_never_are_found() -> None:
    run = steps(range(1, 6))
    twice = [replace(each, batch=(0, 1, 2, 3)) if each.step == 2 else each for each in run]
    told = count_samples(twice, SAMPLES).wrong
    assert "epoch 0: 4 samples counted again, 4 not counted" in told
    assert any("other samples than its batch" in each for each in told)
    missing = [each for each in run if each.step != 3]
    assert count_samples(missing, SAMPLES).wrong == ("no step leads to epoch 1 + 4",)


def test_a_group_is_whole_when_all_hosts_take_steps_in_the_newest() -> None:
    assert not is_whole([], 2)
    assert is_whole(steps(range(1, 6)), 2)
    assert not is_whole([*steps(range(1, 6)), *step(6, 2)[:1]], 2)


def test_lines_are_read_as_they_come_and_never_in_part(tmp_path: Path) -> None:
    witness = Witness({"n1": tmp_path})
    file = tmp_path / "n1-1.jsonl"
    line = (
        '{"time": 1.5, "generation": 1, "rank": 0, "size": 1, "epoch": 0, "position": 0,'
        ' "step": 1, "batch": [1], "own": [1]}\n'
    )
    file.write_text(line + line[:20])
    assert len(witness.steps()) == 1
    file.write_text(line + line)
    assert [each.host for each in witness.steps()] == ["n1", "n1"]


def test_times_are_those_of_the_next_group() -> None:
    run = [*steps(range(1, 4)), *steps(range(4, 6), 2)]
    assert steps_again(run, generation=1, began=2.5) == pytest.approx(4.2 - 2.5)
    assert steps_again(steps(range(1, 4)), generation=1, began=2.5) == pytest.approx(3.1 - 2.5)
    said = [Said(1.0, "n1", "n2 is silent for 1.7 s"), Said(4.0, "n1", "aborts group 1: x")]
    assert noticed(said, 2.5) == 1.5
    assert noticed([Said(3.0, "n1", "epoch 3")], 2.5) is None
    assert moment("2026-01-01T00:00:00.250000999Z") == 1767225600.25


@pytest.mark.parametrize(
    ("fault", "code", "output", "wrong"),
    [
        ("rank", 0, '{"jobs": [{"job": "digits", "state": "running"}]}', ""),
        ("rank", 0, '{"jobs": [{"job": "digits", "state": "failed"}]}', "told 'failed'"),
        ("rank", 0, '{"jobs": []}', "told ''"),
        ("rank", 1, "kit: n1: no route", "ended with 1"),
        ("manager", 1, "kit: n1: no route", ""),
        ("manager", 1, "kit: no route", "does not name n1"),
        ("manager", 1, "Traceback n1", "failed"),
    ],
)
def test_what_kit_status_may_tell(fault: str, code: int, output: str, wrong: str) -> None:
    told = lie(FAULTS[fault], Look(0.0, 1.0, code, output))
    assert wrong in told
    assert bool(told) == bool(wrong)


@pytest.mark.parametrize("path", [".writing-step-00000015/state.pt", "ranks-1/.rank-00000.pt"])
def test_what_is_half_written(path: str) -> None:
    assert is_unfinished(path)
    assert not is_unfinished(path.replace(".writing-", "").replace("/.", "/"))
