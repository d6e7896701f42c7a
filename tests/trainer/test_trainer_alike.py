"""Hosts that differ: all ranks report them by name before the first step."""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from tests.ports import free_port
from tests.trainer.hosts import ROOT, hosts, write_job
from tests.trainer.test_trainer_workloads import VERSE, draw_images
from trainer.contract.job import Train
from trainer.data import digests
from trainer.data.digests import digest
from trainer.data.identity import identity
from trainer.data.load import load_data

SCRIPT = Path(__file__).with_name("unlike.py")
TOLD = {
    "text": r"text verse.txt \d+ \+ \d+ samples, \w{12} on pc1; text verse.txt .* on pc2",
    "torch": rf"torch {re.escape(torch.__version__)} on pc1; torch 2.6.0 on pc2",
    "trainer": r"trainer \w{12} on pc1; trainer trainer on pc2",
    "job": r"train.batch_size 16, train.learning_rate 0.01 on pc1; "
    r"train.batch_size 8, train.learning_rate 0.02 on pc2",
}


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The output of two ranks in every case, and in one without a difference."""
    folder = tmp_path_factory.mktemp("unlike")
    (folder / "verse.txt").write_text(VERSE * 40)
    (folder / "text").mkdir()
    # One letter, and the same length.
    (folder / "text" / "verse.txt").write_text(VERSE * 39 + VERSE.replace("lazy", "hazy"))
    changes: dict[str, Any] = {
        "dataset": "text",
        "path": "verse.txt",
        "model": "gpt",
        "context": 16,
    }
    job = write_job(folder, epochs=1, **changes, batch_size=16, learning_rate=0.01)
    write_job(folder, "changed", epochs=1, **changes, batch_size=8, learning_rate=0.02)
    changed = folder / "changed.json"
    changed.write_text(changed.read_text().replace('"name": "changed"', '"name": "digits"'))
    torchrun = ("-m", "torch.distributed.run", "--master-port", str(free_port()))
    cases = [f"{case}:{job}:{free_port()}" for case in (*TOLD, "alike")]
    with hosts(folder) as local:
        argv = [*torchrun, "--nproc-per-node", "2", str(SCRIPT), *cases]
        task = local.start("unlike", argv, {"PYTHONPATH": ROOT})
        assert task.wait() == 0, task.text
    return task.text


@pytest.mark.parametrize("case", TOLD)
def test_a_host_that_differs_is_named_before_a_step(case: str, said: str) -> None:
    assert re.search(r"error: the hosts differ: " + TOLD[case], said), said
    assert said.count(f"case {case} ended with 1") == 2
    # Only where nothing differs was there a training.
    assert said.count("case alike ended with 0") == 2
    assert said.count("job digits: gpt of") == said.count("done: accuracy") == 1


def folder_identity(root: Path) -> str:
    train = Train(dataset="folder", path="colours", model="cnn", epochs=1, batch_size=4)
    return identity(load_data(train, root))


def test_a_folder_of_images_is_known_by_names_sizes_and_contents(tmp_path: Path) -> None:
    draw_images(tmp_path / "first" / "colours")
    before = folder_identity(tmp_path / "first")
    assert before.startswith("80 + 20 samples, ")
    shutil.copytree(tmp_path / "first", tmp_path / "second" / "deeper")
    second = tmp_path / "second" / "deeper"
    assert folder_identity(second) == before
    image = second / "colours" / "train" / "red" / "7.jpg"
    whole = image.read_bytes()
    # A byte at the same length; another name; another image.
    image.write_bytes(whole[:-3] + b"x" + whole[-2:])
    assert folder_identity(second) != before
    image.write_bytes(whole)
    assert folder_identity(second) == before
    image.rename(image.with_name("77.jpg"))
    assert folder_identity(second) != before
    Image.new("RGB", (48, 40), (9, 9, 9)).save(image)
    assert folder_identity(second) != before


def test_an_edit_to_the_same_length_is_noticed_in_any_of_many_files(tmp_path: Path) -> None:
    """The contents of 256 files were compared, and only the beginning of each."""
    files = [tmp_path / f"{number}.jpg" for number in range(600)]
    for file in files:
        file.write_bytes(b"a" * 100)
    files[0].write_bytes(b"a" * 300_000)
    before = digest(files, None)
    assert digest(files, tmp_path) == before
    files[1].write_bytes(b"a" * 99 + b"b")
    assert digest(files, tmp_path) == digest(files, None) != before
    files[1].write_bytes(b"a" * 100)
    files[0].write_bytes(b"a" * 299_999 + b"b")
    assert digest(files, tmp_path) == digest(files, None) != before


def test_files_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A replaced file has another inode, even where its size and time are the same."""
    files = [tmp_path / name for name in ("a", "b")]
    for file in files:
        file.write_bytes(b"1234")
    before = digest(files, tmp_path)
    read: list[Path] = []
    whole = digests._of_file

    def counted(file: Path, share: int) -> str:
        read.append(file)
        return whole(file, share)

    monkeypatch.setattr(digests, "_of_file", counted)
    assert (digest(files, tmp_path), read) == (before, [])
    other = tmp_path / "new"
    other.write_bytes(b"4321")
    shutil.copystat(files[1], other)
    other.replace(files[1])
    assert digest(files, tmp_path) != before
    assert read == [files[1]]
    (tmp_path / digests.FILE).write_text("[")  # An interrupted write of another program.
    assert digest(files, tmp_path) != before
    assert read == [files[1], *files]


def test_of_more_than_a_bound_each_file_gives_its_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digests, "MOST", 4 * digests.LEAST)
    large, small = tmp_path / "large", tmp_path / "small"
    large.write_bytes(bytes(100 * digests.LEAST))
    small.write_bytes(b"1")
    before = digest([large, small], None)
    for change in (0, 100 * digests.LEAST - 1):  # The first and the last byte are always read.
        with large.open("r+b") as stream:
            stream.seek(change)
            stream.write(b"1")
        after = digest([large, small], None)
        assert after != before
        before = after
    with large.open("ab") as stream:
        stream.write(b"1")
    assert digest([large, small], None) != before
