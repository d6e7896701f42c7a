"""Keeps versions of the files that a script writes, and brings the newest to every host.

    python3 keeper.py       started by launch.py beside torchrun, for `checkpoint: {files: …}`

One file that uses only the standard library and Python 3.10, mounted beside launch.py. Its
sections: versions, their folder, the script's files, messages between hosts, the meeting, the
keeper, start.

    KIT_HOST          this host's name
    KIT_CHECKPOINTS   folder of checkpoints; the versions of a host are in versions/HOST below it
    KIT_FILES         the script's files, a JSON list; relative ones begin at the working folder
    KIT_KEEP          number of versions that each host keeps
    KIT_KEEPER        Unix socket at which the workers of this host wait before their script starts
    KIT_SAVED         file that gets a name of the content of each version that this host makes
    KIT_FILES_AT      address of this host at which the other hosts fetch versions

While the script runs, a complete file that has changed becomes a version, and each host passes it
on to the next. Before each start of the workers, the keepers of all hosts meet at the address that
the round has for the script's own store, MASTER_ADDR and MASTER_PORT, which nobody uses yet.
There they agree on the newest version; hosts that lack it fetch it, and put it in place.

The keeper ends when its standard input ends: that is the end of the agent.
"""

import asyncio
import fcntl
import hashlib
import hmac
import json
import os
import re
import secrets
import shutil
import signal
import sys
import tempfile
import time
import zipfile
from asyncio import StreamReader, StreamWriter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

LOOK = 0.25  # Seconds between two looks at the files; files that are equal in two have settled.
AGAIN = 10.0  # Seconds after which files are looked at again that did not fit on the disk.
LINE = 60.0  # Seconds between two lines on new versions; each has an event.
CONNECT = 5.0  # Seconds for a connection to another host.
SILENT = 30.0  # Seconds without a byte after which another host is taken for dead.
MEETING = 120.0  # Seconds for all hosts to arrive: each first reads its newest version.
LOST = 10.0  # Seconds for a host whose connection broke to come again.
STILL = 5.0  # Seconds between two signs of life to a waiting worker.
END = 10.0  # Seconds after the agent's end in which another host may fetch the last version.
PIECE = 1 << 20
LONGEST = 1 << 24  # Bytes of a message.
FICLONE = 0x40049409  # ioctl: share the blocks of another file (linux/fs.h).
MANIFEST = "manifest.json"

# As in trainer/contract/events.py; a test compares them.
MARK, VERSION = "@kit ", 1
Endpoint = tuple[str, int]
TimedOut = asyncio.TimeoutError  # From Python 3.11 on, it is the built-in TimeoutError.


class KeeperError(Exception):
    """A failure; the message is for people."""


def say(text: str) -> None:
    """Write one line for people."""
    sys.stdout.write(f"keeper {os.environ.get('KIT_HOST', '')}: {text}\n")
    sys.stdout.flush()


def emit(name: str, **values: object) -> None:
    """Print an event, unless standard output is a terminal."""
    if not sys.stdout.isatty():
        content = {"v": VERSION, "event": name, "time": round(time.time(), 3), **values}
        sys.stdout.write(MARK + json.dumps(content, ensure_ascii=False) + "\n")
        sys.stdout.flush()


# -------- Versions, and which of two is newer


class Term(NamedTuple):
    """The time from one meeting to the next, as in Raft; 0 is the time before the first.

    Two terms have the same number only if no host took part in both. `began` is then compared, by
    the clocks of their leaders: nothing else can tell which is newer.
    """

    number: int = 0
    began: float = 0.0
    leader: str = ""


