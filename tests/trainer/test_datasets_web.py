"""Data sets from web servers, and the faults that these can have."""

from __future__ import annotations

import gzip
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.trainer.hosts import ROOT
from tests.trainer.test_datasets_archives import packed
from tests.trainer.test_datasets_store import call
from trainer.datasets import layout
from trainer.datasets.errors import FAILURE, MISTAKE, DataSetError
from trainer.datasets.layout import Place
from trainer.datasets.sources.web import from_web, public

CONTENT = bytes(range(251)) * 100


class Site(ThreadingHTTPServer):
    """Answers with `answer`, and knows the first bytes that were asked for."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Page)
        self.answer: Callable[[Page, int], None] = lambda page, start: page.part(start)
        self.starts, self.ranges = list[int](), list[str | None]()
        self.content, self.tag, self.headers = CONTENT, '"1"', dict[str, str]()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Page(BaseHTTPRequestHandler):
    server: Site

    def do_GET(self) -> None:
        asked = self.headers.get("Range", "")
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked else 0
        self.server.starts.append(start)
        self.server.ranges.append(self.headers.get("If-Range"))
        with suppress(OSError):
            self.server.answer(self, start)

    def part(self, start: int, end: int | None = None, *, status: int = 0) -> None:
        """The content from `start` on, up to `end` of what was promised."""
        content = self.server.content
        if start >= len(content):
            return self.headed(416, {"Content-Range": f"bytes */{len(content)}"})
        place = f"bytes {start}-{len(content) - 1}/{len(content)}"
        more = {"Content-Range": place} if start else {}
        length = str(len(content) - start)
        self.headed(status or (206 if start else 200), more | {"Content-Length": length})
        self.wfile.write(content[start:end])
        return None

    def headed(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        given = {"ETag": self.server.tag} if self.server.tag else {}
        for name, value in (given | self.server.headers | headers).items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Say nothing."""


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setenv("KIT_PLAIN_HTTP", "1")
    monkeypatch.setattr(time, "sleep", lambda _: None)
    with Site() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


