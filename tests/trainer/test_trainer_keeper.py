"""The keeper of a script's files, with real processes in the place of hosts, and no torch."""

import io
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.ports import free_port
from tests.trainer.hosts import wait_until, write_programs
from trainer.contract import event_lines, events
from trainer.contract.mark import MARK
from trainer.launcher.keeper.keeper import LOOK

PATHS = ["snapshot.pt"]
# With short waits for hosts that are gone.
PROGRAM = "import keeper; keeper.LOST = 1.0; keeper.main()"
LATE = """\
import asyncio, keeper
fetch = keeper.Keeper._fetch
async def late(*arguments):
    await asyncio.sleep(1)
    await fetch(*arguments)
keeper.Keeper._fetch = late
keeper.main()
"""


def saved(text: str) -> bytes:
    """A zip file, as torch.save writes it."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("archive/data.pkl", text * 100)
    return content.getvalue()


class Host:
    """A host with a working folder and a folder of checkpoints, which outlive its keeper."""

    def __init__(self, folder: Path, name: str, paths: Sequence[str] = PATHS) -> None:
        self.name, self.paths = name, paths
        self.work, self.checkpoints = folder / name / "work", folder / name / "checkpoints"
        self.work.mkdir(parents=True)
        self.programs = folder / "kit"
        self.log = folder / f"{name}.log"
        self.log.touch()
        self.program = PROGRAM
        self.process: subprocess.Popen[bytes] | None = None
        self.socket = ""

    def start(self) -> None:
        self.socket = tempfile.mktemp(prefix="kit-test-")
        environ = {
            "KIT_HOST": self.name,
            "KIT_CHECKPOINTS": str(self.checkpoints),
            "KIT_FILES": json.dumps(self.paths),
            "KIT_KEEP": "2",
            "KIT_KEEPER": self.socket,
            "KIT_FILES_AT": "127.0.0.1",
            "PYTHONPATH": str(write_programs(self.programs).parent),
        }
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-S", "-c", self.program],
                env={**os.environ, **environ},
                cwd=self.work,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        wait_until(self.listens, f"a keeper on {self.name}")

    def listens(self) -> bool:
        """Whether the socket is there, and is listened on: it has a name a little before."""
        with socket.socket(socket.AF_UNIX) as connection:
            return connection.connect_ex(self.socket) == 0

    def kill(self) -> None:
        if self.process:
            self.process.kill()
            self.process.communicate()
            self.process = None
            Path(self.socket).unlink(missing_ok=True)

    def end(self) -> None:
        """End it as the agent does."""
        assert self.process
        assert self.process.stdin
        self.process.stdin.close()
        assert self.process.wait(20) == 0, self.said
        self.process = None
        Path(self.socket).unlink(missing_ok=True)

    @property
    def said(self) -> str:
        return self.log.read_text()

    @property
    def file(self) -> Path:
        return self.work / "snapshot.pt"

    def write(self, text: str) -> None:
        self.file.write_bytes(saved(text))

    def content(self) -> str:
        with zipfile.ZipFile(self.file) as archive:
            text = archive.read("archive/data.pkl").decode()
        return text[: len(text) // 100]

    def versions(self) -> list[Path]:
        return sorted(self.checkpoints.glob("versions/*/*/manifest.json"))

    def ask(self, place: Mapping[str, Any]) -> socket.socket:
        """Wait for the files, as a worker."""
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(60)
        connection.connect(self.socket)
        connection.sendall(json.dumps(place).encode() + b"\n")
        return connection


def answer(connection: socket.socket) -> str:
    """Wait for the end of a worker's wait; return why its script may not start, or ""."""
    with connection, connection.makefile() as lines:
        for line in lines:
            found = json.loads(line)
            if found.get("ready"):
                return str(found["error"])
    return "the keeper has ended"


def places(hosts: Sequence[Host]) -> list[dict[str, Any]]:
    both = {"address": "127.0.0.1", "port": free_port(), "run": "own", "hosts": len(hosts)}
    return [{**both, "rank": rank, "workers": 1, "worker": 0} for rank in range(len(hosts))]


def meet(*hosts: Host) -> list[str]:
    """Let one worker of each host wait, in the order of the ranks."""
    waits = [host.ask(place) for host, place in zip(hosts, places(hosts), strict=True)]
    return [answer(each) for each in waits]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Callable[..., list[Host]]]:
    made: list[Host] = []

    def start(*names: str, paths: Sequence[str] = PATHS) -> list[Host]:
        hosts = [Host(tmp_path, name, paths) for name in names]
        made.extend(hosts)
        for host in hosts:
            host.start()
        return hosts

    yield start
    for host in made:
        host.kill()


