"""Events of the training, the launcher and the server, read as kit reads them."""

import json
import os
import pty
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import MISSING, asdict, fields
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.report.moments import moments
from kit.runtime.lines import split
from kit.runtime.status import LogLine
from tests.trainer import servers
from tests.trainer.hosts import (
    DEADLINE,
    ENDLESS,
    PACE,
    ROOT,
    Hosts,
    Task,
    hosts,
    kill,
    metrics,
    wait_until,
    write_job,
)
from tests.warm import warm_python
from trainer.contract.event_lines import line, parse
from trainer.contract.events import (
    KINDS,
    Begin,
    Ended,
    Epoch,
    Event,
    Failed,
    Kept,
    Member,
    Progress,
    Regrouped,
    Restart,
    Resumed,
    Saved,
    Serving,
    Started,
    Stopped,
)
from trainer.contract.limit_events import Limit
from trainer.contract.mark import MARK, VERSION
from trainer.contract.queue_events import Allocated
from trainer.contract.session_events import Session
from trainer.core.announce import event_seconds
from trainer.launcher.failures import exception_in
from trainer.launcher.output import event
from trainer.launcher.worker import Prefix
from trainer.train import gpu_fault

OFTEN = """
import sys
from trainer import train
from trainer.core import announce
announce.event_seconds = lambda age: 0
sys.exit(train.main())
"""
SAMPLE: dict[str, Any] = {
    "gpus": ("GPU-a", "MIG-b"),
    "checkpoint": "step-00000300",
    "source": "pc1",
    "data_set": "cifar10",
    "state": "fetching",
    "kind": "loss",
    "message": "the loss is not finite",
    "reason": "ValueError: nothing to learn",
    "time": 1.5,
    "loss": 0.5,
    "accuracy": 0.9,
    "images_per_second": 12.5,
    "seconds_left": 3.0,
    "host": "n1",
    "metrics": {"mae": 0.25},
    "top5_accuracy": 0.99,
    "class_accuracy": {"cat": 0.5},
    "class_samples": {"cat": 12},
}
OWN: dict[type[Event], dict[str, Any]] = {
    Session: {"ssh": "", "jupyter": "", "ended": "its time is over"},
    Kept: {"version": "2.20", "files": ("snapshot.pt",)},
    Member: {"failure": "n1: ValueError: no memory"},
    Regrouped: {"hosts": ("n1", "n2")},
    Limit: {"key": "idle"},
    Allocated: {"owner": "anna", "gpus": 2},
}


def sample(kind: type[Event]) -> Event:
    """An event of a kind, with a value for every field."""
    known = {**SAMPLE, **OWN.get(kind, {})}
    return kind(**{each.name: known.get(each.name, 7) for each in fields(kind)})


@pytest.mark.parametrize("kind", KINDS.values())
def test_an_event_is_read_as_it_was_written(kind: type[Event]) -> None:
    event = sample(kind)
    assert parse(line(event)) == event
    content = json.loads(line(event).removeprefix(MARK))
    assert (content["v"], content["event"]) == (VERSION, kind.NAME)
    # A newer writer may say more; an older one said less.
    assert parse(MARK + json.dumps({**content, "later": [1]})) == event
    for each in fields(kind):
        less = {key: value for key, value in content.items() if key != each.name}
        needed = each.default is MISSING and each.default_factory is MISSING
        assert (parse(MARK + json.dumps(less)) is None) is needed
        # No field has such values.
        assert parse(MARK + json.dumps({**content, each.name: {"a": {}}})) is None


def test_what_is_not_finite_is_left_out() -> None:
    event = Progress(epoch=0, epochs=1, step=1, steps=2, world_size=1, loss=float("nan"))
    read = parse(line(event))
    assert isinstance(read, Progress)
    assert read.loss is None


JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
NAMES = sorted({each.name for kind in KINDS.values() for each in fields(kind)})


