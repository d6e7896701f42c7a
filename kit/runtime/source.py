"""The commit of the project's files, from Git."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

SHORT = 9
"""Digits of a commit that are shown to users."""


@dataclass(frozen=True, slots=True)
class Source:
    """The version of a project's files; `commit` is "" if they are in no repository.

    `branch` is "" without one. `changed`: files differ from the commit, or are not in it.
    """

    commit: str = ""
    subject: str = ""
    branch: str = ""
    changed: bool = False

    @property
    def described(self) -> str:
        """The commit as shown to users; "" without one."""
        if not self.commit:
            return ""
        branch = f" on {self.branch}" if self.branch else ""
        local = " with local changes" if self.changed else ""
        return f"commit {self.commit[:SHORT]} “{self.subject}”{branch}{local}"


def current_source(folder: Path) -> Source:
    """Return the version of a folder's files; an empty one without Git."""
    status = _git(folder, "status", "--porcelain=v2", "--branch", "--", ".")
    lines = (status or "").splitlines()
    headers = dict(line[2:].partition(" ")[::2] for line in lines if line.startswith("# "))
    commit = headers.get("branch.oid", "")
    if not commit or commit == "(initial)":
        return Source()
    branch = headers.get("branch.head", "")
    subject = _git(folder, "log", "-1", "--format=%s", commit) or ""
    return Source(
        commit=commit,
        subject=subject.strip(),
        branch="" if branch == "(detached)" else branch,
        changed=any(not line.startswith("# ") for line in lines),
    )


def contains(folder: Path, commit: str) -> bool:
    """Return whether a folder's commit is this one or comes after it."""
    return _git(folder, "merge-base", "--is-ancestor", commit, "HEAD") is not None


def _git(folder: Path, *arguments: str) -> str | None:
    """Return Git's output; None if it fails or is not installed."""
    if shutil.which("git") is None:
        return None
    command = ["git", "-C", str(folder), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    return done.stdout if done.returncode == 0 else None
