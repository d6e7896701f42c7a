"""Checks whether the processes of a script are connected to each other."""

import socket
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from trainer.group.messages import Group
from trainer.launcher.output import emit, say
from trainer.launcher.worker import MEMBER_EVERY

# A script that forms no group, or a group of size 1 on each GPU, trains a separate model on each
# GPU. In a group, each process is connected to the store of rank 0 at MASTER_PORT, or to another
# process of the script.
LOOK_EVERY = 1.0  # Seconds between two checks; they end once there is a group.
ESTABLISHED, LISTENS = "01", "0A"  # States of a socket (include/net/tcp_states.h).
End = tuple[str, int]


class Socket(NamedTuple):
    """A TCP socket as the kernel lists it."""

    local: End
    remote: End
    state: str
    inode: str


class Connections:
    """Watches whether the processes of a host have formed a group with others, in one round."""

    def __init__(self, around: Group, rank: int, wait: int) -> None:
        """`rank` is the group rank of this host, `wait` a time in seconds."""
        others = (*around.members[:rank], *around.members[rank + 1 :])
        self._others = {each.address for each in others}
        self._port, self._first = around.members[0].port, rank == 0
        self._began, self._due, self._told = time.monotonic(), float(wait), False

    @property
    def only_host(self) -> bool:
        """Whether the script runs on this host alone."""
        return not self._others

    def look(self, torchrun: int) -> bool | None:
        """Whether a process below torchrun is connected; None if this is unknown."""
        try:
            workers, owners = children_of(torchrun), dict[str, int]()
            for pid in workers:
                with suppress(FileNotFoundError, ProcessLookupError):  # It has just ended.
                    owners |= dict.fromkeys(inodes_of(pid), pid)
            sockets = list_sockets()
        except OSError:
            return None
        # torchrun has sockets: if none are listed, the container hides them.
        return self.joined(sockets, owners) if workers and sockets else None

    def joined(self, sockets: Sequence[Socket], owners: Mapping[str, int]) -> bool:
        """Whether a socket connects two ranks; `owners` has those of this host by inode.

        With several hosts, only connections to another one count.
        """
        ends = {(each.local, each.remote): owners.get(each.inode) for each in sockets}
        # This host serves a second store at MASTER_PORT: each host has formed its own group.
        apart = not self._first and any(
            each.state == LISTENS and each.local[1] == self._port and each.inode in owners
            for each in sockets
        )
        for each in sockets:
            if each.state != ESTABLISHED or each.inode not in owners:
                continue
            other = ends.get((each.remote, each.local))
            if other is not None:
                if self.only_host and other != owners[each.inode]:
                    return True
            elif self._port in (each.local[1], each.remote[1]):
                if not apart:
                    return True
            elif each.remote[0] in self._others:
                return True
        return False

    def tell(self, joined: bool) -> None:
        """Warn if there is no group after the wait, and report a group that forms later."""
        waited = time.monotonic() - self._began
        if joined and self._told:
            say(f"the processes of this job have formed a group after {waited:.0f} s")
            emit("grouped", seconds=round(waited, 1))
        elif not joined and waited >= self._due:
            if not self._told:
                none = "no two processes of this job are in a process group"
                if not self.only_host:
                    none = "this host is in no process group with other hosts"
                none += f" after {waited:.0f} s"
                why = "each trains its own model, unless the script is still starting"
                fix = "does it call init_process_group, with the variables that kit sets?"
                say(f"warning: {none}: {why}; {fix}", error=True)
            self._told, self._due = True, waited + MEMBER_EVERY
            emit("alone", seconds=round(waited, 1))


def children_of(pid: int) -> list[int]:
    """The child processes of a process."""
    files = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for file in files for child in file.read_text().split()]


def inodes_of(pid: int) -> Iterator[str]:
    """The inodes of the sockets of a process and its descendants."""
    for file in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # It was just closed.
            kind, _, inode = str(file.readlink()).partition(":")
            if kind == "socket":
                yield inode.strip("[]")
    for child in children_of(pid):
        with suppress(OSError):  # It has ended, and may be a zombie.
            yield from inodes_of(child)


def list_sockets() -> list[Socket]:
    """The TCP sockets of this container, or of the host with its own network."""
    found = []
    for file in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")):
        lines = file.read_text().splitlines()[1:] if file.exists() else []
        for _, local, remote, state, *more in map(str.split, lines):
            found.append(Socket(read_end(local), read_end(remote), state, more[5]))
    return found


def read_end(text: str) -> End:
    """Read an address and a port as the kernel lists them, in words of native byte order."""
    digits, _, port = text.partition(":")
    words = [int(digits[at : at + 8], 16) for at in range(0, len(digits), 8)]
    packed = b"".join(word.to_bytes(4, sys.byteorder) for word in words)
    family = socket.AF_INET if len(packed) == 4 else socket.AF_INET6
    # PyTorch's sockets are IPv6, even for IPv4 addresses.
    return socket.inet_ntop(family, packed).removeprefix("::ffff:"), int(port, 16)
