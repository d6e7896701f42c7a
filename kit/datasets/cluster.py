"""The data services of a deployed cluster: where its store is, and its agents."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from kit.datasets import agents, programs
from kit.datasets.agents import AbsentError, Agent
from kit.datasets.programs import Message, Programs
from kit.datasets.sizes import Stored
from kit.datasets.upload import Upload
from kit.errors import KitError
from kit.hosts.docker import MOST_CONCURRENT, concurrently
from kit.model import DataSet
from kit.plan.data import DataPlan

ATTEMPTS = 5
"""After this number of consecutive uploads without a new byte on the storage host, kit gives up."""
TOO_OLD = "invalid choice: 'put'"
"""The message of argparse in an image without this command."""
UPLOADS = ".uploads"
"""The folder of the store with received uploads."""

Say = Callable[[str, str, int, int | None], object]
"""Shows a transfer: its name, its state, the bytes done, those in all (None: unknown)."""


@dataclass(frozen=True, slots=True)
class DataCluster:
    """The store and the agents; `folder` is set if they are processes of this machine."""

    cluster: str
    data: DataPlan
    folder: Path | None = None

    def programs(self, source: str | None = None) -> Programs:
        """Return the way to change the store; `source` is a folder or an address that it reads."""
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            return programs.here(str(self.folder))
        data = self.data
        return programs.on_host(data.storage, self.cluster, data.image, data.volume, source)

    def finders(self) -> dict[str, Callable[[], Agent]]:
        """Return a function for each host that finds its agent."""
        if self.folder is not None:
            return {"this machine": partial(agents.agent_here, self.folder)}
        return {
            host.name: partial(agents.agent_on, host, self.cluster) for host in self.data.agents
        }

    def stored(self) -> list[Stored]:
        """Return the versions in the store.

        Raises:
            KitError: The storage host cannot be reached, or its image cannot run.
        """
        listed = programs.run(self.programs(), ("ls", "--json"))
        names = Stored.__dataclass_fields__
        return [
            Stored(**{name: value for name, value in each.items() if name in names})
            for each in listed or []
        ]

    def add(
        self, name: str, source: str, options: tuple[str, ...], say: Say, reads: str | None = None
    ) -> Message:
        """Add a version from a source that the storage host can read.

        Returns its description, with the hidden files and folders that were left out.

        `reads` is the folder of the host or the address behind the source, None for an upload.
        An address that may be signed goes over standard input: everyone on the host can read the
        arguments of processes.

        Raises:
            KitError: It failed; what was downloaded stays for the next try.
        """
        feed = [source.encode()] if source.startswith("http") and "?" in source else None
        words = ("add", name, "-" if feed else source, *options, "--json")
        left_out: list[str] = []

        def shown(message: Message) -> None:
            left_out.extend(message.get("left_out", ()))
            _shown(say, name, message)

        done: Message = programs.run(self.programs(reads), words, shown, feed)
        return done | {"left_out": left_out}

    def put(
        self, name: str, described: str, keep: Sequence[str], archive: Callable[[], Iterable[bytes]]
    ) -> None:
        """Store code, named after its content, unless it is stored; the code `keep` is kept.

        Raises:
            KitError: It failed.
        """
        words = ("put", name, "--described", described, "--keep", *keep, "--json")
        for program in self._ways():
            try:
                programs.run(program, words, feed=archive(), asked=True)
            except KitError as error:
                if TOO_OLD not in error.message:
                    raise
            else:
                return
        what = f"the trainer in {self.data.image} is older than kit, and stores no code"
        raise KitError(what, "build the image again, push it, and run `kit image lock`")

    def _ways(self) -> Iterator[Programs]:
        """Yield the ways to run the program, the fastest first: a container needs a second."""
        if self.folder is None:
            with suppress(AbsentError):
                yield agents.agent_on(self.data.storage, self.cluster).store()
        yield self.programs()

    def prefetch(self, names: Collection[str], data: Iterable[DataSet]) -> None:
        """Request that the agents of these hosts fetch data sets in the background; never fail."""
        finders = [find for host, find in self.finders().items() if host in names]
        if self.folder is not None or len(finders) > MOST_CONCURRENT:
            return
        for find in finders:
            threading.Thread(target=_fetch, args=(find, tuple(data)), daemon=True).start()

    def upload(self, name: str, upload: Upload, say: Say) -> str:
        """Send a folder or an archive of this machine; return its path on the storage host.

        A broken connection is resumed where it ended, also by a later call.

        Raises:
            KitError: It failed.
        """
        run = partial(programs.run, self.programs())
        command = ("receive", name, upload.name, "--offset")
        tries, offset = 0, int(run((*command, "?")))
        while offset < upload.total:
            feed = _counted(upload, offset, partial(say, name, "sending"))
            try:
                now = int(run((*command, str(offset)), feed=feed))
            except KitError:
                now = int(run((*command, "?")))
                tries = 0 if now > offset else tries + 1
                if tries >= ATTEMPTS:
                    raise
            offset = now
        return f"{self.programs().store}/{UPLOADS}/{name}/{upload.name}"

    def statuses(self) -> dict[str, Message | KitError]:
        """Return the status of each host's agent, or the reason why it is unknown."""
        finders = self.finders()

        def status(find: Callable[[], Agent]) -> Message:
            return find().ask("GET", "/status")

        return dict(zip(finders, concurrently(status, finders.values()), strict=True))


def complete_on(statuses: Mapping[str, Message | KitError], stored: Stored) -> list[str]:
    """Return the hosts whose agent has a complete copy."""
    return [
        host
        for host, status in statuses.items()
        if not isinstance(status, KitError)
        for each in status.get("held", [])
        if (each.get("name"), each.get("version")) == (stored.name, stored.version)
        and each.get("state") == "ready"
    ]


def _fetch(find: Callable[[], Agent], data: Iterable[DataSet]) -> None:
    with suppress(KitError):  # The launcher asks again, and says why it waits.
        agent = find()
        for each in data:
            agents.use(agent, each, lambda _: None)


def _shown(say: Say, name: str, message: Message) -> None:
    if isinstance(message.get("bytes"), int):
        say(name, str(message.get("state", "")), message["bytes"], message.get("total") or None)


def _counted(upload: Upload, offset: int, say: Callable[[int, int], object]) -> Iterator[bytes]:
    for block in upload.read(offset):
        yield block
        offset += len(block)
        say(offset, upload.total)
