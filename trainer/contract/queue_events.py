"""Events of jobs of the queue."""

from __future__ import annotations

from trainer.contract.events import Event


class Allocated(Event):
    """The queue has given GPUs of this host to the job; from the launcher, at each of its starts.

    `gpus` is their number. The job got them at `since`, in seconds since 1970, which stays when the
    container is started again. Until then, it had waited for `waited` seconds in all.
    """

    NAME = "allocated"
    owner: str
    priority: int
    gpus: int
    since: float
    waited: float
