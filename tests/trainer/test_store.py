"""Files that appear whole or not at all, their digests, and locks."""

from __future__ import annotations

import errno
import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sandbox import ROOT
from trainer.store.files import BLOCK, digest, draft_of, publish_folder, replace_file
from trainer.store.locks import locked, take

KILLED = """
import os, sys
from pathlib import Path
from trainer.store.files import replace_file
Path.replace = lambda *_: os._exit(9)
replace_file(Path(sys.argv[1]), b"new")
"""


def test_a_writer_that_is_killed_leaves_the_old_file(tmp_path: Path) -> None:
    file = tmp_path / "file"
    replace_file(file, b"old")
    killed = subprocess.run([sys.executable, "-c", KILLED, file], cwd=ROOT, check=False)
    assert (killed.returncode, file.read_bytes()) == (9, b"old")
    assert draft_of(file).read_bytes() == b"new"
    replace_file(file, b"newer", durable=False)
    assert [each.name for each in tmp_path.iterdir()] == ["file"]
    assert file.read_bytes() == b"newer"


def test_a_disk_that_refuses_a_file_keeps_the_old_one_and_no_draft(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    replace_file(file, b"old")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        replace_file(file, b"new")
    assert [each.name for each in tmp_path.iterdir()] == ["file"]
    assert file.read_bytes() == b"old"


def test_what_is_renamed_is_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The order of what reaches the disk: the content, the name, the folder with the name."""
    steps: list[str] = []
    sync, replace, rename = os.fsync, Path.replace, Path.rename

    def synced(handle: int) -> None:
        steps.append(Path(f"/proc/self/fd/{handle}").readlink().name)
        sync(handle)

    def moved(path: Path, target: Path) -> Path:
        steps.append("rename")
        return (rename if path.is_dir() else replace)(path, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", moved)
    monkeypatch.setattr(Path, "rename", moved)
    replace_file(tmp_path / "file", b"new")
    assert steps == [".file.new", "rename", tmp_path.name]
    steps.clear()
    (tmp_path / "draft").mkdir()
    publish_folder(tmp_path / "draft", tmp_path / "folder")
    assert steps == ["draft", "rename", tmp_path.name]


def test_a_digest_is_of_the_whole_file_and_follows_links_only_if_told_so(tmp_path: Path) -> None:
    content, counts = bytes(range(256)) * 2 * (BLOCK // 256) + b"end", list[int]()
    (tmp_path / "file").write_bytes(content)
    (tmp_path / "link").symlink_to("file")
    assert digest(tmp_path / "link", counts.append) == hashlib.sha256(content).hexdigest()
    assert sum(counts) == len(content)
    with pytest.raises(OSError, match="symbolic link"):
        digest(tmp_path / "link", follow=False)


def test_lockers_exclude_each_other(tmp_path: Path) -> None:
    file = tmp_path / "lock"
    with locked(file), file.open() as other:
        assert not take(other)
        assert not take(other, shared=True)
    with file.open() as one, file.open() as other:
        assert take(one, shared=True)
        assert take(other, shared=True)
        assert not take(other)
    with file.open() as free:
        assert take(free)
