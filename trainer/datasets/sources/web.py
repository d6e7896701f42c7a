"""Files of web servers; interrupted downloads are resumed."""

from __future__ import annotations

import json
import os
import re
import time
import urllib.error
import urllib.request
from dataclasses import asdict, dataclass
from email.message import Message
from http.client import HTTPException, HTTPMessage, HTTPResponse
from pathlib import Path
from typing import IO
from urllib.parse import unquote, urlsplit, urlunsplit

from trainer.contract.sources import is_archive
from trainer.contract.words import shown
from trainer.datasets.errors import MISTAKE, DataSetError
from trainer.datasets.layout import require_room
from trainer.datasets.manifest import check_path
from trainer.datasets.sources.archives import DamagedError, decode, unpack
from trainer.datasets.sources.several import BLOCK, SILENCE, TRIES, Report, give, is_of_disk

LONGEST_WAIT = 60  # The longest pause that a server may request, in seconds.
PACKED = (".gz", ".tgz")
SECRET = re.compile("sig|token|key|secret|password|credential|auth", re.IGNORECASE)


@dataclass(frozen=True)
class Answer:
    """The parts of a server's answer that a later try needs.

    `tag` is a strong validator of the content (empty: the download cannot be resumed), `packed`
    whether the server has compressed it with gzip.
    """

    name: str
    tag: str
    total: int
    packed: bool


class _AgainError(OSError):
    """The downloaded bytes do not belong to the present content."""


def from_web(url: str, folder: Path, kept: Path, report: Report) -> str:
    """Download a file, and unpack it if it is an archive; return the address without secrets."""
    _check_address(url)
    content = kept / "content"
    answer = download(url, content, report)
    name, file = answer.name, content
    try:
        if answer.packed and not name.lower().endswith(PACKED):
            file = kept / "unpacked"
            decode(content, name, file)
        place(file, name, folder, report)
    except DamagedError:
        content.unlink()  # The next try must not resume it.
        raise
    return public(url)


def place(file: Path, name: str, folder: Path, report: Report) -> None:
    """Put a downloaded file into the data set, or unpack it there."""
    if is_archive(name):
        unpack(file, name, folder, report)
    else:
        give(file, folder / check_path(name))


