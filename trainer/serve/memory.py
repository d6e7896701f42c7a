"""The memory of this container that checkpoints may use."""

import os
from contextlib import suppress

from trainer.launcher.container import CGROUP

# Several are fetched at a time. During its load, one needs memory for its file, tensors and model,
# beside the served model.
SHARE = 8


def largest_state() -> int:
    """Return the maximum size of a checkpoint's state, in bytes."""
    return available_memory() // SHARE


def available_memory() -> int:
    """Return the limit of memory in bytes: the container's, or the machine's size."""
    found = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    # Version 2; version 1.
    for file in (CGROUP / "memory.max", CGROUP / "memory" / "memory.limit_in_bytes"):
        with suppress(OSError, ValueError):  # Without a limit, version 2 says max.
            found = min(found, int(file.read_text()))
    return found