@dataclass(frozen=True)
class Content:
    """A file of a version; its path is as in the job."""

    path: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Version:
    """What the host `host`, which has the group rank `rank`, found in the files at `time`.

    `count` counts the versions of a host in a term.
    """

    term: Term
    rank: int
    count: int
    host: str
    time: float
    files: tuple[Content, ...]

    @property
    def order(self) -> tuple[Term, int, int, str]:
        """The newest version has the greatest; of several writers the lowest rank counts."""
        return (self.term, -self.rank, self.count, self.host)

    @property
    def name(self) -> str:
        """The name for people."""
        return f"{self.term.number}.{self.count} of {self.host}"

    @property
    def id(self) -> str:
        """The name of its folder, different for different content."""
        return f"{self.term.number:06d}.{self.count:06d}-{self.host}-{self.content}"

    @property
    def content(self) -> str:
        """A name that is equal for equal content."""
        sums = "".join(each.sha256 for each in self.files)
        return hashlib.sha256(sums.encode()).hexdigest()[:8]

    @property
    def size(self) -> int:
        """The bytes of all files."""
        return sum(each.size for each in self.files)

    def shown(self) -> str:
        """Describe it for people."""
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(self.time))
        return f"version {self.name} ({self.size / 1e6:.1f} MB, written {when} UTC)"


def read_version(text: str | bytes, paths: Sequence[str]) -> Version:
    """Read a version from JSON, from this host's disk or from another host.

    Raises KeeperError if it is none, or has a file that is not one of `paths`: another host must
    not choose where this one writes.
    """
    try:
        found = json.loads(text)
        files = tuple(
            Content(str(each["path"]), int(each["size"]), str(each["sha256"]))
            for each in found["files"]
        )
        number, began, leader = found["term"]
        version = Version(
            Term(int(number), float(began), str(leader)),
            int(found["rank"]),
            int(found["count"]),
            str(found["host"]),
            float(found["time"]),
            files,
        )
    except (ValueError, TypeError, KeyError) as error:
        raise KeeperError(f"is no version: {error!r}") from error
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", version.host):
        raise KeeperError(f"{version.host!r} is no name of a host")
    if alien := {each.path for each in files} - {*paths}:
        raise KeeperError(f"{', '.join(sorted(alien))} is not among the job's files")
    if not files or not all(re.fullmatch("[0-9a-f]{64}", each.sha256) for each in files):
        raise KeeperError("has no SHA-256")
    return version


def newest(versions: Sequence[Version]) -> Version | None:
    """The newest version, or None if there is none."""
    return max(versions, key=lambda version: version.order, default=None)


# -------- The folder of the versions of this host

Signature = tuple[int, int, int]


def signature(path: Path) -> Signature | None:
    """What changes with each write to a file; None if there is no file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return (found.st_ino, found.st_size, found.st_mtime_ns)


class Versions:
    """A folder for each version, with its manifest and its files, named by their numbers."""

    def __init__(self, folder: Path, paths: Sequence[str], keep: int) -> None:
        self.folder, self._paths, self._keep = folder, paths, keep
        self._verified: dict[str, list[Signature | None]] = {}  # Read once by this process.
        folder.mkdir(parents=True, exist_ok=True)
        for left in folder.glob(".new-*"):  # Of a keeper that was killed.
            shutil.rmtree(left, ignore_errors=True)

    def all(self) -> list[Version]:
        """The versions, the newest first."""
        found = []
        for manifest in self.folder.glob(f"*/{MANIFEST}"):
            with suppress(OSError, KeeperError):
                found.append(read_version(manifest.read_bytes(), self._paths))
        return sorted(found, key=lambda version: version.order, reverse=True)

    def file(self, version: Version, index: int) -> Path:
        """The copy of a file of a version."""
        return self.folder / version.id / str(index)

    def draft(self) -> Path:
        """A new folder, which `add` makes a version."""
        return Path(tempfile.mkdtemp(prefix=".new-", dir=self.folder))

    def add(self, draft: Path, version: Version) -> None:
        """Make a draft with all its files a version, and remove the oldest."""
        write_durably(draft / MANIFEST, json.dumps(asdict(version)).encode())
        # Before anybody can see the files, and damage them.
        written = [signature(draft / str(index)) for index in range(len(version.files))]
        draft.rename(self.folder / version.id)
        sync_folder(self.folder)
        self._verified[version.id] = written
        for old in self.all()[self._keep :]:
            self.remove(old)

    def remove(self, version: Version) -> None:
        """Remove a version; without its manifest it is none, whatever happens meanwhile."""
        (self.folder / version.id / MANIFEST).unlink(missing_ok=True)
        shutil.rmtree(self.folder / version.id, ignore_errors=True)

    def holds(self, version: Version) -> bool:
        """Whether the copies of a version are still what was written."""
        before = self._state(version)
        if self._verified.get(version.id) == before and all(before):
            return True
        try:
            for index, each in enumerate(version.files):
                if digest(self.file(version, index)) != each.sha256:
                    return False
        except OSError:
            return False
        self._verified[version.id] = before
        return True

    def _state(self, version: Version) -> list[Signature | None]:
        return [signature(self.file(version, index)) for index in range(len(version.files))]

    def term(self) -> tuple[Term, int]:
        """The last term in which this host took part, and its group rank in it."""
        try:
            number, began, leader, rank = json.loads((self.folder / "term.json").read_bytes())
            return Term(int(number), float(began), str(leader)), int(rank)
        except (OSError, ValueError, TypeError):
            return Term(), 0

    def begin_term(self, term: Term, rank: int) -> None:
        """Record a term before its first version."""
        write_durably(self.folder / "term.json", json.dumps([*term, rank]).encode())


def write_durably(path: Path, content: bytes) -> None:
    """Replace a file atomically; after a power cut it is the old one or the new one."""
    new = path.with_name(f".new-{path.name}")
    with new.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    new.rename(path)


def sync_folder(folder: Path) -> None:
    """Write a folder's names to the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def digest(path: Path) -> str:
    """The SHA-256 of a file."""
    found = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(PIECE):
            found.update(piece)
    return found.hexdigest()


