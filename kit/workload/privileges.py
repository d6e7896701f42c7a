"""The privileges of containers: kit's own services need only their files and ports.

Swarm ignores `security_opt`, so they give up new privileges by prctl
(trainer/launcher/process.py). Images of scripts may need sudo, and keep it.
"""

from __future__ import annotations

from collections.abc import Collection

from kit.jobs import Job
from kit.workload.settings import Environment, Variable, Word

NOBODY = "65534:65534"
"""A user without files. It is numeric, because images may lack the name."""
ROOT = frozenset({"root", "0"})


def user_of_training(job: Job) -> str:
    """Return the user of a training's containers; "" is the image's.

    The built-in training needs no user if all it writes to are volumes that kit made. The
    user's own folders may belong to anyone.
    """
    own_folders = any(not mount.read_only for mount in job.mounts)
    return job.user or (NOBODY if job.train and not own_folders else "")


def capabilities(job: Job, *, infiniband: bool) -> tuple[str, ...]:
    """Return the capabilities that a training's containers keep or gain.

    Without a user, the built-in training writes to folders of any owner as root. RDMA locks memory.
    """
    files = ("DAC_OVERRIDE",) if job.train and not user_of_training(job) else ()
    return (*files, *(("IPC_LOCK",) if infiniband else ()))


def unprivileged(user: str) -> bool:
    """Return whether containers of a user (`name` or `uid`, then `:group`) get no capabilities."""
    return bool(user) and user.partition(":")[0] not in ROOT


def default_variables(user: str, taken: Collection[str]) -> Environment:
    """Return HOME and USER for a user that the image may not know, except the names in `taken`.

    Caches are stored below HOME, and torch.compile needs USER.
    """
    defaults = (Variable("HOME", Word("/tmp")), Variable("USER", Word("kit")))
    return tuple(each for each in defaults if unprivileged(user) and each.name not in taken)
