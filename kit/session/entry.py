"""The entry of a session in the configuration of ssh, which VS Code and PyCharm read too."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from kit import files
from kit.errors import InputError

INCLUDE = "Include kit/*.conf"


@dataclass(frozen=True, slots=True)
class Entry:
    """The settings for ssh: the `alias`, the `user`, the `host_key` and the `proxy` command.

    `identities` are files of private keys that ssh does not try by itself.
    """

    alias: str
    user: str
    host_key: str
    proxy: Sequence[str]
    identities: Sequence[Path] = ()

    def text(self, known: Path) -> str:
        """Return the entry; `known` is the file with the host's key."""
        # ssh(1) expands percent signs, and gives the command to the user's shell.
        proxy = shlex.join(self.proxy).replace("%", "%%")
        lines = [
            "# Written by `kit session start`; `kit session stop` removes it.",
            f"Host {self.alias}",
            f"    User {self.user}",
            f"    HostKeyAlias {self.alias}",
            f"    UserKnownHostsFile {_quoted(known)}",
            "    StrictHostKeyChecking yes",
            f"    ProxyCommand {proxy}",
            "    ServerAliveInterval 30",
        ]
        lines += [f"    IdentityFile {_quoted(each)}" for each in self.identities]
        lines += ["    IdentitiesOnly yes"] * bool(self.identities)
        return "".join(f"{line}\n" for line in lines)


def alias_of(cluster: str, session: str) -> str:
    """Return the name of a session for ssh."""
    return f"kit-{cluster}-{session}"


def write(entry: Entry, home: Path) -> Path:
    """Write the entry below a `home`; return its file.

    Raises:
        InputError: It cannot be written.
    """
    folder = home / ".ssh" / "kit"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        known, file = folder / f"{entry.alias}.key", folder / f"{entry.alias}.conf"
        files.replace(known, f"{entry.alias} {entry.host_key}\n")
        files.replace(file, entry.text(known))
    except OSError as error:
        raise InputError(f"{folder}: {error.strerror}") from None
    return file


def remove(alias: str, home: Path) -> None:
    """Remove the entry, if there is one."""
    for suffix in ("conf", "key"):
        with suppress(OSError):
            (home / ".ssh" / "kit" / f"{alias}.{suffix}").unlink()


def included(home: Path) -> bool:
    """Return whether the user's configuration of ssh includes the entries."""
    with suppress(OSError):
        text = (home / ".ssh" / "config").read_text(encoding="utf-8", errors="replace")
        return bool(re.search(r"(?mi)^\s*Include\s+.*\bkit/\*(\.conf)?", text))
    return False


def _quoted(path: Path) -> str:
    return f'"{path}"' if " " in str(path) else str(path)
