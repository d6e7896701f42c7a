"""Notes of `make test-long`: a dated line for each run, at the end of docs/testing.md."""

from __future__ import annotations

import platform
import subprocess
import time
from importlib.metadata import version
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "testing.md"
COUNTED = ("passed", "failed", "error", "skipped")


class Note:
    """Appends the line at the end of a run; `arguments` are those of make."""

    def __init__(self, arguments: str) -> None:
        self._arguments, self._began = arguments, time.monotonic()

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        stats = terminalreporter.stats
        counts = [f"{len(stats[kind])} {kind}" for kind in COUNTED if stats.get(kind)]
        minutes = (time.monotonic() - self._began) / 60
        own = f' ARGS="{self._arguments}"' if self._arguments else ""
        command = f"make test-long{own}"
        result = f"{', '.join(counts) or 'no test'}; {minutes:.0f} min"
        cells = (time.strftime("%Y-%m-%d"), f"`{command}`", commit(), versions(), result)
        with PAGE.open("a", encoding="utf-8") as page:
            page.write(f"| {' | '.join(cells)} |\n")


def commit() -> str:
    """Return the short name of the commit; with a + if files have changed since."""

    def git(*words: str) -> str:
        return subprocess.run(
            ["git", *words], cwd=ROOT, capture_output=True, text=True, check=False
        ).stdout.strip()

    return git("rev-parse", "--short=9", "HEAD") + ("+" if git("status", "--porcelain") else "")


def versions() -> str:
    return f"Python {platform.python_version()}, torch {version('torch')}"
