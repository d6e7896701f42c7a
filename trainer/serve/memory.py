"""The memory of this container, as far as checkpoints may take it."""

import os
from contextlib import suppress

from trainer.launch import CGROUP

# Some are fetched at a time; one that is loaded is there as a file, as tensors and as a model, and
# beside it the model that is served.
SHARE = 8


def largest_state() -> int:
    """Return how many bytes the state of a checkpoint may have."""
    return available_memory() // SHARE


def available_memory() -> int:
    """Return the memory's limit in bytes: that of the container, or what the machine has."""
    found = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    # Version 2; version 1.
    for file in (CGROUP / "memory.max", CGROUP / "memory" / "memory.limit_in_bytes"):
        with suppress(OSError, ValueError):  # Without a limit, version 2 says max.
            found = min(found, int(file.read_text()))
    return found
