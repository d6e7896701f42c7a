"""Pools of chance, many and large: `python -m tests.queue.soak --pools 10000 --hosts 200`.

Most are small, since the sizes are drawn with equal chances for each power of two.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass
from random import Random

from tests.queue.simulator import run


@dataclass
class Figures:
    """What was tried."""

    pools: int = 0
    decisions: int = 0
    jobs: int = 0
    rested: int = 0
    largest: tuple[int, int] = (0, 0)

    def __str__(self) -> str:
        return (
            f"{self.pools} pools ({self.rested} came to rest), {self.decisions} decisions, "
            f"{self.jobs} jobs; "
            f"the largest with {self.largest[0]} hosts and {self.largest[1]} jobs"
        )


def soak(options: argparse.Namespace) -> Figures:
    """Run pools until there are enough, or the time is over; end at the first mistake."""
    random, figures, begin = Random(options.seed), Figures(), time.monotonic()
    said = begin
    while figures.pools < options.pools:
        now = time.monotonic()
        if options.minutes and now - begin > options.minutes * 60:
            break
        if now - said > 10:
            said = now
            print(f"{now - begin:6.0f} s: {figures}", flush=True)
        sizes = (_size(random, options.hosts), _size(random, options.jobs))
        seed = random.randrange(2**32)
        try:
            world = run(seed, hosts=sizes[0], jobs=sizes[1])
        except AssertionError as error:
            sys.exit(f"run({seed}, hosts={sizes[0]}, jobs={sizes[1]}): {error}\n{figures}")
        figures.pools += 1
        figures.decisions += world.decided
        figures.rested += world.rested
        figures.jobs += len(world.left)
        figures.largest = max(figures.largest, sizes)
    return figures


def _size(random: Random, most: int) -> int:
    return min(most, round(2 ** random.uniform(0, most.bit_length())))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pools", type=int, default=1000)
    parser.add_argument("--hosts", type=int, default=200, help="at most in a pool")
    parser.add_argument("--jobs", type=int, default=2000, help="at most in a pool")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, help="end after that time")
    options = parser.parse_args()
    begin = time.monotonic()
    figures = soak(options)
    print(f"no mistake in {figures}; {time.monotonic() - begin:.0f} s")


if __name__ == "__main__":
    main()
