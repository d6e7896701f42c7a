"""kit's folder on a host, ~/.local/share/kit/<cluster>, with the data that outlives a deploy.

hosts/<host>/, jobs/, launch.py   the host's part of the rendered tree, as deployed
key/kit-key                       the cluster's key, in a folder that only the login can enter
lock/holder                       the current deploy    (this and the rest on one host only)
history.jsonl                     the deployments
stopped/<job>.json                the final status of a job without containers
queue/<note>.json                 the queue: the pool, its jobs, the use of people, hosts
"""

from __future__ import annotations

import io
import json
import shlex
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from kit.errors import KitError
from kit.hosts import ssh
from kit.model import Host
from kit.runtime.history import Deployment, LockHolder, read_deployment, this_process
from kit.runtime.status import JobStatus, status_from_json, status_to_json
from kit.values import Say
from trainer.contract.bearer import KEY

T = TypeVar("T")
Run = Callable[..., str]
"""Runs a script on a host with a standard input, like `ssh.run`."""
WHOLE = ".whole"
"""The last member of an archive; if it is missing, the connection was lost."""

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
# The key is a file, because `docker inspect` shows variables. Docker mounts only the file, so any
# user of a container may read it.
PUT_KEY = f"""
umask 077
mkdir -p key
chmod 700 key
new=$(mktemp key/.new.XXXXXX)
cat >"$new"
chmod 444 "$new"
mv -f "$new" key/{KEY}
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
PUT_NOTE = """
mkdir -p queue
new=$(mktemp queue/.new.XXXXXX)
cat >"$new"
exec 9>queue/.lock
flock 9
"""
UNLOCK = 'if [ "$(cat lock/holder)" = "$(cat)" ]; then rm -r lock; fi'


class HostFolder:
    """The folder of one cluster on one host."""

    def __init__(self, host: Host, cluster: str, run: Run | None = None) -> None:
        self.host = host
        self.cluster = cluster
        self._runs = run
        self.path = f"~/.local/share/kit/{cluster}"
        self._place = f'folder="$HOME/.local/share/kit/{cluster}"\n'

    def put(self, files: Mapping[str, bytes]) -> str:
        """Replace files atomically after all have arrived; return the folder's path.

        Raises:
            KitError: The host cannot be reached, or the files cannot be written.
        """
        return self._change(PUT, _packed(files)).strip()

    def key(self) -> str:
        """Return the cluster's key, "" if this host has none.

        Raises:
            KitError: The host cannot be reached.
        """
        return self._run(self._looking(f"cat key/{KEY} 2>/dev/null || true")).strip()

    def put_key(self, key: str) -> None:
        """Write the cluster's key.

        Raises:
            KitError: The host cannot be reached, or the file cannot be written.
        """
        self._change(PUT_KEY, key.encode())

    @contextmanager
    def locked(self, say: Say) -> Iterator[None]:
        """Hold the lock that prevents two concurrent deploys.

        Raises:
            KitError: Another deploy holds it.
        """
        own = json.dumps(asdict(this_process()))
        held = self._change(LOCK, own.encode())
        if held:
            raise _refusal(held, f"{self.path}/lock on {self.host.name}")
        try:
            yield
        finally:
            try:
                self._change(UNLOCK, own.encode())
            except KitError as error:
                say(f"the lock remains, remove it with `kit deploy --break-lock`: {error.message}")

    def break_lock(self) -> None:
        """Remove the lock of any holder.

        Raises:
            KitError: The host cannot be reached.
        """
        self._change("rm -rf lock")

    def add_to_history(self, deployment: Deployment) -> None:
        """Record the start of a job."""
        self._change("cat >>history.jsonl", json.dumps(asdict(deployment)).encode() + b"\n")

    def history(self) -> tuple[Deployment, ...]:
        """Return the recorded starts, the newest first."""
        script = self._looking("cat history.jsonl 2>/dev/null || true")
        lines = self._run(script).splitlines()
        return tuple(_each(reversed(lines), read_deployment))

    def record_status(self, status: JobStatus) -> None:
        """Record the final status of a job."""
        script = f"mkdir -p stopped\ncat >stopped/.new\nmv stopped/.new stopped/{status.job}.json"
        self._change(script, json.dumps(status_to_json(status)).encode() + b"\n")

    def delete_status(self, job: str) -> None:
        """Delete the final status of a job that starts again."""
        self._change(f"rm -f stopped/{job}.json")

    def recorded_statuses(self, prelude_output: str | None = None) -> tuple[JobStatus, ...]:
        """Return the final status of stopped jobs, of the output of `prelude` if it is known."""
        printed = self._run(self.prelude) if prelude_output is None else prelude_output
        return tuple(_each(printed.splitlines(), status_from_json))

    def notes(self) -> dict[str, dict[str, Any]]:
        """Return the notes of the queue, by name."""
        script = self._looking(
            'for file in queue/*.json; do [ ! -e "$file" ] || { echo "$file"; cat "$file"; }; done'
        )
        lines = self._run(script).splitlines()
        names = (Path(line).stem for line in lines[::2])
        return {name: json.loads(text) for name, text in zip(names, lines[1::2], strict=False)}

    def put_note(
        self, name: str, document: Mapping[str, Any], known: Mapping[str, Any] | None = None
    ) -> None:
        """Write a note of the queue; with `known`, only if the present note is this one."""
        check = ""
        if known is not None:
            before = shlex.quote(json.dumps(known))
            check = f'[ "$(cat queue/{name}.json)" = {before} ] || {{ rm "$new"; exit 0; }}\n'
        script = f'{PUT_NOTE}{check}mv "$new" queue/{name}.json'
        self._change(script, json.dumps(document).encode() + b"\n")

    @property
    def prelude(self) -> str:
        """The script that prints the final status of jobs on an existing connection."""
        return self._looking("cat stopped/*.json 2>/dev/null || true")

    def _change(self, script: str, content: bytes = b"") -> str:
        begin = f'set -eu\n{self._place}mkdir -p "$folder"\ncd "$folder"\n'
        return self._run(begin + script, content)

    def _run(self, script: str, content: bytes = b"") -> str:
        return (self._runs or ssh.run)(self.host, script, content)

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
        return LockHolder(**json.loads(held)).refusal(where)
    except (ValueError, TypeError):  # Another version of kit wrote it, or it is not written yet.
        return KitError(
            f"somebody else is deploying (see {where})",
            "wait for it; if it is dead, `kit deploy --break-lock`",
        )


def _each(lines: Iterable[str], read: Callable[[dict[str, Any]], T]) -> Iterator[T]:
    """Parse lines of JSON; skip incomplete lines and those of other versions of kit."""
    for line in lines:
        with suppress(ValueError, KeyError, TypeError):
            yield read(json.loads(line))
