"""Waits until the launchers of new containers have checked their input."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from kit.runtime.endings import HOPELESS
from kit.targets.compose.containers import Container

POLL = 0.5
"""Seconds between two queries of the containers."""
SETTLED = 3.0
"""Seconds that a container must have run; its launcher checks the input in less than one."""


def wait_until_launched(look: Callable[[], Sequence[Container]], needed: int) -> list[Container]:
    """Return the containers that ended on a mistake if fewer than `needed` are left, else none.

    Containers that fail for other reasons do not delay the return: Docker restarts them.
    """
    since: dict[tuple[str, int], float] = {}

    def settled(container: Container) -> bool:
        begun = since.setdefault((container.id, container.restarts), time.monotonic())
        starting = container.status in {"created", "running"}
        return not starting or time.monotonic() - begun > SETTLED

    while True:
        containers = look()
        mistaken = [
            each for each in containers if each.exit_status in HOPELESS and each.status != "running"
        ]
        if mistaken and len(containers) - len(mistaken) < needed:
            return mistaken
        # A list, because each container must be recorded.
        if all([settled(each) for each in containers]):  # noqa: C419
            return []
        time.sleep(POLL)
