"""The trainer's programs for data sets: where they run, and what they print.

`trainer.datasets.store` changes the stored data sets. It runs in a container of the trainer's image
on the storage host, or as a process of this machine. It prints one JSON object a line.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kit.errors import InputError, KitError
from kit.hosts.docker import Docker
from kit.hosts.environment import clean
from kit.hosts.programs import Program
from kit.model import Host

Message = dict[str, Any]
PROXIES = tuple(
    each for name in ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY") for each in (name, name.lower())
)
PASSED = {
    "s3": (
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_SESSION_TOKEN",
        "AWS_REGION",
        "AWS_DEFAULT_REGION",
        "AWS_ENDPOINT_URL",
        "AWS_ENDPOINT_URL_S3",
    ),
    "hf": ("HF_TOKEN", "HF_ENDPOINT"),
    "http": ("KIT_PLAIN_HTTP",),
    "https": ("KIT_PLAIN_HTTP",),
}
"""The variables of this machine that the program gets, besides proxies, for a source."""
MISTAKE = 2
"""The exit status of a program that found a mistake in its input."""


@dataclass(frozen=True, slots=True)
class Programs:
    """A way to run the program: `words` come before its arguments, `store` is its folder there.

    `where` is the host's name in messages, `environment` that of the command on this machine.
    """

    where: str
    words: tuple[str, ...]
    store: str
    environment: Mapping[str, str]

    def command(self, *arguments: str) -> list[str]:
        """Return the command with the program's arguments."""
        return [*self.words, "--store", self.store, *arguments]


def here(folder: str) -> Programs:
    """Return the way to run it as a process of this machine."""
    words = (sys.executable, "-m", "trainer.datasets.store")
    return Programs("this machine", words, folder, os.environ)


def passed_for(source: str | None) -> tuple[str, ...]:
    """Return the names of the variables that the program gets for a source."""
    if source is None or source.startswith("/"):
        return ()
    return (*PASSED.get(source.partition(":")[0], ()), *PROXIES)


def on_host(
    host: Host, cluster: str, image: str, volume: str, source: str | None = None
) -> Programs:
    """Return the way to run it in a container of a host, for a source that it reads.

    A folder of the host is mounted at its own path, read-only. For an address the container gets
    the credentials of that kind of source, and the proxies. Docker takes the values of variables
    from its own environment: they are not in the process list.
    """
    docker = Docker.of(host)
    passed = {name: os.environ[name] for name in passed_for(source) if os.environ.get(name)}
    mounts = [f"--mount=type=volume,source={volume},target=/store"]
    if source is not None and source.startswith("/"):
        mounts.append(f"--mount=type=bind,source={source},target={source},readonly")
    words = (
        *("docker", *docker.options, "run", "--rm", "--interactive", "--init"),
        *(f"--label=kit.store={cluster}", "--user=0:0", "--cap-drop=ALL", "--read-only"),
        *("--security-opt=no-new-privileges:true", "--tmpfs=/tmp"),
        *mounts,
        *("--env=NVIDIA_VISIBLE_DEVICES=void", "--env=HOME=/tmp"),
        *(f"--env={name}" for name in passed),
        *("--entrypoint=python3", image, "-m", "trainer.datasets.store"),
    )
    return Programs(host.name, words, "/store", clean(os.environ) | passed)


def run(
    programs: Programs,
    arguments: Sequence[str],
    say: Callable[[Message], object] = lambda _: None,
    feed: Iterable[bytes] | None = None,
    *,
    asked: bool = False,
) -> Any:
    """Run the program, pass the objects that it prints to `say`, and return its last value.

    `feed` is its standard input; `asked`: it is sent only after the program prints `send`. If this
    process is interrupted, the program ends too.

    Raises:
        KitError: It failed; the message is its own.
    """
    last: Any = None
    command = programs.command(*arguments)
    for last in talk(command, programs.environment, programs.where, feed, asked=asked):
        if isinstance(last, dict):
            say(last)
    return last


def talk(
    command: Sequence[str],
    environment: Mapping[str, str],
    where: str,
    feed: Iterable[bytes] | None = None,
    *,
    asked: bool = False,
) -> Iterator[Any]:
    """Run a command and yield the JSON values that it prints, one a line; see `run`.

    Raises:
        KitError: It failed, with its message and what to do about it.
    """
    last: Message = {}
    with Program(where, command, environment) as program:
        if not asked:
            program.feed(feed or ())
        for value in program.values():
            last = value if isinstance(value, dict) else {}
            if asked and last.get("state") == "send":
                program.feed(feed or ())
            yield value
        status, reason = program.end(), program.reason()
    if last.get("state") == "failed":
        kind = InputError if status == MISTAKE else KitError
        raise kind(f"{where}: {last.get('message', '')}", str(last.get("fix") or ""))
    if status:
        raise KitError(f"{where}: {reason}")
