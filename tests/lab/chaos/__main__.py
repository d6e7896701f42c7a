"""Make faults during a real training over three nodes of a lab: `make chaos SEED=1`.

The lab is this command's own: it is made before and removed afterwards, also after a failure or
Ctrl-C. The seed decides the order of the faults, their times and the nodes.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from random import Random
from typing import TextIO

from tests.conftest import find_docker
from tests.lab import settings
from tests.lab.chaos.faults import FAULTS, Fault
from tests.lab.chaos.suite import Result, begin, run, table
from tests.lab.chaos.world import ViolatedError, World
from tests.lab.conftest import Lab
from tests.lab.host import require
from tests.lab.operator import make_operator
from tests.lab.settings import LabError
from tests.sandbox import Project

LAB = {
    "KIT_LAB_NAME": "chaos",
    "KIT_LAB_NET": "10.78.40",
    "KIT_LAB_HEARTBEAT": "2s",
    "KIT_LAB_NODES": "3",
    "KIT_LAB_PYTHON": sys.executable,
}
"""A lab beside a user's own and those of the tests."""


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.lab.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="of the order, the times, the nodes")
    parser.add_argument("--faults", default="", help=f"some of: {', '.join(FAULTS)}")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    return parser.parse_args()


def choose(names: str, draw: Random) -> list[Fault]:
    """Return the faults in an order that the seed decides.

    Raises:
        LabError: There is no fault of such a name.
    """
    chosen = names.split(",") if names else list(FAULTS)
    if unknown := sorted({*chosen} - FAULTS.keys()):
        raise LabError(f"no fault is called {', '.join(unknown)}; see --help", 2)
    return [FAULTS[name] for name in draw.sample(chosen, len(chosen))]


@contextmanager
def own_lab(draw: Random) -> Iterator[World]:
    """A lab for this command, which is removed in the end."""
    lab = Lab(settings.load({**os.environ, **LAB}), LAB)
    with tempfile.TemporaryDirectory() as folder:
        operator = make_operator(lab, Project(Path(folder)), find_docker(), "swarm")
        world = World(lab, operator, draw)
        try:
            lab.do("up")
            world.prepare()
            lab.do("image")
            yield world
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):  # The removal is not interrupted.
                signal.signal(number, signal.SIG_IGN)
            lab.do("down")


def say(began: float, stream: TextIO, text: str) -> None:
    """Print a line of progress with its time."""
    print(f"{time.monotonic() - began:6.0f} s  {text}", file=stream, flush=True)


def report(result: Result, *, as_json: bool) -> None:
    """Print the result."""
    if as_json:
        print(json.dumps(asdict(result)))
        return
    print(f"\n{table(result.outcomes)}\n")
    if result.accuracy is not None:
        calm = "" if result.calm is None else f", {result.calm:.4f} without faults"
        print(f"accuracy {result.accuracy:.4f}{calm}")
        print(f"{result.steps} steps of {result.epochs} epochs")


def main() -> int:
    """Return 0 if nothing was violated, 1 if something was, 2 for a mistake of the user."""
    chosen = parse()
    for number in (signal.SIGINT, signal.SIGTERM):  # A shell's background job ignores the first.
        signal.signal(number, signal.default_int_handler)
    tell = partial(say, time.monotonic(), sys.stderr if chosen.json else sys.stdout)
    draw = Random(chosen.seed)
    try:
        require()
        faults = choose(chosen.faults, draw)
        tell(f"seed {chosen.seed}; making a lab of three nodes")
        with own_lab(draw) as world:
            tell("deploying a training over three nodes")
            begin(world)
            result = run(world, faults, tell, compare=True)
    except (LabError, ViolatedError, AssertionError) as error:
        print(f"chaos: {error}", file=sys.stderr)
        return getattr(error, "status", 1)
    except KeyboardInterrupt:
        return 130
    report(result, as_json=chosen.json)
    return violations(result.wrong)


def violations(wrong: Sequence[str]) -> int:
    """Print what was violated; return the exit status."""
    for each in wrong:
        print(f"violated: {each}", file=sys.stderr)
    if not wrong:
        print("nothing was violated", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
