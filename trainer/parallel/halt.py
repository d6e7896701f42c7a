"""Failures that a restart would only repeat: the launcher must not restart the workers."""

from __future__ import annotations

import json
import os
from pathlib import Path

from trainer.contract.events import FailureClass
from trainer.parallel.world import World


class HaltError(Exception):
    """A failure that all ranks know of, and that a restart would only repeat."""

    def __init__(self, kind: FailureClass, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def request_halt(kind: FailureClass, message: str, code: int = 1) -> bool:
    """Write the reason for a halt to the launcher's file KIT_HALT; return whether there is one.

    `code` becomes the launcher's exit code.
    """
    file = os.environ.get("KIT_HALT")
    if file:
        Path(file).write_text(json.dumps({"kind": kind, "message": message, "code": code}))
    return bool(file)


def raise_if_halted(world: World) -> None:
    """Raise HaltError on all ranks if one requested it before the workers were restarted."""
    file = os.environ.get("KIT_HALT")
    requests = world.gather(Path(file).read_text() if file else "")
    if request := next(filter(None, requests), ""):
        found = json.loads(request)
        raise HaltError(found["kind"], found["message"])
