"""Which checkpoint a server takes: when it appears, when it is damaged, when others have it."""

import json
import os
import shutil
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ports import free_port
from tests.trainer.hosts import DEADLINE, ROOT, Hosts, Task, hosts, wait_until
from tests.trainer.servers import Server, damage, inputs, put, start
from trainer.checkpoints.listing import Found
from trainer.checkpoints.manifest import Manifest, UnusableError
from trainer.serve.checkpoints import described
from trainer.serve.offers import Offer, candidates, offer_of, read_offer

FIRST, SECOND, THIRD, LAST = (f"step-{step:08d}" for step in (45, 90, 135, 360))


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Hosts]:
    with hosts(tmp_path) as result:
        yield result


def endpoint(local: Hosts, folder: Path, host: str = "n2") -> tuple[Task, int]:
    """Let a host offer its checkpoints."""
    port = free_port()
    environ = {
        "KIT_CHECKPOINTS": str(folder),
        "KIT_CHECKPOINT_PORT": str(port),
        "KIT_HOST": host,
        "KIT_ADDRESS": "127.0.0.1",
        "PYTHONPATH": str(ROOT),
    }
    task = local.start(f"endpoint-{host}", ["-m", "trainer.serve.checkpoints"], environ)
    task.expect(f"serve {host}: offers the checkpoints in {folder} on port {port}\n")
    return task, port


def served(server: Server) -> str:
    model = server.get("/model").json
    return str(model["checkpoint"]["name"]) if model["ready"] else ""


def until_served(server: Server, name: str) -> None:
    wait_until(lambda: served(server) == name, f"{name} is served")


def test_newer_ones_are_taken_under_load_and_broken_ones_passed_over(
    trained: Path, local: Hosts, tmp_path: Path
) -> None:
    folder = tmp_path / "own"
    server = start(local, folder, wait="/health")
    reason = "the training digits has not saved yet"
    wait_until(lambda: server.get("/ready").json["error"] == f"not ready: {reason}", "the reason")
    # Folders and addresses are only in the log.
    server.task.expect(f"waits: {reason} (there is no checkpoint in {folder})\n")
    assert server.get("/model").json["reason"] == reason
    early = server.predict(inputs(1))
    assert (early.status, early.headers["retry-after"]) == (503, "2")
    assert server.get("/").status == 200
    assert not server.get("/model").json["ready"]
    put(trained, folder, FIRST)
    server.until("/ready", 200)

    ended, failed, steps = threading.Event(), [], set()

    def load() -> None:
        while not ended.is_set():
            answer = server.predict(inputs(2))
            if answer.status == 200:
                steps.add(answer.json["checkpoint"]["step"])
            else:
                failed.append(answer)

    clients = [threading.Thread(target=load) for _ in range(4)]
    for client in clients:
        client.start()
    try:
        # Newer, but damaged; newer, but not complete; newer and whole; nobody's.
        put(trained, tmp_path / "bad", LAST)
        damage(tmp_path / "bad" / LAST)
        put(tmp_path / "bad", folder, LAST)
        shutil.copytree(trained / THIRD, folder / "step-00009999")
        (folder / "step-00009999" / "COMPLETE").unlink()
        (folder / "step-00008888").mkdir()
        (folder / "step-00008888" / "COMPLETE").touch()
        put(trained, folder, SECOND)
        until_served(server, SECOND)
        put(trained, folder, THIRD)
        until_served(server, THIRD)
        wait_until(lambda: 135 in steps, "an answer of the newest to a client")
    finally:
        ended.set()
        for client in clients:
            client.join()
    assert failed == []
    assert steps >= {45, 135}
    text = server.task.text
    assert text.count(f"serve n1: warning: skips {LAST} from n1: state.pt fails its") == 1
    story = [line for line in text.splitlines() if " serves " in line]
    accuracy = json.loads((trained / THIRD / "manifest.json").read_text())["accuracy"]
    expected = (
        f"serve n1: serves {THIRD} of digits, the newest: epoch 3, accuracy {accuracy * 100:.1f} %,"
        " from n1"
    )
    assert story[-1] == expected
    assert [line.split()[3] for line in story] == [FIRST, SECOND, THIRD]


