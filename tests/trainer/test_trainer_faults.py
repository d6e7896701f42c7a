"""Failures in a worker, and the messages for the user: real processes on gloo."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer.hosts import (
    LAUNCH,
    Hosts,
    Task,
    complete_steps,
    hosts,
    metrics,
    write_job,
    write_programs,
)
from trainer.contract import event_lines, events
from trainer.core.compute import Norms
from trainer.parallel.equality import fingerprint

FAULTY = Path(__file__).with_name("faulty.py")
WITHOUT = (
    "at the same place without a checkpoint between: correct the script, then run `kit deploy`"
)


def own_job(folder: Path, script: Path) -> Path:
    """A job for the launcher that runs a script."""
    path = folder / "own.json"
    path.write_text(json.dumps({"name": "own", "command": [str(script)]}))
    return path


def faulty_pair(
    local: Hosts, fault: str, at: int, rank: int = 1, epochs: int = 2, **changes: Any
) -> tuple[Task, Task]:
    """Train on two hosts of 1 + 2 processes with a fault on one rank, until both have ended."""
    job = write_job(local.folder, epochs=epochs, **changes)
    more = {"FAULT": fault, "FAULT_AT": str(at), "FAULT_RANK": str(rank)}
    tasks = local.pair(job, "2:2", [FAULTY], **more)
    for task in tasks:
        task.wait()
    return tasks


def host_of(rank: int, tasks: tuple[Task, Task]) -> str:
    """Which of the two hosts had a rank when it failed: the order of joining decides."""
    text = tasks[0].text + tasks[1].text
    found = re.findall(rf"^rank {rank} of 3, local rank \d on (\w+)", text, re.MULTILINE)
    return str(found[-1])


def last_line(task: Task) -> str:
    return task.text.splitlines()[-1]


def bits(model: torch.nn.Module) -> list[torch.Tensor]:
    return [*model.parameters(), *model.buffers()]


def test_a_fingerprint_sees_every_bit_and_nothing_else() -> None:
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4))
    before = fingerprint(bits(model))
    twin = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4))
    twin.load_state_dict(model.state_dict())
    twin.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    assert fingerprint(bits(twin)) == before
    for tensor in twin.state_dict().values():
        flat = tensor.view(-1) if tensor.is_contiguous() else tensor.permute(0, 2, 3, 1).view(-1)
        was = flat[-1].clone()
        # The next representable number.
        flat[-1] = was + 1 if not was.is_floating_point() else torch.nextafter(was, was + 1)
        assert fingerprint(bits(twin)) != before
        flat[-1] = was
    weight = next(iter(twin.parameters())).data
    weight.copy_(weight.flip(0))
    assert fingerprint(bits(twin)) != before


@pytest.mark.parametrize(("fault", "rank", "epochs"), [("unlike", 0, 0), ("perturbed", 2, 1)])
def test_ranks_whose_parameters_differ_are_named(
    fault: str, rank: int, epochs: int, tmp_path: Path
) -> None:
    with hosts(tmp_path) as local:
        tasks = faulty_pair(local, fault, at=3, rank=rank)
        name = f"parameters of rank {rank} on {host_of(rank, tasks)} (cpu) are not those of rank "
        for task in tasks:
            assert task.process.returncode == 1
            assert name in last_line(task), task.text
            assert "Traceback" not in task.text
            assert not task.of(events.Restart)
    # At the start; or before the first checkpoint.
    folders = (tmp_path / "pc1", tmp_path / "pc2")
    assert len(metrics(*folders)) == epochs
    assert not any(map(complete_steps, folders))


def test_a_loss_that_is_not_finite_ends_the_training(tmp_path: Path) -> None:
    with hosts(tmp_path) as local:
        tasks = faulty_pair(local, "nan", at=18)
        # 15 steps an epoch; the third step of the second, of this seed's order.
        where = r"the loss is not finite in step 18, epoch 2: rank 1 on "
        for task in tasks:
            assert task.process.returncode == 1
            found = re.search(where + r"(\w+) \(cpu\), samples \[(.*)\]$", last_line(task))
            assert found, task.text
            assert found[1] == host_of(1, tasks)
            samples = {int(word) for word in found[2].split(",")}
            assert len(samples) == 32
            assert samples < set(range(1437))
            assert "Traceback" not in task.text
    assert (
        len([x for x in metrics(tmp_path / "pc1", tmp_path / "pc2") if x["event"] == "epoch"]) == 1
    )


@pytest.mark.long
def test_a_loss_that_is_not_finite_can_be_skipped(tmp_path: Path) -> None:
    with hosts(tmp_path) as local:
        # Of five seeds, the first learns latest: any change of its steps there changes its end.
        tasks = faulty_pair(local, "nan", at=18, on_nan="skip", epochs=6, seed=2)
        assert [task.process.returncode for task in tasks] == [0, 0]
        both = tasks[0].text + tasks[1].text
    assert both.count("skips an update, the loss is not finite in step 18, epoch 2: rank 1 on") == 1
    lines = metrics(tmp_path / "pc1", tmp_path / "pc2")
    assert [line["skipped"] for line in lines[1:4]] == [[], [18], []]
    assert all(line["loss"] < 3 for line in lines[1:])
    # Parameters, and BatchNorm's figures, are as good as ever.
    assert lines[-1]["accuracy"] > 0.93


def test_out_of_memory_says_which_batch_to_try(tmp_path: Path) -> None:
    with hosts(tmp_path) as local:
        tasks = faulty_pair(local, "memory", at=2)
        name = f"out of memory with batch_size 32 on rank 1 on {host_of(1, tasks)} (cpu); try "
        for task in tasks:
            assert task.process.returncode == 1
            assert name + "batch_size: 16 with accumulation: 2" in last_line(task), task.text
            assert "Traceback" not in task.text
        # Not restarted: that would repeat it.
        assert (tasks[0].text + tasks[1].text).count("rank 0 of 3") == 1


LATE = """\
import runpy, subprocess
wait = "while kill -0 $PPID 2>/dev/null; do sleep 0.05; done; sleep {seconds}; echo the last line"
subprocess.Popen(["sh", "-c", wait], start_new_session=True)
"""
TRAIN = "runpy.run_module('trainer.train', run_name='__main__')\n"


@pytest.mark.parametrize("trains", [False, True])
def test_a_host_ends_after_the_last_lines_of_its_workers(trains: bool, tmp_path: Path) -> None:
    """The process that copies them is killed with the container, thus after this host's end."""
    script = tmp_path / "own.py"
    # torchrun ends about a second after a script.
    late = LATE.format(seconds=0.5 if trains else 1.5)
    script.write_text(late + TRAIN if trains else late)
    with hosts(tmp_path) as local:
        job = write_job(tmp_path, epochs=1) if trains else own_job(tmp_path, script)
        program, nnodes = ([script], "") if trains else ([], "1:1")
        task = local.agent(
            "n1", job, local.rendezvous("1:1", script=not trains), 1, nnodes, program
        )
        assert task.wait() == 0, task.text
        assert "the last line\n" in task.text