@given(st.text())
def test_any_line_is_read_or_passed_over(text: str) -> None:
    assert parse(text) is None or text.startswith(MARK)
    assert parse(MARK + text) is None or text.lstrip().startswith("{")


@given(st.dictionaries(st.sampled_from(NAMES), JSON), st.sampled_from(sorted(KINDS)) | JSON)
def test_any_object_behind_the_mark_is_an_event_or_none(content: dict[str, Any], name: Any) -> None:
    read = parse(MARK + json.dumps({"v": VERSION, "event": name, **content}))
    assert read is None or parse(line(read)) is not None
    if read is not None:
        # Every parsed event is valid: each value has its field's type.
        assert isinstance(read.time, (int, float))
        assert asdict(read)


@pytest.mark.parametrize(("age", "seconds"), [(0, 1), (59, 1), (300, 5), (86400, 10)])
def test_events_of_a_long_run_are_rarer(age: float, seconds: float) -> None:
    assert event_seconds(age) == seconds


def train_alone(local: Hosts, job: Path, folder: Path) -> Task:
    environ: dict[str, str | Path] = {"KIT_CHECKPOINTS": folder, "PYTHONPATH": ROOT}
    task = local.start("alone", ["-c", OFTEN], {**environ, "KIT_JOB": job})
    assert task.wait() == 0, task.text
    return task