def test_others_checkpoints_are_fetched_and_verified(
    trained: Path, local: Hosts, tmp_path: Path
) -> None:
    theirs, tampered = tmp_path / "n2", tmp_path / "n3"
    put(trained, theirs, FIRST)
    put(trained, tampered, LAST)
    damage(tampered / LAST)
    _, port = endpoint(local, theirs)
    _, other = endpoint(local, tampered, "n3")
    # A name, and an address without a listener.
    sources = f"http://localhost:{port},http://127.0.0.1:{other},http://127.0.0.1:{free_port()}"
    server = start(local, tmp_path / "absent", environ={"KIT_CHECKPOINT_SOURCES": sources})
    assert served(server) == FIRST
    assert server.predict(inputs(1)).json["checkpoint"]["host"] == "n2"
    put(trained, theirs, SECOND)
    until_served(server, SECOND)
    text = server.task.text
    refused = f"serve n1: warning: skips {LAST} from 127.0.0.1:{other}: state.pt fails its"
    assert text.count(refused) == 1
    assert f"serves {SECOND} of digits, the newest: epoch 2, accuracy " in text
    assert "Traceback" not in text


@pytest.mark.parametrize("wish", ["best", THIRD])
def test_the_best_or_a_named_one(wish: str, trained: Path, local: Hosts, tmp_path: Path) -> None:
    folder = tmp_path / "own"
    put(trained, folder, FIRST, SECOND, THIRD, LAST)
    manifests = {
        path: json.loads((path / "manifest.json").read_text()) for path in folder.iterdir()
    }
    best = max(manifests, key=lambda path: (manifests[path]["accuracy"], path.name)).name
    server = start(local, folder, checkpoint=wish)
    assert served(server) == (best if wish == "best" else THIRD)


def offer(step: int, accuracy: float | None = 0.5, written: float = 0, sha: str = "") -> Offer:
    name = f"step-{step:08d}"
    return Offer(
        name, step, 1, accuracy, "n1", written, sha or f"{step}-{written}", 1, None, accuracy
    )


def test_what_is_better_than_what_is_served() -> None:
    found = [offer(1, 0.9), offer(3, None), offer(2, 0.7)]
    assert [each.step for each in candidates(found, "newest", None)] == [3, 2, 1]
    assert [each.step for each in candidates(found, "best", None)] == [1, 2, 3]
    assert [each.step for each in candidates(found, "step-00000002", None)] == [2]
    assert [each.step for each in candidates(found, "newest", found[2])] == [3]
    assert candidates(found, "newest", found[1]) == []
    assert candidates([], "newest", found[1]) == []


def test_a_list_says_by_what_the_best_of_a_text_is_the_best() -> None:
    text = Manifest(3, 1, 0.4, "poem", 9, "0" * 64, 2.25, text=True)
    listed = described(Found("step-00000003", 1e9, text), "n2")
    there = read_offer(json.loads(json.dumps(listed)), "poem", ("127.0.0.1", 1))
    assert there == offer_of(text, "n2", 1e9, ("127.0.0.1", 1))
    assert (there.score, there.figure) == (-2.25, "loss 2.25")


def test_a_job_that_has_begun_anew_is_followed() -> None:
    served, fresh = offer(300, 0.9, 1000), offer(30, 0.5, 2000)
    older = offer(270, 0.9, 900)
    # As long as anybody has it, or only older ones are left, it stays.
    assert candidates([served, fresh], "newest", served) == []
    assert candidates([older], "newest", served) == []
    assert candidates([fresh], "newest", served) == [fresh]
    # Its source does not answer for a moment.
    assert candidates([fresh], "newest", served, [served]) == []
    again = offer(300, 0.8, 2000)
    assert candidates([again], "step-00000300", served) == [again]


@pytest.mark.parametrize(
    "content",
    [None, 1, [1], {}, {"manifest": {}}, {"manifest": [], "name": 3}, {"a": "b"}],
)
def test_whatever_a_source_lists_does_no_harm(content: object) -> None:
    with pytest.raises(UnusableError):
        read_offer(content, "digits", ("127.0.0.1", 1))


