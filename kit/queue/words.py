"""The labels of a job's services that describe its request to the queue. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from kit.queue.pool import Wish
from kit.sharing import Queued

OWNER, PRIORITY = "kit.queue.owner", "kit.queue.priority"
HOSTS, GPUS = "kit.queue.hosts", "kit.queue.gpus"
EACH = "kit.queue.gpus-per-host"
ROAMS = "kit.queue.roams"
"""The label of a job whose checkpoints all hosts see."""
NPROC, GIVEN, WAITED = "KIT_NPROC", "KIT_SINCE", "KIT_WAITED"
"""The variables that the queue sets when it gives a host to a job."""
NO_LIMIT = 10**6
"""More hosts or GPUs than any pool has."""


def labels_of(
    queued: Queued, each: int | None, *, roams: bool = False
) -> tuple[tuple[str, str], ...]:
    """Return the labels of a job; `each` is its number of GPUs on each host.

    `roams`: all hosts see its checkpoints.
    """
    wanted = f"{queued.least}-{'' if queued.most is None else queued.most}"
    return (
        (OWNER, queued.owner),
        (PRIORITY, str(queued.priority)),
        (GPUS if queued.counts_gpus else HOSTS, wanted),
        *(((EACH, str(each)),) if each is not None else ()),
        *(((ROAMS, "yes"),) if roams else ()),
    )


def variables_of(gpus: int, now: float, waited: float) -> dict[str, str]:
    """Return the variables of a job's containers when it gets `gpus` GPUs of a host."""
    return {NPROC: str(gpus), GIVEN: f"{now:.3f}", WAITED: f"{waited:.1f}"}


def wish_of(labels: Mapping[str, str], hosts: frozenset[str]) -> Wish:
    """Return the request in a job's labels, on `hosts`; the job has a service for each of them.

    Raises:
        ValueError: A label is not as kit writes it.
    """
    counts_gpus = GPUS in labels
    least, _, most = labels[GPUS if counts_gpus else HOSTS].partition("-")
    each = 0 if counts_gpus else int(labels[EACH]) if EACH in labels else None
    return Wish(int(least), int(most) if most else NO_LIMIT, each, hosts, roams=ROAMS in labels)
