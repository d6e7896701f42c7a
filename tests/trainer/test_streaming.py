"""Images in tar shards: every sample once, fetched in time, and whatever goes wrong is told."""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
import tarfile
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies

from tests.trainer.hosts import PACE, ROOT, hosts, metrics, wait_until, write_job
from tests.trainer.test_trainer_exchange import launch
from tests.trainer.test_trainer_workloads import draw_images
from trainer.contract.job import Train
from trainer.data import shards
from trainer.data.pictures import View
from trainer.data.samples import DataError
from trainer.streaming.files import ShardFiles
from trainer.streaming.index import INDEX, Index, Shard, make, read, samples_of, write
from trainer.streaming.samples import StreamedImages, load_shards

IMAGES = 80
"""Training images of `draw_images`."""


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with shards of some five images each."""
    folder = tmp_path_factory.mktemp("packed")
    draw_images(folder / "colours")
    command = ("trainer.streaming.pack", str(folder / "colours"), str(folder / "shards"))
    subprocess.run([sys.executable, "-m", *command, "--mib", "0.02"], cwd=ROOT, check=True)
    return folder / "shards"


class Server(ThreadingHTTPServer):
    """A web server of a folder, with ranges; `cut` answers end after half of their bytes."""

    daemon_threads = True

    def __init__(self, folder: Path, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.folder, self.cut, self.sent = folder, 0, Counter[str]()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/shards"


class Handler(SimpleHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        path = self.server.folder / Path(self.path).name
        if not path.is_file():
            return self.send_error(404)
        start = int(self.headers.get("Range", "bytes=0-")[6:-1])
        content = path.read_bytes()[start:]
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.server.cut:
            self.server.cut -= 1
            content = content[: len(content) // 2]
        self.server.sent[path.name] += len(content)
        self.wfile.write(content)
        return None

    def log_message(self, *_: object) -> None: ...


@contextmanager
def served(folder: Path, port: int = 0) -> Iterator[Server]:
    with Server(folder, port) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server
        finally:
            server.shutdown()


def of_folder(folder: Path) -> StreamedImages:
    train = Train(dataset="shards", path=folder.name, model="cnn", epochs=1, batch_size=1)
    return load_shards(train, folder.parent)[0][0]


def many(sizes: list[int]) -> StreamedImages:
    """Shards of these numbers of samples, without files."""
    shard = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    own = [Shard(f"train-{number}.tar", 1, "") for number in range(len(sizes))]
    nothing = torch.zeros(len(shard), dtype=torch.int64)
    return StreamedImages(
        torch.empty(0, 3, 8, 8), nothing, [], source=ShardFiles(""), shards=own,
        shard=shard, offset=nothing, length=nothing, prefetch=None, view=View(8),  # type: ignore[arg-type]
    )  # fmt: skip


def taken(
    data: StreamedImages, start: int, end: int, world_size: int, batch: int
) -> list[list[int]]:
    """The samples of each rank from a position of epoch 1 until `end` is passed."""
    order, found = data.order(5, 1), [list[int]() for _ in range(world_size)]
    while start < end:
        step = data.grouped(order[start : start + batch * world_size])
        for rank in range(world_size):
            for piece in shards.pieces(step, rank, [1 / world_size] * world_size, 1):
                found[rank] += piece.tolist()
        start += len(step)
    return found


@settings(deadline=None)
@given(
    sizes=strategies.lists(strategies.integers(1, 30), min_size=1, max_size=200),
    before=strategies.integers(1, 9),
    after=strategies.integers(1, 9),
    batch=strategies.integers(1, 40),
    steps=strategies.integers(0, 20),
)
def test_no_sample_is_lost_or_doubled_when_the_world_changes(
    sizes: list[int], before: int, after: int, batch: int, steps: int
) -> None:
    data = many(sizes)
    end = min(steps * batch * before, len(data))
    first = list(chain(*taken(data, 0, end, before, batch)))
    rest = list(chain(*taken(data, len(first), len(data), after, batch)))
    assert sorted(first + rest) == list(range(len(data)))


def test_ranks_read_different_shards() -> None:
    """64 lanes and four ranks: 16 lanes each, and at most two more at either end of them."""
    data = many([100] * 256)
    for own in taken(data, 0, len(data), 4, 64):
        assert 256 * 16 / 64 <= len({int(data.shard[number]) for number in own}) <= 256 * 20 / 64
    window = data.shard[data.order(5, 1)[: 64 * 100]]
    assert len(set(window.tolist())) == 64
    assert len(set(window[:640].tolist())) == 64  # Shuffled, not shard after shard.
    assert not torch.equal(data.order(5, 1), data.order(5, 2))


def test_shards_have_the_images_that_were_packed(packed: Path) -> None:
    data = of_folder(packed)
    assert (len(data), len(data.shards) > 8) == (IMAGES, True)
    inputs, labels = data.take(torch.arange(IMAGES), torch.device("cpu"))
    reds = inputs[:, 0].float().mean(dim=(1, 2)) > inputs[:, 2].float().mean(dim=(1, 2))
    assert torch.equal(reds.long(), labels)
    assert sorted(labels.tolist()) == [0] * 40 + [1] * 40


def test_whole_shards_validate(packed: Path, tmp_path: Path) -> None:
    data = of_folder(packed)
    rest, held = data.hold_out(0.25, 0, data)
    assert {each.name for each in rest.shards}.isdisjoint(each.name for each in held.shards)
    assert len(rest) + len(held) == IMAGES
    assert len(held.shards) == round(len(data.shards) / 4)
    inputs, labels = held.take(torch.arange(len(held)), torch.device("cpu"))
    reds = inputs[:, 0].float().mean(dim=(1, 2)) > inputs[:, 2].float().mean(dim=(1, 2))
    assert torch.equal(reds.long(), labels)
    copy = shutil.copytree(packed, tmp_path / "shards")
    last = max(copy.glob("train-*.tar"))
    last.rename(copy / "val-000000.tar")
    write(make(copy), copy)
    train = Train(dataset="shards", path="shards", model="cnn", epochs=1, batch_size=1)
    parts, _ = load_shards(train, tmp_path)
    assert [part.shards[0].name[:3] for part in parts] == ["tra", "val", "tes"]


def test_a_class_that_only_the_test_has_is_named(packed: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(packed, tmp_path / "shards")
    test = min(copy.glob("test-*.tar"))
    with tarfile.open(test, "w") as tar:
        for name, content in (("1.jpg", b"picture"), ("1.cls", b"2")):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    (copy / "classes.txt").write_text("blue\nred\nunknown\n")
    write(make(copy), copy)
    with pytest.raises(DataError, match="classes that those to train lack: unknown; make all"):
        of_folder(copy)


def test_a_training_streams_from_a_server_and_continues(packed: Path, tmp_path: Path) -> None:
    """Two ranks are stopped in the middle of an epoch, and one continues from there."""
    with served(packed) as server, hosts(tmp_path) as local:
        about: dict[str, Any] = {
            "dataset": "shards", "url": server.url, "model": "cnn", "batch_size": 4,
            "epochs": 40, "every_epochs": 40,
        }  # fmt: skip
        job = write_job(tmp_path, **about)
        environment = {"KIT_SHARD_CACHE": tmp_path / "cache"}
        task = launch(local, job, 2, **environment, **PACE)
        wait_until(lambda: len(metrics(tmp_path / "digits")) > 3, "three epochs")
        task.process.terminate()
        task.wait()
        stop = metrics(tmp_path / "digits")[-1]
        assert stop["event"] == "stop"
        job = write_job(tmp_path, **{**about, "epochs": stop["epoch"] + 2})
        task = launch(local, job, 1, **environment)
        assert task.wait() == 0, task.text
        assert f"resumes at step {stop['step']}, epoch {stop['epoch']}" in task.text
        sizes = {file.name: file.stat().st_size for file in packed.glob("*.tar")}
        assert {name: server.sent[name] for name in sizes} == sizes, "each shard is fetched once"
    assert metrics(tmp_path / "digits")[-1]["accuracy"] > 0.9


def test_a_cut_answer_is_continued_and_a_server_may_return(packed: Path, tmp_path: Path) -> None:
    shard = of_folder(packed).shards[0]
    with served(packed) as server:
        server.cut, port = 3, server.server_address[1]
        source = ShardFiles(server.url, tmp_path / "cache", 10**9)
        path = source.fetch(shard)
        assert path.read_bytes() == (packed / shard.name).read_bytes()
        assert server.sent[shard.name] == shard.size, "no byte is fetched twice"
        path.unlink()
    fetching = threading.Thread(target=source.fetch, args=(shard,))
    fetching.start()  # Nobody listens.
    with served(packed, port):
        fetching.join(60)
    assert path.read_bytes() == (packed / shard.name).read_bytes()


def test_other_bytes_are_not_used(packed: Path, tmp_path: Path) -> None:
    shard = of_folder(packed).shards[0]
    other = tmp_path / "other"
    other.mkdir()
    content = bytearray((packed / shard.name).read_bytes())
    content[700] ^= 1
    (other / shard.name).write_bytes(content)
    with served(other) as server:
        source = ShardFiles(server.url, tmp_path / "cache", 10**9)
        with pytest.raises(DataError, match="its bytes are not those of the index"):
            source.fetch(shard)
        assert server.sent[shard.name] == 2 * shard.size, "it is tried again once"
        assert not list((tmp_path / "cache").glob("*.tar"))
        missing = shard._replace(name="train-9.tar")
        with pytest.raises(DataError, match=r"train-9\.tar cannot be fetched \(HTTP Error 404"):
            source.fetch(missing)


def test_the_cache_keeps_its_size(packed: Path, tmp_path: Path) -> None:
    data = of_folder(packed)
    size = max(shard.size for shard in data.shards)
    with served(packed) as server:
        source = ShardFiles(server.url, tmp_path / "cache", 3 * size)
        data = replace(data, source=source)
        for _ in range(2):
            images, _ = data.take(data.order(0, 0), torch.device("cpu"))
            assert len(images) == IMAGES
            held = sum(file.stat().st_size for file in (tmp_path / "cache").glob("*.tar"))
            assert held <= 3 * size


def test_a_full_disk_is_told(packed: Path, tmp_path: Path) -> None:
    shard = of_folder(packed).shards[0]
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", disk], check=True)
    try:
        with served(packed) as server:
            (disk / "ballast").write_bytes(bytes(60_000))
            source = ShardFiles(server.url, disk, 10**9)
            words = rf"{disk} has [\d,]+ bytes free, and {shard.name} needs {shard.size:,}; free"
            with pytest.raises(DataError, match=words):
                source.fetch(shard)
    finally:
        subprocess.run(["umount", disk], check=True)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"names": np.array(["../../etc/x.tar"])}, "is no name of a tar file"),
        ({"offset": np.array([10**9])}, "a sample is outside its shard"),
        ({"length": np.array([-1])}, "a sample is outside its shard"),
        ({"label": np.array([7])}, "a class number is above those of the classes"),
        ({"label": np.array([0, 0])}, "columns of several lengths"),
        ({"shard": np.array([3])}, "out of bounds"),
    ],
)
def test_an_index_that_misleads_is_refused(
    change: dict[str, np.ndarray], what: str, tmp_path: Path
) -> None:
    zero = np.array([0])
    right = Index(
        np.array(["train-0.tar"]), np.array([2048]), np.array(["ab"]), zero, zero, np.array([10]),
        zero, np.array(["cat"]),
    )  # fmt: skip
    write(right, tmp_path)
    assert read((tmp_path / INDEX).read_bytes(), "x").names.tolist() == ["train-0.tar"]
    write(replace(right, **change), tmp_path)
    with pytest.raises(DataError, match=what):
        read((tmp_path / INDEX).read_bytes(), "x")


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"no index" * 100])
def test_a_damaged_index_is_refused(content: bytes) -> None:
    with pytest.raises(DataError, match=r"http://a/b is not an index of shards .* make it again"):
        read(content, "http://a/b")


def test_shards_that_are_none_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"needs files train-\*\.tar, and test-\*\.tar"):
        make(tmp_path)
    (tmp_path / "0.cls").write_text("0")
    with tarfile.open(tmp_path / "train-0.tar", "w") as tar:
        tar.add(tmp_path / "0.cls", "0.cls")
    with pytest.raises(DataError, match="the sample 0 has no image"):
        list(samples_of(tmp_path / "train-0.tar"))
    with tarfile.open(tmp_path / "train-1.tar", "w:gz") as tar:
        tar.add(tmp_path / "0.cls", "0.cls")
    with pytest.raises(DataError, match=r"train-1\.tar is not a shard .* unpack it"):
        list(samples_of(tmp_path / "train-1.tar"))
