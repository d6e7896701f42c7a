"""Functions of several `kit session` commands: access to a session, and a check of its starter."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from kit.errors import InputError, KitError
from kit.hosts.environment import clean
from kit.paths import Paths
from kit.project import load_project
from kit.runtime.access import Access
from kit.runtime.history import current_user, newest
from kit.runtime.status import ENDED, JobStatus
from kit.runtime.target import Target
from kit.workload.training import MOUNTED_LAUNCHER
from trainer.contract.words import nearest


def sessions_of(paths: Paths, statuses: Iterable[JobStatus]) -> set[str]:
    """Return the names of the project's sessions, and of all workloads that report a session."""
    found = {each.job for each in statuses if each.session}
    with suppress(KitError):  # Sessions can be ended although a file has a mistake.
        found |= {job.name for job in load_project(paths).jobs if job.session}
    return found


def is_open(status: JobStatus) -> bool:
    """Return whether it is a session that somebody can work in."""
    return status.session is not None and status.state not in ENDED


def access_of(target: Target, name: str) -> Access:
    """Return the access to a session's container.

    Raises:
        InputError: There is none.
    """
    known = target.known()
    if name not in known:
        fix = nearest(name, known) if known else "`kit session start` starts one"
        raise InputError(f"session {name} is not deployed", fix)
    return target.access(name, next(iter(known[name].hosts), ""))


def launcher(access: Access, *words: str) -> list[str]:
    """Return the command line of the session's launcher, for one of its commands."""
    return access.command(("python3", MOUNTED_LAUNCHER, "session", *words), terminal=False)


def ask(access: Access, *words: str) -> dict[str, Any]:
    """Run a command of the session's launcher, which answers with JSON.

    Raises:
        KitError: It fails.
    """
    done = subprocess.run(
        launcher(access, *words),
        env=clean(os.environ),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    with suppress(ValueError):
        answer = json.loads(done.stdout)
        if done.returncode == 0 and isinstance(answer, dict):
            return answer
    said = done.stderr.strip().splitlines() or ["it gave no reason"]
    raise KitError(said[-1].partition("error: ")[2] or said[-1])


def refuse_of_others(target: Target, name: str) -> None:
    """Refuse to end what another person has started.

    Raises:
        InputError: Another person has.
    """
    last = newest(target.history()).get(name)
    if last is not None and last.by != current_user():
        what = f"{last.by} has started session {name} on {last.when}"
        raise InputError(what, f"`kit stop {name}` ends it all the same")
