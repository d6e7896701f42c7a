"""The kept lines of containers: whose they are, and which of them belong to a time or a run."""

from __future__ import annotations

import subprocess
from datetime import UTC, datetime
from math import inf
from pathlib import Path

import pytest

from kit.runtime.kept import SCRIPT, Span, is_of, parsed


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


def kept(folder: Path, span: Span) -> list[tuple[int | None, str]]:
    """Run the program of the containers on a folder in the place of /logs."""
    for container, days in FILES.items():
        (folder / container).mkdir(exist_ok=True)
        for day, text in days.items():
            (folder / container / f"{day}.log").write_text(text)
    script = SCRIPT.replace("cd /logs", f"cd {folder}")
    done = subprocess.run(
        ["sh", "-c", script, "sh", span.day, "*train-own*"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return [(line.rank, line.text) for line in parsed(done.stdout, "lab", "own", "pc1", span)]


def at(day: int, hour: int) -> float:
    return datetime(2026, 11, day, hour, tzinfo=UTC).timestamp()


def test_lines_of_a_time_and_of_a_run(tmp_path: Path) -> None:
    first, of_rank, second = (None, "first"), (1, "of 1"), (None, "second run")
    compose, again = (None, "by Compose"), (None, "\x1e again")
    assert kept(tmp_path, Span(0, inf)) == [compose, again, first, of_rank, second]
    assert kept(tmp_path, Span(at(25, 0), inf)) == [compose, again, of_rank, second]
    assert kept(tmp_path, Span(at(25, 1), at(25, 9))) == [second]
    assert kept(tmp_path, Span(at(27, 0), inf)) == []
    # A run has all lines of its containers, also those after the next one has begun.
    assert kept(tmp_path, Span(at(24, 23), at(25, 0), of_begin=True)) == [first, of_rank]
    assert kept(tmp_path, Span(at(25, 0), at(25, 9), of_begin=True)) == [second]
    # A container of Compose has the name of that of the run before, and one folder with it.
    assert kept(tmp_path, Span(at(25, 10), inf, of_begin=True)) == [again]


def test_the_program_reads_only_files_that_may_have_lines(tmp_path: Path) -> None:
    (tmp_path / "train-own_train.1.a").mkdir()
    (tmp_path / "train-own_train.1.a" / "2026-11-01.log").write_text("2026-11-01T00:00:00Z old\n")
    script = SCRIPT.replace("cd /logs", f"cd {tmp_path}")
    words = ["sh", "-c", script, "sh", Span(at(25, 0), inf).day, "*"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout == "\x1etrain-own_train.1.a\n"
