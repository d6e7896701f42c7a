"""Data sets under the local engine, with real processes: stored, trained on, deleted."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest
import yaml

from kit.datasets.cluster import DataCluster
from kit.datasets.upload import upload_of
from kit.model import Host
from kit.plan.data import DataPlan
from tests.ports import free_port
from tests.sandbox import ROOT
from tests.targets.cluster import INVENTORY, Cluster, wait_for
from tests.trainer.test_trainer_workloads import draw_images

pytest.importorskip("libtorrent")
CLASSES = 10
TRAIN = """\
data: [cifar10]
train: {dataset: cifar10, model: lenet, epochs: 1, batch_size: 16}
"""
SCRIPT = """\
import json, os, pathlib
folder = pathlib.Path(json.loads(os.environ["KIT_DATA_PATHS"])["words"])
print("read", (folder / "words.txt").read_text(), flush=True)
"""


@pytest.fixture
def stored(cluster: Cluster) -> Cluster:
    """A cluster whose first host stores, with ports of its own."""
    server, peer = free_port(), free_port(2)  # An agent takes two.
    inventory = INVENTORY.replace("[manager]", "[manager, storage]")
    (cluster.folder / "inventory.yaml").write_text(
        f"{inventory}data: {{port: {server}, peer_port: {peer}, image: none}}\n"
    )
    return cluster


def write_cifar10(folder: Path, samples: int = 64) -> None:
    """Write a stand-in in CIFAR-10's binary format: a byte of the class, 3,072 of the picture."""
    made = folder / "cifar-10-batches-bin"
    made.mkdir(parents=True)
    pictures = Random(0)
    for name in (*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"):
        rows = (bytes([index % CLASSES]) + pictures.randbytes(3072) for index in range(samples))
        (made / name).write_bytes(b"".join(rows))


@pytest.mark.long
def test_a_job_trains_on_a_data_set_that_was_added(stored: Cluster, tmp_path: Path) -> None:
    write_cifar10(tmp_path / "download")
    stored.job("digits", TRAIN)
    stored.kit("render")
    added = stored.kit("data", "add", "cifar10", str(tmp_path / "download"), "--licence", "none")
    assert "cifar10@1: " in added
    assert "in 6 files on pc1" in added

    output = stored.kit("deploy")
    assert "the data services: started" in output
    assert "digits completed after" in output
    listed = json.loads(stored.kit("data", "ls", "--json"))
    (one,) = listed["datasets"]
    assert (one["name"], one["version"], one["files"]) == ("cifar10", 1, 6)
    assert (one["complete"], one["source"]) == (["this machine"], str(tmp_path / "download"))
    assert "cifar10@1 is intact" in stored.kit("data", "verify")
    # They do not run a second time, and end with --all.
    assert "the data services" not in stored.kit("deploy")
    assert "the data services have ended" in stored.kit("stop", "--all")
    wait_for(lambda: not stored.processes(), "an end of all processes")


def test_a_script_gets_its_folder_and_the_set_cannot_be_removed_meanwhile(
    stored: Cluster, tmp_path: Path
) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "words.txt").write_text("one")
    stored.script("wait", SCRIPT + "import time\ntime.sleep(600)\n")
    file = stored.folder / "jobs" / "wait.yaml"
    file.write_text(file.read_text() + "data: [words]\n")
    stored.kit("render")
    stored.kit("data", "add", "words", str(tmp_path / "source"))
    stored.kit("deploy", "--detach")
    wait_for(lambda: "| read one" in stored.kit("logs"), "the script's line")
    refused = stored.kit("data", "rm", "words@1", "--yes", status=1)
    assert "words@1 is named by wait, which is deployed" in refused
    stored.kit("stop")
    # A new version leaves the old one as it is.
    (tmp_path / "source" / "words.txt").write_text("two")
    assert "words@2" in stored.kit("data", "add", "words", str(tmp_path / "source"))
    assert "words@1: deleted on pc1" in stored.kit("data", "rm", "words@1", "--yes")
    (left,) = json.loads(stored.kit("data", "ls", "--json"))["datasets"]
    assert left["version"] == 2
    stored.kit("stop", "--all")


