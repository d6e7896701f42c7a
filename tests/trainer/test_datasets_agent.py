"""Fetching data sets: real servers, agents and libtorrent, broken on purpose."""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from tests.trainer.datahosts import NAME, Agent, DataHosts, data_hosts, read_lines, wire
from tests.trainer.hosts import ROOT, wait_until
from trainer.contract.bearer import KEY
from trainer.datasets.layout import Place

MIB = 2**20


@pytest.fixture
def world(tmp_path: Path) -> Iterator[DataHosts]:
    with data_hosts(tmp_path) as found:
        yield found


def ready(lines: list[dict[str, object]]) -> bool:
    assert lines, "the agent has ended"
    return lines[-1]["state"] == "ready"


def partly(agent: Agent, least: int) -> bool:
    """Whether an agent has at least some bytes."""
    held = agent.held()
    return bool(held and held["bytes"] >= least)


def test_a_host_fetches_from_the_store_and_the_next_one_from_both(world: DataHosts) -> None:
    world.add(24 * MIB)
    world.serve()
    origin = world.seeder()
    first = world.agent("one")
    with first.use() as lines:
        assert ready(lines), lines
        assert lines[-1]["paths"] == {NAME: str(first.cache / NAME / "1" / "data")}
        assert first.held()["in_use_by"] == ["job"]
        assert first.get("DELETE", f"/{NAME}/1") == (
            409,
            {"error": f"{NAME}@1 is in use by job", "fix": "end these jobs, and try again"},
        )
    assert world.equal(first)
    wait_until(lambda: first.held()["in_use_by"] == [], "the use to end", 30)
    world.peers.append(f"127.0.0.1:{first.port}")
    second = world.agent("two")
    with second.use(version=None) as lines:
        assert ready(lines), lines
    assert world.equal(second)
    sent = origin.held()["sent"] + first.held()["sent"]
    assert first.held()["sent"] > 0
    assert sent <= 50 * MIB  # Each got it once.
    assert first.get("DELETE", f"/{NAME}/1")[0] == 200
    assert not (first.cache / NAME).exists()


@pytest.mark.skipif(not Path("/proc/net/if_inet6").exists(), reason="no IPv6 here")
def test_a_host_fetches_by_ipv6(world: DataHosts) -> None:
    """Each agent listens only at the address of its host, as under Compose on IPv6 hosts."""
    world.at = "::1"
    world.add(2 * MIB)
    world.serve()
    world.seeder()
    agent = world.agent("one")
    with agent.use() as lines:
        assert ready(lines), lines
    assert world.equal(agent)


def test_two_versions_with_the_same_files_are_kept_apart(world: DataHosts) -> None:
    first, second = world.add(2 * MIB), world.add(2 * MIB)
    assert first.files == second.files
    world.serve()
    origin, agent = world.seeder(), world.agent("one")
    for version in (1, 2):
        with agent.use(version=version) as lines:
            assert ready(lines), lines
        assert (agent.cache / NAME / str(version) / "data" / "part 0.bin").exists()
    wait_until(lambda: not any(h["in_use_by"] for h in held(agent)), "the uses to end", 30)
    for each in (agent, origin):
        assert {h["version"] for h in held(each)} == {1, 2}
    assert agent.get("DELETE", f"/{NAME}/1")[0] == 200
    shutil.rmtree(world.store / NAME / "1")
    wait_until(lambda: [h["version"] for h in held(origin)] == [2], "the store's agent", 30)
    assert [h["version"] for h in held(agent)] == [2]


def held(agent: Agent) -> list[dict[str, Any]]:
    """All versions of an agent, by its status."""
    status, answer = agent.get("GET", "/status")
    assert status == 200, answer
    return list(answer["held"])


def test_the_storage_host_needs_no_copy(world: DataHosts) -> None:
    world.add(MIB)
    world.serve()
    origin = world.seeder()
    with origin.use() as lines:
        assert lines[-1]["paths"] == {NAME: str(world.store / NAME / "1" / "data")}
    before = {path for path in world.store.rglob("*") if path.is_file()}
    assert sum(path.stat().st_size for path in before) < 2 * MIB


def test_without_a_peer_the_web_server_is_enough(world: DataHosts) -> None:
    world.add(8 * MIB)
    world.serve()
    agent = world.agent("one")
    with agent.use() as lines:
        assert ready(lines), lines
    assert world.equal(agent)


