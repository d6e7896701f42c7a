"""The outcome of a run, from the events in its lines. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from kit.runtime.events import Reader
from kit.runtime.status import LogLine, Progress, State


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome in the events of a run; `state` is None if no event reports the end.

    `exit_status` is that of the failed process, or of the containers. `failure` is the reason of
    the last failure ("" if they trained again after it), or the limit that has ended the job.
    `ranks` are those of each host.
    """

    state: State | None
    progress: Progress | None
    exit_status: int | None
    failure: str
    world_size: int | None
    restarts: int
    ranks: tuple[tuple[str, tuple[int, ...]], ...]

    @property
    def words(self) -> str:
        """Its state, step, accuracy and exit status as text; "" if nothing is known."""
        parts = [self.state.value] if self.state else []
        if self.progress is not None:
            parts.append(f"step {self.progress.step:,} of {self.progress.steps:,}")
            if self.progress.accuracy is not None:
                parts.append(f"accuracy {self.progress.accuracy:.2%}")
        if self.exit_status:
            parts.append(f"exit status {self.exit_status}")
        return ", ".join(parts)

    def json(self) -> dict[str, Any]:
        """Return its fields in the output of `kit history --json`."""
        progress = self.progress
        return {
            "state": self.state,
            "step": progress.step if progress else None,
            "steps": progress.steps if progress else None,
            "accuracy": progress.accuracy if progress else None,
            "exit_status": self.exit_status,
            "failure": self.failure,
        }


def outcome_of(lines: Iterable[LogLine]) -> Outcome:
    """Return the outcome of a run; `lines` are those of all its containers."""
    reader = Reader()
    reader.read_logs(lines)
    codes = set(reader.ended.values())
    state = None
    if reader.limit:
        state = State.STOPPED
    elif 0 in codes or (reader.session and reader.session.ended):
        state = State.COMPLETED
    elif reader.failure:
        state = State.FAILED
    elif codes:
        state = State.STOPPED
    failed = state is State.FAILED
    return Outcome(
        state,
        reader.progress,
        reader.exit_code if failed else max(codes, default=None),
        reader.failure if failed else reader.limit,
        reader.world_size,
        reader.restarts,
        tuple(reader.ranks.items()),
    )