def test_a_slow_rank_is_named_with_its_host_and_factor(tmp_path: Path) -> None:
    with hosts(tmp_path) as local:
        tasks = faulty_pair(local, "slow", at=0, batch_size=80)
        assert [task.process.returncode for task in tasks] == [0, 0]
        name = f"rank 1 on {host_of(1, tasks)} (cpu)"
        assert f"slow: {name} takes " in tasks[0].text + tasks[1].text
    lines = metrics(tmp_path / "pc1", tmp_path / "pc2")
    for line in lines[1:]:
        assert line["slow"][name] > 1.3
        assert max(line["slow"], key=line["slow"].get) == name
        assert sum(line["shares"].values()) == pytest.approx(1)
        assert all(share > 0 for share in line["shares"].values())
    # The two others wait for it.
    assert any(line["shares"]["communication"] > line["shares"]["data"] for line in lines[1:])


def test_a_mistake_in_a_worker_is_the_last_thing_that_is_said(tmp_path: Path) -> None:
    with hosts(tmp_path) as local:
        tasks = faulty_pair(local, "mistake", at=2)
        name = host_of(1, tasks)
        task = tasks[int(name == "pc2")]
        assert task.process.returncode == 1
        other = tasks[int(name == "pc1")]
        assert other.process.returncode == 1
        assert last_line(other).startswith(f"launch {host_of(0, tasks)}: error: {name}: rank 1 (")
    place = rf"{FAULTY}:\d+"
    said = rf"launch {name}: error: rank 1 \(local rank 0\) has failed, exit code 1: "
    said += rf"ValueError: a mistake in the model \({place}\)"
    assert re.fullmatch(said, last_line(task)), task.text
    assert task.text.count("it is restarted") == 3
    assert 'raise ValueError("a mistake in the model")' in task.text