def status(url: str, authorization: str = "") -> int:
    request = urllib.request.Request(url, headers={"Authorization": authorization})
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_only_those_with_the_key_are_answered(world: DataHosts) -> None:
    key = "5ec2e7" * 8
    world.variables = {"KIT_KEY": KEY, KEY: key}
    world.add(3 * MIB)
    server = world.serve()
    basic = base64.b64encode(f"any:{key}".encode()).decode()
    for given in ("", "Bearer", "Bearer guessed", f"Basic {key}", f"Digest {key}", "Bearer é"):
        assert status(f"{world.url}/", given) == 401, given
        assert status(f"{world.url}/{NAME}/1/manifest.json", given) == 401, given
    for given in (f"Bearer {key}", f"bearer {key}", f"Basic {basic}"):
        assert status(f"{world.url}/", given) == 200, given
    assert status(f"{world.url}/healthz") == 200
    # The agent has no peer: its torrent client asks the server for pieces.
    agent = world.agent("one")
    with agent.use() as lines:
        assert ready(lines), lines
    assert world.equal(agent)
    assert status(f"http://127.0.0.1:{agent.port + 1}/") == 401
    kept = [path for path in agent.cache.rglob("*") if path.is_file()]
    assert not any(key.encode() in path.read_bytes() for path in kept)
    assert key not in server.text + agent.task.text

    world.variables[KEY] = "another"
    with world.agent("two").use() as lines:
        assert lines[-1]["state"] == "failed"
        assert "refuses the key of this agent" in str(lines[-1]["message"])


def test_a_key_that_is_missing_is_told(world: DataHosts) -> None:
    world.store.mkdir()
    words = [sys.executable, "-m", "trainer.datasets.server", "--store", str(world.store)]
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "KIT_KEY": KEY}
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=False)
    where = f"neither /run/secrets/{KEY} nor the variable {KEY} has it"
    assert f"data server: error: the key: {where}; `kit deploy` makes it" in done.stderr
    assert done.returncode == 2


def test_an_unknown_data_set_is_named_with_the_known_ones(world: DataHosts) -> None:
    world.add(MIB)
    world.serve()
    agent = world.agent("one")
    with agent.use("cifar10") as lines:
        assert lines[-1]["state"] == "failed"
        assert lines[-1]["message"] == f"{world.url} has no data set cifar10@1"
        assert f"it has {NAME}@1" in lines[-1]["fix"]


def test_a_killed_fetch_goes_on_where_it_was(world: DataHosts) -> None:
    world.add(48 * MIB)
    world.serve()
    origin = world.seeder()
    with wire(origin.port, rate=6 * MIB) as slow:
        world.peers = [f"127.0.0.1:{slow.port}"]
        agent = world.agent("one")
        connection, resume = agent.ask(), agent.cache / NAME / "1" / "resume"
        wait_until(lambda: slow.sent > 12 * MIB, "a part of the data", 60)
        began = time.time()
        wait_until(
            lambda: (resume.exists() and resume.stat().st_mtime > began) or partly(agent, 47 * MIB),
            "a record of that part",
            60,
        )
        agent.task.process.send_signal(signal.SIGKILL)
        agent.task.wait(30)
        connection.close()
        assert not Place(agent.cache, NAME, 1).complete
        before = slow.sent
        assert before > 4 * MIB
    world.peers = [f"127.0.0.1:{origin.port}"]
    again = world.agent("one")
    with again.use() as lines:
        assert ready(lines), lines
    assert world.equal(again)
    assert again.held()["received"] < 44 * MIB


def test_a_cut_connection_is_made_again(world: DataHosts) -> None:
    world.add(24 * MIB)
    world.serve()
    origin = world.seeder()
    with wire(origin.port, rate=12 * MIB) as slow:
        world.peers = [f"127.0.0.1:{slow.port}"]
        agent = world.agent("one")
        connection = agent.ask()
        wait_until(lambda: slow.sent > 6 * MIB, "a part of the data", 60)
        slow.cut()
        assert ready(read_lines(connection))
        connection.close()
    assert world.equal(agent)


