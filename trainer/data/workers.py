"""The worker processes of a rank that read samples ahead of their use."""

from __future__ import annotations

import multiprocessing
import signal

import torch

MOST_WORKERS = 8  # Of a rank. Some 300 photographs a second each, at 224 pixels a side.
AHEAD = 4  # Requests that each worker answers ahead.


def workers() -> int:
    """Return the number of workers: the number of this rank's cores, up to MOST_WORKERS."""
    return max(1, min(MOST_WORKERS, torch.get_num_threads()))


def outlive_the_stop(_: int) -> None:
    """Ignore signals in a worker: the trainer gets the same ones, and still takes its last step.

    The worker ends after the trainer.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)


def end_workers() -> None:
    """End the workers: multiprocessing would send SIGTERM and wait forever."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch's handler raises when a worker ends.
    for worker in multiprocessing.active_children():
        worker.kill()
