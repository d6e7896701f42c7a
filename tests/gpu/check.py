"""What a check is: a function that returns figures, or raises why there are none."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PARTS = ("machine", "training", "speed", "division", "serving")
"""In their order: a check that the time does not suffice for is one of the last."""


class LackingError(Exception):
    """This machine lacks what a check needs; the message names it."""


@dataclass(frozen=True)
class Figure:
    """A measured value, and the least or greatest that it should have."""

    value: float | str
    unit: str = ""
    least: float | None = None
    most: float | None = None

    @property
    def missed(self) -> bool:
        """Whether the value misses its aim."""
        if isinstance(self.value, str):
            return False
        low = self.least is not None and not self.value >= self.least
        return low or (self.most is not None and not self.value <= self.most)

    def __str__(self) -> str:
        """The value with its unit and its aim, for people."""
        value = self.value if isinstance(self.value, str) else f"{self.value:,.4g}"
        aims = {"≥": self.least, "≤": self.most}
        aim = "".join(
            f" (aim {sign} {each:,.4g})" for sign, each in aims.items() if each is not None
        )
        return f"{value} {self.unit}".rstrip() + aim


Figures = Mapping[str, Figure]


@dataclass(frozen=True)
class Place:
    """Where a check works: a folder of its own, with or without a GPU."""

    folder: Path
    cuda: bool

    def size(self, gpu: Any, cpu: Any) -> Any:
        """Return a size for the GPU, or the small one that a CPU can do."""
        return gpu if self.cuda else cpu


@dataclass(frozen=True)
class Check:
    """A check: it is alone on the machine if it measures speed."""

    name: str
    part: str
    work: Callable[[Place], Figures]
    needs: tuple[str, ...] = ()
    """Modules that must be installed."""
    alone: bool = False
    seconds: float = 120.0
    """After so many seconds it has failed."""

    def lacking(self) -> str:
        """Name the modules that are not installed."""
        return ", ".join(name for name in self.needs if importlib.util.find_spec(name) is None)


CHECKS: dict[str, Check] = {}


def check(
    part: str, needs: Iterable[str] = (), *, alone: bool = False, seconds: float = 120.0
) -> Callable[[Callable[[Place], Figures]], Callable[[Place], Figures]]:
    """Register a function as a check, under its name."""

    def register(work: Callable[[Place], Figures]) -> Callable[[Place], Figures]:
        name = work.__name__.replace("_", " ")
        CHECKS[name] = Check(name, part, work, tuple(needs), alone, seconds)
        return work

    return register
