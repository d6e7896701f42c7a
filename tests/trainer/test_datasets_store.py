"""The store of data sets: sources, manifests, verification; and its web server."""

from __future__ import annotations

import fcntl
import http.client
import io
import json
import os
import subprocess
import sys
import tarfile
import threading
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.datahosts import data_hosts
from tests.trainer.hosts import ROOT
from trainer.data.samples import DataError
from trainer.datasets import manifest, store
from trainer.datasets.errors import DataSetError
from trainer.datasets.layout import Place, index, locked
from trainer.datasets.sources.local import UPLOADS
from trainer.datasets.torrent import load_torrent
from trainer.streaming.files import settled
from trainer.streaming.index import INDEX


def call(
    folder: Path, *words: str, feed: bytes = b"", **environ: str
) -> subprocess.CompletedProcess[bytes]:
    """Run the program."""
    return subprocess.run(
        [sys.executable, "-m", "trainer.datasets.store", "--store", str(folder / "store"), *words],
        input=feed,
        capture_output=True,
        env={**os.environ, **environ},
        cwd=ROOT,
        timeout=60,
        check=False,
    )


def picture_folder(folder: Path) -> Path:
    """Some files, also an empty one and one with an unusual but harmless name."""
    source = folder / "pets"
    for name, content in (("train/cat/1.jpg", b"cat"), ("test/dog/ä 2.jpg", b"dog"), ("x", b"")):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes(content)
    return source


def add(folder: Path, source: object, version: int | None = None) -> manifest.Manifest:
    quiet = store.Reporter(json=True)
    return store.add(folder / "store", "pets", str(source), "CC0", version, quiet)


def test_a_folder_becomes_a_version(tmp_path: Path) -> None:
    source = picture_folder(tmp_path)
    (source / "train" / ".ipynb_checkpoints").mkdir()
    (source / "train" / ".ipynb_checkpoints" / "link.jpg").symlink_to("gone")
    found = call(tmp_path, "add", "pets", str(source), "--licence", "CC0")
    assert found.returncode == 0, found.stderr
    assert b"left out, as hidden: train/.ipynb_checkpoints\n" in found.stdout
    assert b"added pets@1: 6 bytes in 3 files" in found.stdout
    place = Place(tmp_path / "store", "pets", 1)
    made = place.read()
    assert [(file.path, file.bytes) for file in made.files] == [
        ("test/dog/ä 2.jpg", 3), ("train/cat/1.jpg", 3), ("x", 0),
    ]  # fmt: skip
    assert (made.bytes, made.licence, made.source) == (6, "CC0", str(tmp_path / "pets"))
    assert load_torrent(place.torrent.read_bytes(), made).ti
    assert (place.data / "train" / "cat" / "1.jpg").read_bytes() == b"cat"
    again = json.loads(call(tmp_path, "add", "pets", "pets", "--json").stdout.splitlines()[-1])
    assert again["state"] == "failed"
    second = call(tmp_path, "add", "pets", str(tmp_path / "pets"), "--json")
    assert json.loads(second.stdout.splitlines()[-1])["version"] == 2
    listed = json.loads(call(tmp_path, "ls", "--json").stdout)
    assert [(each["name"], each["version"], each["files"]) for each in listed] == [
        ("pets", 1, 3), ("pets", 2, 3),
    ]  # fmt: skip


def test_a_version_never_changes(tmp_path: Path) -> None:
    source = picture_folder(tmp_path)
    add(tmp_path, source)
    with pytest.raises(DataSetError, match=r"pets@1 exists, and versions never change"):
        add(tmp_path, source, version=1)
    add(tmp_path, source, version=7)
    assert index(tmp_path / "store") == {"pets": [1, 7]}


def test_two_programs_do_not_add_the_same(tmp_path: Path) -> None:
    source = picture_folder(tmp_path)
    with (
        locked(tmp_path / "store" / "pets" / ".lock", "", ""),
        pytest.raises(DataSetError, match="pets is being added by another program"),
    ):
        add(tmp_path, source)


