"""What `python -m tests.versions UV --tell` says, with a stand-in for uv."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import versions
from tests.trainer.hosts import wait_until


def uv(folder: Path, script: str) -> str:
    """Write a stand-in for uv."""
    program = folder / "uv"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return str(program)


def test_libraries_that_cannot_be_installed_are_no_difference(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    versions.tell(uv(tmp_path, "exit 2"))
    said = capfd.readouterr()
    assert said.out.endswith(": not known: they could not be installed\n")
    assert "returned non-zero exit status 2" in said.err
    assert "Traceback" not in said.err


def test_what_is_left_out_is_there() -> None:
    """A file with another name would run, and fail for want of PyTorch."""
    left_out = {*versions.OTHERS, *(each.partition("::")[0] for each in versions.TRAIN)}
    assert [each for each in left_out if not (versions.ROOT / "tests" / each).is_file()] == []
    assert "queue/test_rules.py" in versions.tests()


def test_after_the_minute_nothing_runs_on(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(versions, "MINUTE", 8.0)
    written = tmp_path / "pid"
    versions.tell(uv(tmp_path, f"sleep 100 & echo $! >{written}; wait"))
    assert capfd.readouterr().out.endswith(": not known within a minute\n")
    pid = int(written.read_text())
    wait_until(lambda: not lives(pid), "the end of what uv had started")


def lives(pid: int) -> bool:
    """Whether a process runs; one that has ended and that nobody waits for does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"