def test_a_failed_script_is_told_by_rank_host_and_code(tmp_path: Path) -> None:
    script = tmp_path / "own.py"
    script.write_text(
        "import os, sys, time\nos.environ['RANK'] == '1' and sys.exit(7)\ntime.sleep(60)"
    )
    with hosts(tmp_path) as local:
        job = own_job(tmp_path, script)
        temporary = tmp_path / "temporary"
        temporary.mkdir()
        endpoint = local.rendezvous(script=True)
        task = local.agent("pc1", job, endpoint, 2, "1:1", TMPDIR=temporary)
        assert task.wait() == 2
        assert last_line(task) == (
            "launch pc1: error: rank 1 failed first on this host (local rank 1), exit code 7"
            f"; 3 times {WITHOUT}"
        )
    # Nothing of torchrun's is left behind.
    assert list(temporary.iterdir()) == []


def test_a_script_that_lacks_a_module_is_told_and_is_a_mistake(tmp_path: Path) -> None:
    script = tmp_path / "own.py"
    script.write_text("print('begins')\nimport no_such_module\n")
    with hosts(tmp_path) as local:
        task = local.agent(
            "pc1", own_job(tmp_path, script), local.rendezvous(script=True), 1, "1:1"
        )
        assert task.wait() == 2
    said = (
        "launch pc1: error: rank 0 failed first on this host (local rank 0), exit code 1: "
        f"ModuleNotFoundError: No module named 'no_such_module' ({script}:2); "
        "correct the script, or install what it needs in its image"
    )
    assert last_line(task) == said
    # As soon as it has failed, and at the end.
    assert [(each.kind, each.exit_code) for each in task.of(events.Failed)] == [("input", 1)] * 2


STEP_10 = """\
import os, time
for step in range(20):
    if step == 10:
        {what}
"""


@pytest.mark.parametrize(
    ("what", "said"),
    [
        (
            "raise ValueError(f'a bad sample at {time.time()}')",
            r"exit code 1: ValueError: a bad sample at [\d.]+ \(.*own.py:4\)",
        ),
        ("os.abort()", "SIGABRT"),
    ],
)
def test_a_script_that_fails_on_every_host_at_the_same_place_ends_the_job(
    what: str, said: str, tmp_path: Path
) -> None:
    script = tmp_path / "own.py"
    script.write_text(STEP_10.format(what=what))
    with hosts(tmp_path) as local:
        job, endpoint = own_job(tmp_path, script), local.rendezvous(script=True)

        def start(name: str) -> Task:
            return local.agent(name, job, endpoint, 1, "2:2", KIT_ONE_RUN="")

        tasks = [start("pc1"), start("pc2")]
        assert [task.wait() for task in tasks] == [2, 2]
        told = rf"rank \d failed first on this host \(local rank 0\), {said}"
        for task in tasks:
            failed = task.of(events.Failed)
            assert re.fullmatch(rf"{told}; 3 times {WITHOUT}", failed[-1].message), task.text
            assert failed[-1].kind == "input"
        # Each restart tells for what it was. A worker may be ended before it tells its place
        # if the other host's has failed before.
        members = [each for task in tasks for each in task.of(events.Member)]
        assert all(each.restarts for each in members if each.failure)
        causes = [each.failure for each in members if each.failure]
        assert len(causes) >= 2  # Of two restarts.
        assert all(re.fullmatch(rf"pc\d: {told}", each) for each in causes)
        # As an engine does: it starts a container again that has failed.
        again = start("pc2")
        assert again.wait() == 2
        assert not again.of(events.Member)
        assert re.search(rf"{said}; 3 times {WITHOUT}$", again.of(events.Failed)[-1].message)


def test_an_image_without_torch_is_told_at_once(tmp_path: Path) -> None:
    script = tmp_path / "own.py"
    script.touch()
    environ = {"KIT_RENDEZVOUS": "127.0.0.1:1", "KIT_NNODES": "1:1", "KIT_NPROC": "1"}
    with hosts(tmp_path) as local:
        job = own_job(tmp_path, script)
        # Without installed packages.
        task = local.start("bare", ["-S", write_programs(tmp_path)], {**environ, "KIT_JOB": job})
        assert task.wait() == 2
    assert "error: this image has no torch for " in last_line(task)