def test_a_host_that_was_away_gets_what_was_written_without_it(
    cluster: Callable[..., list[Host]],
) -> None:
    n1, n2, n3 = every = cluster("n1", "n2", "n3")
    assert meet(*every) == ["", "", ""]
    n1.write("first")
    wait_until(lambda: all(host.versions() for host in every), "a version on every host")
    n2.kill()
    n3.kill()
    for text in ("second", "third", "fourth"):  # More than the others will have written.
        before = n1.versions()
        n1.write(text)
        wait_until(lambda before=before: n1.versions() != before, text)  # type: ignore[misc]
    wait_until(lambda: len(n1.versions()) == 2, "the end of the oldest")
    n1.kill()
    n2.start()
    n3.start()
    assert meet(n2, n3) == ["", ""]
    assert n2.content() == n3.content() == "first"
    n2.write("without n1")
    wait_until(lambda: len(n3.versions()) == 2, "the next version")
    n1.start()
    assert meet(*every) == ["", "", ""]
    assert [host.content() for host in every] == ["without n1"] * 3
    kept = [event_lines.parse(line) for line in n2.said.splitlines() if line.startswith(MARK)]
    assert isinstance(kept[-1], events.Kept)
    assert (kept[-1].host, kept[-1].version, kept[-1].files) == (
        "n2",
        "2.1 of n2",
        ("snapshot.pt",),
    )
    assert "n1: puts version 2.1 of n2" in n1.said


def test_what_was_written_last_is_kept_at_the_end(cluster: Callable[..., list[Host]]) -> None:
    n1, n2 = cluster("n1", "n2")
    n2.kill()
    n2.program = LATE  # A busy host: it fetches only a second after it was offered a version.
    n2.start()
    assert meet(n1, n2) == ["", ""]
    n1.write("last")
    n1.end()
    wait_until(lambda: bool(n2.versions()), "the last version on the other host")
    # A host that died before it could look does so at its next start.
    n1.start()
    assert meet(n1, n2) == ["", ""]
    n1.kill()
    n1.write("later")
    n1.start()
    assert meet(n2, n1) == ["", ""]
    assert n2.content() == "later"


def test_a_half_written_file_is_no_version(cluster: Callable[..., list[Host]]) -> None:
    n1, n2 = cluster("n1", "n2")
    assert meet(n1, n2) == ["", ""]
    n1.write("whole")
    wait_until(lambda: bool(n2.versions()), "a version")
    with n1.file.open("wb") as file:
        file.write(saved("half" * 1000)[:-30])
    n1.kill()
    n1.start()
    assert meet(n1, n2) == ["", ""]
    assert n1.content() == n2.content() == "whole"
    assert "warning: snapshot.pt is not complete (it is a broken zip file" in n1.said
    assert len(n1.versions()) == len(n2.versions()) == 1


def test_a_file_that_is_open_is_no_version(cluster: Callable[..., list[Host]]) -> None:
    (n1,) = cluster("n1", paths=["notes.txt"])
    assert meet(n1) == [""]
    with (n1.work / "notes.txt").open("w") as file:
        file.write("some words, ")
        file.flush()
        threading.Event().wait(5 * LOOK)
        assert not n1.versions()
        file.write("and others")
    wait_until(lambda: bool(n1.versions()), "a version of the closed file")
    assert (n1.versions()[0].parent / "0").read_text() == "some words, and others"


@pytest.mark.parametrize("everywhere", [False, True])
def test_a_damaged_version_is_never_put_in_place(
    cluster: Callable[..., list[Host]], everywhere: bool
) -> None:
    n1, n2 = cluster("n1", "n2")
    assert meet(n1, n2) == ["", ""]
    for number, text in enumerate(("before", "newest"), start=1):
        n1.write(text)
        wait_until(lambda number=number: len(n2.versions()) == number, text)  # type: ignore[misc]
    n1.file.unlink()
    for host in (n1, n2) if everywhere else (n1,):
        copy = host.versions()[-1].parent / "0"
        content = bytearray(copy.read_bytes())
        content[40] ^= 1
        copy.write_bytes(content)
    assert meet(n1, n2) == ["", ""]
    assert n1.content() == n2.content() == ("before" if everywhere else "newest")
    assert "keeper n1: warning: version 1.2 of n1" in n1.said
    assert "is damaged on this host: removed" in n1.said


def test_several_writers_are_told_and_the_lowest_rank_wins(
    cluster: Callable[..., list[Host]],
) -> None:
    n1, n2 = cluster("n1", "n2")
    assert meet(n2, n1) == ["", ""]
    n1.write("of rank 1")
    n2.write("of rank 0")
    wait_until(lambda: "let only rank 0 of the script save" in n1.said + n2.said, "a warning")
    n1.write("of rank 1 again")
    wait_until(lambda: n1.said.count('"event": "kept"') == 2, "the version")
    assert meet(n2, n1) == ["", ""]
    assert n1.content() == n2.content() == "of rank 0"