def copy(source: Path, target: Path) -> str:
    """Copy a file to the disk; return the SHA-256 of the copy.

    A script may overwrite its file in place, so that a hard link would change with it.
    """
    with source.open("rb") as read, target.open("xb") as written:
        try:
            fcntl.ioctl(written, FICLONE, read.fileno())
        except OSError:  # Not on this file system, or not between these two.
            shutil.copyfileobj(read, written, PIECE)
        written.flush()
        os.fsync(written.fileno())
    return digest(target)


# -------- The script's files


def unfinished(path: Path) -> str:
    """Why a file is not complete, or "".

    The directory of a zip file, such as PyTorch's, is written last. A lease for reading is refused
    while a process has the file open for writing (fcntl(2)).
    """
    with path.open("rb") as file:
        try:
            fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_RDLCK)
            fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        except BlockingIOError:
            return "a process writes it"
        except OSError:  # Of another user, or on a file system without leases.
            pass
        start = file.read(4)
        if not start:
            return "it is empty"
        if start == b"PK\3\4":
            try:
                with zipfile.ZipFile(file) as archive:
                    for member in archive.infolist():
                        archive.open(member).close()
            except (zipfile.BadZipFile, EOFError, OSError, ValueError, RuntimeError) as error:
                return f"it is a broken zip file: {error}"
    return ""


