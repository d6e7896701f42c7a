"""Bad sources and checkpoints of all kinds do not stop a server."""

import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.trainer.hostile import (
    Answer,
    Source,
    changed,
    entry,
    everything,
    http,
    offering,
    sources,
)
from tests.trainer.hosts import Hosts, hosts, wait_until
from tests.trainer.servers import Server, content, put, start
from tests.trainer.test_serve_reload import endpoint, served, until_served
from trainer.serve.sources import FREE, LONGEST_PAUSE, Pause

FIRST, SECOND, THIRD, LAST = (f"step-{step:08d}" for step in (45, 90, 135, 360))


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Hosts]:
    with hosts(tmp_path) as result:
        yield result


def urls(*found: Source) -> dict[str, str]:
    return {"KIT_CHECKPOINT_SOURCES": ",".join(f"http://{each.place}" for each in found)}


def about(server: Server, what: str) -> list[str]:
    """The warnings of a server about something."""
    return [line for line in server.task.text.splitlines() if "warning" in line and what in line]


def test_each_source_and_each_checkpoint_fails_alone(
    trained: Path, local: Hosts, tmp_path: Path
) -> None:
    own = tmp_path / "own"
    put(trained, own, FIRST)
    whole = content(trained / SECOND)
    with sources(everything(trained, FIRST)) as bad, sources({"good": offering(whole)}) as good:
        server = start(local, own, environ=urls(*bad.values(), *good.values()), wait="/health")
        until_served(server, SECOND)
        put(trained, own, THIRD)
        until_served(server, THIRD)
        # All have been asked some times, and have said all that they have to say.
        wait_until(lambda: all(about(server, each.place) for each in bad.values()), "all lines")
        before = {
            name: (len(each.asked), len(about(server, each.place))) for name, each in bad.items()
        }
        asked = len(good["good"].asked)
        wait_until(lambda: len(good["good"].asked) > asked + 30, "thirty polls")
        for name, source in bad.items():
            count, lines = before[name]
            # At every poll it would be thirty times more.
            fetched = sum("state.pt" in path for path in source.asked)
            listed_well = sum(path == "/checkpoints" for path in source.asked) > 30
            assert fetched <= 15, name
            assert listed_well or len(source.asked) - count <= 10, name
            assert len(about(server, source.place)) == lines == 1, name
    text = server.task.text
    assert served(server) == THIRD
    assert "Traceback" not in text
    assert "\x1b" not in text
    assert not [line for line in text.splitlines() if "99999999" in line and "warning" not in line]


def test_what_is_wrong_in_ones_own_folder_is_told_once(
    trained: Path, local: Hosts, tmp_path: Path
) -> None:
    own = tmp_path / "own"
    put(trained, own, FIRST)
    manifest = json.loads((trained / LAST / "manifest.json").read_text())
    wrong = {
        "step-00000401": "[" * 100_000,
        "step-00000402": json.dumps({**manifest, "step": 402}).replace("402", "1e999"),
        "step-00000403": json.dumps({**manifest, "step": 403, "files": []}),
        "step-00000404": json.dumps({**manifest, "step": 404, "accuracy": float("nan")}),
        "step-00000405": '{"step": 405, ' + json.dumps({**manifest, "step": 405})[1:],
        "step-00000406": " " * (2**22 + 1),
        "step-00000410": json.dumps({**manifest, "step": 410, "job": {"name": 7}}),
    }
    for name, text in wrong.items():
        put(trained, own, LAST)
        (own / LAST / "manifest.json").write_text(text)
        (own / LAST).rename(own / name)
    put(trained, own, LAST)
    (own / LAST).rename(own / "step-00000407")  # By its manifest it is another.
    put(trained, own, LAST)
    (own / LAST / "state.pt").unlink()
    (own / LAST / "state.pt").symlink_to("/dev/zero")
    (own / LAST).rename(own / "step-00000408")
    os.mkfifo(own / "step-00000409")
    server = start(local, own)
    assert served(server) == FIRST
    put(trained, own, SECOND)
    until_served(server, SECOND)
    for name in (*wrong, "step-00000407", "step-00000408"):
        assert len(about(server, name)) == 1, name
    # The endpoint does not offer them either, and serves those that it offers.
    task, port = endpoint(local, own)
    other = start(
        local, tmp_path / "none", environ={"KIT_CHECKPOINT_SOURCES": f"http://127.0.0.1:{port}"}
    )
    assert served(other) == SECOND
    assert about(other, f"127.0.0.1:{port}") == []
    assert "Traceback" not in task.text + server.task.text


