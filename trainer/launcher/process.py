"""The limits and the privileges of this process, and its death with its parent."""

import ctypes
import resource
import signal

OPEN_FILES = 65536  # As the rendered files allow; docker run with Docker 29 allows 1,024.


def raise_open_files() -> None:
    """Allow this process and its children more open files: sockets and shared tensors are files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


PARENT_DEATH_SIGNAL = 1  # Of prctl (linux/prctl.h).


def die_with_parent() -> None:
    """Let the kernel kill this process when its parent ends, in any way."""
    ctypes.CDLL(None).prctl(PARENT_DEATH_SIGNAL, int(signal.SIGKILL), 0, 0, 0)


NO_NEW_PRIVILEGES = 38  # Of prctl (linux/prctl.h).


def stay_unprivileged() -> None:
    """Set no_new_privileges for this process and its children: Swarm's services lack the option."""
    ctypes.CDLL(None).prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0)
