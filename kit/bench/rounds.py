"""The order in which pairs of hosts are measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def rounds(hosts: Sequence[T]) -> list[list[tuple[T, T]]]:
    """Divide all pairs into rounds in which each host occurs once at most.

    The circle method of round-robin tournaments: n-1 rounds for an even number of hosts, n for an
    odd one, where one host pauses in each round (Kirkman 1847).
    """
    places = list(range(len(hosts) + len(hosts) % 2))
    pairs = []
    for _ in range(len(places) - 1):
        half = len(places) // 2
        facing = map(sorted, zip(places[:half], reversed(places[half:]), strict=True))
        pairs.append([(hosts[one], hosts[two]) for one, two in facing if two < len(hosts)])
        places = [places[0], places[-1], *places[1:-1]]
    return pairs


def group_sizes(hosts: int) -> list[int]:
    """Return the sizes of the groups that reduce together, besides pairs: 3, 4, 8, 16, … and all.

    Training on fewer hosts than all is predicted from these.
    """
    sizes = {3, hosts} | {2**power for power in range(2, hosts.bit_length())}
    return sorted(size for size in sizes if 3 <= size <= hosts)