def tarred(path: Path, change: Callable[[tarfile.TarInfo], None]) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        member = tarfile.TarInfo("a/b.txt")
        member.size = 5
        change(member)
        tar.addfile(member, io.BytesIO(b"hello"))
    return path


def rename(name: str) -> Callable[[tarfile.TarInfo], None]:
    return lambda member: setattr(member, "name", name)


def link(member: tarfile.TarInfo) -> None:
    member.type, member.linkname, member.size = tarfile.SYMTYPE, "/etc/passwd", 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (rename("../../escaped"), "`..` would leave the folder"),
        (rename("/escaped"), "it is absolute"),
        (rename("a/\x1b[31mred"), "it has a control character"),
        (rename("a/\u202egpj.exe"), "an invisible character"),
        (rename("a\\b"), "a backslash"),
        (rename("a/" + "b" * 256), "a part is longer than 255"),
        (link, "is a link or a special file"),
    ],
)
def test_archives_cannot_leave_their_folder(
    tmp_path: Path, change: Callable[[tarfile.TarInfo], None], message: str
) -> None:
    archive = tarred(tmp_path / "pets.tar.gz", change)
    with pytest.raises(DataSetError) as caught:
        add(tmp_path, archive)
    assert message in str(caught.value)
    assert caught.value.code == 2
    assert not list(tmp_path.rglob("*escaped*"))
    assert index(tmp_path / "store") == {}


def test_archives_are_unpacked(tmp_path: Path) -> None:
    add(tmp_path, tarred(tmp_path / "pets.tar.gz", rename("./a/b.txt")))
    with zipfile.ZipFile(tmp_path / "pets.zip", "w") as archive:
        archive.writestr("a/b.txt", "hello")
    add(tmp_path, tmp_path / "pets.zip")
    for version in (1, 2):
        place = Place(tmp_path / "store", "pets", version)
        assert (place.data / "a" / "b.txt").read_text() == "hello"
    (tmp_path / "cut.tar.gz").write_bytes((tmp_path / "pets.tar.gz").read_bytes()[:60])
    with pytest.raises(DataSetError, match=r"cut\.tar\.gz cannot be unpacked"):
        add(tmp_path, tmp_path / "cut.tar.gz")


def test_links_in_a_folder_are_refused(tmp_path: Path) -> None:
    source = picture_folder(tmp_path)
    (source / "secret").symlink_to("/etc/passwd")
    with pytest.raises(DataSetError, match=r"'secret' in .* is a symbolic link"):
        add(tmp_path, source)


CHANGES: list[tuple[str, Any, str]] = [
    ("name", "../pets", "no name of a data set"),
    ("version", 0, "no positive whole number"),
    ("version", True, "no positive whole number"),
    ("bytes", 7, "not the sum"),
    ("files", [], "has no files"),
    ("files", "x", "wrong type"),
    ("info_hash", "0" * 39, "no hash of 40 digits"),
    ("licence", "a\nb", "no line of text"),
    ("path", "../x", "would leave the folder"),
    ("path", "test/dog/ä 2.jpg", "occurs twice"),
    ("path", "test/dog/ä 2.jpg/x", "is a file and a folder"),
    ("path", 7, "it is no text"),
    ("bytes of a file", -1, "no number of bytes"),
    ("sha256", "x" * 64, "no hash of 64 digits"),
]


@pytest.mark.parametrize(("key", "value", "message"), CHANGES)
def test_every_value_of_a_manifest_is_checked(
    tmp_path: Path, key: str, value: object, message: str
) -> None:
    content = json.loads(add(tmp_path, picture_folder(tmp_path)).text())
    target = content["files"][1] if key in ("path", "bytes of a file", "sha256") else content
    target[key.partition(" ")[0]] = value
    with pytest.raises(DataSetError, match="the manifest is not valid") as caught:
        manifest.parse(content)
    assert message in str(caught.value)


