"""Checks the trainer on this machine's GPU and measures it, in under nine minutes.

    make gpu                                        in .venv
    python3 -m tests.gpu --out FOLDER [CHECK …]     with any Python that has torch 2.6 or newer

It needs this checkout and torch: no Docker, no network. A check whose packages are missing is
skipped, and they are named. Each check is a process of its own, so that one which fails, hangs or
crashes does not affect the others. Without a GPU all run on the CPU, with small sizes.

FOLDER gets gpu.json and gpu.md. The exit status is 1 if a check has failed; a figure that misses
its aim is marked and does not fail.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from threading import Lock

from tests.gpu import division, machine, serving, speed, training
from tests.gpu.check import CHECKS, PARTS, Check, Figure, LackingError, Place

MODULES = (machine, training, speed, division, serving)
"""Their import registers the checks."""
ROOT = Path(__file__).resolve().parents[2]
MARK = "RESULT "
LONGEST = 520.0
"""Seconds of all checks: a machine may be lent for ten minutes."""
GRACE = 5.0
TAIL, SHOWN = 2500, 8000
"""Characters of each log of a check that has failed, and of all of them."""


@dataclass(frozen=True)
class Result:
    """The result of one check."""

    name: str
    part: str
    verdict: str
    """ok, missed (its aim), failed, or not measured."""
    seconds: float = 0.0
    figures: dict[str, Figure] = field(default_factory=dict)
    reason: str = ""

    @classmethod
    def parse(cls, check: Check, seconds: float, text: str) -> Result:
        """Read what the process of a check has printed last."""
        found = json.loads(text)
        figures = {name: Figure(**each) for name, each in found.pop("figures").items()}
        verdict = found["verdict"]
        if verdict == "ok" and any(each.missed for each in figures.values()):
            verdict = "missed"
        return cls(check.name, check.part, verdict, seconds, figures, found["reason"])

    def row(self) -> str:
        """A row of the table."""
        figures = "; ".join(f"{name} {figure}" for name, figure in self.figures.items())
        reason = self.reason.strip().splitlines()[-1][:200] if self.reason.strip() else ""
        text = "; ".join(filter(None, (figures, reason))).replace("|", "/")
        return f"| {self.part} | {self.name} | {self.verdict} | {text} | {self.seconds:.0f} |"


class Runner:
    """Runs checks within a time, several at once where none is measured."""

    def __init__(self, folder: Path, seconds: float, patience: float = 1.0) -> None:
        self._folder, self._until = folder, time.monotonic() + seconds
        self._patience = patience
        self._lock = Lock()

    def run_all(self, checks: Sequence[Check], jobs: int) -> list[Result]:
        """Run those that share the machine, then those that do not; in the order of the parts."""
        shared = [each for each in checks if not each.alone]
        with ThreadPoolExecutor(jobs) as pool:
            found = list(pool.map(self.run, shared))
        found += [self.run(each) for each in checks if each.alone]
        names = [each.name for each in checks]
        return sorted(found, key=lambda result: names.index(result.name))

    def run(self, check: Check) -> Result:
        """Run a check in a process of its own, and say what came of it."""
        result = self._run(check)
        with self._lock:
            print(result.row(), flush=True)
            if result.verdict == "failed":
                print(result.reason[-SHOWN:], flush=True)
        return result

    def _run(self, check: Check) -> Result:
        if lacking := check.lacking():
            return Result(check.name, check.part, "not measured", reason=f"no {lacking}")
        limit = min(check.seconds * self._patience, self._until - time.monotonic())
        if limit <= 0:
            return Result(check.name, check.part, "not measured", reason="no time was left")
        folder = self._folder / check.name.replace(" ", "-")
        folder.mkdir(parents=True)
        began, log = time.monotonic(), folder / "check.log"
        with log.open("wb") as stream:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.gpu", "--child", check.name, "--out", folder],
                cwd=ROOT, stdin=subprocess.DEVNULL, stdout=stream, stderr=subprocess.STDOUT,
                start_new_session=True,
            )  # fmt: skip
            try:
                process.wait(limit)
                why = f"ended with {process.returncode}"
            except subprocess.TimeoutExpired:
                why = f"not within {limit:.0f} s"
                end_group(process)
        seconds, text = time.monotonic() - began, log.read_text(errors="replace")
        _, found, last = text.rpartition(MARK)
        if found:
            result = Result.parse(check, seconds, last.splitlines()[0])
            if result.verdict != "failed":
                return result
            why = result.reason
        said = "\n".join(map(tail, sorted(folder.glob("*.log"))))
        return Result(check.name, check.part, "failed", seconds, reason=f"{said}\n{why}")


def tail(log: Path) -> str:
    """The end of a log, under its name."""
    return f"{log.name}:\n{log.read_text(errors='replace')[-TAIL:]}"


def end_group(process: subprocess.Popen[bytes]) -> None:
    """End a check, which ends the processes that it has started."""
    process.terminate()
    try:
        process.wait(GRACE)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def work(name: str, folder: Path) -> None:
    """Do one check in this process; print its result."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    figures, verdict, reason = {}, "ok", ""
    try:
        found = CHECKS[name].work(Place(folder, machine.has_gpu()))
        figures = {key: asdict(figure) for key, figure in found.items()}
    except LackingError as error:
        verdict, reason = "not measured", str(error)
    except Exception:
        verdict, reason = "failed", traceback.format_exc()
    print(f"\n{MARK}{json.dumps({'verdict': verdict, 'figures': figures, 'reason': reason})}")


