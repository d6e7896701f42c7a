"""Checkpoints beside the training: it waits for a copy in memory, not for hash and disk.

The training's thread copies its state to the CPU, into pinned memory where it comes from a GPU; a
thread serialises, hashes, syncs and renames. So did CheckFreq (Mohan et al., FAST 2021) and
PyTorch's own torch.distributed.checkpoint.async_save.
"""

from __future__ import annotations

from copy import copy
from threading import Thread
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable


class Saver:
    """Writes one checkpoint at a time and remembers how long the training stood still for it."""

    def __init__(self, *, asynchronous: bool) -> None:
        self._asynchronous = asynchronous
        self._thread: Thread | None = None
        self._error: Exception | None = None
        self._copy: Any = None
        self.step = -1
        """The step that was saved last, by this rank or by its host's writer."""
        self.stalls: list[float] = []
        """Seconds that the training stood still for each save."""

    def save(self, state: dict[str, Any], write: Callable[[dict[str, Any]], object]) -> None:
        """Have a state written; returns when it may change again.

        Args:
            state: Nested dicts and lists of tensors and plain values.
            write: Puts it on disk; it is called in another thread where saving is asynchronous.

        Raises:
            OSError: The save before this one, or this one, could not be written.
        """
        self.wait()
        if not self._asynchronous:
            write(state)
            return
        # The copy before this one is on disk: its memory can be used again.
        self._copy = copied(state, self._copy)
        if torch.cuda.is_available():
            torch.cuda.current_stream().synchronize()
        self._thread = Thread(target=self._write, args=(write, self._copy), name="checkpoint")
        self._thread.start()

    def wait(self) -> None:
        """Return when what was given to be saved is on disk.

        Raises:
            Exception: The writer's own, where it failed.
        """
        if self._thread:
            self._thread.join()
            self._thread = None
        self.check()

    def check(self) -> None:
        """Raise the writer's error, if it has failed by now."""
        if self._error:
            error, self._error = self._error, None
            raise error

    def _write(self, write: Callable[[dict[str, Any]], object], state: dict[str, Any]) -> None:
        try:
            write(state)
        except Exception as error:  # It is the training's to stop for it.
            self._error = error


def copied(value: Any, old: Any) -> Any:
    """Copy nested dicts and lists of tensors to the CPU; those from a GPU arrive in stream order.

    Args:
        value: What to copy; the tensors keep their layout.
        old: An earlier copy of the same shape, whose memory is used again, or None.
    """
    if isinstance(value, torch.Tensor):
        fits = isinstance(old, torch.Tensor) and (old.shape, old.dtype, old.stride()) == (
            (value.shape, value.dtype, value.stride())
        )
        if not fits:
            old = torch.empty_like(value, device="cpu", pin_memory=value.is_cuda)
        return old.copy_(value, non_blocking=True)
    if isinstance(value, dict):
        before = old if isinstance(old, dict) else {}
        result = copy(value)  # The state of a module carries its version as an attribute.
        result.update((key, copied(each, before.get(key))) for key, each in value.items())
        return result
    if isinstance(value, list):
        last = old if isinstance(old, list) and len(old) == len(value) else [None] * len(value)
        return [copied(each, was) for each, was in zip(value, last, strict=True)]
    return value