def test_damage_is_found(tmp_path: Path) -> None:
    add(tmp_path, picture_folder(tmp_path))
    assert b"pets@1 is intact" in call(tmp_path, "verify", "pets").stdout
    file = tmp_path / "store" / "pets" / "1" / "data" / "train" / "cat" / "1.jpg"
    file.write_bytes(b"cut")
    found = call(tmp_path, "verify", "pets@1")
    assert found.returncode == 1
    assert b"train/cat/1.jpg has another SHA-256 than its manifest" in found.stdout
    assert b"error: pets@1 is damaged; add it again" in found.stderr
    missing = call(tmp_path, "verify", "dogs")
    assert (missing.returncode, missing.stderr) == (
        2, f"error: there is no dogs in {tmp_path / 'store'}; use one of: pets@1\n".encode(),
    )  # fmt: skip


def test_rm_refuses_while_in_use(tmp_path: Path) -> None:
    add(tmp_path, picture_folder(tmp_path))
    place = Place(tmp_path / "store", "pets", 1)
    with place.mark.open() as mark:
        fcntl.flock(mark, fcntl.LOCK_SH)
        found = call(tmp_path, "rm", "pets@1")
        assert (found.returncode, place.complete) == (1, True)
        assert b"pets@1 is in use; end the jobs that use it" in found.stderr
    assert call(tmp_path, "rm", "pets@1").returncode == 0
    assert index(tmp_path / "store") == {}
    assert not place.folder.exists()


def test_an_upload_goes_on_where_it_was(tmp_path: Path) -> None:
    archive = tarred(tmp_path / "pets.tar.gz", rename("a/b.txt")).read_bytes()
    upload = ("receive", "pets", "pets.tar.gz", "--offset")
    assert call(tmp_path, *upload, "?").stdout == b"0\n"
    assert call(tmp_path, *upload, "0", feed=archive[:50]).stdout == b"50\n"
    assert call(tmp_path, *upload, "?").stdout == b"50\n"
    wrong = call(tmp_path, *upload, "40", feed=archive[40:])
    assert (wrong.returncode, wrong.stderr) == (
        2, b"error: pets.tar.gz has 50 bytes, not 40; continue with --offset 50\n",
    )  # fmt: skip
    assert call(tmp_path, *upload, "50", feed=archive[50:]).returncode == 0
    found = call(tmp_path, "add", "pets", "upload:")
    assert found.returncode == 0, found.stderr
    assert (tmp_path / "store" / "pets" / "1" / "data" / "a" / "b.txt").read_text() == "hello"
    assert not (tmp_path / "store" / UPLOADS / "pets").exists()


class Mirror(ThreadingHTTPServer):
    """Serves one file with ranges, and ends the first connections early."""

    def __init__(self, content: bytes, cuts: int) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.content, self.cuts, self.starts = content, cuts, list[int]()


