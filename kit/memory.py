"""A limit to what this process may allocate, for a while: somebody's template may ask for all."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def limited_memory(more: int) -> Iterator[None]:
    """Raise MemoryError where more than `more` bytes are allocated meanwhile.

    Where the system does not tell how much there is already, nothing is limited.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    except (OSError, ValueError):
        yield
        return
    most = pages * resource.getpagesize() + more
    most = min([most, *(each for each in (soft, hard) if each != resource.RLIM_INFINITY)])
    resource.setrlimit(resource.RLIMIT_AS, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