# ---- the endpoint


def raw(port: int, path: str) -> tuple[int, bytes]:
    """Request a path unchanged: clients normalise paths with dots."""
    with socket.create_connection(("127.0.0.1", port), timeout=DEADLINE) as connection:
        connection.sendall(f"GET {path} HTTP/1.0\r\n\r\n".encode())
        content = b""
        while part := connection.recv(2**16):
            content += part
    head, _, body = content.partition(b"\r\n\r\n")
    return int(head.split()[1]), body


def test_the_endpoint_gives_what_manifests_name_and_nothing_else(
    trained: Path, local: Hosts, tmp_path: Path
) -> None:
    folder = tmp_path / "n2"
    put(trained, folder, FIRST, SECOND, THIRD)
    (folder / SECOND / "COMPLETE").unlink()
    (folder / FIRST / "secret.txt").write_text("no")
    (folder / "metrics.jsonl").write_text("{}")
    (folder / THIRD / "state.pt").unlink()
    (folder / THIRD / "state.pt").symlink_to(trained / THIRD / "state.pt")
    (folder / LAST).symlink_to(trained / LAST)
    os.mkfifo(folder / "step-00000777")
    task, port = endpoint(local, folder)
    status, body = raw(port, "/checkpoints")
    assert status == 200
    listed = json.loads(body)
    # Only the one that is whole.
    assert [each["name"] for each in listed] == [FIRST]
    first = listed[0]
    assert (first["step"], first["host"]) == (45, "n2")
    assert first["accuracy"] == first["manifest"]["accuracy"] > 0.5
    assert first["files"] == {"state.pt": (trained / FIRST / "state.pt").stat().st_size}
    assert abs(first["written"] - (folder / FIRST / "COMPLETE").stat().st_mtime) < 1
    for name in ("manifest.json", "state.pt"):
        assert raw(port, f"/checkpoints/{FIRST}/{name}") == (
            200,
            (trained / FIRST / name).read_bytes(),
        )
    assert raw(port, "/health")[0] == 200
    for path in (
        *("/", "/checkpoints/", f"/checkpoints/{FIRST}", f"/checkpoints/{FIRST}/"),
        *(f"/checkpoints/{FIRST}/secret.txt", f"/checkpoints/{FIRST}/COMPLETE"),
        *(f"/checkpoints/{SECOND}/state.pt", f"/checkpoints/{THIRD}/state.pt"),
        *(f"/checkpoints/{LAST}/state.pt", "/checkpoints/step-00000777/state.pt"),
        *("/checkpoints/../n2/metrics.jsonl", "/metrics.jsonl", "//etc/passwd", "/etc/passwd"),
        f"/checkpoints/{FIRST}/../{FIRST}/state.pt",
        f"/checkpoints/{FIRST}/..%2f{FIRST}%2fstate.pt",
        f"/checkpoints/{FIRST}/state.pt\0",
    ):
        assert raw(port, path)[0] == 404, path
    before = sorted(folder.rglob("*"))
    task.process.terminate()
    assert task.wait() == 0
    assert sorted(folder.rglob("*")) == before
    assert task.text.endswith("serve n2: ends on SIGTERM\n")


def test_what_is_pruned_while_it_is_read_is_read_to_the_end(
    trained: Path, local: Hosts, tmp_path: Path
) -> None:
    folder = tmp_path / "n2"
    put(trained, folder, FIRST)
    # More than the buffers between two sockets hold.
    size = 32 * 2**20
    with (folder / FIRST / "state.pt").open("r+b") as stream:
        stream.truncate(size)
    _, port = endpoint(local, folder)
    with socket.create_connection(("127.0.0.1", port), timeout=DEADLINE) as connection:
        connection.sendall(f"GET /checkpoints/{FIRST}/state.pt HTTP/1.0\r\n\r\n".encode())
        received = len(connection.recv(1024))
        shutil.rmtree(folder / FIRST)
        assert raw(port, "/checkpoints") == (200, b"[]")
        while part := connection.recv(2**20):
            received += len(part)
    assert received > size
