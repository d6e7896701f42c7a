"""`kit status` and `kit top` say whose a job of the queue is, and why it waits."""

from __future__ import annotations

import json
from dataclasses import replace

from kit.commands import status as status_command
from kit.commands import top
from kit.queue.record import Record
from kit.runtime.events import Reader
from kit.runtime.status import (
    HostStatus,
    JobStatus,
    LogLine,
    QueueStatus,
    State,
    in_queue,
    status_from_json,
    status_to_json,
)
from kit.workload.types import Kind
from trainer.contract import event_lines
from trainer.contract.queue_events import Allocated

HOST = HostStatus("pc1", 2, State.RUNNING, None)
PLAIN = JobStatus("lm", Kind.JOB, State.WAITING, "", 0.0, None, (), None, None)
WHY = "waits for 1 host, which resnet has"
# It has waited before, had a host, and waits again since 1000 s.
RECORD = Record("lm", "ben", 80, arrived=100.0, waits=1000.0, waited=60.0, reason=WHY)
WAITS = in_queue(PLAIN, RECORD, now=1240.0)
RUNS = in_queue(
    replace(PLAIN, job="resnet", state=State.RUNNING, hosts=(HOST,)),
    Record("resnet", "anna", 50, arrived=100.0, began=100.0),
    now=1240.0,
)


def test_a_job_that_waits_has_its_reason_and_its_time() -> None:
    assert WAITS.queue == QueueStatus("ben", 80, 300.0, WHY)
    assert WAITS.message == f"in the queue: {WHY}"
    assert RUNS.queue == QueueStatus("anna", 50, 0.0)
    assert in_queue(PLAIN, None, now=1240.0) == PLAIN
    ended = in_queue(PLAIN, replace(RECORD, waits=None, ended=1100.0), now=1240.0)
    assert (ended.queue, ended.message) == (QueueStatus("ben", 80, 60.0), "")


def test_a_status_that_outlasts_its_containers_knows_the_owner() -> None:
    """`kit cancel` removes the record of the queue; the containers have told it, too."""
    event = Allocated(time=1.0, owner="anna", priority=50, gpus=2, since=0.5, waited=60.0)
    reader = Reader()
    reader.read_logs([LogLine("resnet", "pc1", event_lines.line(event))])
    last = replace(PLAIN, state=State.STOPPED, queue=reader.queue)
    assert last.queue == QueueStatus("anna", 50, 60.0)
    assert status_from_json(json.loads(json.dumps(status_to_json(last)))) == last


def test_status_has_a_line_of_each_job() -> None:
    report = status_command.Report("lab", (RUNS, WAITS), (), ())
    texts = [each for each in status_command.show(report) if isinstance(each, str)]
    assert "resnet: owner anna, priority 50, waited 0 s" in texts
    assert texts[-2:] == [
        "lm: owner ben, priority 80, waited 5 min",
        f"lm: in the queue: {WHY}",
    ]
    jobs = status_command.document(report)["jobs"]
    assert jobs[1]["queue"] == {
        "owner": "ben",
        "priority": 80,
        "waited_seconds": 300.0,
        "why": WHY,
    }


def test_top_has_the_jobs_that_run_and_those_that_wait() -> None:
    picture = top.Picture((), {}, (RUNS, WAITS, replace(RUNS, job="old", state=State.COMPLETED)))
    listed = [(each["job"], each["state"]) for each in top.document("lab", picture)["jobs"]]
    assert listed == [("resnet", "running"), ("lm", "waiting")]
    assert top.document("lab", picture)["jobs"][1]["queue"]["why"] == WHY
    texts = [each for each in top.show(picture) if isinstance(each, str)]
    assert texts[:2] == [
        "resnet: running, owner anna, priority 50, waited 0 s",
        f"lm: waiting, owner ben, priority 80, waited 5 min, {WHY}",
    ]
    assert not [text for text in texts if "old" in text]
    words = [line.split(" ", 1)[1] for line in top.lines(picture)]
    assert words == [
        "job=resnet state=running owner=anna priority=50 waited=0s",
        f"job=lm state=waiting owner=ben priority=80 waited=300s {WHY}",
    ]
