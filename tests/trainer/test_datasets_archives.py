"""Archives of data sets, and the faults that these can have."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

from tests.trainer.test_datasets_store import call
from trainer.contract.sources import ARCHIVE_ENDS
from trainer.datasets import layout
from trainer.datasets.errors import FAILURE, MISTAKE, DataSetError
from trainer.datasets.sources.archives import DamagedError, unpack


def packed(name: str = "a/b.txt", content: bytes = b"hello" * 5000) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for each in (name, f"{name}.2"):
            member = tarfile.TarInfo(each)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return file.getvalue()


def archive(folder: Path, name: str, content: bytes) -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


def unpacked(path: Path) -> list[str]:
    folder = path.parent / "unpacked"
    folder.mkdir(exist_ok=True)
    unpack(path, path.name, folder, lambda *_: None)
    return sorted(str(each.relative_to(folder)) for each in folder.rglob("*") if each.is_file())


WAYS: list[tuple[str, Callable[[bytes], bytes]]] = [
    (".tar", bytes), (".tar.gz", gzip.compress), (".tgz", gzip.compress),
    (".tar.bz2", bz2.compress), (".tar.xz", lzma.compress), (".tar.zst", zstd.compress),
]  # fmt: skip


@pytest.mark.parametrize(("end", "pack"), WAYS)
def test_an_archive_that_is_cut_or_damaged_anywhere_is_refused(
    tmp_path: Path, end: str, pack: Callable[[bytes], bytes]
) -> None:
    """tarfile takes a cut between two members, and a damaged header, for the end."""
    whole = pack(packed(content=b"12345" * 500))
    assert unpacked(archive(tmp_path, f"a{end}", whole)) == ["a/b.txt", "a/b.txt.2"]
    step = 512 if end == ".tar" else max(1, len(whole) // 23)
    places = range(step, len(whole) - (1024 if end == ".tar" else 0), step)
    last = len(packed(content=b"12345" * 500).rstrip(b"\0")) if end == ".tar" else len(whole)
    for number, place in enumerate(each for each in places if each < last):
        folder = tmp_path / str(number)
        folder.mkdir()
        with pytest.raises(DamagedError, match="cannot be unpacked"):
            unpacked(archive(folder, f"cut{end}", whole[:place]))


def test_every_kind_of_archive_is_unpacked() -> None:
    assert {end for end, _ in WAYS} | {".zip"} == set(ARCHIVE_ENDS)


def test_a_damaged_header_is_not_the_end(tmp_path: Path) -> None:
    whole = bytearray(packed(content=b"x" * 512))
    whole[1024 + 20] ^= 1  # In the header of the second member.
    with pytest.raises(DamagedError, match="at byte 1024: it is cut or damaged"):
        unpacked(archive(tmp_path, "a.tar", bytes(whole)))


def zipped(names: list[str], kind: int = zipfile.ZIP_DEFLATED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", kind) as made:
        for name in names:
            made.writestr(name, b"hello" * 1000)
    return file.getvalue()


def test_damaged_and_encrypted_zips(tmp_path: Path) -> None:
    whole = zipped(["a.txt"])
    damaged = whole[:40] + b"\xff\xff\xff\xff" + whole[44:]
    with pytest.raises(DamagedError):
        unpacked(archive(tmp_path, "a.zip", damaged))
    encrypted = bytearray(whole)
    encrypted[6] |= 1
    encrypted[whole.index(b"PK\x01\x02") + 8] |= 1
    for content, reason in ((bytes(encrypted), "encrypted"), (unknown(whole), "compression")):
        folder = tmp_path / reason
        folder.mkdir()
        with pytest.raises(DataSetError, match=reason) as caught:
            unpacked(archive(folder, "a.zip", content))
        assert caught.value.code == MISTAKE


def unknown(whole: bytes) -> bytes:
    """A zip with a method of compression that Python does not have."""
    changed = bytearray(whole)
    changed[8] = changed[whole.index(b"PK\x01\x02") + 10] = 97
    return bytes(changed)


@pytest.mark.parametrize("names", [["a", "a/b"], ["a/b", "a"]])
def test_a_file_that_is_also_a_folder(tmp_path: Path, names: list[str]) -> None:
    with pytest.raises(DataSetError, match="twice, or as a file and a folder"):
        unpacked(archive(tmp_path, "a.zip", zipped(names)))


def test_a_bomb_finds_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "room", lambda _: 2 * 2**20)
    bomb = io.BytesIO()
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as made:
        for number in range(3):
            made.writestr(str(number), bytes(2**20))
    with pytest.raises(DataSetError, match="has room for"):
        unpacked(archive(tmp_path, "a.zip", bomb.getvalue()))
    assert not list((tmp_path / "unpacked").iterdir())  # All members are counted before.
    with pytest.raises(DataSetError, match="has room for"):
        unpacked(archive(tmp_path, "a.tar.gz", gzip.compress(packed(content=bytes(3 * 2**20)))))


def test_a_failed_unpack_is_said_without_a_traceback(tmp_path: Path) -> None:
    damaged = bytearray(gzip.compress(packed()))
    damaged[40:60] = b"\xff" * 20
    path = archive(tmp_path, "a.tar.gz", bytes(damaged))
    found = call(tmp_path, "add", "pets", str(path), "--json")
    assert (found.returncode, b"Traceback" in found.stderr) == (FAILURE, False)
    assert json.loads(found.stdout.splitlines()[-1])["state"] == "failed"
