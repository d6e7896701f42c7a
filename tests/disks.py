"""Small disks, for programs that must notice a full one."""

import os
from pathlib import Path


def on_small_disk(folder: Path, size: str, before: str = ":") -> list[str]:
    """A prefix that runs a command with a disk of `size` at a folder, after a script there."""
    root = [] if os.geteuid() == 0 else ["--map-root-user"]
    mount = f"mount -t tmpfs -o size={size} none {folder} && cd {folder} && {before}"
    return ["unshare", *root, "--mount", "sh", "-c", f'{mount} && exec "$@"', "sh"]


def into_mounts(pid: int) -> list[str]:
    """A prefix that runs a command where a process with a small disk sees it."""
    user = [] if os.geteuid() == 0 else ["--user", "--preserve-credentials"]
    return ["nsenter", "--target", str(pid), *user, "--mount"]
