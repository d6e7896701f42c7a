"""The processor time of each test file: noted by every run, printed by `make test-times`.

It is that of the test process, of its descendants, and of the containers of its lab. Processes that
lose their parents, and nodes without power, are missing here; `tests/budget.py` has them.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from functools import partial
from pathlib import Path

import pytest

NOTES = Path(__file__).resolve().parents[1] / ".tools" / "test-times.json"
DEAREST = 20
LAB = "tests/lab/"
TICKS = os.sysconf("SC_CLK_TCK")


class Times:
    """Notes of one test process; the controller joins them."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._file = ""
        self._trees: dict[int, float] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self, nodeid: str) -> None:
        file = nodeid.partition("::")[0]
        # The tests of the lab cut the power of nodes, whose time is lost with them.
        if file != self._file or file.startswith(LAB):
            self._turn(file)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        self._turn("")
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["seconds"] = dict(self.seconds)
        else:
            _keep(self.seconds)

    def _turn(self, file: str) -> None:
        """Give what was used since the last turn to its file."""
        trees = processor_times()
        if self._file:
            used = (seconds - self._trees.get(pid, 0.0) for pid, seconds in trees.items())
            self.seconds[self._file] += sum(map(partial(max, 0.0), used))
        self._file, self._trees = file, trees


class Controller:
    """Joins the notes of all test processes."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)

    def pytest_testnodedown(self, node: object) -> None:
        for file, seconds in getattr(node, "workeroutput", {}).get("seconds", {}).items():
            self.seconds[file] += seconds

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        _keep(self.seconds)


def register(config: pytest.Config) -> None:
    """Note the times of this run."""
    controls = not hasattr(config, "workerinput") and config.getoption("numprocesses", None)
    config.pluginmanager.register(Controller() if controls else Times(), "times")


def lab_number() -> str:
    """Number the lab of this test process; `KIT_TEST_LABS` keeps two runs at a time apart."""
    process = os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")
    return os.environ.get("KIT_TEST_LABS", "") + process


def processor_times() -> dict[int, float]:
    """Return the seconds of this process and of each container of its lab, with descendants."""
    parents, used, roots = {}, {}, {os.getpid()}
    network = f"LAB_NAMES=10.78.{lab_number()}.2\0".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            inside = network in (folder / "environ").read_bytes()
        except OSError:
            continue
        pid = int(folder.name)
        parents[pid], used[pid] = int(fields[1]), sum(map(int, fields[11:15])) / TICKS
        if inside:
            roots.add(pid)

    found: defaultdict[int, float] = defaultdict(float)
    for pid, seconds in used.items():
        root = pid
        while root not in roots and root in parents:
            root = parents[root]
        if root in roots:
            found[root] += seconds
    return found


def _keep(seconds: dict[str, float]) -> None:
    kept = json.loads(NOTES.read_text()) if NOTES.exists() else {}
    NOTES.parent.mkdir(exist_ok=True)
    own = NOTES.with_suffix(f".{os.getpid()}")  # `make test` and `make test-lab` may end together.
    own.write_text(json.dumps(kept | seconds, indent=1))
    own.replace(NOTES)


def main() -> None:
    """Print the dearest files of the last runs."""
    kept = json.loads(NOTES.read_text()) if NOTES.exists() else {}
    for file, seconds in sorted(kept.items(), key=lambda each: -each[1])[:DEAREST]:
        print(f"{seconds:7.1f} s  {file}")
    print(f"{sum(kept.values()):7.1f} s  all {len(kept)} files; of the last run of each")


if __name__ == "__main__":
    main()
