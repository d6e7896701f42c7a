"""The kept lines of containers: whose they are, and which of them belong to a time or a run."""

from __future__ import annotations

import json
import subprocess
from datetime import UTC, datetime
from math import inf
from pathlib import Path

import pytest

from kit.runtime.kept import EVENTS, SCRIPT, Span, is_of, parsed


@pytest.mark.parametrize(
    ("container", "job"),
    [
        ("train-own_train.1.k3x9", "own"),
        ("train-own_train-on-gpu-7.1.k3x9", "own"),
        ("train-own_rendezvous.1.k3x9", ""),
        ("lab_train-own-train-1", "own"),
        ("other_train-own-train-1", ""),
        ("lab_train-own-train-train-1", "own-train"),
        ("train-own-train_train.2.a1", "own-train"),
        ("serve-own_serve.1.a1", "serve-own"),
        ("lab_serve-own-serve-1", "serve-own"),
        ("lab_data-data-agent-1", ""),
    ],
)
def test_whose_a_container_was(container: str, job: str) -> None:
    jobs = ("own", "own-train", "serve-own", "train")
    assert [name for name in jobs if is_of(container, "lab", name)] == ([job] if job else [])


FILES = {
    "train-own_train.1.a": {
        "2026-11-24": "2026-11-24T23:59:59.5Z first\n",
        "2026-11-25": "2026-11-25T00:00:01.25Z [rank1]: of 1\na part without time\n",
    },
    "train-own_train.1.b": {"2026-11-25": "2026-11-25T08:00:00Z second run\n"},
    "lab_train-own-train-1": {
        "2026-11-25": "2026-11-25T09:00:00Z by Compose\n2026-11-25T10:00:00Z \x1e again\n"
    },
    "train-own_rendezvous.1.c": {"2026-11-25": "2026-11-25T08:00:00Z rounds\n"},
}


def printed(folder: Path, day: str, events: str = "") -> str:
    """Run the program of the containers on a folder in the place of /logs."""
    script = SCRIPT.replace("cd /logs", f"cd {folder}")
    words = ["sh", "-c", script, "sh", day, "*train-own* *train-o*", events]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


def read(folder: Path, span: Span) -> list[tuple[int | None, str]]:
    for container, days in FILES.items():
        (folder / container).mkdir(exist_ok=True)
        for day, text in days.items():
            (folder / container / f"{day}.log").write_text(text)
    kept = parsed(printed(folder, span.day), "lab", ["own", "o"], "pc1")
    assert list(kept.missing(span)) == []
    return [(line.rank, line.text) for line in kept.lines(span)]


def at(day: int, hour: int) -> float:
    return datetime(2026, 11, day, hour, tzinfo=UTC).timestamp()


def test_lines_of_a_time_and_of_a_run(tmp_path: Path) -> None:
    first, of_rank, second = (None, "first"), (1, "of 1"), (None, "second run")
    compose, again = (None, "by Compose"), (None, "\x1e again")
    assert read(tmp_path, Span(0, inf)) == [first, of_rank, second, compose, again]
    assert read(tmp_path, Span(at(25, 0), inf)) == [of_rank, second, compose, again]
    assert read(tmp_path, Span(at(25, 1), at(25, 9))) == [second]
    assert read(tmp_path, Span(at(27, 0), inf)) == []
    # A run has all lines of its containers, also those after the next one has begun.
    assert read(tmp_path, Span(at(24, 23), at(25, 0), of_begin=True)) == [first, of_rank]
    assert read(tmp_path, Span(at(25, 0), at(25, 9), of_begin=True)) == [second]
    # A container of Compose has the name of that of the run before, and one folder with it.
    assert read(tmp_path, Span(at(25, 10), inf, of_begin=True)) == [again]


def test_the_program_reads_only_files_that_may_have_lines(tmp_path: Path) -> None:
    (tmp_path / "train-own_train.1.a").mkdir()
    (tmp_path / "train-own_train.1.a" / "2026-11-01.log").write_text("2026-11-01T00:00:00Z old\n")
    found = printed(tmp_path, Span(at(25, 0), inf).day)
    assert "train-own_train.1.a" in found
    assert "old" not in found


def test_repeated_events_are_sent_once(tmp_path: Path) -> None:
    (tmp_path / "train-own_train.1.a").mkdir()
    file = tmp_path / "train-own_train.1.a" / "2026-11-25.log"
    told = [("", "started"), ("[rank0]: ", "progress"), ("", "a line"), ("[rank0]: ", "progress")]
    told += [("", "failed"), ("[rank0]: ", "pace"), ("[rank1]: ", "pace"), ("[rank1]: ", "pace")]
    with file.open("w") as lines:
        for second, (rank, event) in enumerate(told):
            values = {"v": 1, "event": event, "rank": int(rank[5])} if rank else {"event": event}
            text = event if event == "a line" else f"@kit {json.dumps(values)}"
            lines.write(f"2026-11-25T08:00:{second:02}Z {rank}{text}\n")
    kept = parsed(printed(tmp_path, "2026-11-25", EVENTS), "lab", ["own"], "pc1")
    [log] = kept.logs
    seconds = [int((line.time or 0) % 60) for line in log.lines]
    # The last progress before the failure, and the last pace of each rank.
    assert seconds == [0, 3, 4, 5, 7]