def test_a_training_tells_its_progress(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    with hosts(tmp_path) as local:
        job = write_job(tmp_path, epochs=2, batch_size=512, keep=1)
        task = train_alone(local, job, folder)
        assert isinstance(task.events[0], Begin)
        assert task.of(Begin)[0].steps == 6
        assert [each.step for each in task.of(Progress)] == [1, 2, 3, 4, 5, 6]
        known, told = metrics(folder)[1:3], task.of(Epoch)
        assert [(each.epoch, each.epochs, each.step, each.steps) for each in told] == [
            (1, 2, 3, 6),
            (2, 2, 6, 6),
        ]
        for row, event in zip(known, told, strict=True):
            assert (event.loss, event.accuracy) == (row["loss"], row["accuracy"])
            assert event.images_per_second == row["images_per_second"]
        assert told[0].seconds_left is not None
        assert told[0].seconds_left > 0
        assert told[1].seconds_left == 0
        # A reader that begins in the second epoch knows the results of the first.
        later = [each for each in task.of(Progress) if each.epoch == 1]
        assert {each.accuracy for each in later} == {told[0].accuracy}
        assert [each.checkpoint for each in task.of(Saved)] == ["step-00000003", "step-00000006"]
        assert told[1].checkpoint == "step-00000006"

        again = train_alone(local, write_job(tmp_path, epochs=3, batch_size=512), folder)
        (resumed,) = again.of(Resumed)
        assert (resumed.epoch, resumed.step, resumed.checkpoint) == (2, 6, "step-00000006")
        first = again.of(Progress)[0]
        assert (first.step, first.accuracy) == (7, told[1].accuracy)
        # One step of three is done since the training went on.
        assert first.seconds_left is not None
        assert again.of(Epoch)[0].seconds_left == 0


def test_a_lost_worker_is_a_restart_of_it_alone(tmp_path: Path) -> None:
    job = write_job(tmp_path, **ENDLESS)
    with hosts(tmp_path) as local:
        task = local.agent("pc1", job, local.rendezvous("1:1"), 2, **PACE)
        wait_until(lambda: bool(task.of(Saved)), "a checkpoint")
        kill(task.workers()[1])
        wait_until(lambda: bool(task.of(Regrouped)), "another group")
        epochs = len(task.of(Epoch))
        wait_until(lambda: len(task.of(Epoch)) > epochs, "an epoch more")
        task.process.send_signal(signal.SIGTERM)
        assert task.wait() == 128 + signal.SIGTERM
    assert [each.restarts for each in task.of(Restart)] == [1]
    assert isinstance(task.events[0], Started)
    # Each tells its place once in each group, and every minute.
    members = sorted({(each.restarts, each.rank, each.local_rank) for each in task.of(Member)})
    assert [restarts for restarts, _, _ in members] == [0, 0, 1]
    assert {(rank, local_rank) for _, rank, local_rank in members} == {(0, 0), (1, 1)}
    assert {each.world_size for each in task.of(Member)} == {2}
    assert [each.exit_code for each in task.of(Ended)] == [128 + signal.SIGTERM]
    (stopped,) = task.of(Stopped)
    assert stopped.checkpoint == task.of(Saved)[-1].checkpoint == f"step-{stopped.step:08d}"
    assert not task.of(Resumed)  # No step was taken again.
    assert not [each for each in task.of(Failed) if each.kind != "peer"]


def own(folder: Path, script: str) -> Path:
    (folder / "own.py").write_text(script)
    path = folder / "own.json"
    path.write_text(json.dumps({"name": "own", "command": [str(folder / "own.py")]}))
    return path


def test_a_script_tells_its_world_too(tmp_path: Path) -> None:
    with hosts(tmp_path) as local:
        job = own(tmp_path, "print('@kit is a word of mine')\nprint('@kit {}')\n")
        task = local.agent("pc1", job, local.rendezvous(script=True), 2, "1:1")
        assert task.wait() == 0
        printed = task.log.read_text()
    for rank in (0, 1):
        assert f"[rank{rank}]: @kit is a word of mine\n" in printed
    lines = (text.partition("]: ")[2] for text in printed.splitlines() if text.startswith("[rank"))
    found = [event for event in map(parse, lines) if event is not None]
    assert {(each.rank, each.world_size) for each in found if isinstance(each, Member)} == {
        (0, 2),
        (1, 2),
    }


@pytest.mark.parametrize(
    ("script", "code", "status", "kinds"),
    [
        # The same exit status three times: a fault of the script.
        ("import sys; sys.exit(7)", 7, 2, ["worker"] * 3 + ["input"]),
        # A kernel or a person may have killed it: its restarts are used up.
        ("import os; os.kill(os.getpid(), 9)", 137, 1, ["killed"] * 5),
    ],
)
def test_a_script_that_fails_is_told_with_its_class(
    script: str, code: int, status: int, kinds: list[str], tmp_path: Path
) -> None:
    with hosts(tmp_path) as local:
        task = local.agent("pc1", own(tmp_path, script), local.rendezvous(script=True), 1, "1:1")
        assert task.wait() == status
    failed = task.of(Failed)
    assert [each.kind for each in failed] == kinds
    assert {(each.rank, each.exit_code) for each in failed} == {(0, code)}
    assert failed[-1].message.startswith("rank 0 failed first on this host")
    assert [each.restarts for each in task.of(Restart)] == [*range(1, len(kinds) - 1)]


def test_a_restart_has_the_exception_that_caused_it(tmp_path: Path) -> None:
    script = """\
import os, time
if os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    raise ValueError("nothing to learn")
time.sleep(1)
"""
    with hosts(tmp_path) as local:
        task = local.agent("pc1", own(tmp_path, script), local.rendezvous(script=True), 2, "1:1")
        assert task.wait() == 0
    assert [each.exit_code for each in task.of(Ended)] == [0]
    reasons = sorted((each.restarts, each.reason) for each in task.of(Restart))
    place = f"{tmp_path}/own.py:3"
    assert reasons == [(1, ""), (1, f"ValueError: nothing to learn ({place})")]
    printed = task.log.read_text().splitlines()
    read = [LogLine("own", "pc1", split(text)[1]) for text in printed]
    words = [moment.words for moment in moments(read) if "restarted" in moment.words]
    assert words[-1] == (
        f"its ranks are restarted, 1 restart so far: ValueError: nothing to learn ({place})"
    )


@pytest.mark.parametrize(
    ("error", "kind", "code"),
    [
        ("CUDA error: an illegal memory access was encountered\nCUDA kernel errors", "gpu", 1),
        ("CUDA error: unspecified launch failure", "gpu", 1),
        ("CUDA error: device-side assert triggered\nCUDA kernel errors might be", "input", 2),
    ],
)
def test_an_assertion_on_a_gpu_is_no_broken_gpu(error: str, kind: str, code: int) -> None:
    found = gpu_fault(RuntimeError(error))
    assert (found[0], found[2]) == (kind, code)
    assert found[1].startswith(error.splitlines()[0])


def test_what_keeps_the_launcher_from_starting_has_a_class(tmp_path: Path) -> None:
    good = {"KIT_RENDEZVOUS_TIMEOUT": "1", "KIT_DATA": str(tmp_path)}
    job, closed = write_job(tmp_path), "127.0.0.1:9"
    without_data = write_job(tmp_path, name="mnist", dataset="mnist")
    wrong = write_job(tmp_path, name="wrong", epochs=0)
    gpus = {"NVIDIA_VISIBLE_DEVICES": "GPU-a", "PATH": "/nowhere"}
    cases: list[tuple[str, Path, dict[str, str], int]] = [
        ("input", tmp_path / "none.json", good, 2),
        ("input", wrong, good, 2),
        ("data", without_data, good, 2),
        ("disk", job, {**good, "KIT_CHECKPOINTS": "/nowhere"}, 2),
        ("rendezvous", job, good, 1),
        ("gpu", job, {**good, **gpus}, 1),
    ]
    with hosts(tmp_path) as local:
        for kind, file, environ, code in cases:
            task = local.agent("pc1", file, closed, 1, "1:1", **environ)
            assert task.wait() == code, task.text
            failed = task.events[-1]
            assert isinstance(failed, Failed)
            assert (failed.kind, failed.exit_code) == (kind, code)


def test_the_trainings_own_failure_keeps_its_class(tmp_path: Path) -> None:
    job = write_job(tmp_path, epochs=2, learning_rate=1e30)
    with hosts(tmp_path) as local:
        task = local.agent("pc1", job, local.rendezvous("1:1"), 1)
        assert task.wait() == 1
    trainer, launcher = task.of(Failed)
    assert (trainer.kind, trainer.rank) == ("loss", 0)
    assert (launcher.kind, launcher.message) == ("loss", trainer.message)


def test_a_training_does_not_go_on_by_a_processor_in_place_of_its_gpus(tmp_path: Path) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'GPU 0: TITAN RTX (UUID: GPU-a)'\n")
    program.chmod(0o755)
    more = {"NVIDIA_VISIBLE_DEVICES": "all", "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    with hosts(tmp_path) as local:
        job = write_job(tmp_path, epochs=1)
        task = local.agent("pc1", job, local.rendezvous("1:1"), 1, "1:1", **more)
        assert task.wait() == 1
        failed = task.of(Failed)
        job = write_job(tmp_path, epochs=1, device="cpu")
        chosen = local.agent("pc2", job, local.rendezvous("1:1"), 1, "1:1", **more)
        assert chosen.wait() == 0, chosen.text
    assert failed[0].kind == "gpu"
    assert "this container has 1 GPU, and PyTorch can use 0: " in failed[0].message


SPLIT = """GPU 0: A100 (UUID: GPU-a)
  MIG 1g.5gb Device 0: (UUID: MIG-b)
  MIG 1g.5gb Device 1: (UUID: MIG-c)
GPU 1: A100 (UUID: GPU-d)
"""


def test_a_gpu_that_is_split_is_told_by_its_instances(tmp_path: Path) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{SPLIT}END\n")
    program.chmod(0o755)
    more = {"NVIDIA_VISIBLE_DEVICES": "all", "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    with hosts(tmp_path) as local:
        job = own(tmp_path, "pass")
        task = local.agent("pc1", job, local.rendezvous(script=True), 1, "1:1", **more)
        assert task.wait() == 0, task.text
    (started,), (member,) = task.of(Started), task.of(Member)
    assert started.gpus == member.gpus == ("MIG-b", "MIG-c", "GPU-d")


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Hosts]:
    with hosts(tmp_path) as found:
        yield found


def test_a_server_tells_what_it_answers_with(local: Hosts) -> None:
    job = write_job(local.folder, epochs=1)
    train_alone(local, job, local.folder / "c")
    server = servers.start(local, local.folder / "c")
    wait_until(lambda: bool(server.task.of(Serving)), "a checkpoint")
    started, serving = server.task.events
    assert started == Started(gpus=(), time=started.time)
    assert isinstance(serving, Serving)
    assert (serving.checkpoint, serving.replicas, serving.source) == ("step-00000045", 1, "n1")
    wrong = local.start("wrong", ["-m", "trainer.serve"], {"PYTHONPATH": ROOT, "KIT_SERVER": "x"})
    assert wrong.wait() == 2
    assert [(each.kind, each.exit_code) for each in wrong.of(Failed)] == [("input", 2)]


def test_a_terminal_shows_none(tmp_path: Path) -> None:
    job = write_job(tmp_path, epochs=1)
    environ = {"KIT_JOB": str(job), "KIT_CHECKPOINTS": str(tmp_path / "c"), "PATH": "/usr/bin:/bin"}
    command = f"{warm_python().executable} -m trainer.train"
    shown = subprocess.run(
        ["script", "--quiet", "--return", "--command", command, "/dev/null"],
        env={**environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=True,
        timeout=DEADLINE,
    ).stdout.decode()
    assert "saved step-00000045" in shown
    assert MARK not in shown


def test_a_workers_events_end_at_a_terminal() -> None:
    """The worker writes into a pipe; its lines may yet be shown to a person."""
    reader, terminal = pty.openpty()
    told, copy = os.pipe()
    environ = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2"}
    for target in (terminal, copy):
        source, worker = os.pipe()
        os.write(worker, b"hello\n" + line(sample(Saved)).encode() + b"\n")
        os.close(worker)
        Prefix(environ, [source], [target]).copy()
    os.write(terminal, b"end\n")
    shown, passed_on = "", os.read(told, 9999).decode()
    while "end" not in shown:  # A terminal may give its lines one by one.
        shown += os.read(reader, 9999).decode()
    assert shown.replace("\r", "").splitlines() == ["[rank1]: hello", "end"]
    found = [parse(text.removeprefix("[rank1]: ")) for text in passed_on.splitlines()]
    assert isinstance(found[0], Member)
    assert (found[1], found[2]) == (None, sample(Saved))


def test_the_exception_of_a_worker_is_never_read_in_part(tmp_path: Path) -> None:
    """The agent looks for the file while it is written: its content must come at once."""
    environ = {"LOCAL_RANK": "0", "KIT_WORKERS": "sock", "KIT_LAST_WORDS": str(tmp_path)}
    source, worker = os.pipe()
    target = os.open(os.devnull, os.O_WRONLY)
    os.write(worker, b"ValueError: a mistake\n")
    copier = Thread(target=Prefix(environ, [source], [target]).copy)
    copier.start()
    wait_until((tmp_path / "said-0").exists, "the copier")
    file = tmp_path / "local-0"
    file.write_text("before")
    with file.open() as reader:
        os.close(worker)
        copier.join()
        assert reader.read() == "before"
    assert exception_in(file, 1) == "ValueError: a mistake"


def test_the_launcher_writes_events_as_the_contract_does() -> None:
    assert parse(event("restart", restarts=2)) is not None


def test_the_reference_shows_an_event_that_is_read() -> None:
    page = (ROOT / "docs/reference/events.md").read_text()
    example = next(text for text in page.splitlines() if "[rank0]: @kit" in text)
    assert isinstance(parse(example.partition("]: ")[2]), Saved)
