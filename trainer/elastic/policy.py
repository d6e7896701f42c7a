"""The reaction of an agent to a failed worker of its host. Pure: its caller passes the time.

A failure is not retried if too many of its class occurred within a window.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from trainer.contract.job import Faults

Action = Literal["retry", "leave_out", "stop"]
RETRIED = ("worker", "killed", "gpu", "memory", "disk", "parameters")
"""The classes of failures for which the job names an action; all others stop the training."""
KILLS = 10
"""Kills that count as one exception: people and kernels kill healthy processes."""
BACK_OFF = 30.0
"""The longest pause, in seconds, before a worker that fails repeatedly is restarted."""
RECENT = 60.0
"""Seconds in which failures lengthen the pause."""


@dataclass
class Policy:
    """The job's policy, and the failures on this host."""

    faults: Faults
    failures: list[tuple[float, str]] = field(default_factory=list)  # Times and classes.

    def judge(self, kind: str, now: float) -> Action:
        """Count a failure of a class, at a time in seconds; return what to do."""
        action: Action = getattr(self.faults, kind) if kind in RETRIED else "stop"
        if action != "retry":
            return action
        window = self.faults.window
        self.failures = [each for each in self.failures if now - each[0] < window]
        self.failures.append((now, kind))
        limit = self.faults.max_restarts * (KILLS if kind == "killed" else 1)
        again = sum(known == kind for _, known in self.failures) <= limit
        return "retry" if again else self.faults.then

    def pause(self, now: float, ran: float) -> float:
        """Return the seconds to wait before a worker that ran for `ran` seconds is started."""
        recent = sum(now - at < RECENT for at, _ in self.failures)
        return min(BACK_OFF, 2.0 ** (recent - 2)) if ran < BACK_OFF and recent > 1 else 0.0

    def forgive(self) -> None:
        """Forget all failures: a person has released the host."""
        self.failures.clear()