@pytest.mark.parametrize("remote", [False, True])
def test_a_copy_is_taken_once_it_is_whole(
    remote: bool, trained: Path, local: Hosts, tmp_path: Path
) -> None:
    """As `cp -r` makes it: COMPLETE first, then the state bit by bit."""
    folder = tmp_path / "copied"
    put(trained, folder, FIRST)
    environ, own = dict[str, str](), folder
    if remote:
        _, port = endpoint(local, folder)
        environ, own = {"KIT_CHECKPOINT_SOURCES": f"http://127.0.0.1:{port}"}, tmp_path / "none"
    server = start(local, own, environ=environ)
    (folder / SECOND).mkdir()
    whole = content(trained / SECOND)
    for name, text in (
        ("COMPLETE", b""),
        ("manifest.json", whole.manifest[:99]),
        ("state.pt", b""),
    ):
        (folder / SECOND / name).write_bytes(text)
    time.sleep(0.5)
    (folder / SECOND / "manifest.json").write_bytes(whole.manifest)
    for length in (5, len(whole.state) // 2, len(whole.state) - 1):
        (folder / SECOND / "state.pt").write_bytes(whole.state[:length])
        time.sleep(0.5)
    # Some programs make room for all of it first.
    (folder / SECOND / "state.pt").write_bytes(whole.state[:-9] + bytes(9))
    wait_until(lambda: bool(about(server, "fails its checksum")), "the checksum")
    assert served(server) == FIRST
    with (folder / SECOND / "state.pt").open("r+b") as stream:
        stream.seek(-9, os.SEEK_END)
        stream.write(whole.state[-9:])
    until_served(server, SECOND)


def test_a_training_that_begins_anew_is_followed_from_elsewhere(
    trained: Path, local: Hosts, tmp_path: Path
) -> None:
    theirs = tmp_path / "n2"
    put(trained, theirs, LAST)
    twin = changed(content(trained / LAST), content(trained / FIRST).state, step=360)
    listed = json.dumps([entry(twin, written=1e9)])
    _, port = endpoint(local, theirs)
    gives: Callable[[str], Answer] = offering(twin, listed)
    begun = threading.Event()

    def later(path: str) -> Answer:
        return gives(path) if begun.is_set() else http(b"[]")

    with sources({"twin": later}) as others:
        environ = {
            "KIT_CHECKPOINT_SOURCES": f"http://127.0.0.1:{port},http://{others['twin'].place}"
        }
        server = start(local, tmp_path / "none", environ=environ)
        until_served(server, LAST)
        begun.set()
        # Two of the same step: the one that is served first stays.
        asked = len(others["twin"].asked)
        wait_until(lambda: len(others["twin"].asked) > asked + 5, "some polls")
        lines = server.task.text.count(f"serves {LAST}")
        assert lines == 1
    put(trained, theirs, FIRST)
    os.utime(theirs / FIRST / "COMPLETE")
    time.sleep(0.5)
    assert served(server) == LAST
    shutil.rmtree(theirs / LAST)
    until_served(server, FIRST)


def test_pauses_grow_and_end() -> None:
    pause, now, lengths = Pause(2.0), 100.0, []
    for _ in range(FREE + 8):
        pause.failed(now)
        lengths.append(pause.until - now)
    assert lengths[: FREE + 3] == [0, 0, 0, 4, 8, 16]
    assert lengths[-1] == LONGEST_PAUSE
    assert not pause.over(now + 1)
    assert pause.over(now + LONGEST_PAUSE)
    pause.succeeded()
    assert pause.over(now)
