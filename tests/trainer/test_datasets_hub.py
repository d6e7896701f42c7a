"""Data sets from Hugging Face: the real huggingface_hub, and a hub on loopback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ports import free_port
from tests.trainer.hosts import ROOT
from tests.trainer.hub import Hub, Repository, serve_hub
from trainer.datasets.errors import FAILURE, MISTAKE
from trainer.datasets.layout import Place, index

OLD, NEW = "a" * 40, "b" * 40
LARGE = bytes(range(251)) * 80_000  # 20 MB: two blocks of the library.
FILES = {"README.md": b"pets", "data/ä 1.bin": LARGE, "data/train/x": b"x" * 500, "empty": b""}
BLOCK = 10 * 2**20  # Of the library.


@pytest.fixture
def hub() -> Iterator[Hub]:
    with serve_hub() as server:
        server.repositories = {
            "kit/pets": Repository({OLD: {"old": b"old"}, NEW: FILES}, {"main": NEW, "v1": OLD}),
            "kit/private": Repository({NEW: FILES}, {"main": NEW}, token="hf_right"),
            "kit/gated": Repository({NEW: FILES}, {"main": NEW}, token="hf_right", gated=True),
            "kit/none": Repository({NEW: {".gitkeep": b""}}, {"main": NEW}),
            "kit/odd": Repository({NEW: {"a\\b": b"x"}}, {"main": NEW}),
            "kit/up": Repository({NEW: {"../../x": b"x"}}, {"main": NEW}),
            "kit/own": Repository({NEW: {".cache/huggingface/x": b"x"}}, {"main": NEW}),
        }
        yield server


def environ_of(folder: Path, hub: Hub, **more: str) -> dict[str, str]:
    """No settings of this machine."""
    own = {name: os.environ[name] for name in ("PATH",)}
    return {
        **own, "HOME": str(folder), "HF_ENDPOINT": hub.address, **more,
    }  # fmt: skip


def add(
    folder: Path, hub: Hub, source: str, **more: str
) -> tuple[int, list[dict[str, object]], str]:
    """Run the program; return its exit status, its lines and its errors."""
    store = ["-m", "trainer.datasets.store", "--store", str(folder / "store")]
    found = subprocess.run(
        [sys.executable, *store, "add", "pets", source, "--json", "--described", source],
        env=environ_of(folder, hub, **more),
        capture_output=True,
        cwd=ROOT,
        timeout=120,
        check=False,
    )
    lines = [json.loads(line) for line in found.stdout.splitlines()]
    return found.returncode, lines, found.stderr.decode()


def content(folder: Path, version: int = 1) -> dict[str, bytes]:
    place = Place(folder / "store", "pets", version)
    assert not [path for path in place.folder.rglob("*") if path.is_symlink()]
    return {file.path: (place.data / file.path).read_bytes() for file in place.read().files}


def test_a_repository_becomes_versions_that_name_their_commit(tmp_path: Path, hub: Hub) -> None:
    status, lines, errors = add(tmp_path, hub, "hf://kit/pets")
    assert status == 0, errors
    assert content(tmp_path) == FILES  # Without .cache.
    assert lines[-1]["source"] == f"hf://kit/pets@{NEW}"
    downloading = [line for line in lines if line["state"] == "downloading"]
    assert downloading[-1]["total"] == sum(map(len, FILES.values()))
    assert not (tmp_path / "store" / ".partial" / "pets").exists()
    assert add(tmp_path, hub, "hf://datasets/kit/pets@v1")[0] == 0
    assert (content(tmp_path), content(tmp_path, 2)) == (FILES, {"old": b"old"})
    assert Place(tmp_path / "store", "pets", 2).read().source == f"hf://kit/pets@{OLD}"
    agents = {each.headers.get("User-Agent", "") for each in hub.seen}
    assert not [agent for agent in agents if "python/" in agent]  # Of telemetry.
    assert {each.path.split("/")[1] for each in hub.seen} == {"api", "datasets"}


REFUSED = [
    ("hf://kit/cats", {}, "there is no such data set, or it is private; correct the name, or set"),
    ("hf://kit/private", {}, "there is no such data set, or it is private; correct the name, or "
     "set HF_TOKEN where you run kit to a token that may read it"),
    ("hf://kit/private", {"HF_TOKEN": "hf_wrong"}, "access was refused"),
    ("hf://kit/gated", {}, "its owner must give access to it; accept its terms at http://127.0.0.1"),
    ("hf://kit/gated", {"HF_TOKEN": "hf_other"}, "its owner must give access to it"),
    ("hf://kit/private", {"HF_TOKEN": "hf_other"}, "access was refused"),
    ("hf://kit/pets@v9", {}, "there is no such revision; correct the name of the branch"),
    ("hf://kit/pets@", {}, "write hf://OWNER/NAME, or hf://OWNER/NAME@REVISION"),
    ("hf://kit/pets/data", {}, "does not name one repository"),
    ("hf://", {}, "write hf://OWNER/NAME"),
    ("hf://kit/..", {}, "write hf://OWNER/NAME"),
    ("hf://kit/none", {}, "the repository has no file"),
    ("hf://kit/odd", {}, "a backslash; rename the file in the source"),
    ("hf://kit/up", {}, "`..` would leave the folder"),
    ("hf://kit/own", {}, "it has a folder .cache/huggingface"),
]  # fmt: skip


@pytest.mark.parametrize(("source", "environ", "message"), REFUSED)
def test_a_mistake_is_said_in_words(
    tmp_path: Path, hub: Hub, source: str, environ: dict[str, str], message: str
) -> None:
    status, lines, errors = add(tmp_path, hub, source, **environ)
    assert status == MISTAKE, errors
    assert message in f"{lines[-1]['message']}; {lines[-1]['fix']}"
    assert "hf_" not in errors.replace("hf_hub", "")
    assert index(tmp_path / "store") == {}


@pytest.mark.parametrize("name", ["private", "gated"])
def test_the_token_opens_what_is_closed(tmp_path: Path, hub: Hub, name: str) -> None:
    status, lines, errors = add(tmp_path, hub, f"hf://kit/{name}", HF_TOKEN="hf_right")
    assert status == 0, errors
    assert content(tmp_path) == FILES
    assert "hf_right" not in errors + json.dumps(lines)


def test_a_hub_that_does_not_listen(tmp_path: Path, hub: Hub) -> None:
    nobody = f"http://127.0.0.1:{free_port()}"
    status, lines, errors = add(tmp_path, hub, "hf://kit/pets", HF_ENDPOINT=nobody)
    assert status == FAILURE, errors
    assert "check the network" in str(lines[-1]["fix"])


def test_progress_is_shown_inside_a_file(tmp_path: Path, hub: Hub) -> None:
    hub.pauses["data/ä 1.bin"] = 12_000_000, 4.0
    status, lines, errors = add(tmp_path, hub, "hf://kit/pets")
    assert status == 0, errors
    shown = {line["bytes"] for line in lines if line["state"] == "downloading"}
    assert shown & {BLOCK, BLOCK + 504}, shown  # Without and with the small files.


def test_a_cut_file_goes_on_where_it_was_cut(tmp_path: Path, hub: Hub) -> None:
    hub.cut["data/ä 1.bin"] = [12_000_000]
    status, _, errors = add(tmp_path, hub, "hf://kit/pets")
    assert status == 0, errors
    assert content(tmp_path) == FILES
    assert hub.starts("data/ä 1.bin") == [0, BLOCK]


def test_a_busy_hub_is_asked_again(tmp_path: Path, hub: Hub) -> None:
    hub.busy = 3
    status, _, errors = add(tmp_path, hub, "hf://kit/pets")
    assert status == 0, errors
    assert (content(tmp_path), hub.busy) == (FILES, 0)


def test_the_next_try_downloads_only_the_files_that_are_missing(tmp_path: Path, hub: Hub) -> None:
    hub.damaged = {"data/train/x"}
    status, _, errors = add(tmp_path, hub, "hf://kit/pets")
    assert status == FAILURE, errors
    assert "data/train/x arrives with another content than its repository lists" in errors
    assert index(tmp_path / "store") == {}
    part = next((tmp_path / "store" / ".partial").rglob("*.metadata")).with_name("x.incomplete")
    part.write_bytes(b"of a program that was killed")
    hub.damaged.clear()
    hub.seen.clear()
    assert add(tmp_path, hub, "hf://kit/pets")[0] == 0
    assert content(tmp_path) == FILES
    assert (hub.starts("data/ä 1.bin"), hub.starts("train/x")) == ([], [0])


def test_a_hub_that_is_gone_at_the_next_try_gives_no_half_data_set(
    tmp_path: Path, hub: Hub
) -> None:
    """The library would take the files that are there for all."""
    hub.damaged = {"data/train/x"}
    add(tmp_path, hub, "hf://kit/pets")
    nobody = f"http://127.0.0.1:{free_port()}"
    status, _, errors = add(tmp_path, hub, "hf://kit/pets", HF_ENDPOINT=nobody)
    assert status == FAILURE, errors
    assert index(tmp_path / "store") == {}
