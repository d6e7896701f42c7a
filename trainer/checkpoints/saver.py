"""Writes checkpoints in a thread: the training waits for a copy in memory, not for the disk.

The training's thread copies its state to the CPU, into pinned memory if it is on a GPU; another
thread serialises, hashes, syncs and renames. CheckFreq (Mohan et al., FAST 2021) and
torch.distributed.checkpoint.async_save do the same.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from copy import copy
from typing import Any

import torch

from trainer.checkpoints.format import NONE, State


class Saver:
    """Writes one checkpoint at a time and measures how long the training paused for it."""

    def __init__(self, *, asynchronous: bool) -> None:
        self._writer = ThreadPoolExecutor(1, "checkpoint") if asynchronous else None
        self._pending: Future[object] | None = None
        self._copy: Any = None
        self.step = NONE  # The last saved one, by this rank or its host's writer.
        self.stalls: list[float] = []  # Seconds that the training paused for each save.

    def save(self, state: State, write: Callable[[State], object]) -> None:
        """Write a state with `write` in another thread; return when the state may change again.

        Raises the OSError of this save or the previous one, as `wait` and `check` do.
        """
        self.wait()
        if not self._writer:
            write(state)
            return
        # The previous copy is on disk: its memory is reused.
        self._copy = copied(state, self._copy)
        if torch.cuda.is_available():
            torch.cuda.current_stream().synchronize()
        self._pending = self._writer.submit(write, self._copy)

    def wait(self) -> None:
        """Wait until the state is on disk; raise the writer's error."""
        pending, self._pending = self._pending, None
        if pending:
            pending.result()

    def check(self) -> None:
        """Raise the writer's error, if it has failed."""
        if self._pending and self._pending.done():
            self.wait()


def copied(value: Any, old: Any) -> Any:
    """Copy nested dicts and lists of tensors to the CPU; copies from a GPU run in stream order.

    `old` is None or an earlier copy of the same shape, whose memory is reused.
    """
    if isinstance(value, torch.Tensor):
        layout = value.shape, value.dtype, value.stride()
        if not isinstance(old, torch.Tensor) or layout != (old.shape, old.dtype, old.stride()):
            old = torch.empty_like(value, device="cpu", pin_memory=value.is_cuda)
        return old.copy_(value, non_blocking=True)
    if isinstance(value, dict):
        before = old if isinstance(old, dict) else {}
        result = copy(value)  # A module's state_dict has its version as an attribute.
        result.update((key, copied(each, before.get(key))) for key, each in value.items())
        return result
    if isinstance(value, list):
        last = old if isinstance(old, list) and len(old) == len(value) else [None] * len(value)
        return [copied(each, was) for each, was in zip(value, last, strict=True)]
    return value