class Answer(BaseHTTPRequestHandler):
    server: Mirror

    def do_GET(self) -> None:
        asked = self.headers.get("Range", "")
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked else 0
        self.server.starts.append(start)
        rest = self.server.content[start:]
        self.send_response(206 if asked else 200)
        if asked:
            whole = len(self.server.content)
            self.send_header("Content-Range", f"bytes {start}-{whole - 1}/{whole}")
        self.send_header("Content-Length", str(len(rest)))
        self.send_header("ETag", '"1"')
        self.end_headers()
        if self.server.cuts:
            self.server.cuts -= 1
            rest = rest[: len(rest) // 2]
        self.wfile.write(rest)
        self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Say nothing."""


def test_a_download_goes_on_where_it_was_cut(tmp_path: Path) -> None:
    content = tarred(tmp_path / "original.tar.gz", rename("a/b.txt")).read_bytes()
    with Mirror(content, cuts=2) as mirror:
        threading.Thread(target=mirror.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{mirror.server_port}/pets.tar.gz"
        refused = call(tmp_path, "add", "pets", url)
        assert (refused.returncode, refused.stderr[:38]) == (
            2,
            b"error: http does not protect what is d",
        )
        found = call(tmp_path, "add", "pets", url, KIT_PLAIN_HTTP="1")
        mirror.shutdown()
    assert found.returncode == 0, found.stderr
    half = len(content) // 2
    assert mirror.starts == [0, half, half + (len(content) - half) // 2]
    assert (tmp_path / "store" / "pets" / "1" / "data" / "a" / "b.txt").read_text() == "hello"


def ask(port: int, path: str, **headers: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.putrequest("GET", path, skip_accept_encoding=True)
    for name, value in headers.items():
        connection.putheader(name, value)
    connection.endheaders()
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer.status, content


def test_the_server_offers_what_is_complete_and_nothing_else(tmp_path: Path) -> None:
    with data_hosts(tmp_path) as world:
        world.add(3000)
        (world.store / "numbers" / "2" / "data").mkdir(parents=True)  # Not complete.
        (world.store / "secret").write_text("secret")
        (world.store / "numbers" / "1" / "data" / "more").write_text("not in the manifest")
        world.serve()
        port = world.server_port
        assert ask(port, "/") == (200, b'{"numbers":[1]}')
        assert ask(port, "/healthz")[0] == 200
        assert json.loads(ask(port, "/numbers/1/manifest.json")[1])["bytes"] == 3000
        content = (world.store / "numbers" / "1" / "data" / "part 1.bin").read_bytes()
        assert ask(port, "/numbers/1/data/part%201.bin") == (200, content)
        assert ask(port, "/numbers/1/data/part%201.bin", Range="bytes=10-19") == (
            206, content[10:20],
        )  # fmt: skip
        assert ask(port, "/numbers/1/data/part%201.bin", Range="bytes=5000-")[0] == 416
        for path in (
            "/numbers/1/data/more",
            "/numbers/2/manifest.json",
            "/numbers/01/manifest.json",
            "/numbers/1/data/../../../secret",
            "/numbers/1/data/..%2f..%2f..%2fsecret",
            "/numbers/1/../../secret",
            "/..%2fstore/numbers/1/manifest.json",
            "/numbers/1/data/%00",
            "/numbers/1/COMPLETE",
        ):
            assert ask(port, path)[0] == 404, path


def test_newest_leads_to_the_newest_complete_version(tmp_path: Path) -> None:
    with data_hosts(tmp_path) as world:
        world.add(3000)
        world.add(4000)
        (world.store / "numbers" / "3" / "data").mkdir(parents=True)  # Not complete.
        world.serve()
        place = f"http://127.0.0.1:{world.server_port}/numbers"
        with urllib.request.urlopen(f"{place}/newest/data/part%201.bin", timeout=30) as answer:
            assert answer.geturl() == f"{place}/2/data/part%201.bin"
            content = (world.store / "numbers" / "2" / "data" / "part 1.bin").read_bytes()
            assert answer.read() == content
        for path in ("/numbers/newest/data/more", "/unknown/newest/manifest.json"):
            with pytest.raises(urllib.error.HTTPError, match="404"):
                urllib.request.urlopen(
                    f"http://127.0.0.1:{world.server_port}{path}", timeout=30
                ).close()
        # An address in the path stays a path of this server.
        status, _ = ask(world.server_port, "/numbers/newest//elsewhere.invalid/")
        assert status == 307


def test_a_training_settles_on_a_version_once(tmp_path: Path) -> None:
    with data_hosts(tmp_path) as world:
        world.add(3000)
        world.serve()
        place = f"http://127.0.0.1:{world.server_port}/numbers"
        fixed = f"{place}/1/data"
        assert settled(fixed) == fixed
        with pytest.raises(DataError, match="404"):
            settled(f"{place}/newest/data")  # It has no index of shards.
        (tmp_path / "shards").mkdir()
        (tmp_path / "shards" / INDEX).write_bytes(b"index")
        quiet = store.Reporter(json=True)
        store.add(world.store, "numbers", str(tmp_path / "shards"), "CC0", None, quiet)
        assert settled(f"{place}/newest/data") == f"{place}/2/data"
