"""The content of the lock that prevents two concurrent deploys."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

from kit.errors import KitError
from kit.runtime.history import current_user
from kit.values import show_age


@dataclass(frozen=True, slots=True)
class Holder:
    """The user and process that deploy, since a time in seconds since the epoch."""

    by: str
    pid: int
    since: float

    def refusal(self, where: str) -> KitError:
        """Return the error for a second deploy; the lock is stored at `where`."""
        age = show_age(time.time() - self.since)
        return KitError(
            f"{self.by} (process {self.pid}) has been deploying for {age} (see {where})",
            "wait for it; if it is dead, `kit deploy --break-lock`",
        )


def holder() -> Holder:
    """Return this process as a holder."""
    return Holder(current_user(), os.getpid(), time.time())
