"""The names in a folder of checkpoints. Standard library only: endpoint and agent have no torch."""

from __future__ import annotations

import re
from pathlib import Path

STATE, MANIFEST, COMPLETE = "state.pt", "manifest.json", "COMPLETE"
NAME = r"step-\d{8,}"
"""The name of a checkpoint's folder, as a regular expression; names sort like steps."""


def folder_name(step: int) -> str:
    """Name the folder of a checkpoint."""
    return f"step-{step:08d}"


def newest_step(folder: Path) -> int:
    """The step of the newest complete checkpoint, by its name and unverified; -1 without one."""
    found = (path.parent.name for path in folder.glob(f"step-*/{COMPLETE}"))
    steps = (int(name.removeprefix("step-")) for name in found if re.fullmatch(NAME, name))
    return max(steps, default=-1)


def parts_folder(step: int) -> str:
    """Name the folder of the ranks' own parts of a checkpoint."""
    return f"ranks-{step:08d}"


def part_name(rank: int) -> str:
    """Name the file of one rank's part."""
    return f"rank-{rank:05d}.pt"