class Run:
    """The folders of one source; each call is a try."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.kept = folder / "data", folder / "kept"
        self.kept.mkdir(parents=True)

    def __call__(self, url: str) -> dict[str, bytes]:
        self.folder.mkdir(exist_ok=True)
        from_web(url, self.folder, self.kept, lambda *_: None)
        files = [path for path in self.folder.rglob("*") if path.is_file()]
        return {path.relative_to(self.folder).as_posix(): path.read_bytes() for path in files}

    def refused(self, url: str) -> DataSetError:
        with pytest.raises(DataSetError) as caught:
            self(url)
        return caught.value


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def cut_once(end: int) -> Callable[[Page, int], None]:
    ends = iter([end])
    return lambda page, start: page.part(start, next(ends, None))


# ---- resuming


def test_a_complete_file_is_not_downloaded_again(run: Run, site: Site) -> None:
    """It was an error: the server has nothing behind the end, and answers 416."""
    assert run(f"{site.address}/a.bin") == {"a.bin": CONTENT}
    (run.folder / "a.bin").unlink()
    assert run(f"{site.address}/a.bin") == {"a.bin": CONTENT}
    assert site.starts == [0, len(CONTENT)]


def test_a_file_that_became_shorter_begins_anew(run: Run, site: Site) -> None:
    run(f"{site.address}/a.bin")
    (run.folder / "a.bin").unlink()
    site.content, site.tag = CONTENT[:100], '"2"'
    assert run(f"{site.address}/a.bin") == {"a.bin": CONTENT[:100]}


def test_a_server_that_answers_a_range_with_the_whole_file(run: Run, site: Site) -> None:
    first = cut_once(1000)
    site.answer = lambda page, _: first(page, 0)
    assert run(f"{site.address}/a.bin") == {"a.bin": CONTENT}
    assert site.starts == [0, 1000]


def test_a_server_that_answers_with_another_range(run: Run, site: Site) -> None:
    first = cut_once(1000)
    site.answer = lambda page, start: first(page, start - 10 if start else 0)
    assert run(f"{site.address}/a.bin") == {"a.bin": CONTENT}
    assert site.starts == [0, 1000, 0]


def test_a_server_that_ignores_that_the_file_has_changed(run: Run, site: Site) -> None:
    """It answers 206 although If-Range has the tag of the file before."""
    first = cut_once(1000)

    def change(page: Page, start: int) -> None:
        if start:
            site.content, site.tag = CONTENT[::-1], '"2"'
        first(page, start)

    site.answer = change
    assert run(f"{site.address}/a.bin") == {"a.bin": CONTENT[::-1]}
    assert site.starts == [0, 1000, 0]


def test_a_weak_tag_is_no_condition_of_a_range(run: Run, tmp_path: Path, site: Site) -> None:
    date = "Tue, 24 Nov 2026 10:00:00 GMT"
    site.tag, site.headers = 'W/"1"', {"Last-Modified": date}
    site.answer = cut_once(1000)
    assert run(f"{site.address}/a.bin") == {"a.bin": CONTENT}
    assert site.ranges == [None, date]
    site.headers, site.answer = {}, cut_once(1000)
    assert Run(tmp_path / "b")(f"{site.address}/b.bin") == {"b.bin": CONTENT}
    assert site.starts[2:] == [0, 0]  # Nothing to go on with.


def test_a_server_that_always_cuts_ends_the_tries(run: Run, site: Site) -> None:
    site.tag = ""
    lengths = iter([900, 1000] * 50)
    site.answer = lambda page, _: page.part(0, next(lengths))
    error = run.refused(f"{site.address}/a.bin")
    assert "the connection ended early; try again" in str(error)
    assert len(site.starts) < 10  # Only more bytes than ever are progress.


def test_a_cut_file_without_a_length_is_not_taken_for_the_whole(run: Run, site: Site) -> None:
    def endless(page: Page, start: int) -> None:
        page.headed(200, {})
        page.wfile.write(CONTENT[:1000])

    site.answer = endless
    error = run.refused(f"{site.address}/a.bin")
    assert "the server does not say how long the file is" in error.message


@pytest.mark.parametrize("cut", [False, True])
def test_chunks_have_an_end(run: Run, site: Site, cut: bool) -> None:
    def chunked(page: Page, start: int) -> None:
        page.protocol_version = "HTTP/1.1"
        page.headed(200, {"Transfer-Encoding": "chunked"})
        page.wfile.write(b"3\r\nabc\r\n" if cut else b"3\r\nabc\r\n0\r\n\r\n")

    site.answer = chunked
    if cut:
        assert run.refused(f"{site.address}/a.bin").code == FAILURE
    else:
        assert run(f"{site.address}/a.bin") == {"a.bin": b"abc"}


def test_a_full_disk_is_no_fault_of_the_connection(tmp_path: Path, site: Site) -> None:
    site.content = CONTENT * 100
    words = [sys.executable, "-m", "trainer.datasets.store", "--store", str(tmp_path / "store")]
    found = subprocess.run(
        ["prlimit", "--fsize=1048576", *words, "add", "pets", f"{site.address}/a.bin"],
        capture_output=True,
        cwd=ROOT,
        timeout=60,
        check=False,
    )
    assert (found.returncode, found.stderr) == (
        FAILURE, b"error: File too large; correct it and try again\n",
    )  # fmt: skip
    assert site.starts == [0]


# ---- what the server says


@pytest.mark.parametrize(
    ("status", "code", "tries"),
    [(404, MISTAKE, 1), (403, MISTAKE, 1), (500, FAILURE, 5), (429, FAILURE, 5)],
)
def test_what_can_not_help_is_not_tried_again(
    run: Run, site: Site, status: int, code: int, tries: int
) -> None:
    site.answer = lambda page, _: page.headed(status, {"Content-Length": "0"})
    error = run.refused(f"{site.address}/a.bin")
    assert (error.code, len(site.starts), str(status) in error.message) == (code, tries, True)


def test_the_pause_that_a_server_asks_for(
    run: Run, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses = list[float]()
    monkeypatch.setattr(time, "sleep", pauses.append)
    site.answer = lambda page, _: page.headed(503, {"Content-Length": "0", "Retry-After": "7"})
    run.refused(f"{site.address}/a.bin")
    assert pauses == [7] * 4


def test_a_redirect_is_followed_but_not_to_plain_http(
    run: Run, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def redirect(page: Page, start: int) -> None:
        if page.path == "/first":
            return page.headed(302, {"Location": "/second/b.bin", "Content-Length": "0"})
        return page.part(start)

    site.answer = redirect
    assert run(f"{site.address}/first") == {"first": CONTENT}
    before = len(site.starts)

    def insecure(page: Page, start: int) -> None:
        monkeypatch.setenv("KIT_PLAIN_HTTP", "0")
        redirect(page, start)

    site.answer = insecure
    assert "http does not protect" in run.refused(f"{site.address}/first").message
    assert len(site.starts) == before + 1


NAMES = [
    ("/pets.bin?download=1", {}, "pets.bin"),
    ("/my%20pets%C3%A4.bin", {}, "my petsä.bin"),
    ("/", {}, "download"),
    ("/record/content", {"Content-Disposition": 'attachment; filename="pets.bin"'}, "pets.bin"),
    ("/x", {"Content-Disposition": "attachment; filename*=UTF-8''p%C3%A4.bin"}, "pä.bin"),
    ("/x", {"Content-Disposition": 'attachment; filename="../../../etc/passwd"'}, "passwd"),
    ("/a%2F..%2Fb.bin", {}, "b.bin"),
]


@pytest.mark.parametrize(("path", "headers", "name"), NAMES)
def test_names_of_files(
    run: Run, site: Site, path: str, headers: dict[str, str], name: str
) -> None:
    site.headers = headers
    assert run(f"{site.address}{path}") == {name: CONTENT}


@pytest.mark.parametrize("path", ["/a/%2e%2e", "/a%0Ab"])
def test_names_that_can_not_be_used(run: Run, site: Site, path: str) -> None:
    assert "cannot be used" in run.refused(f"{site.address}{path}").message


def test_content_that_the_server_packs_is_unpacked(run: Run, site: Site) -> None:
    site.headers, site.content = {"Content-Encoding": "gzip"}, gzip.compress(CONTENT)
    site.answer = cut_once(100)
    assert run(f"{site.address}/a.csv") == {"a.csv": CONTENT}
    assert site.starts == [0, 100]


def test_an_archive_that_the_server_calls_packed_stays_one(run: Run, site: Site) -> None:
    site.headers, site.content = {"Content-Encoding": "gzip"}, gzip.compress(packed())
    assert sorted(run(f"{site.address}/a.tar.gz")) == ["a/b.txt", "a/b.txt.2"]


def test_other_encodings_are_refused(run: Run, site: Site) -> None:
    site.headers = {"Content-Encoding": "br"}
    assert "sends it in the encoding 'br'" in run.refused(f"{site.address}/a.csv").message


def test_a_damaged_archive_is_downloaded_again(run: Run, site: Site) -> None:
    whole = gzip.compress(packed())
    site.content = whole[:200] + b"damaged" + whole[207:]
    assert "cannot be unpacked" in run.refused(f"{site.address}/a.tar.gz").message
    site.content = whole
    run.folder = run.folder.with_name("again")
    assert sorted(run(f"{site.address}/a.tar.gz")) == ["a/b.txt", "a/b.txt.2"]


def test_a_packed_answer_that_is_a_bomb(
    run: Run, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.headers, site.content = {"Content-Encoding": "gzip"}, gzip.compress(bytes(5 * 2**20))
    monkeypatch.setattr(layout, "room", lambda _: 2**20 - 1)
    assert "has room for" in run.refused(f"{site.address}/a.csv").message


# ---- secrets


def test_a_signed_address_is_nowhere_to_be_read(tmp_path: Path, site: Site) -> None:
    url = f"{site.address}/a.bin?id=7&X-Amz-Signature=0123abcd&X-Amz-Security-Token=4567"
    site.answer = lambda page, _: page.headed(404, {"Content-Length": "0"})
    failed = call(tmp_path, "add", "pets", url, KIT_PLAIN_HTTP="1")
    assert failed.returncode == MISTAKE
    site.answer = lambda page, start: page.part(start)
    found = call(tmp_path, "add", "pets", "-", feed=url.encode(), KIT_PLAIN_HTTP="1")
    assert found.returncode == 0, found.stderr
    shown = f"{site.address}/a.bin?id=7&X-Amz-Signature=…&X-Amz-Security-Token=…"
    place = Place(tmp_path / "store", "pets", 1)
    assert place.read().source == shown == public(url)
    assert b"0123abcd" not in failed.stdout + failed.stderr + found.stdout
    assert b"0123abcd" not in place.manifest.read_bytes()


def test_a_password_in_an_address_is_refused(run: Run) -> None:
    error = run.refused("https://me:secret@127.0.0.1:1/a.bin")
    assert ("secret" in str(error), error.code) == (False, MISTAKE)
