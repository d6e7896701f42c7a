"""Events of jobs that end by themselves: by their keys `max_duration` and `idle`."""

from __future__ import annotations

from typing import Literal

from trainer.contract.events import Event


class Idle(Event):
    """No host of a job with `idle` has computed anything for `seconds`: it ends after `limit`.

    From each host, once, at half of that time. `seconds` are 0 when a host computes again.
    """

    NAME = "idle"
    seconds: float
    limit: float


class Limit(Event):
    """The job has ended by itself; from each host, at its end.

    `key` is the key of the job that has ended it, `seconds` are its value. Containers exit with 0:
    so no engine starts them again.
    """

    NAME = "limit"
    key: Literal["max_duration", "idle"]
    seconds: float