class Files:
    """The files of a script in its working folder."""

    def __init__(self, paths: Sequence[str]) -> None:
        self.paths = paths
        self._places = [Path(path) for path in paths]
        self._known: tuple[Signature | None, ...] = ()
        self._content: tuple[Content, ...] = ()  # Of the known state.
        self._last: tuple[Signature | None, ...] = ()
        self._said = ""

    def now(self) -> tuple[Signature | None, ...]:
        """The present state of all files."""
        return tuple(map(signature, self._places))

    def location(self) -> list[list[int]]:
        """What two hosts have in common only if they share the files' folders."""
        found = []
        for place in self._places:
            with suppress(OSError):
                about = place.parent.stat()
                found.append([about.st_ino, about.st_ctime_ns])
        return found

    def take(self, draft: Callable[[], Path], *, ended: bool) -> tuple[Path, list[Content]] | None:
        """Copy files that have changed and settled to a draft; None if there are none.

        `ended`: no script runs that could still write. Raises OSError if there is no room.
        """
        now = self.now()
        settled, self._last = ended or now == self._last, now
        if now == self._known or not any(now):
            return None
        present = [(path, Path(path)) for path, found in zip(self.paths, now, strict=True) if found]
        try:
            for path, place in present:
                if why := unfinished(place):
                    self._warn(f"{path} is not complete ({why})" if ended else "")
                    return None
            # One zip file that is complete has settled; of several, others may follow.
            if not settled and not (len(present) == 1 and zipfile.is_zipfile(present[0][1])):
                return None
        except FileNotFoundError:
            return None
        folder = draft()
        try:
            contents = []
            for index, (path, place) in enumerate(present):
                sha256 = copy(place, folder / str(index))
                contents.append(Content(path, (folder / str(index)).stat().st_size, sha256))
        except FileNotFoundError:
            contents = []
        except OSError:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        if not contents or self.now() != now:  # The script has written meanwhile.
            shutil.rmtree(folder, ignore_errors=True)
            return None
        self._known, self._content = now, tuple(contents)
        return folder, contents

    def modified(self) -> float:
        """The time of the last write, by the clock of this host or of the file server."""
        return max((found[2] for found in self.now() if found), default=0) / 1e9

    def put(self, version: Version, versions: Versions) -> bool:
        """Put a version in place, atomically; return whether a file had to be changed.

        Raises KeeperError if a copy is not what was written: then no file with it is changed.
        """
        changed = False
        if self._content == version.files and self._known == self.now():
            return False
        for index, each in enumerate(version.files):
            place = Path(each.path).resolve()  # A link stays a link.
            with suppress(OSError):
                if place.stat().st_size == each.size and digest(place) == each.sha256:
                    continue
            place.parent.mkdir(parents=True, exist_ok=True)
            new = place.with_name(f".{place.name}.kit-{os.getpid()}")
            new.unlink(missing_ok=True)
            try:
                if copy(versions.file(version, index), new) != each.sha256:
                    what = f"the copy of {each.path} in {versions.folder / version.id}"
                    raise KeeperError(f"{what} is not what was written")
                new.replace(place)
            finally:
                new.unlink(missing_ok=True)
            sync_folder(place.parent)
            changed = True
        self._known = self._last = self.now()
        self._content = version.files
        return changed

    def _warn(self, text: str) -> None:
        if text and text != self._said:
            self._said = text
            say(f"warning: {text}: no version is made of it")


# -------- Messages: a line of JSON each; a file's bytes follow their line


async def connect(endpoint: Endpoint) -> tuple[StreamReader, StreamWriter]:
    """Connect to another keeper; raises OSError."""
    try:
        opened = asyncio.open_connection(*endpoint, limit=LONGEST)
        return await asyncio.wait_for(opened, CONNECT)
    except TimedOut:
        raise OSError(f"no answer from {endpoint[0]} within {CONNECT:.0f} s") from None


async def send(writer: StreamWriter, message: object) -> None:
    """Send a message; raises OSError."""
    writer.write(json.dumps(message).encode() + b"\n")
    await drained(writer)


async def drained(writer: StreamWriter) -> None:
    """Wait until the other side takes what was written; raises OSError."""
    try:
        await asyncio.wait_for(writer.drain(), SILENT)
    except TimedOut:
        raise OSError(f"takes nothing for {SILENT:.0f} s") from None


async def receive(reader: StreamReader, seconds: float = SILENT) -> dict[str, Any]:
    """Receive a message; raises OSError also if the other side has ended or sends none."""
    try:
        line = await asyncio.wait_for(reader.readline(), seconds)
        found = json.loads(line) if line.endswith(b"\n") else None
    except TimedOut:
        raise OSError(f"says nothing for {seconds:.0f} s") from None
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise OSError("has ended its connection")
    return found


# -------- The meeting: the hosts of a round agree on the newest version


class Place(NamedTuple):
    """A host's place in a round of torchrun, as its workers know it."""

    address: str  # MASTER_ADDR and MASTER_PORT: new in each round.
    port: int
    run: str
    rank: int  # Of this host among `hosts`.
    hosts: int
    workers: int  # On this host.


