"""The keeper of a host: watches the files, serves the versions, and meets the other keepers."""

import asyncio
import hmac
import json
import os
import shutil
import sys
import time
from asyncio import StreamReader, StreamWriter
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from trainer.launcher.keeper.files import Files
from trainer.launcher.keeper.folder import PIECE, Versions
from trainer.launcher.keeper.meeting import LOST, MEETING, Place, Round, follow, lead
from trainer.launcher.keeper.messages import (
    CONNECT,
    LONGEST,
    Endpoint,
    TimedOut,
    connect,
    receive,
    send,
)
from trainer.launcher.keeper.output import KeeperError, tell
from trainer.launcher.keeper.transfer import receive_file, send_file
from trainer.launcher.keeper.version import Content, Term, Version, newest, read_version
from trainer.launcher.output import emit, replace_file

LOOK = 0.25  # Seconds between two checks of the files; files that are equal in both have settled.
AGAIN = 10.0  # Seconds until the next check of files that did not fit on the disk.
LINE = 60.0  # Seconds between two lines on new versions; each has an event.
STILL = 5.0  # Seconds between two heartbeats to a waiting worker.
END = 10.0  # Seconds after the agent's end in which another host may fetch the last version.


class Keeper:
    """Watches the files, serves the versions, and meets the keepers of the other hosts."""

    def __init__(self, host: str, address: str, files: Files, versions: Versions) -> None:
        self._host, self._address, self._files, self._versions = host, address, files, versions
        self._port = 0
        self._key = ""  # The secret of this term, which all hosts of its meeting have.
        self._peers: list[tuple[str, Endpoint]] = []  # By group rank.
        self._writes = True  # Of hosts that share one folder, only one watches it.
        self._round: Round | None = None
        self._looking, self._fetching = asyncio.Lock(), asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._busy = 0  # Transfers.
        self._warned: object = None
        self._next_look = self._next_line = 0.0

    async def run(self, socket: str) -> None:
        """Serve until standard input ends."""
        await asyncio.start_unix_server(self._serve_worker, socket)
        server = await asyncio.start_server(
            self._serve_peer, self._address or None, 0, limit=LONGEST
        )
        self._port = server.sockets[0].getsockname()[1]
        ended = asyncio.Event()
        asyncio.get_running_loop().add_reader(sys.stdin, lambda: read_end(ended))
        while not ended.is_set():
            if self._key and self._writes and not self._round:
                await self._look(ended=False)
            with suppress(TimedOut):
                await asyncio.wait_for(ended.wait(), LOOK)
        await self._finish()

    async def _finish(self) -> None:
        """Make a version of the last changes, and let others fetch it."""
        if self._key and self._writes and not self._round:
            await self._look(ended=True)
        deadline = time.monotonic() + END
        await asyncio.sleep(LOOK)
        while (self._busy or self._tasks) and time.monotonic() < deadline:
            await asyncio.sleep(0.1)

    def _start(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # ---- The files of this host

    async def _look(self, *, ended: bool) -> None:
        """Make a version of files that have changed."""
        async with self._looking:
            if time.monotonic() < self._next_look:
                return
            try:
                take = partial(self._files.take, self._versions.draft, ended=ended)
                taken = await asyncio.to_thread(take)
            except OSError as error:
                text = f"the files cannot be kept in {self._versions.folder}: {error.strerror}"
                if self._warned != text:
                    tell(f"warning: {text}")
                    emit("failed", kind="disk", message=text, rank=None, exit_code=None)
                self._warned, self._next_look = text, time.monotonic() + AGAIN
                return
            if taken:
                self._add(*taken)

    def _add(self, draft: Path, contents: list[Content]) -> None:
        before, (term, rank) = self._versions.all(), self._versions.term()
        files = tuple(contents)
        if any(version.files == files for version in before):
            shutil.rmtree(draft)
            return
        if not term.number:
            term = Term(0, self._files.modified())
        number = term.number
        own = [e.count for e in before if (e.term.number, e.host) == (number, self._host)]
        version = Version(term, rank, max(own, default=0) + 1, self._host, time.time(), files)
        self._versions.add(draft, version)
        if note := os.environ.get("KIT_SAVED"):
            replace_file(Path(note), version.content)
        if time.monotonic() >= self._next_line:
            tell(f"keeps {version.shown()}")
            self._next_line = time.monotonic() + LINE
        names = [each.path for each in files]
        emit("kept", version=version.name, host=self._host, bytes=version.size, files=names)
        self._start(self._pass_on(version, (self._address, self._port)))

    # ---- Transfer of versions between hosts

    async def _pass_on(self, version: Version, holder: Endpoint) -> None:
        """Offer a version to the next host that answers, which passes it on."""
        _, rank = self._versions.term()
        for name, endpoint in self._peers[rank + 1 :] + self._peers[:rank]:
            try:
                message = {"do": "take", "version": asdict(version), "holder": holder}
                await self._ask(endpoint, message)
            except OSError as error:
                tell(f"{name} does not take version {version.name}: {error}")
            else:
                return

    async def _ask(self, endpoint: Endpoint, message: dict[str, Any]) -> None:
        reader, writer = await connect(endpoint)
        try:
            await send(writer, {**message, "key": self._key})
            answer = await receive(reader)
            if answer.get("error"):
                raise OSError(str(answer["error"]))
            with suppress(TimedOut):  # It ends the connection when it has fetched the version.
                await asyncio.wait_for(reader.read(), END)
        finally:
            writer.close()

    async def _serve_peer(self, reader: StreamReader, writer: StreamWriter) -> None:
        self._busy += 1
        try:
            message = await receive(reader, CONNECT)
            if not self._key or not hmac.compare_digest(str(message.get("key")), self._key):
                await send(writer, {"error": "has another key"})
            elif message.get("do") == "send":
                await send_file(writer, message, self._versions)
            elif message.get("do") == "take":
                text = json.dumps(message.get("version"))
                version = read_version(text, self._files.paths)
                address, port = message["holder"]
                await send(writer, {})
                await self._take(version, (str(address), int(port)))
        except (OSError, KeeperError, ValueError, TypeError, KeyError) as error:
            with suppress(OSError):
                await send(writer, {"error": str(error)})
        finally:
            self._busy -= 1
            writer.close()

    async def _take(self, version: Version, holder: Endpoint) -> None:
        """Fetch a version that another host offers, and pass it on."""
        own = newest(self._versions.all())
        self._warn_of_writers(version)
        if own and own.order >= version.order:
            return
        try:
            await self._fetch(version, holder)
            holder = (self._address, self._port)
        except OSError as error:
            tell(f"warning: version {version.name} was not fetched: {error}")
        self._start(self._pass_on(version, holder))

    def _warn_of_writers(self, version: Version) -> None:
        """Warn if this host and another one have both written in this term."""
        term, rank = self._versions.term()
        wrote = any(each.term == term and each.rank == rank for each in self._versions.all())
        if wrote and version.term == term and version.rank != rank and self._warned != term:
            self._warned = term
            first = version.host if version.rank < rank else self._host
            both = f"{self._host} and {version.host} write different content to the same files"
            tell(f"warning: {both}: kit keeps those of {first}; let only rank 0 of the script save")

    async def _fetch(self, version: Version, holder: Endpoint) -> None:
        """Fetch a version; raises OSError if it fails or the copy is damaged."""
        async with self._fetching:
            if any(each.id == version.id for each in self._versions.all()):
                return
            draft = self._versions.draft()
            try:
                for index, content in enumerate(version.files):
                    request = {"do": "send", "version": version.id, "file": index}
                    await self._fetch_file(holder, request, content, draft / str(index))
                self._versions.add(draft, version)
            finally:
                shutil.rmtree(draft, ignore_errors=True)

    async def _fetch_file(
        self, holder: Endpoint, request: dict[str, Any], content: Content, target: Path
    ) -> None:
        reader, writer = await connect(holder)
        self._busy += 1
        try:
            await send(writer, {**request, "key": self._key})
            await receive_file(reader, holder[0], content, target)
        finally:
            self._busy -= 1
            writer.close()

    # ---- Workers that wait for their start

    async def _serve_worker(self, reader: StreamReader, writer: StreamWriter) -> None:
        """Let a worker wait until the files are in place; if it ends, the round ends."""
        try:
            message = await receive(reader)
            place = Place(*(message[name] for name in Place._fields))
            around = self._join(place, int(message["worker"]))
        except (OSError, KeyError, TypeError, ValueError):
            writer.close()
            return
        gone = asyncio.ensure_future(reader.read(1))
        either: set[asyncio.Future[Any]] = {around.ready, gone}
        try:
            while True:
                await asyncio.wait(either, timeout=STILL, return_when="FIRST_COMPLETED")
                if around.ready.done():
                    await send(writer, {"ready": True, "error": around.ready.result()})
                    return
                if gone.done():
                    around.end("a worker of this host has ended")
                    return
                await send(writer, {})
        except OSError:
            around.end("a worker of this host has ended")
        finally:
            gone.cancel()
            writer.close()

    def _join(self, place: Place, worker: int) -> Round:
        around = self._round
        if not around or around.place != place or worker in around.present or around.ready.done():
            if around:
                around.end("another round has begun")
            around = self._round = Round(place)
        around.present.add(worker)
        if len(around.present) == place.workers:
            around.task = asyncio.get_running_loop().create_task(self._bring(around))
        return around

    async def _bring(self, around: Round) -> None:
        """Get the newest version to this host; then let its workers start, or fail."""
        why = ""
        try:
            await self._meet(around.place)
        except asyncio.CancelledError:
            why = "the round was cancelled"
            raise
        except (OSError, KeeperError, ValueError, TypeError, KeyError) as error:
            why = str(error) or type(error).__name__
            tell(f"error: {why}")
        finally:
            if self._round is around:
                self._round = None
            around.task = None
            around.end(why)

    # ---- The meeting, and the version that it has chosen

    async def _meet(self, place: Place) -> None:
        # The files written after the last check.
        await asyncio.shield(self._look(ended=True))
        report = await self._report(place)
        leads = place.rank == 0
        meeting = lead(place, report, self._files.paths) if leads else follow(place, report)
        try:
            decision = await asyncio.wait_for(meeting, MEETING)
        except TimedOut:
            at = f"{place.address}:{place.port}"
            raise KeeperError(f"not all hosts met at {at} within {MEETING:.0f} s") from None
        self._versions.begin_term(Term(*decision["term"]), place.rank)
        self._peers = [(str(name), (str(at), int(port))) for name, (at, port) in decision["peers"]]
        self._key, self._writes = str(decision["key"]), place.rank in decision["writers"]
        if decision["version"]:
            text = json.dumps(decision["version"])
            version = read_version(text, self._files.paths)
            await self._put(version, [tuple(each) for each in decision["holders"]], place.rank)

    async def _report(self, place: Place) -> dict[str, Any]:
        """Report this host's versions; the newest one is verified, damaged ones are removed."""
        while found := self._versions.all():
            if await asyncio.to_thread(self._versions.holds, found[0]):
                break
            tell(f"warning: {found[0].shown()} is damaged on this host: removed")
            self._versions.remove(found[0])
        return {
            "run": place.run,
            "hosts": place.hosts,
            "rank": place.rank,
            "host": self._host,
            "endpoint": [self._address, self._port],
            "term": self._versions.term()[0].number,
            "versions": [asdict(version) for version in found],
            "location": self._files.location(),
        }

    async def _put(self, version: Version, holders: list[Any], rank: int) -> None:
        """Put a version in place; fetch it from another host first if necessary."""
        deadline, turn = time.monotonic() + LOST, rank
        while version not in self._versions.all():
            try:
                await self._fetch(version, holders[turn % len(holders)])
            except OSError as error:
                # A holder may not yet have the decision of the meeting, which has the key.
                if time.monotonic() > deadline:
                    raise KeeperError(f"version {version.name} was not fetched: {error}") from None
                turn += 1
                await asyncio.sleep(0.1)
        try:
            changed = await asyncio.to_thread(self._files.put, version, self._versions)
        except OSError as error:
            what = f"{error.filename}: {error.strerror}"
            raise KeeperError(f"version {version.name} cannot be put in place: {what}") from error
        tell(f"{'puts' if changed else 'has'} {version.shown()} in place")


def read_end(ended: asyncio.Event) -> None:
    """Set the event at the end of standard input."""
    if not os.read(sys.stdin.fileno(), PIECE):
        asyncio.get_running_loop().remove_reader(sys.stdin)
        ended.set()
