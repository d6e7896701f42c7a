"""Shared by benchmarks: sides take turns, so that other load hardly affects ratios."""

import statistics
from collections.abc import Callable, Mapping
from typing import TypeVar

T = TypeVar("T")


def turns(repeats: int, sides: Mapping[str, Callable[[], T]]) -> dict[str, list[T]]:
    """Let the sides take turns; return the measurements of each."""
    found: dict[str, list[T]] = {side: [] for side in sides}
    for _ in range(repeats):
        for side, work in sides.items():
            found[side].append(work())
    return found


def show(label: str, rates: list[float], note: str = "") -> None:
    """Print the median of some rates."""
    print(f"  {label:<42}{statistics.median(rates):>10,.0f} images/s{note}")


def compare(label: str, above: list[float], below: list[float], what: str) -> None:
    """Print the median of the turns' ratios, with the least and the greatest."""
    ratios = [one / other for one, other in zip(above, below, strict=True)]
    middle, least, greatest = statistics.median(ratios), min(ratios), max(ratios)
    print(f"  {label:<42}{middle:>10.3f} ({least:.3f} to {greatest:.3f}) {what}", flush=True)
