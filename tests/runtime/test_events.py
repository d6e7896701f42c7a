"""Reading events: a workload's progress, ranks, GPUs, failures, from any position in the log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.errors import KitError
from kit.runtime.event_log import MORE, TAIL, EventLog, Source, last_lines
from kit.runtime.events import Reader
from kit.runtime.lines import GONE, is_event, split, with_note
from kit.runtime.status import HostStatus, LogLine, State
from trainer.contract.event_lines import line
from trainer.contract.events import (
    Alone,
    Begin,
    Epoch,
    Event,
    Failed,
    Fetch,
    Grouped,
    Hung,
    LeftOut,
    Member,
    Progress,
    Released,
    Restart,
    Resumed,
    Saved,
    Serving,
    Silent,
    Spoke,
    Started,
    Stopped,
    Unmoved,
    Untaught,
)
from trainer.contract.limit_events import Idle, Limit

BEGIN = Begin(epochs=10, steps=40, world_size=3)


def told(*found: Event | tuple[str, Event]) -> Reader:
    """Read events, of host a where no other is named."""
    reader = Reader()
    for one in found:
        host, event = one if isinstance(one, tuple) else ("a", one)
        reader.read(LogLine("j", host, line(event)))
    return reader


def progress(step: int, **more: float | str | None) -> Progress:
    figures = {"epoch": 5, "epochs": 10, "steps": 40, "world_size": 3}
    return Progress(**{**figures, "step": step, **more})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("[rank12]: hello", (12, "hello")),
        ("[rank0]: ", (0, "")),
        ("[rank0]:   epoch 1/2", (0, "  epoch 1/2")),
        ("[rank1]: [rank1]: Traceback", (1, "[rank1]: Traceback")),
        ("[RANK1] Epoch 2", (None, "[RANK1] Epoch 2")),
        ("plain", (None, "plain")),
        ("", (None, "")),
    ],
)
def test_the_rank_in_front_of_a_line(text: str, parts: tuple[int | None, str]) -> None:
    assert split(text) == parts


@pytest.mark.parametrize(
    ("job", "texts", "gone"),
    [
        ("own", [(None, "launch pc1: job own from /kit/job.json, 1 process here")], False),
        ("own", [(None, line(Started()))], False),
        ("own", [(None, "[FATAL tini (7)] exec python3 failed: No such file or directory")], False),
        ("own", [(0, line(Member(rank=0, local_rank=0, world_size=1)))], True),
        ("own", [(None, "launch pc1: round 7 with pc1")], True),
        ("own", [(0, "epoch 812"), (None, "launch pc1: round 2 with pc1")], True),
        ("own", [(None, "Collecting einops")], True),
        ("own", [], False),
        # Nobody knows with which line a server begins.
        ("serve-own", [(None, "INFO: Started server process [1]")], False),
    ],
)
def test_a_log_whose_beginning_docker_has_dropped_says_so(
    job: str, texts: list[tuple[int | None, str]], gone: bool
) -> None:
    lines = [LogLine(job, "pc1", text, rank, 7.0) for rank, text in texts]
    found = [*with_note(lines)]
    assert found[gone:] == lines
    if gone:
        assert found[0] == LogLine(job, "pc1", GONE, None, 7.0)


def test_a_training_from_its_beginning() -> None:
    reader = told(BEGIN)
    assert reader.progress is not None
    assert (reader.progress.epoch, reader.progress.steps, reader.last_step) == (0, 40, None)
    reader = told(BEGIN, progress(20, time=50.0, loss=0.5, seconds_left=9.0))
    assert reader.progress is not None
    assert (reader.progress.step, reader.progress.loss, reader.progress.seconds_left) == (
        20,
        0.5,
        9,
    )
    assert (reader.last_step, reader.world_size) == (50.0, 3)
    epoch = Epoch(
        epoch=6, epochs=10, step=24, steps=40, world_size=3, accuracy=0.9, images_per_second=99
    )
    reader = told(BEGIN, epoch, Saved(checkpoint="step-00000024", epoch=6, step=24))
    assert reader.progress is not None
    assert (reader.progress.accuracy, reader.progress.images_per_second) == (0.9, 99)
    assert reader.checkpoint == "step-00000024"


def test_reading_may_begin_in_the_middle() -> None:
    reader = told(progress(21, accuracy=0.8, checkpoint="step-00000020"))
    assert reader.progress is not None
    assert (reader.progress.epoch, reader.progress.accuracy) == (5, 0.8)
    assert reader.checkpoint == "step-00000020"


def test_a_resume_and_a_stop_are_told() -> None:
    reader = told(BEGIN, Resumed(epoch=3, step=12, checkpoint="step-00000012"))
    assert reader.progress is not None
    assert (reader.progress.epoch, reader.progress.step) == (3, 12)
    assert reader.checkpoint == "step-00000012"
    reader = told(BEGIN, Stopped(epoch=4, step=17, checkpoint="step-00000017"))
    assert reader.progress is not None
    assert (reader.progress.epoch, reader.progress.step) == (4, 17)
    assert reader.checkpoint == "step-00000017"


def test_ranks_follow_the_last_world() -> None:
    def member(rank: int, size: int, local: int, host: str) -> tuple[str, Event]:
        return host, Member(rank=rank, local_rank=local, world_size=size, gpus=(f"GPU-{host}",))

    three = [member(1, 3, 0, "b"), member(0, 3, 0, "a"), member(2, 3, 1, "b")]
    reader = told(*three)
    assert reader.ranks == {"a": (0,), "b": (1, 2)}
    assert (reader.world_size, reader.seen) == (3, {"a": ("GPU-a",), "b": ("GPU-b",)})
    # Host a leaves, then returns after b.
    two = [*three, member(0, 2, 0, "b"), member(1, 2, 1, "b")]
    reader = told(*two)
    assert (reader.ranks, reader.world_size) == ({"b": (0, 1)}, 2)
    again = [*two, member(2, 3, 0, "a"), member(1, 3, 1, "b"), member(0, 3, 0, "b")]
    assert told(*again).ranks == {"b": (0, 1), "a": (2,)}


def test_failures_and_restarts_are_told_until_a_world_has_formed() -> None:
    failed = Failed(kind="memory", message="out of memory with batch_size 64", rank=0)
    assert told(BEGIN, failed).failure == "a: out of memory with batch_size 64"
    again = Member(rank=0, local_rank=0, world_size=1, restarts=2)
    reader = told(failed, Restart(restarts=2), again)
    assert (reader.failure, reader.restarts) == ("", 2)
    # A script's launcher repeats the failure for which its workers were restarted.
    said = "b: rank 1 failed first on this host (local rank 0), exit code 1: ValueError: x (t.py:9)"
    reader = told(failed, replace(again, failure=said))
    assert reader.failure == said
    # The built-in training starts a worker again: its exception is in the event of the next one.
    reason = Restart(restarts=1, reason="ValueError: x (t.py:9)")
    assert told(again, reason).failure == "a: ValueError: x (t.py:9)"
    elsewhere = Failed(kind="input", message="exit code 7", host="b")
    assert told(elsewhere).failure == "b: exit code 7"
    assert told(again, Started(gpus=())).restarts == 0


def test_a_container_and_a_server() -> None:
    reader = told(Started(gpus=("GPU-x",)), Serving(checkpoint="step-00000009", replicas=1))
    assert (reader.seen, reader.checkpoint) == ({"a": ("GPU-x",)}, "step-00000009")


@given(st.text())
def test_what_people_read_tells_nothing(text: str) -> None:
    reader = Reader()
    reader.read(LogLine("j", "a", text))
    reader.read(LogLine("j", "a", f"@kit {text}"))
    assert (reader.progress, reader.checkpoint, reader.ranks, reader.seen) == (None, None, {}, {})
    assert is_event(f"@kit {text}")


def source(lines: list[tuple[float, Event]], asked: list[float | None]) -> Source:
    """A log that grows; `asked` notes from which moments on it was read."""

    def read(since: float | None) -> Sequence[LogLine]:
        asked.append(since)
        # As Docker does, which sends the last line again.
        return [
            LogLine("j", "a", line(event), time=moment)
            for moment, event in lines
            if since is None or moment >= since
        ]

    return read


def test_each_look_reads_on_from_the_one_before() -> None:
    lines: list[tuple[float, Event]] = [(1.0, Restart(restarts=1)), (2.0, BEGIN)]
    asked: list[float | None] = []
    event_log = EventLog()
    assert event_log.update({"one": source(lines, asked)}).restarts == 1
    seen: list[float | None] = []
    with mock.patch.object(event_log.reader, "read", lambda one: seen.append(one.time)):
        event_log.update({"one": source(lines, asked)})
        assert (asked, seen) == ([None, 2.0], [])
        lines.append((3.0, progress(4)))
        event_log.update({"one": source(lines, asked)})
    assert asked == [None, 2.0, 2.0]
    assert seen == [3.0]


@pytest.mark.parametrize("printed", [100, 5000])
def test_a_script_that_prints_much_does_not_hide_its_events(printed: int) -> None:
    lines = [LogLine("j", "a", line(BEGIN), time=1.0)]
    lines += [LogLine("j", "a", f"step {at}", time=2.0) for at in range(printed)]
    asked = []

    def read(tail: str) -> list[LogLine]:
        asked.append(tail)
        return lines[-int(tail) :]

    reader = EventLog().update({"one": lambda _: last_lines(read)})
    assert reader.progress is not None
    assert asked == [TAIL] if printed == 100 else [TAIL, MORE]


def test_lines_of_several_sources_are_read_in_the_order_of_time() -> None:
    first = source([(1.0, progress(1)), (4.0, progress(4))], [])
    second = source([(2.0, progress(2)), (3.0, progress(3))], [])
    reader = EventLog().update({"one": first, "two": second})
    assert reader.progress is not None
    assert reader.progress.step == 4


def test_a_source_that_is_lost_tells_later_and_another_run_begins_anew() -> None:
    def lost(since: float | None) -> Sequence[LogLine]:
        raise KitError("a cannot be reached")

    event_log = EventLog()
    event_log.update({"one": source([(1.0, progress(8))], []), "two": lost})
    assert event_log.reader.progress is not None
    assert {name: error.message for name, error in event_log.refused.items()} == {
        "two": "a cannot be reached"
    }
    event_log.update({"one": lost})
    assert event_log.reader.progress is not None
    event_log.update({"three": source([(9.0, Started(gpus=()))], [])})
    assert event_log.reader.progress is None


def fetch(done: int, **more: int | str) -> Fetch:
    values = {
        "data_set": "cifar10",
        "version": 1,
        "state": "fetching",
        "bytes": done,
        "total": 1000,
    }
    return Fetch(**{**values, **more})  # type: ignore[arg-type]


def test_a_host_that_fetches_is_named_until_it_has_the_data() -> None:
    there = told(("a", fetch(0, total=0)), ("b", fetch(430, rate=19)))
    assert there.fetching == {"a": "fetches cifar10@1", "b": "fetches cifar10@1: 43 %, 30 s left"}
    assert told(fetch(430), fetch(1000, state="ready")).fetching == {}
    assert told(fetch(430), Failed(kind="data", message="the disk is full")).fetching == {}
    assert told(fetch(430), Started(gpus=())).fetching == {}


def test_what_is_known_of_a_host_is_told_with_its_limits() -> None:
    reader, host = Reader(), HostStatus("n2", 1, State.RUNNING, None)
    reader.read(LogLine("j", "n2", line(Member(rank=1, local_rank=0, world_size=2)), 1))
    assert reader.of_host(host).ranks == (1,)
    reader.unread = {"n2": "its log cannot be read now: node n2 is not available"}
    assert reader.of_host(host).message == reader.unread["n2"]
    reader.read(LogLine("j", "n2", line(LeftOut(kind="gpu", message="CUDA error")), None))
    found = reader.of_host(host)
    assert (found.ranks, found.left_out) == ((), True)
    assert found.message == "is left out, `kit release n2` takes it back: CUDA error"
    # A container that has ended has nothing to release.
    assert not reader.of_host(replace(host, state=State.STOPPED)).left_out
    reader.read(LogLine("j", "n2", line(Released()), None))
    assert not reader.of_host(host).left_out


def test_a_host_whose_worker_hangs_says_so_until_it_is_in_a_group_again() -> None:
    reader = Reader()
    host = HostStatus("n2", 1, State.RUNNING, None)
    reader.read(LogLine("j", "n2", line(Hung(local_rank=1, seconds=2.4)), None))
    assert reader.of_host(host).message == "local rank 1 hangs: see `kit logs`"
    assert reader.of_host(replace(host, state=State.STOPPED)).message == ""
    reader.read(LogLine("j", "n2", line(Member(rank=1, local_rank=1, world_size=2)), None))
    assert reader.of_host(host).message == ""


def test_a_host_whose_ranks_are_silent_says_since_when() -> None:
    host, place = (
        HostStatus("a", 2, State.RUNNING, None),
        Member(rank=1, local_rank=1, world_size=2),
    )
    first = Silent(rank=1, seconds=600, time=1790000600)
    # Repeated each minute, as the place of a worker.
    reader = told(place, first, place, replace(first, seconds=660, time=1790000660))
    since = datetime.fromtimestamp(1790000000).astimezone().isoformat(" ", "seconds")
    message = f"rank 1 is silent since {since}: `kit logs` has the stacks"
    assert reader.of_host(host).message == message
    both = told(first, replace(first, rank=0))
    assert both.of_host(host).message.startswith("ranks 0, 1 are silent since ")
    for after in (Spoke(rank=1), Restart(restarts=1), Started()):
        assert told(first, after).of_host(host).message == ""


def test_weights_that_stand_still_are_in_the_status_until_they_move() -> None:
    host = HostStatus("a", 1, State.RUNNING, None)
    still = Unmoved(steps=300, scale=1.0)
    said = "the weights have not changed for 300 steps: the scale of the loss is 1; losses or"
    assert told(still).of_host(host).message.startswith(said)
    for after in (Unmoved(steps=0), Started()):
        assert told(still, after).of_host(host).message == ""


def test_a_training_that_learns_nothing_is_told_until_it_learns() -> None:
    begin, untaught = Begin(epochs=9, steps=90, world_size=1), Untaught(message="learns nothing")
    epoch = Epoch(epoch=3, epochs=9, step=30, steps=90, world_size=1)
    assert told(begin, epoch, untaught).untaught == "learns nothing"
    # An epoch of which it is still true is followed by the event.
    for after in (replace(epoch, epoch=4), begin):
        assert told(begin, epoch, untaught, after).untaught == ""


def test_a_host_that_trains_alone_says_so_until_it_is_in_a_group() -> None:
    reader = Reader()
    host = HostStatus("n2", 1, State.RUNNING, None)
    # A worker repeats its place every minute, also when nobody hears of it.
    place = line(Member(rank=1, local_rank=0, world_size=2))
    for after in (Grouped(seconds=190.0), Restart(restarts=1), Started()):
        for text in (line(Alone(seconds=121.2)), place):
            reader.read(LogLine("j", "n2", text, None))
        told = "its processes are in no group after 121 s"
        cause = "each trains its own model, or is still starting"
        assert reader.of_host(host).message == f"{told}: {cause}; see `kit logs`"
        assert reader.of_host(replace(host, state=State.STOPPED)).message == ""
        reader.read(LogLine("j", "n2", line(after), None))
        assert reader.of_host(host).message == ""


def test_a_job_that_has_ended_by_itself_says_why_and_what_it_has_saved() -> None:
    limit = Limit(key="max_duration", seconds=43200)
    stopped = Stopped(epoch=1, step=1200, checkpoint="step-00001200")
    saved = "ended after its max_duration of 12 h, saved at step 1,200"
    assert told(BEGIN, stopped, ("b", limit), limit).limit == saved
    # A stop of an earlier start has saved another step.
    assert told(stopped, Started(), BEGIN, limit).limit == "ended after its max_duration of 12 h"
    idle = Limit(key="idle", seconds=1800)
    assert told(idle).limit == "ended: it computed nothing for 30 min, its GPUs are free"
    assert told(idle, Started()).limit == ""
    # Its container seems to be complete.
    part = HostStatus("a", 1, State.COMPLETED, 0)
    assert told(idle).of_host(part).state is State.STOPPED
    assert told(Started()).of_host(part).state is State.COMPLETED


def test_a_job_that_computes_nothing_says_so_before_it_ends() -> None:
    host = HostStatus("a", 1, State.RUNNING, None)
    idle = Idle(seconds=900, limit=1800, time=1790000900)
    since = datetime.fromtimestamp(1790000000).astimezone().isoformat(" ", "seconds")
    message = f"no host has computed since {since}: the job ends after 30 min without computing"
    assert told(idle).of_host(host).message == message
    for after in (replace(idle, seconds=0.0), Started()):
        assert told(idle, after).of_host(host).message == ""
