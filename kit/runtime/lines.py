"""The lines of containers: their ranks, events, and a note of lines that are gone."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

from kit.runtime.status import LogLine
from kit.workload.names import kind_of
from kit.workload.types import Kind
from trainer.contract.mark import MARK

_RANK = re.compile(r"\[rank(\d+)\]: ?")


def split(text: str) -> tuple[int | None, str]:
    """Split a worker's line into its rank and its text, without the launcher's `[rank3]: `.

    The launcher adds it to lines from a pipe: torchrun adds it only to files, which would grow
    during the whole job.
    """
    match = _RANK.match(text)
    return (int(match[1]), text[match.end() :]) if match else (None, text)


_BEGINNING = re.compile(r"launch \S+: (job |error: )|@kit |\[FATAL tini ")
"""The first line of a job's container: the launcher's, or without Python that of Docker's init."""
GONE = "kit: older lines are gone: Docker keeps the newest 20 to 30 MB of each container"


def with_note(lines: Iterable[LogLine]) -> Iterator[LogLine]:
    """Yield the lines of a job's container, after a note if they do not begin with its launcher's.

    Docker drops the oldest lines without a message.
    """
    for number, line in enumerate(lines):
        begins = line.rank is None and _BEGINNING.match(line.text)
        if number == 0 and kind_of(line.job) is Kind.JOB and not begins:
            yield replace(line, text=GONE, rank=None)
        yield line


def is_event(text: str) -> bool:
    """Return whether a line, without its rank, is an event."""
    return text.startswith(MARK)