def public(url: str) -> str:
    """Return an address without the values of secrets, which signed addresses have."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https"):
        return url
    words = [
        f"{word.partition('=')[0]}=…" if SECRET.search(word.partition("=")[0]) else word
        for word in parts.query.split("&")
    ]
    return urlunsplit(parts._replace(query="&".join(words), fragment=""))


def _check_address(url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme != "https" and os.environ.get("KIT_PLAIN_HTTP") != "1":
        fix = "use https, or set KIT_PLAIN_HTTP=1 if you trust the network"
        raise DataSetError("http does not protect what is downloaded", fix, MISTAKE)
    if "@" in parts.netloc:
        fix = "download the file yourself, and add it"
        what = f"{parts.hostname}: an address with a password is not supported"
        raise DataSetError(what, fix, MISTAKE)


class _Redirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        try:
            _check_address(newurl)
        except DataSetError:
            fp.close()
            raise
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def download(url: str, content: Path, report: Report) -> Answer:
    """Download to a file, and resume it if the server allows that.

    Raises:
        DataSetError: It failed; downloaded bytes are kept.
    """
    tries, most = 0, _size(content)
    while True:
        pause = 0
        try:
            return _download_rest(url, content, report)
        except urllib.error.HTTPError as error:
            with error:
                _refuse(url, error)
                pause = _asked_pause(error.headers)
            reason: Exception = error
        except _AgainError as error:
            content.unlink(missing_ok=True)
            reason = error
        except (OSError, HTTPException) as error:
            if isinstance(error, OSError) and is_of_disk(error):
                raise
            reason = error
        grown, most = _size(content) > most, max(most, _size(content))
        tries = 0 if grown else tries + 1
        if tries >= TRIES:
            fix = "try again: the download continues where it ended"
            raise DataSetError(f"{public(url)}: {reason}", fix)
        time.sleep(pause or min(tries, 3))


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _refuse(url: str, error: urllib.error.HTTPError) -> None:
    """Raise DataSetError if a retry cannot help."""
    if error.code < 500 and error.code not in (408, 425, 429):
        fix = "correct the address"
        if error.code in (401, 403):
            fix = "correct the address, or download the file yourself and add it"
        raise DataSetError(f"{public(url)}: {error.code} {error.reason}", fix, MISTAKE) from error


def _asked_pause(headers: Message) -> int:
    asked = headers.get("Retry-After") or ""
    return min(int(asked), LONGEST_WAIT) if asked.isdecimal() else 0


def _download_rest(url: str, content: Path, report: Report) -> Answer:
    """Download the missing bytes.

    With If-Range, the server sends the whole file if its content has changed.

    Raises:
        OSError: The connection ended early, or the file does not belong to the content.
    """
    facts = content.with_name("answer.json")
    before = _read(facts) if content.exists() else None
    done = _size(content) if before and before.tag else 0
    try:
        answer = _ask(url, done, before)
    except urllib.error.HTTPError as error:
        if not before or not done or error.code != 416:
            raise
        with error:
            return _complete(before, done, error.headers)
    with answer:
        done = done if answer.status == 206 else 0
        now = _answer(url, answer, done, before)
        require_room(content.parent, now.total - done)
        facts.write_text(json.dumps(asdict(now)))
        with content.open("ab" if done else "wb") as target:
            while block := answer.read(BLOCK):
                target.write(block)
                done += len(block)
                report("downloading", done, now.total)
    if now.total and done < now.total:
        raise ConnectionError("the connection ended early")
    return now


def _ask(url: str, done: int, before: Answer | None) -> HTTPResponse:
    headers = {"User-Agent": "kit"}
    if before and done:
        headers |= {"Range": f"bytes={done}-", "If-Range": before.tag}
    request = urllib.request.Request(url, headers=headers)
    answer: HTTPResponse = urllib.request.build_opener(_Redirects).open(request, timeout=SILENCE)
    return answer


def _read(facts: Path) -> Answer | None:
    try:
        return Answer(**json.loads(facts.read_text()))
    except (OSError, ValueError, TypeError):
        return None


def _complete(before: Answer, done: int, headers: Message) -> Answer:
    """Return the previous answer if the server confirms that the download is complete."""
    if headers.get("Content-Range") == f"bytes */{done}" and before.total in (0, done):
        return before
    raise _AgainError("the server has another file than before")


def _answer(url: str, answer: HTTPResponse, done: int, before: Answer | None) -> Answer:
    """Check an answer; return its facts."""
    headers = answer.headers
    coding = (headers.get("Content-Encoding") or "identity").lower()
    if coding not in ("identity", "gzip", "x-gzip"):
        what = f"{public(url)}: the server sends it in the encoding {shown(coding)}"
        raise DataSetError(what, "download the file yourself, and add it", MISTAKE)
    length = headers.get("Content-Length")
    if length is None and not answer.chunked:
        what = f"{public(url)}: the server does not say how long the file is"
        raise DataSetError(what, "download the file yourself, and add it", MISTAKE)
    total = done + int(length) if length else 0
    now = Answer(_name(url, headers), _tag(headers), total, coding != "identity")
    if answer.status == 206:
        place = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+|\*)", headers.get("Content-Range") or "")
        same = before is not None and now.tag in ("", before.tag)
        if not place or int(place[1]) != done or place[3] not in ("*", str(total)) or not same:
            raise _AgainError("the server has sent another part than the one that was asked for")
        assert before is not None
        return Answer(before.name, before.tag, total, before.packed)
    return now


def _tag(headers: Message) -> str:
    """A strong validator for If-Range; empty if there is none."""
    tag = headers.get("ETag") or ""
    return tag if tag and not tag.startswith("W/") else headers.get("Last-Modified") or ""


def _name(url: str, headers: Message) -> str:
    """The name of the file: the server's, or the end of the address."""
    for text in (headers.get_filename(), unquote(urlsplit(url).path)):
        if name := (text or "").rstrip("/").replace("\\", "/").rpartition("/")[2]:
            return check_path(name)
    return "download"
