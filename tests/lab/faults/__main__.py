"""Inject faults blindly and compare what kit doctor names: `python -m tests.lab.faults --help`.

The lab must be up and in a swarm, with the image (`tests/lab/lab up; … swarm; … image`).
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.lab import settings
from tests.lab.faults.known import FAULTS, Fault
from tests.lab.faults.world import Seen, World
from tests.sandbox import ROOT

PAGE = ROOT / "docs" / "how-to" / "doctor.md"
BEGIN = "<!-- Written by `python -m tests.lab.faults --all --write`. -->\n"


@dataclass(frozen=True)
class Result:
    """A fault, the finding that names it, if any, all codes that were found, and the healed lab."""

    fault: Fault
    named: dict[str, Any] | None
    codes: tuple[str, ...]
    healed: Seen
    seconds: float


def examine(world: World, fault: Fault) -> Result:
    """Make one fault, look, correct it, look again."""
    world.inject(fault)
    began = time.monotonic()
    try:
        seen = world.look()
    finally:
        seconds = time.monotonic() - began
        world.heal(fault)
    named = [each for each in seen.findings if each["code"] == fault.code]
    where = [each for each in named if at(each, fault)]
    codes = tuple(sorted({each["code"] for each in seen.findings}))
    healed = world.look()
    for _ in range(3):  # Swarm notices after seconds that a node is well again.
        if not healed.findings:
            break
        time.sleep(3)
        healed = world.look()
    return Result(fault, where[0] if where else None, codes, healed, seconds)


def at(finding: dict[str, Any], fault: Fault) -> bool:
    """Return whether a finding names the host of a fault; faults of the Swarm are made on n1."""
    host = finding["host"]
    return host in {None, fault.node} or fault.node in finding["evidence"] or "SWARM" in fault.code


def show(result: Result) -> None:
    """Print a result."""
    fault, named = result.fault, result.named
    told = f"{named['host'] or 'all'}: {named['evidence']}" if named else "NOT NAMED"
    others = [code for code in result.codes if code != fault.code]
    more = f"  (with {', '.join(others)})" if others else ""
    left = f"  STILL ILL: {result.healed.findings}" if result.healed.findings else ""
    print(f"{fault.code:14} {fault.name}: {told}{more}{left}  {result.seconds:.1f} s", flush=True)


def rows(results: Sequence[Result]) -> str:
    """Return the table for the documentation."""
    lines = ["| fault, made in the lab | code | what kit doctor said |", "| --- | --- | --- |"]
    for each in sorted(results, key=lambda one: FAULTS.index(one.fault)):
        named = each.named or {"host": "", "evidence": "not named"}
        host = f"{named['host']}: " if named["host"] else ""
        said = f"{host}{named['evidence']}".replace("|", "\\|")
        code = f"[{each.fault.code}](../troubleshooting.md#{each.fault.code.lower()})"
        quoted = f"`` {said} ``" if "`" in said else f"`{said}`"
        lines.append(f"| {each.fault.name} | {code} | {quoted} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Return 0 if all but one fault at most were named, and no healthy lab was called ill."""
    parser = argparse.ArgumentParser(prog="python -m tests.lab.faults")
    parser.add_argument("--seed", type=int, default=7, help="of the choice and the order")
    parser.add_argument("--number", type=int, default=20, help="of faults, one at a time")
    parser.add_argument(
        "--all", action="store_true", help="all faults; the first NUMBER are those without --all"
    )
    parser.add_argument("--only", nargs="*", help="faults with these codes")
    parser.add_argument("--healthy", type=int, default=0, help="healthy runs before")
    parser.add_argument("--write", action="store_true", help=f"write the table into {PAGE.name}")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        world = World(settings.load(), Path(folder))
        world.prepare()
        ill = [seen for seen in (world.look() for _ in range(chosen.healthy)) if seen.status]
        for seen in ill:
            print(f"a healthy lab is called ill: {seen.wrong}", flush=True)
        if chosen.healthy:
            print(f"{chosen.healthy} healthy runs, {len(ill)} called ill", flush=True)
        results: list[Result] = []
        for fault in choose(chosen):
            results.append(examine(world, fault))
            show(results[-1])
            if len(results) == chosen.number:
                print(score(results), flush=True)
    print(score(results))
    if chosen.write:
        head, mark, _ = PAGE.read_text().partition(BEGIN)
        PAGE.write_text(f"{head}{mark}\n{rows(results)}")
    missed = sum(result.named is None for result in results)
    return 0 if missed <= 1 and not ill else 1


def choose(chosen: argparse.Namespace) -> list[Fault]:
    """Return the faults in an order that the seed decides."""
    if chosen.only:
        return [fault for fault in FAULTS if fault.code in chosen.only]
    order = random.Random(chosen.seed).sample(FAULTS, len(FAULTS))
    return order if chosen.all else order[: chosen.number]


def score(results: Sequence[Result]) -> str:
    """Return how many were named."""
    named = sum(result.named is not None for result in results)
    left = sum(bool(result.healed.wrong) for result in results)
    return (
        f"{named} of {len(results)} faults named rightly, {left} still there after the correction"
    )


if __name__ == "__main__":
    sys.exit(main())
