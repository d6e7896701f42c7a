"""Saving beside the training."""

import json
import re
import threading
from collections import OrderedDict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.disks import on_small_disk
from tests.ports import free_port
from tests.trainer.hosts import (
    DEADLINE,
    LAUNCH,
    ROOT,
    hosts,
    metrics,
    write_job,
)
from tests.trainer.test_trainer_exchange import launch
from trainer.checkpoints.saver import Saver, copied
from trainer.contract import events
from trainer.core.state import advice


def test_what_is_written_is_the_state_at_the_call() -> None:
    go, began = threading.Event(), threading.Event()
    written: list[torch.Tensor] = []

    def write(state: dict[str, Any]) -> None:
        began.set()
        assert go.wait(DEADLINE)
        written.append(state["weights"].clone())

    saver, weights = Saver(asynchronous=True), torch.zeros(3)
    saver.save({"weights": weights}, write)
    assert began.wait(DEADLINE)
    weights += 1
    assert not written
    go.set()
    saver.save({"weights": weights}, write)
    weights += 1
    saver.wait()
    assert [each.tolist() for each in written] == [[0, 0, 0], [1, 1, 1]]


def test_the_next_save_waits_for_the_one_before() -> None:
    go = threading.Event()
    order: list[int] = []

    def write(state: dict[str, Any]) -> None:
        assert go.wait(DEADLINE)
        order.append(state["number"])

    saver = Saver(asynchronous=True)
    saver.save({"number": 1}, write)
    second = threading.Thread(target=saver.save, args=({"number": 2}, write))
    second.start()
    second.join(0.1)
    assert second.is_alive()
    go.set()
    second.join(DEADLINE)
    saver.wait()
    assert order == [1, 2]


@pytest.mark.parametrize("asynchronous", [True, False])
def test_the_writers_error_is_told_once(asynchronous: bool) -> None:
    def write(state: dict[str, Any]) -> None:
        raise OSError(28, "No space left on device")

    saver = Saver(asynchronous=asynchronous)

    def save() -> None:
        saver.save({}, write)
        saver.wait()

    with pytest.raises(OSError, match="No space left on device"):
        save()
    saver.wait()


def test_a_copy_keeps_layout_and_version_and_uses_its_memory_again() -> None:
    model = torch.nn.BatchNorm2d(3)
    image = torch.rand(2, 3, 4, 4).to(memory_format=torch.channels_last)
    state = {"model": model.state_dict(), "optimizer": [{"momentum": image, "rate": 0.1}]}
    first = copied(state, None)
    assert isinstance(first["model"], OrderedDict)
    assert first["model"]._metadata == state["model"]._metadata  # type: ignore[attr-defined]
    momentum = first["optimizer"][0]["momentum"]
    assert momentum.stride() == image.stride()
    image += 1
    assert not torch.equal(momentum, image)
    assert copied(state, first)["optimizer"][0]["momentum"] is momentum
    assert torch.equal(momentum, image)


def test_both_ways_write_the_same_and_tell_their_stall(tmp_path: Path) -> None:
    states = []
    with hosts(tmp_path) as local:
        for asynchronous in (True, False):
            folder = tmp_path / str(asynchronous)
            folder.mkdir()
            job = write_job(folder, epochs=2, batch_size=256, asynchronous=asynchronous)
            task = launch(local, job, 2, KIT_CHECKPOINTS=folder)
            assert task.wait() == 0, task.text
            lines = metrics(folder)
            assert lines[0]["stall"] is None
            assert all(line["stall"] > 0 for line in lines[1:])
            assert "a save paused the training for" in task.text
            states.append((folder / "step-00000006" / "state.pt").read_bytes())
            assert json.loads((folder / "step-00000006" / "manifest.json").read_text())["accuracy"]
    first, second = (
        torch.load(folder / "step-00000006" / "state.pt", weights_only=True)
        for folder in (tmp_path / "True", tmp_path / "False")
    )
    assert all(torch.equal(first["model"][name], value) for name, value in second["model"].items())
    assert len(first["rng"]) == 2
    assert not torch.equal(first["rng"][0]["cpu"], first["rng"][1]["cpu"])


def test_a_file_in_the_place_of_the_folder_is_named(tmp_path: Path) -> None:
    blocked = tmp_path / "checkpoints"
    blocked.write_text("")
    job = write_job(tmp_path, epochs=2, batch_size=512)
    with hosts(tmp_path) as local:
        environ = {"KIT_JOB": job, "KIT_CHECKPOINTS": blocked, "PYTHONPATH": ROOT}
        task = local.start("blocked", ["-m", "trainer.train"], environ)
        assert task.wait() == 1
    assert f"File exists: '{blocked}'" in task.text
    assert "MB are free" not in task.text
    assert "Traceback" not in task.text


def test_only_a_full_disk_is_told_to_need_room(tmp_path: Path) -> None:
    run: Any = SimpleNamespace(checkpoints=tmp_path)
    errors = (OSError(28, "full"), NotADirectoryError(20, "no", "/c"))
    told = [advice(run, {}, error) for error in errors]
    assert "MB are free, it needs 0.0 MB: make room there" in told[0]
    assert told[1] == "a file is in the place of the folder /c: move it away"


def test_a_full_disk_is_told_with_host_and_room_and_ends_the_run(tmp_path: Path) -> None:
    job, disk = write_job(tmp_path, epochs=9, keep=9), tmp_path / "disk"
    disk.mkdir()
    with hosts(tmp_path) as local:
        environ: dict[str, str | Path] = {
            "KIT_JOB": job,
            "KIT_RENDEZVOUS": local.rendezvous("1:1"),
            "KIT_NPROC": "1",
            "KIT_HOST": "pc1",
            "KIT_CHECKPOINTS": disk,
            "KIT_ONE_RUN": "1",
        }
        # Room for two checkpoints and a half.
        task = local.start("pc1", [LAUNCH], environ, prefix=on_small_disk(disk, "1100k"))
        assert task.wait() == 1
    last = task.text.splitlines()[-1]
    said = rf"pc1: {disk}: step-\d+ was not saved \(\[Errno 28\] No space left on device.*\); "
    room = r"0\.\d MB are free, it needs 0\.[1-9] MB: make room there"
    assert re.search(said + room, last), task.text
    assert task.of(events.Failed)[-1].kind == "disk"
    # Restarted once, to inform other hosts; a temporary fault is restarted more often.
    assert task.text.count("rank 0 of 1") == 1  # Not started again.


def test_the_launcher_waits_for_room_for_a_checkpoint(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    fill = (
        "mkdir step-00000009 && head -c 300k /dev/zero >step-00000009/state.pt && "
        "touch step-00000009/COMPLETE && head -c 400k /dev/zero >junk"
    )
    environ: dict[str, str | Path] = {
        "KIT_JOB": write_job(tmp_path),
        "KIT_RENDEZVOUS": f"127.0.0.1:{free_port()}",
        "KIT_RENDEZVOUS_TIMEOUT": "1",
        "KIT_NPROC": "1",
        "KIT_HOST": "pc1",
        "KIT_CHECKPOINTS": disk,
    }
    with hosts(tmp_path) as local:
        task = local.start("pc1", [LAUNCH], environ, prefix=on_small_disk(disk, "800k", fill))
        task.expect(f"{disk} has 0.1 MB free, a checkpoint needs 0.3 MB; waits for free space")
        [failed] = task.of(events.Failed)
        assert (failed.kind, "make room" in failed.message) == ("disk", True)
        Path(f"/proc/{task.process.pid}/root{disk}/junk").unlink()
        task.expect("waits 1 s for the coordinator")
        assert task.wait() == 1
