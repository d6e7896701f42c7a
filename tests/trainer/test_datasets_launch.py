"""The launcher waits for the data agent, and trains on what it has fetched."""

from __future__ import annotations

import json
import shutil
import socket
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from tests.trainer.datahosts import DataHosts, data_hosts
from tests.trainer.hosts import DEADLINE, hosts, wait_until, write_job
from trainer.datasets import store
from trainer.datasets.agent import open_socket

SCRIPT = """
import json, os, pathlib, time
folder = json.loads(os.environ["KIT_DATA_PATHS"])["numbers"]
print("found", sorted(path.name for path in pathlib.Path(folder).iterdir()), flush=True)
while not pathlib.Path("end").exists():
    time.sleep(0.1)
"""


def write_script(folder: Path) -> Path:
    (folder / "script.py").write_text(SCRIPT)
    job = folder / "own.json"
    job.write_text(json.dumps({"name": "own", "command": ["script.py"]}))
    return job


def test_a_script_finds_its_data_set_which_stays_until_it_ends(tmp_path: Path) -> None:
    with data_hosts(tmp_path) as world:
        world.add(6 * 2**20)
        world.serve()
        world.seeder()
        agent = world.agent("cache")
        # As a container sees it: read-only and elsewhere; only the socket tells where.
        (tmp_path / "datasets").symlink_to(agent.cache)
        task = world.local.agent(
            "pc1",
            write_script(tmp_path),
            world.local.rendezvous(script=True),
            1,
            "1:1",
            KIT_DATA_SETS='[{"name": "numbers"}]',
            KIT_DATA_SOCKET=tmp_path / "datasets" / "agent.sock",
        )
        task.expect("found ['part 0.bin', 'part 1.bin', 'part 2.bin']")
        assert "launch pc1: data set numbers@1: " in task.text
        assert "launch pc1: has numbers" in task.text
        assert agent.held()["in_use_by"] == ["own"]
        assert agent.get("DELETE", "/numbers/1")[0] == 409
        # An agent that is started again does not know the job; the lock tells it.
        agent.task.process.kill()
        agent.task.wait(30)
        again = world.agent("cache")
        assert again.get("DELETE", "/numbers/1")[0] == 409
        (tmp_path / "end").touch()
        assert task.wait() == 0, task.text
        wait_until(lambda: again.get("DELETE", "/numbers/1")[0] == 200, "the use to end", 30)


def part(**line: object) -> bytes:
    """A line of an agent, as a chunk of HTTP."""
    content = json.dumps({"name": "numbers", "version": 1, **line}).encode() + b"\n"
    return b"%x\r\n%s\r\n" % (len(content), content)


def test_an_agent_may_start_again_after_a_long_fetch(tmp_path: Path) -> None:
    """The launcher counts silence from the agent's last word, not from its own first request.

    The agents are sockets of this test, since the start of a real one takes as long as it takes.
    """
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    cache, patience = tmp_path / "cache", 1
    data = cache / "numbers" / "1" / "data"
    data.mkdir(parents=True)
    (data.parent / "COMPLETE").touch()
    with hosts(tmp_path) as local, ExitStack() as stack:
        first = stack.enter_context(open_socket(cache))
        task = local.agent(
            "pc1",
            write_script(tmp_path),
            "127.0.0.1:9",
            1,
            "1:1",
            KIT_DATA_SETS='[{"name": "numbers"}]',
            KIT_DATA_SOCKET=cache / "agent.sock",
            KIT_RENDEZVOUS_TIMEOUT=str(patience),
        )
        user = stack.enter_context(accepted(first))
        asked = time.monotonic()
        user.sendall(head)
        while time.monotonic() - asked <= 2 * patience:
            user.sendall(part(state="fetching", bytes=1, total=2, rate=0, peers=0))
            time.sleep(0.1)
        task.expect("data set numbers@1: fetching")
        again = stack.enter_context(open_socket(cache))
        user.close()
        task.expect("for the data agent at")
        user = stack.enter_context(accepted(again))
        user.sendall(head + part(state="ready", paths={"numbers": str(data)}, cache=str(cache)))
        task.expect("launch pc1: has numbers")


def accepted(listener: socket.socket) -> socket.socket:
    listener.settimeout(DEADLINE)
    return listener.accept()[0]


def launched(world: DataHosts, **environ: str | Path) -> tuple[int, str]:
    task = world.local.agent(
        "pc1", write_script(world.folder), "127.0.0.1:9", 1, "1:1",
        KIT_RENDEZVOUS_TIMEOUT="2", **environ,  # type: ignore[arg-type]
    )  # fmt: skip
    return task.wait(DEADLINE), task.text


def test_faults_have_words(tmp_path: Path) -> None:
    with data_hosts(tmp_path) as world:
        status, text = launched(world, KIT_DATA_SETS="cifar10")
        assert (status, "KIT_DATA_SETS must be a list such as" in text) == (2, True)
        status, text = launched(
            world, KIT_DATA_SETS='[{"name": "numbers"}]', KIT_DATA_SOCKET=tmp_path / "agent.sock"
        )
        assert (status, "no data agent answered at" in text) == (1, True), text
        world.add(3000)
        world.serve()
        agent = world.agent("cache")
        status, text = launched(
            world,
            KIT_DATA_SETS='[{"name": "cifar10", "version": 3}]',
            KIT_DATA_SOCKET=agent.cache / "agent.sock",
        )
        assert status == 1
        assert f"{world.url} has no data set cifar10@3; it has numbers@1" in text
        status, text = launched(
            world, KIT_DATA_SETS='[{"name": "../x"}]', KIT_DATA_SOCKET=agent.cache / "agent.sock"
        )
        assert (status, "is no name of a data set" in text) == (2, True), text


def test_the_trainer_reads_a_fetched_data_set(tmp_path: Path) -> None:
    """A stand-in in the format of CIFAR-10."""
    draw = np.random.default_rng(0)
    source = tmp_path / "files" / "cifar-10-batches-bin"
    source.mkdir(parents=True)
    for name in (*(f"data_batch_{n}.bin" for n in range(1, 6)), "test_batch.bin"):
        labels = draw.integers(0, 10, (20, 1), dtype=np.uint8)
        images = draw.integers(0, 256, (20, 3072), dtype=np.uint8)
        (source / name).write_bytes(np.concatenate([labels, images], axis=1).tobytes())
    with data_hosts(tmp_path) as world:
        quiet = store.Reporter(json=True)
        store.add(world.store, "cifar10", str(tmp_path / "files"), "", None, quiet)
        shutil.rmtree(tmp_path / "files")
        world.serve()
        world.seeder()
        agent = world.agent("cache")
        task = world.local.agent(
            "pc1",
            write_job(tmp_path, "cifar", dataset="cifar10", model="cnn", epochs=1, batch_size=10),
            world.local.rendezvous("1:1"),
            1,
            KIT_DATA_SETS='[{"name": "cifar10", "version": 1}]',
            KIT_DATA_SOCKET=agent.cache / "agent.sock",
            KIT_DATA=tmp_path / "nothing",
        )
        assert task.wait() == 0, task.text
        assert "ready to run cnn on cifar10" in task.text
