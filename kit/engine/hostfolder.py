"""kit's folder on a host, ~/.local/share/kit/<cluster>: what outlives the terminal of a deploy.

hosts/<host>/, jobs/, launch.py   the host's part of the rendered tree, as it was deployed
lock/holder                       who deploys now       (on one host alone, as the rest)
history.jsonl                     what was deployed
stopped/<job>.json                how a job ended of which no container is left
"""

from __future__ import annotations

import getpass
import io
import json
import os
import socket
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from typing import Any, TypeVar

from kit import ssh
from kit.engine import Deployment, HostStatus, JobStatus, Progress, Say, State
from kit.errors import KitError
from kit.model import Host

T = TypeVar("T")
WHOLE = ".whole"
"""The last member of what is sent: without it the connection broke off."""

PUT = f"""
new=$(mktemp -d .new.XXXXXX)
trap 'rm -rf "$new"' EXIT
tar -x -C "$new"
[ -e "$new/{WHOLE}" ] || {{ echo "the connection broke off" >&2; exit 1; }}
rm "$new/{WHOLE}"
(cd "$new" && find . -type f) | while read -r file; do
    mkdir -p "$(dirname "$file")"
    mv "$new/$file" "$file"
done
pwd -P
"""
LOCK = """
if mkdir lock 2>/dev/null; then
    cat >lock/holder
elif [ -d lock ]; then
    echo $(($(date +%s) - $(stat -c %Y lock)))
    cat lock/holder
else
    mkdir lock
fi
"""
UNLOCK = 'if [ "$(cat lock/holder)" = "$(cat)" ]; then rm -r lock; fi'


class HostFolder:
    """The folder of one cluster on one host."""

    def __init__(self, host: Host, cluster: str) -> None:
        self.host = host
        self.path = f"~/.local/share/kit/{cluster}"
        self._place = f'folder="$HOME/.local/share/kit/{cluster}"\n'

    def put(self, files: Mapping[str, bytes]) -> str:
        """Replace files, each at once, and none unless all have arrived; return the folder's path.

        Raises:
            KitError: The host cannot be reached, or they cannot be written.
        """
        return self._change(PUT, _packed(files)).strip()

    @contextmanager
    def locked(self, say: Say) -> Iterator[None]:
        """Hold the lock that keeps two people from deploying at once.

        Raises:
            KitError: Somebody else holds it.
        """
        holder = f"{getpass.getuser()}@{socket.gethostname()}, process {os.getpid()}"
        held = self._change(LOCK, holder.encode()).splitlines()
        if held:
            raise KitError(
                f"{' '.join(held[1:]) or 'somebody'} deploys since {_ago(int(held[0]))}: "
                f"{self.path}/lock on {self.host.name} says so",
                "wait for it; if it is dead, take the lock away with `kit deploy --break-lock`",
            )
        try:
            yield
        finally:
            try:
                self._change(UNLOCK, holder.encode())
            except KitError as error:
                say(f"the lock stays, take it away with `kit deploy --break-lock`: {error.message}")

    def break_lock(self) -> None:
        """Take the lock away, whoever holds it.

        Raises:
            KitError: The host cannot be reached.
        """
        self._change("rm -rf lock")

    def add_to_history(self, deployment: Deployment) -> None:
        """Write down that a job was started."""
        self._change("cat >>history.jsonl", json.dumps(asdict(deployment)).encode() + b"\n")

    def history(self) -> tuple[Deployment, ...]:
        """Return what was started, the newest first."""
        lines = self._look("cat history.jsonl 2>/dev/null || true").splitlines()
        return tuple(_each(reversed(lines), lambda written: Deployment(**written)))

    def remember(self, status: JobStatus) -> None:
        """Write down how a job ended."""
        script = f"mkdir -p stopped\ncat >stopped/.new\nmv stopped/.new stopped/{status.job}.json"
        self._change(script, json.dumps(asdict(status)).encode() + b"\n")

    def forget(self, job: str) -> None:
        """A job that was stopped is started again."""
        self._change(f"rm -f stopped/{job}.json")

    def remembered(self) -> tuple[JobStatus, ...]:
        """Return how the jobs ended that were stopped."""
        lines = self._look("cat stopped/*.json 2>/dev/null || true").splitlines()
        return tuple(_each(lines, _status))

    def _change(self, script: str, content: bytes = b"") -> str:
        begin = f'set -eu\n{self._place}mkdir -p "$folder"\ncd "$folder"\n'
        return ssh.run(self.host, begin + script, content)

    def _look(self, script: str) -> str:
        return ssh.run(self.host, f'{self._place}cd "$folder" 2>/dev/null || exit 0\n{script}')


def _packed(files: Mapping[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, content in {**files, WHOLE: b""}.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return packed.getvalue()


def _ago(seconds: int) -> str:
    for size, name in ((3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size} {name}"
    return f"{seconds} s"


def _each(lines: Iterable[str], read: Callable[[dict[str, Any]], T]) -> Iterator[T]:
    """Read lines of JSON, but those of another version of kit, or that were cut off."""
    for line in lines:
        with suppress(ValueError, KeyError, TypeError):
            yield read(json.loads(line))


def _status(written: dict[str, Any]) -> JobStatus:
    hosts = tuple(
        HostStatus(
            **{
                **host,
                "state": State(host["state"]),
                "devices": tuple(host["devices"]),
                "ranks": tuple(host["ranks"]),
                "seen": tuple(host.get("seen", ())),
            }
        )
        for host in written["hosts"]
    )
    progress = Progress(**written["progress"]) if written["progress"] else None
    state = State(written["state"])
    urls = tuple(written.get("urls", ()))
    told = {"state": state, "hosts": hosts, "progress": progress, "urls": urls}
    return JobStatus(**{**written, **told})