STREAMED = """\
data: [{name: colours, stream: true}]
train: {dataset: shards, model: cnn, epochs: 1000, batch_size: 8, image_size: 8}
"""


@pytest.mark.long
def test_shards_are_streamed_by_the_name_of_their_set(
    stored: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw_images(tmp_path / "colours")
    shards, cache = tmp_path / "shards", tmp_path / "cache"
    monkeypatch.setenv("KIT_SHARD_CACHE", str(cache))
    pack = ("trainer.streaming.pack", str(tmp_path / "colours"), str(shards), "--mib", "0.02")
    subprocess.run([sys.executable, "-m", *pack], cwd=ROOT, check=True)
    stored.job("colours", STREAMED)
    stored.kit("render")
    for version in (1, 2):
        assert f"colours@{version}: " in stored.kit("data", "add", "colours", str(shards))
    assert "streams     colours on pc1, " in stored.kit("plan")

    assert "the data services: started" in stored.kit("deploy", "--detach")
    wait_for(lambda: trains(stored), "an epoch", 60)
    # The newest version, from the server alone: no agent fetched a copy, and no host is the store.
    url = f"http://127.0.0.1:{port_of(stored)}/colours/2/data"
    (read,) = cache.iterdir()
    assert read.name == hashlib.sha256(url.encode()).hexdigest()[:12]
    assert {file.name for file in read.glob("*.tar")} == {
        file.name for file in shards.glob("*.tar")
    }
    refused = stored.kit("data", "rm", "colours@1", "--yes", status=1)
    assert "colours@1 is named by colours, which is deployed" in refused
    stored.kit("stop", "--all")
    assert "colours@1: deleted" in stored.kit("data", "rm", "colours@1", "--yes")


def port_of(stored: Cluster) -> int:
    """Return the port of the data server."""
    inventory = yaml.safe_load((stored.folder / "inventory.yaml").read_text())
    return int(inventory["data"]["port"])


def test_a_damaged_file_is_found_and_a_missing_set_ends_the_job(
    stored: Cluster, tmp_path: Path
) -> None:
    (tmp_path / "words.txt").write_text("one")
    stored.script("read", SCRIPT)
    file = stored.folder / "jobs" / "read.yaml"
    file.write_text(file.read_text() + "data: [words]\n")
    stored.kit("render")
    failed = stored.kit("deploy", status=1)
    assert "words" in failed
    assert "read failed" in failed
    stored.kit("data", "add", "words", str(tmp_path / "words.txt"))
    (copy,) = (stored.state / ".datasets").glob("words/1/data/words.txt")
    copy.chmod(0o644)
    copy.write_text("two")
    assert "words@1 is damaged" in stored.kit("data", "verify", status=1)
    stored.kit("stop", "--all")


def test_an_upload_goes_on_where_it_ended(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "words.txt").write_bytes(b"one" * 10**6)
    store, upload = tmp_path / "store", upload_of(tmp_path / "source")
    whole = b"".join(upload.read(0))
    half = store / ".uploads" / "words" / upload.name
    half.parent.mkdir(parents=True)
    half.write_bytes(whole[: 2 * 10**6])
    host = Host("pc1", "10.0.0.1", "10.0.0.1", (), (), None, 10**9, ())
    data = DataPlan(host, (host,), 8090, 6881, None, "volume", "image")
    sent: list[int] = []
    cluster = DataCluster("test", data, store)
    place = cluster.upload("words", upload, lambda _name, _state, done, _total: sent.append(done))
    assert half.read_bytes() == whole
    assert sent[0] > 2 * 10**6
    done = cluster.add("words", place, ("--described", "here"), lambda *_: None)
    assert (done["version"], done["files"], done["source"]) == (1, 1, "here")
    assert (store / "words/1/data/words.txt").read_bytes() == b"one" * 10**6
    assert not half.exists()


def trains(stored: Cluster) -> bool:
    """Whether the only job has done an epoch."""
    (job,) = json.loads(stored.kit("status", "--json"))["jobs"]
    assert job["state"] in {"waiting", "running"}, stored.kit("logs")
    return bool(job["progress"] and job["progress"]["epoch"])