def table(about: dict[str, str], results: Sequence[Result]) -> str:
    """The results as Markdown."""
    lines = [", ".join(f"{name} {value}" for name, value in about.items() if value), ""]
    lines += ["| part | check | verdict | figures | s |", "| --- | --- | --- | --- | --- |"]
    return "\n".join([*lines, *(result.row() for result in results), ""])


def main() -> int:
    """Return 1 if a check has failed."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="python3 -m tests.gpu", description=__doc__, formatter_class=raw
    )
    parser.add_argument("checks", nargs="*", metavar="CHECK", help="parts or checks; default: all")
    parser.add_argument("--out", type=Path, help="default: a temporary folder")
    parser.add_argument("--seconds", type=float, default=LONGEST, help="of all checks")
    parser.add_argument(
        "--patience", type=float, default=1.0, help="multiplies the limit of each check"
    )
    parser.add_argument("--jobs", type=int, default=max(1, min(5, (os.cpu_count() or 1) // 2)))
    parser.add_argument("--child", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        work(given.child, given.out)
        return 0
    known = {*PARTS, *CHECKS}
    if wrong := [each for each in given.checks if each not in known]:
        parser.error(f"there is no {', '.join(wrong)}; there are: {', '.join([*PARTS, *CHECKS])}")
    chosen = [
        each
        for each in CHECKS.values()
        if not given.checks or {each.name, each.part} & {*given.checks}
    ]
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        out = given.out or Path(name)
        out.mkdir(parents=True, exist_ok=True)
        about = machine.facts()
        print(", ".join(f"{key} {value}" for key, value in about.items() if value), flush=True)
        runner = Runner(Path(name) / "work", given.seconds, given.patience)
        results = runner.run_all(chosen, given.jobs)
        about["seconds"] = f"{time.monotonic() - began:.0f}"
        content = {"machine": about, "checks": [asdict(each) for each in results]}
        (out / "gpu.json").write_text(json.dumps(content, indent=1) + "\n")
        (out / "gpu.md").write_text(table(about, results))
    failed = [each.name for each in results if each.verdict == "failed"]
    counts = {each: sum(one.verdict == each for one in results) for each in ("ok", "missed")}
    print(f"{counts['ok']} ok, {counts['missed']} missed their aims, {len(failed)} failed; "
          f"{about['seconds']} s")  # fmt: skip
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
