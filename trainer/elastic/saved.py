"""The step and the figures of this host's newest checkpoint."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from trainer.checkpoints.layout import folder_name, newest_step
from trainer.checkpoints.listing import newest_manifest
from trainer.checkpoints.manifest import UnusableError
from trainer.group.messages import Result


def saved_step(checkpoints: Path) -> int:
    """Return the step of the newest checkpoint; -1 without one, or without the folder."""
    try:
        return newest_step(checkpoints)
    except OSError:  # The workers report it.
        return -1


def newest_result(checkpoints: Path) -> Result | None:
    """Return the figures of the newest checkpoint, or None."""
    with suppress(OSError, UnusableError):
        found = newest_manifest(checkpoints)
        name = folder_name(found.step)
        return Result(name, found.step, found.epoch, found.accuracy, found.loss)
    return None
