"""kit's folder on a host, ~/.local/share/kit/<cluster>: what outlives the terminal of a deploy.

hosts/<host>/, jobs/, launch.py   the host's part of the rendered tree, as it was deployed
lock/holder                       who deploys now       (on one host alone, as the rest)
history.jsonl                     what was deployed
stopped/<job>.json                how a job ended of which no container is left
"""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from typing import Any, TypeVar

from kit.hosts import ssh
from kit.errors import KitError
from kit.model import Host
from kit.runtime.history import Deployment
from kit.runtime.lock import Holder, holder
from kit.runtime.remembered import read, written
from kit.runtime.status import JobStatus
from kit.runtime.steps import Say

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
    cat lock/holder || echo "{}"
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
        own = json.dumps(asdict(holder()))
        held = self._change(LOCK, own.encode())
        if held:
            raise _refusal(held, f"{self.path}/lock on {self.host.name}")
        try:
            yield
        finally:
            try:
                self._change(UNLOCK, own.encode())
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
        script = self._looking("cat history.jsonl 2>/dev/null || true")
        lines = ssh.run(self.host, script).splitlines()
        return tuple(_each(reversed(lines), lambda written: Deployment(**written)))

    def remember(self, status: JobStatus) -> None:
        """Write down how a job ended."""
        script = f"mkdir -p stopped\ncat >stopped/.new\nmv stopped/.new stopped/{status.job}.json"
        self._change(script, json.dumps(written(status)).encode() + b"\n")

    def forget(self, job: str) -> None:
        """A job that was stopped is started again."""
        self._change(f"rm -f stopped/{job}.json")

    def remembered(self, said: str | None = None) -> tuple[JobStatus, ...]:
        """Return how the jobs ended that were stopped; `said` is what `prelude` has printed."""
        printed = ssh.run(self.host, self.prelude) if said is None else said
        return tuple(_each(printed.splitlines(), read))

    @property
    def prelude(self) -> str:
        """The script that prints how jobs ended, for a connection that is made anyway."""
        return self._looking("cat stopped/*.json 2>/dev/null || true")

    def _change(self, script: str, content: bytes = b"") -> str:
        begin = f'set -eu\n{self._place}mkdir -p "$folder"\ncd "$folder"\n'
        return ssh.run(self.host, begin + script, content)

    def _looking(self, script: str) -> str:
        return f'{self._place}cd "$folder" 2>/dev/null || exit 0\n{script}'


def _packed(files: Mapping[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, content in {**files, WHOLE: b""}.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return packed.getvalue()


def _refusal(held: str, where: str) -> KitError:
    try:
        return Holder(**json.loads(held)).refusal(where)
    except (ValueError, TypeError):  # Another version of kit, or it has begun this moment.
        return KitError(
            f"somebody else is deploying: {where} says so",
            "wait for it; if it is gone for good, `kit deploy --break-lock`",
        )


def _each(lines: Iterable[str], read: Callable[[dict[str, Any]], T]) -> Iterator[T]:
    """Read lines of JSON, but those of another version of kit, or that were cut off."""
    for line in lines:
        with suppress(ValueError, KeyError, TypeError):
            yield read(json.loads(line))