@pytest.mark.parametrize(("way", "parts"), [("peer", 3), ("server", 3), ("server", 1)])
def test_a_bit_that_flips_on_the_wire_is_found(world: DataHosts, way: str, parts: int) -> None:
    world.add(12 * MIB, parts=parts)
    world.serve()
    origin = world.seeder()
    target = origin.port if way == "peer" else world.server_port
    with wire(target, flip_at=5 * MIB) as bad:
        world.peers = [f"127.0.0.1:{bad.port}"] if way == "peer" else []
        url = f"http://127.0.0.1:{bad.port}" if way == "server" else ""
        agent = world.agent("one", url=url)
        with agent.use() as lines:
            assert ready(lines), lines
        assert bad.flipped
    assert world.equal(agent)


def test_a_bit_that_flips_on_the_disk_during_a_fetch_is_found(world: DataHosts) -> None:
    world.add(24 * MIB, parts=1)
    world.serve()
    origin = world.seeder()
    agent = world.agent("one")
    with agent.use() as lines:
        assert ready(lines)
    agent.task.process.terminate()
    agent.task.wait(30)
    place = Place(agent.cache, NAME, 1)
    flip(place.data / "part 0.bin", 3 * MIB)
    place.mark.unlink()  # As if the fetch had not ended.
    again = world.agent("one")
    with again.use() as lines:
        assert ready(lines), lines
    assert world.equal(again)
    assert 0 < again.held()["received"] < 2 * MIB  # One piece.
    assert origin.task.process.poll() is None


def flip(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 1]))


def test_a_damaged_store_is_told_and_nothing_wrong_is_ready(world: DataHosts) -> None:
    world.add(4 * MIB, parts=1)
    flip(world.store / NAME / "1" / "data" / "part 0.bin", 2 * MIB)
    world.serve()
    world.seeder()
    agent = world.agent("one", "--patience", "8")
    with agent.use() as lines:
        assert lines[-1]["state"] == "failed", lines[-1]
        assert f"that {NAME}@1 lacks" in lines[-1]["message"]
        assert "kit data verify" in lines[-1]["fix"]
    assert not Place(agent.cache, NAME, 1).complete
    program = [sys.executable, "-m", "trainer.datasets.store", "--store", str(world.store)]
    found = subprocess.run([*program, "verify", NAME], capture_output=True, text=True, cwd=ROOT)
    assert found.returncode == 1
    assert "part 0.bin has another SHA-256 than its manifest" in found.stdout


def test_files_that_were_cut_are_fetched_again(world: DataHosts) -> None:
    world.add(4 * MIB)
    world.serve()
    world.seeder()
    agent = world.agent("one")
    with agent.use() as lines:
        assert ready(lines)
    os.truncate(agent.cache / NAME / "1" / "data" / "part 1.bin", 100)
    with agent.use() as lines:
        assert ready(lines), lines
    assert world.equal(agent)


def test_a_restarted_server_is_found_again(world: DataHosts) -> None:
    world.add(36 * MIB)
    server, origin = world.serve(), world.seeder()
    with wire(origin.port, rate=12 * MIB) as slow:
        world.peers = [f"127.0.0.1:{slow.port}"]
        agent = world.agent("one")
        connection = agent.ask()
        wait_until(lambda: slow.sent > 6 * MIB, "a part of the data", 60)
        for task in (server, origin.task):
            task.process.kill()
            task.wait(30)
        slow.cut()
        world.serve()
        world.seeder(port=origin.port)
        assert ready(read_lines(connection))
        connection.close()
    assert world.equal(agent)


def test_one_copy_elsewhere_is_enough_when_the_server_is_gone_for_good(world: DataHosts) -> None:
    world.add(12 * MIB)
    server, origin = world.serve(), world.seeder()
    first = world.agent("one")
    with first.use() as lines:
        assert ready(lines)
    for task in (server, origin.task):
        task.process.kill()
        task.wait(30)
    world.peers.append(f"127.0.0.1:{first.port}")
    second = world.agent("two")
    with second.use() as lines:
        assert ready(lines), lines
    assert world.equal(second)