async def lead(place: Place, own: dict[str, Any], paths: Sequence[str]) -> dict[str, Any]:
    """Collect the reports of all hosts, decide, and answer them."""
    reports, writers = {0: own}, dict[int, StreamWriter]()
    changed = asyncio.Event()

    async def accept(reader: StreamReader, writer: StreamWriter) -> None:
        try:
            rank, report = await receive_report(reader, place)
        except (OSError, KeyError, TypeError, ValueError):
            writer.close()
            return
        reports[rank], writers[rank] = report, writer
        changed.set()
        with suppress(OSError):
            await reader.read(1)
        if writers.get(rank) is writer:
            del reports[rank], writers[rank]
            changed.set()

    server = await asyncio.start_server(accept, place.address, place.port, limit=LONGEST)
    try:
        await all_present(reports, place.hosts, changed)
    except BaseException:
        for writer in writers.values():
            writer.close()
        raise
    finally:
        # Before the answers: then the script's own store can have the port.
        server.close()
    decision = decide([reports[rank] for rank in range(place.hosts)], paths)
    for rank in list(writers):
        writer = writers.pop(rank)
        with suppress(OSError):
            await send(writer, decision)
        writer.close()
    return decision


async def receive_report(reader: StreamReader, place: Place) -> tuple[int, dict[str, Any]]:
    """Receive the report of a host of this round; raises OSError if it is of another."""
    report = await receive(reader)
    rank = int(report["rank"])
    if (report["run"], report["hosts"]) != (place.run, place.hosts) or not 0 < rank < place.hosts:
        raise OSError("is of another round")
    return rank, report


async def all_present(reports: Mapping[int, object], hosts: int, changed: asyncio.Event) -> None:
    """Wait for the reports of all hosts; raises KeeperError if one leaves and stays away."""
    lost = 0.0
    while len(reports) < hosts:
        before = len(reports)
        changed.clear()
        with suppress(TimedOut):
            await asyncio.wait_for(changed.wait(), 1)
        lost = time.monotonic() if len(reports) < before else lost
        if lost and len(reports) <= before and time.monotonic() - lost > LOST:
            raise KeeperError("another host has left the meeting")


async def follow(place: Place, own: dict[str, Any]) -> dict[str, Any]:
    """Report to the host with group rank 0; return its decision."""
    lost = 0.0
    while True:
        try:
            reader, writer = await connect((place.address, place.port))
        except OSError:
            if lost and time.monotonic() - lost > LOST:
                raise KeeperError(f"{place.address} has left the meeting") from None
            await asyncio.sleep(0.1)
            continue
        try:
            await send(writer, own)
            return await receive(reader, MEETING)
        except OSError:
            lost = lost or time.monotonic()
            await asyncio.sleep(0.1)
        finally:
            writer.close()


def decide(reports: Sequence[dict[str, Any]], paths: Sequence[str]) -> dict[str, Any]:
    """Choose the newest version of all hosts; `reports` are in the order of their group ranks."""
    versions: dict[Version, list[Any]] = {}
    for report in reports:
        for each in report["versions"]:
            version = read_version(json.dumps(each), paths)
            versions.setdefault(version, []).append(report["endpoint"])
    chosen = newest(list(versions))
    if chosen:
        warn_of_others(chosen, list(versions))
    locations = [report["location"] for report in reports]
    number = 1 + max(int(report["term"]) for report in reports)
    return {
        "term": [number, time.time(), reports[0]["host"]],
        "key": secrets.token_hex(16),
        "peers": [[report["host"], report["endpoint"]] for report in reports],
        "writers": [
            rank for rank, at in enumerate(locations) if not at or locations.index(at) == rank
        ],
        "version": asdict(chosen) if chosen else None,
        "holders": versions[chosen] if chosen else [],
    }


def warn_of_others(chosen: Version, versions: Sequence[Version]) -> None:
    """Say which versions are left behind, where their order says little."""
    for each in versions:
        same = each.term.number == chosen.term.number and each.term != chosen.term
        if same and each.files != chosen.files:
            why = "hosts ran without each other" if chosen.term.number else "files differed before"
            kept = f"{chosen.shown()} is used, by the hosts' clocks"
            say(f"warning: {why}: {kept}; {each.shown()} is not")


# -------- The keeper of a host


