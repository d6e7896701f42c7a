"""Permanent failures, which a restart would only repeat: the agent must not restart workers."""

from __future__ import annotations

import json
import os
from pathlib import Path

from trainer.contract.events import FailureClass


class HaltError(Exception):
    """A failure that all ranks know of, and that a restart would only repeat."""

    def __init__(
        self, kind: FailureClass, message: str, hosts: frozenset[str] = frozenset()
    ) -> None:
        """`hosts` are those that cause it, if the others are healthy."""
        super().__init__(message)
        self.kind, self.hosts = kind, hosts


def request_halt(kind: FailureClass, message: str, code: int = 1) -> bool:
    """Write the reason for a halt to the agent's file; return False without KIT_HALT.

    `code` becomes the agent's exit code.
    """
    file = os.environ.get("KIT_HALT")
    if file:
        Path(file).write_text(json.dumps({"kind": kind, "message": message, "code": code}))
    return bool(file)
