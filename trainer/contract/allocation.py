"""The GPUs that the queue has allocated to a container; a module of the launcher's program."""

from collections.abc import Mapping
from typing import NamedTuple


class Allocation(NamedTuple):
    """The GPUs of one host that the queue has allocated to a job.

    It got them at `since`, in seconds since 1970, after it had waited for `waited` seconds in all.
    """

    owner: str
    priority: int
    gpus: int
    since: float
    waited: float


def read_allocation(environ: Mapping[str, str]) -> Allocation | None:
    """Read the variables of a container; None if no queue has started the job.

    A controller of an older kit does not set the time: then it is the start of the launcher.
    """
    owner, since = environ.get("KIT_OWNER"), environ.get("KIT_SINCE") or environ.get("KIT_BEGAN")
    if not owner or not since:
        return None
    priority, gpus = (int(environ.get(name) or 0) for name in ("KIT_PRIORITY", "KIT_NPROC"))
    return Allocation(owner, priority, gpus, float(since), float(environ.get("KIT_WAITED") or 0))