class Round:
    """The workers that wait for a start; all of them must be there, and stay."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.present: set[int] = set()
        self.task: asyncio.Task[None] | None = None
        self.ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def end(self, why: str) -> None:
        """Answer all workers: the empty text means that the script may start."""
        if not self.ready.done():
            self.ready.set_result(why)
        if why and self.task:
            self.task.cancel()


class Keeper:
    """Watches the files, serves the versions, and meets the keepers of the other hosts."""

    def __init__(self, host: str, address: str, files: Files, versions: Versions) -> None:
        self._host, self._address, self._files, self._versions = host, address, files, versions
        self._port = 0
        self._key = ""  # Of this term: hosts that were in its meeting know it.
        self._peers: list[tuple[str, Endpoint]] = []  # By group rank.
        self._writes = True  # Hosts that share one folder leave the watching to one.
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
        """Make a version of what was written last, and let others fetch it."""
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
                text = f"the files can not be kept in {self._versions.folder}: {error.strerror}"
                if self._warned != text:
                    say(f"warning: {text}")
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
            Path(note).write_text(version.content)
        if time.monotonic() >= self._next_line:
            say(f"keeps {version.shown()}")
            self._next_line = time.monotonic() + LINE
        names = [each.path for each in files]
        emit("kept", version=version.name, host=self._host, bytes=version.size, files=names)
        self._start(self._pass_on(version, (self._address, self._port)))

    # ---- Versions on their way from host to host

    async def _pass_on(self, version: Version, holder: Endpoint) -> None:
        """Offer a version to the next host that answers; that one passes it on."""
        _, rank = self._versions.term()
        for name, endpoint in self._peers[rank + 1 :] + self._peers[:rank]:
            try:
                message = {"do": "take", "version": asdict(version), "holder": holder}
                await self._ask(endpoint, message)
            except OSError as error:
                say(f"{name} does not take version {version.name}: {error}")
            else:
                return

    async def _ask(self, endpoint: Endpoint, message: dict[str, Any]) -> None:
        reader, writer = await connect(endpoint)
        try:
            await send(writer, {**message, "key": self._key})
            answer = await receive(reader)
            if answer.get("error"):
                raise OSError(str(answer["error"]))
        finally:
            writer.close()

    async def _serve_peer(self, reader: StreamReader, writer: StreamWriter) -> None:
        self._busy += 1
        try:
            message = await receive(reader, CONNECT)
            if not self._key or not hmac.compare_digest(str(message.get("key")), self._key):
                await send(writer, {"error": "has another key"})
            elif message.get("do") == "send":
                await self._send_file(writer, message)
            elif message.get("do") == "take":
                text = json.dumps(message.get("version"))
                version = read_version(text, self._files.paths)
                address, port = message["holder"]
                await send(writer, {})
                self._start(self._take(version, (str(address), int(port))))
        except (OSError, KeeperError, ValueError, TypeError, KeyError) as error:
            with suppress(OSError):
                await send(writer, {"error": str(error)})
        finally:
            self._busy -= 1
            writer.close()

    async def _send_file(self, writer: StreamWriter, message: dict[str, Any]) -> None:
        found = [each for each in self._versions.all() if each.id == message.get("version")]
        index = int(message.get("file", 0))
        if not found or not 0 <= index < len(found[0].files):
            raise KeeperError(f"does not have {message.get('version')}")
        with self._versions.file(found[0], index).open("rb") as file:
            await send(writer, {"size": found[0].files[index].size})
            while piece := await asyncio.to_thread(file.read, PIECE):
                writer.write(piece)
                await drained(writer)

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
            say(f"warning: version {version.name} was not fetched: {error}")
        await self._pass_on(version, holder)

    def _warn_of_writers(self, version: Version) -> None:
        """Warn if this host and another have both written in this term."""
        term, rank = self._versions.term()
        wrote = any(each.term == term and each.rank == rank for each in self._versions.all())
        if wrote and version.term == term and version.rank != rank and self._warned != term:
            self._warned = term
            first = version.host if version.rank < rank else self._host
            both = f"{self._host} and {version.host} write different content to the same files"
            say(f"warning: {both}: kit keeps those of {first}; let only rank 0 of the script save")

    async def _fetch(self, version: Version, holder: Endpoint) -> None:
        """Fetch a version; raises OSError if it does not arrive as it was written."""
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
            answer = await receive(reader)
            if answer.get("size") != content.size:
                raise OSError(f"{holder[0]} {answer.get('error') or 'has another size'}")
            hashed, left = hashlib.sha256(), content.size
            with target.open("xb") as file:
                while left:
                    piece = await asyncio.wait_for(reader.read(min(left, PIECE)), SILENT)
                    if not piece:
                        raise OSError(f"{holder[0]} has ended its connection")
                    left -= len(piece)
                    hashed.update(piece)
                    await asyncio.to_thread(file.write, piece)
                file.flush()
                await asyncio.to_thread(os.fsync, file.fileno())
        except TimedOut:
            raise OSError(f"{holder[0]} sends nothing for {SILENT:.0f} s") from None
        finally:
            self._busy -= 1
            writer.close()
        if hashed.hexdigest() != content.sha256:
            raise OSError(f"{content.path} from {holder[0]} is not what was written")

    # ---- Workers that wait for their start

    async def _serve_worker(self, reader: StreamReader, writer: StreamWriter) -> None:
        """Hold a worker until the files are in place; its end ends the round."""
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
                around.end("torchrun has begun another round")
            around = self._round = Round(place)
        around.present.add(worker)
        if len(around.present) == place.workers:
            around.task = asyncio.get_running_loop().create_task(self._bring(around))
        return around

    async def _bring(self, around: Round) -> None:
        """Bring the newest version to this host; then its workers start, or fail."""
        why = ""
        try:
            await self._meet(around.place)
        except asyncio.CancelledError:
            why = "the round was cancelled"
            raise
        except (OSError, KeeperError, ValueError, TypeError, KeyError) as error:
            why = str(error) or type(error).__name__
            say(f"error: {why}")
        finally:
            if self._round is around:
                self._round = None
            around.task = None
            around.end(why)

    # ---- The meeting, and the version that it has chosen

    async def _meet(self, place: Place) -> None:
        # What was written after the last look.
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
        """What this host has; its newest version was just verified."""
        while found := self._versions.all():
            if await asyncio.to_thread(self._versions.holds, found[0]):
                break
            say(f"warning: {found[0].shown()} is damaged on this host: removed")
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
        """Have a version, from another host if necessary, and put it in place."""
        deadline, turn = time.monotonic() + LOST, rank
        while version not in self._versions.all():
            try:
                await self._fetch(version, holders[turn % len(holders)])
            except OSError as error:
                # A holder may not have the answer of the meeting, and with it the key, yet.
                if time.monotonic() > deadline:
                    raise KeeperError(f"version {version.name} was not fetched: {error}") from None
                turn += 1
                await asyncio.sleep(0.1)
        try:
            changed = await asyncio.to_thread(self._files.put, version, self._versions)
        except OSError as error:
            what = f"{error.filename}: {error.strerror}"
            raise KeeperError(f"version {version.name} can not be put in place: {what}") from error
        say(f"{'puts' if changed else 'has'} {version.shown()} in place")


# -------- The start


def read_end(ended: asyncio.Event) -> None:
    """Set the event at the end of standard input."""
    if not os.read(sys.stdin.fileno(), PIECE):
        asyncio.get_running_loop().remove_reader(sys.stdin)
        ended.set()


def main() -> None:
    """Keep the files that the environment names."""
    for number in (signal.SIGINT, signal.SIGTERM):  # The agent ends first, then this process.
        signal.signal(number, signal.SIG_IGN)
    paths, host = json.loads(os.environ["KIT_FILES"]), os.environ["KIT_HOST"]
    folder = Path(os.environ["KIT_CHECKPOINTS"], "versions", host)
    versions = Versions(folder, paths, int(os.environ["KIT_KEEP"]))

    async def keep() -> None:
        keeper = Keeper(host, os.environ["KIT_FILES_AT"], Files(paths), versions)
        await keeper.run(os.environ["KIT_KEEPER"])

    asyncio.run(keep())


if __name__ == "__main__":
    main()