def test_a_second_agent_on_a_cache_is_refused(world: DataHosts) -> None:
    first = world.agent("one")
    words = ["--cache", str(first.cache), "--server", world.url, "--port", "7001"]
    program = [sys.executable, "-m", "trainer.datasets.agent", *words]
    found = subprocess.run(program, capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert found.returncode == 1
    assert found.stderr == (
        f"data agent: error: another data agent uses {first.cache} "
        f"(process {first.task.process.pid}); end it, or give this one another --cache\n"
    )
    assert first.get("GET", "/status")[0] == 200


def test_a_peer_that_lies_is_banned(world: DataHosts, tmp_path: Path) -> None:
    world.add(24 * MIB, parts=1)
    world.serve()
    origin = world.seeder()
    liar = tmp_path / "liar"
    original = world.store / NAME / "1"
    (liar / "data").mkdir(parents=True)
    content = (original / "data" / "part 0.bin").read_bytes()
    (liar / "data" / "part 0.bin").write_bytes(bytes(byte ^ 255 for byte in content))
    program: list[str | Path] = ["-m", "tests.trainer.liar", original / "dataset.torrent", liar]
    task = world.local.start("liar", program, {"PYTHONPATH": ROOT})
    task.expect("lies at ")
    port = int(task.text.split("lies at ")[1].split()[0])
    with wire(origin.port, rate=6 * MIB) as slow:  # So that the liar is asked too.
        world.peers = [f"127.0.0.3:{port}", f"127.0.0.1:{slow.port}"]
        agent = world.agent("one")
        with agent.use() as lines:
            assert ready(lines), lines
    assert world.equal(agent)
    # Where both gave blocks of one damaged piece, libtorrent suspects the honest peer as well.
    assert "127.0.0.3" in agent.held()["banned"]


def test_a_full_disk_is_told_before_it_is_full(world: DataHosts, tmp_path: Path) -> None:
    world.add(48 * MIB)
    world.serve()
    world.seeder()
    cache = tmp_path / "small"
    cache.mkdir()
    mount = ("mount", "-t", "tmpfs", "-o", "size=32m", "tmpfs", str(cache))
    if os.geteuid() or subprocess.run(mount, check=False).returncode:
        pytest.skip("needs root, for a small disk")
    try:
        agent = world.agent("small")
        with agent.use() as lines:
            assert lines[-1]["state"] == "failed"
            assert f"the disk of {cache} has room for 3" in lines[-1]["message"]
            assert "50.3 MB are needed" in lines[-1]["message"]
        assert sum(path.stat().st_size for path in cache.rglob("*") if path.is_file()) < MIB
        agent.task.process.terminate()
        agent.task.wait(30)
    finally:
        subprocess.run(("umount", str(cache)), check=False)


def test_the_least_recently_used_go_first_and_never_those_in_use(world: DataHosts) -> None:
    for name in ("a", "b", "c"):
        world.add(4 * MIB, name)
    world.serve()
    world.seeder()
    agent = world.agent("one", "--size", str(9 * MIB))
    with agent.use("a") as first:
        assert ready(first)
        with agent.use("b") as second:
            assert ready(second)
            with agent.use("c") as third:
                assert third[-1]["state"] == "failed"
                assert "are in use" in third[-1]["message"]
        wait_until(lambda: agent.held("b")["in_use_by"] == [], "the use to end", 30)
        with agent.use("c") as third:
            assert ready(third), third
        assert agent.held("a")
        assert not agent.held("b")


BAD = ["../../../escaped", "/tmp/escaped", "a/../../escaped", "x\ny", "a\\b"]


@pytest.mark.parametrize("path", BAD)
def test_a_manifest_cannot_name_a_file_elsewhere(world: DataHosts, path: str) -> None:
    """A peer or server that sends such a manifest gets nothing written."""
    manifest = world.add(MIB, parts=1)
    text = json.loads(manifest.text())
    text["files"][0]["path"] = path
    torrent = (world.store / NAME / "1" / "dataset.torrent").read_bytes()

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = {
                "/": json.dumps({NAME: [1]}).encode(),
                f"/{NAME}/1/manifest.json": json.dumps(text).encode(),
            }.get(self.path, torrent)
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", world.server_port), Answer) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        agent = world.agent("one")
        with agent.use() as lines:
            assert lines[-1]["state"] == "failed"
            assert "cannot be used" in lines[-1]["message"], lines[-1]
        server.shutdown()
    assert not list(world.folder.rglob("escaped"))
    assert not Path("/tmp/escaped").exists()