def test_files_from_before_are_compared_by_their_times(
    cluster: Callable[..., list[Host]],
) -> None:
    n1, n2 = cluster("n1", "n2")
    n1.write("older")
    n2.write("newer")
    os.utime(n1.file, (1_000_000, 1_000_000))
    assert meet(n1, n2) == ["", ""]
    assert n1.content() == n2.content() == "newer"
    assert "warning: files differed before: version 0.1 of n2" in n1.said


def test_all_workers_of_a_host_wait_for_each_other(cluster: Callable[..., list[Host]]) -> None:
    (n1,) = cluster("n1")
    n1.write("first")
    (place,) = places([n1])
    one = n1.ask({**place, "workers": 2})
    one.setblocking(False)
    threading.Event().wait(0.5)
    with pytest.raises(BlockingIOError):
        one.recv(1)
    one.settimeout(60)
    two = n1.ask({**place, "workers": 2, "worker": 1})
    assert (answer(one), answer(two)) == ("", "")


def test_a_host_that_leaves_the_meeting_ends_it(cluster: Callable[..., list[Host]]) -> None:
    n1, n2 = hosts = cluster("n1", "n2")
    three = [*places([*hosts, n1])]
    waits = [host.ask(place) for host, place in zip(hosts, three, strict=False)]
    wait_until(lambda: connected(three[0]["port"]), "n2 to be in the meeting")
    threading.Event().wait(2)  # Until its report has arrived.
    n2.kill()
    assert answer(waits[0]) == "another host has left the meeting"
    assert answer(waits[1]) == "the keeper has ended"
    # A worker that ends frees the address for the next round.
    n2.start()
    leader = n1.ask(three[0])
    threading.Event().wait(0.5)
    leader.close()
    assert meet(n1, n2) == ["", ""]


def connected(port: int) -> bool:
    """Whether a connection to this port of the machine is established."""
    return any(
        each.status == psutil.CONN_ESTABLISHED and each.laddr.port == port
        for each in psutil.net_connections("tcp")
        if each.laddr
    )


def lead(host: Host, **changes: Any) -> tuple[dict[str, Any], str]:
    """Lead a meeting with a host; return its report, and how it takes a changed decision."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        place: dict[str, Any] = {"address": "127.0.0.1", "port": port, "run": "own"}
        place |= {"rank": 1, "hosts": 2, "workers": 1, "worker": 0}
        wait = host.ask(place)
        connection, _ = server.accept()
    with connection, connection.makefile("rw") as lines:
        report = json.loads(lines.readline())
        decision: dict[str, Any] = {
            "term": [1, 1.0, "n0"],
            "key": "secret",
            "writers": [0, 1],
            "version": None,
        }
        decision |= {"holders": [report["endpoint"]], "peers": [["n0", ["127.0.0.1", 1]]] * 2}
        lines.write(json.dumps(decision | changes) + "\n")
        lines.flush()
    return report, answer(wait)


def test_only_hosts_of_the_meeting_get_files(cluster: Callable[..., list[Host]]) -> None:
    (n1,) = cluster("n1")
    n1.write("mine")
    report, failed = lead(n1)
    assert failed == ""
    version = n1.versions()[0].parent.name

    def ask(**message: Any) -> dict[str, Any]:
        with socket.create_connection(report["endpoint"]) as connection:
            connection.sendall(json.dumps(message).encode() + b"\n")
            found: dict[str, Any] = json.loads(connection.makefile("rb").readline())
            return found

    assert ask(do="send", version=version, file=0, key="other") == {"error": "has another key"}
    assert ask(do="send", version=version, file=0) == {"error": "has another key"}
    assert ask(do="send", version=version, file=0, key="secret")["size"] == len(saved("mine"))
    assert "does not have" in ask(do="send", version="../..", file=0, key="secret")["error"]
    assert "does not have" in ask(do="send", version=version, file=-1, key="secret")["error"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"files": [{"path": "../evil", "size": 1, "sha256": "0" * 64}]}, "../evil is not among"),
        ({"files": [{"path": "snapshot.pt", "size": 1, "sha256": "x"}]}, "has no SHA-256"),
        ({"host": "../n9"}, "is no name of a host"),
        ({"term": 3}, "is no version"),
    ],
)
def test_another_host_does_not_choose_where_files_go(
    cluster: Callable[..., list[Host]], change: dict[str, Any], message: str
) -> None:
    (n1,) = cluster("n1")
    version: dict[str, Any] = {
        "term": [1, 1.0, "n0"],
        "rank": 0,
        "count": 1,
        "host": "n0",
        "time": 1.0,
    }
    version["files"] = [{"path": "snapshot.pt", "size": 1, "sha256": "0" * 64}]
    _, failed = lead(n1, version={**version, **change})
    assert message in failed
    assert not n1.file.exists()