@pytest.mark.parametrize("mounted", [True, False])
def test_an_image_with_an_old_python_is_told_at_once(tmp_path: Path, mounted: bool) -> None:
    program = write_programs(tmp_path) if mounted else LAUNCH
    code = "import runpy, sys\nsys.version_info = (3, 8, 10, 'final', 0)\n"
    code += f"runpy.run_path({str(program)!r}, run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("launch: error: this image has Python 3.8, and kit's launcher")
    failed = event_lines.parse(done.stdout.strip())
    assert isinstance(failed, events.Failed)
    assert failed.kind == "input"


@pytest.mark.long
def test_a_host_whose_restarts_are_used_up_may_come_again(tmp_path: Path) -> None:
    script, broken = tmp_path / "own.py", tmp_path / "broken"
    script.write_text(
        "import os, pathlib, sys, time\n"
        f"host, broken = os.environ['KIT_HOST'], pathlib.Path({str(broken)!r})\n"
        "while host == 'pc2' and broken.exists():\n"
        "    time.sleep(0.1)\n"
        "if broken.exists():\n"
        "    sys.exit(7 + int(os.environ['TORCHELASTIC_RESTART_COUNT']))\n"
        "print(host, 'is done')\n"
    )
    broken.touch()
    with hosts(tmp_path) as local:
        job, endpoint = own_job(tmp_path, script), local.rendezvous(script=True)
        patient = local.agent("pc2", job, endpoint, 1, "2:2", KIT_ONE_RUN="")
        failed = local.agent("pc1", job, endpoint, 1, "2:2", KIT_ONE_RUN="")
        assert failed.wait() == 1
        assert last_line(failed).endswith("(local rank 0), exit code 10")
        assert failed.text.count("exit code") == 4 + 1
        broken.unlink()
        # As an engine does.
        again = local.agent("pc1", job, endpoint, 1, "2:2", KIT_ONE_RUN="")
        assert (again.wait(), patient.wait()) == (0, 0)
        for task, host in ((again, "pc1"), (patient, "pc2")):
            assert f"{host} is done" in task.text


def test_a_script_ends_for_all_if_nothing_restarts_a_host(tmp_path: Path) -> None:
    script = tmp_path / "own.py"
    script.write_text(
        "import os, sys, time\nos.environ['KIT_HOST'] == 'pc1' and sys.exit(7)\ntime.sleep(60)\n"
    )
    with hosts(tmp_path) as local:
        job, endpoint = own_job(tmp_path, script), local.rendezvous(script=True)
        tasks = [local.agent(name, job, endpoint, 1, "2:2") for name in ("pc1", "pc2")]
        assert [task.wait() for task in tasks] == [2, 2]
        what = "rank 0 failed first on this host (local rank 0), exit code 7"
        assert last_line(tasks[1]) == f"launch pc2: error: pc1: {what}; 3 times {WITHOUT}"
        [failed] = tasks[1].of(events.Failed)
        assert failed.host == "pc1"


def test_a_step_with_suspicious_gradients_is_taken_again(tmp_path: Path) -> None:
    """The rank whose first computation was wrong is named, and the model is as good as ever."""
    with hosts(tmp_path) as local:
        more: dict[str, str | Path] = {
            "FAULT": "flip",
            "FAULT_AT": "40",
            "FAULT_RANK": "1",
            "FAULT_ONCE": tmp_path / "once",
        }
        job = write_job(tmp_path, epochs=4, repeat_above=1000.0, schedule="constant")
        tasks = local.pair(job, "2:2", [FAULTY], **more)
        assert [task.wait() for task in tasks] == [0, 0]
        both = tasks[0].text + tasks[1].text
    said = re.findall(r"the gradients of step (\d+) are (\d+) times as large as usual, (.*)", both)
    ((step, times, what),) = said
    assert (int(step) in range(35, 46), int(times) > 1000) == (True, True)
    assert re.fullmatch(
        r"but not when they are computed again: rank 1 on \w+ \(cpu\) computed another loss", what
    )
    lines = metrics(tmp_path / "pc1", tmp_path / "pc2")
    assert all(line["loss"] < 3 for line in lines[1:])


def test_the_usual_norm_is_that_of_the_newest_steps() -> None:
    norms = Norms()
    for _ in range(19):
        norms.note(2.0)
    assert norms.times_usual(100.0) == 0
    norms.note(float("inf"))
    assert norms.times_usual(100.0) == 0
    norms.note(2.0)
    assert norms.times_usual(100.0) == 50
    assert norms.times_usual(float("nan")) == 0
    for _ in range(100):
        norms.note(10.0)
    assert norms.times_usual(100.0) == 10
