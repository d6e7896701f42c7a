"""Readers of the data sets, on small files that the tests write."""

import gzip
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from trainer import data
from trainer.data import Crops, DataError, load_data
from trainer.files import CIFAR10_FOLDERS, MNIST_FILES, DataMissingError, find_files


def idx(values: "np.ndarray[Any, Any]") -> bytes:
    header = struct.pack(">HBB", 0, 8, values.ndim) + struct.pack(f">{values.ndim}I", *values.shape)
    return header + values.astype(np.uint8).tobytes()


def write_mnist(folder: Path, packed: bool) -> None:
    folder.mkdir(parents=True)
    for name in MNIST_FILES:
        count = 6 if name.startswith("train") else 4
        shape = (count, 28, 28) if "images" in name else (count,)
        content = idx(np.arange(np.prod(shape)).reshape(shape) % 10)
        if packed:
            (folder / f"{name}.gz").write_bytes(gzip.compress(content))
        else:
            (folder / name).write_bytes(content)


@pytest.mark.parametrize(
    ("where", "packed"), [(".", False), ("mnist", True), ("MNIST/raw", False), ("MNIST/raw", True)]
)
def test_mnist(where: str, packed: bool, tmp_path: Path) -> None:
    write_mnist(tmp_path / "data" / where, packed)
    read = load_data("mnist", tmp_path / "data", seed=0)
    assert read.train.images.shape == (6, 1, 28, 28)
    assert read.test.images.shape == (4, 1, 28, 28)
    assert read.train.labels.tolist() == [0, 1, 2, 3, 4, 5]
    assert read.train.images[0, 0, 0, :12].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]
    assert not read.augmented
    black = read.normalized(torch.zeros(1, 1, 28, 28, dtype=torch.uint8))
    torch.testing.assert_close(black, torch.full((1, 1, 28, 28), -0.1307 / 0.3081))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (idx(np.zeros((6, 28, 28)))[:-1], "is damaged"),
        (idx(np.zeros((6, 28, 28)))[:9], "is damaged"),
        (b"\0\0\x0d" + idx(np.zeros(6))[3:], "is not an IDX file of bytes"),
        (idx(np.zeros((5, 28, 28))), "as many images as labels"),
        (idx(np.zeros(6)), "as many images as labels"),
    ],
)
def test_damaged_mnist_is_named(content: bytes, message: str, tmp_path: Path) -> None:
    write_mnist(tmp_path / "mnist", packed=False)
    (tmp_path / "mnist" / MNIST_FILES[0]).write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        load_data("mnist", tmp_path, seed=0)
    assert MNIST_FILES[0] in str(caught.value)


def test_a_packed_file_that_is_cut_short_is_named(tmp_path: Path) -> None:
    write_mnist(tmp_path / "mnist", packed=True)
    path = tmp_path / "mnist" / f"{MNIST_FILES[1]}.gz"
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(DataError, match=r"train-labels-idx1-ubyte\.gz is damaged"):
        load_data("mnist", tmp_path, seed=0)


def cifar_batch(number: int) -> tuple["np.ndarray[Any, Any]", list[int]]:
    images = np.zeros((2, 3072), np.uint8)
    # The last pixel of the first row of green.
    images[:, 1024 + 31] = number
    return images, [number % 10, 9]


def python2_pickle(images: "np.ndarray[Any, Any]", labels: list[int]) -> bytes:
    """As the original files are: written by Python 2, its texts as bytes without an encoding."""
    shape = b"(K\x02M\x00\x0ct"
    minus_one = b"J\xff\xff\xff\xff"
    dtype = b"cnumpy\ndtype\n(U\x02u1K\x00K\x01tR(K\x03U\x01|NNN" + minus_one * 2 + b"K\x00tb"
    content = b"T" + struct.pack("<I", images.size) + images.tobytes()
    empty = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00tU\x01btR"
    array = empty + b"(K\x01" + shape + dtype + b"\x89" + content + b"tb"
    numbers = b"](" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    return b"\x80\x02}(U\x04data" + array + b"U\x06labels" + numbers + b"u."


def rewritten(images: "np.ndarray[Any, Any]", labels: list[int]) -> bytes:
    return pickle.dumps({b"data": images, b"labels": labels}, protocol=2)


def write_cifar(folder: Path, kind: str) -> None:
    folder = folder / kind
    folder.mkdir(parents=True)
    for number, name in enumerate(CIFAR10_FOLDERS[kind]):
        images, labels = cifar_batch(number)
        if kind.endswith("bin"):
            content = b"".join(
                bytes([label]) + image.tobytes()
                for label, image in zip(labels, images, strict=True)
            )
        else:
            content = python2_pickle(images, labels) if number % 2 else rewritten(images, labels)
        (folder / name).write_bytes(content)


@pytest.mark.parametrize("kind", list(CIFAR10_FOLDERS))
@pytest.mark.parametrize("where", [".", "cifar10"])
def test_cifar10(kind: str, where: str, tmp_path: Path) -> None:
    write_cifar(tmp_path / where, kind)
    read = load_data("cifar10", tmp_path, seed=0)
    assert read.train.images.shape == (10, 3, 32, 32)
    assert read.train.labels.tolist() == [0, 9, 1, 9, 2, 9, 3, 9, 4, 9]
    assert read.train.images[::2, 1, 0, 31].tolist() == [0, 1, 2, 3, 4]
    assert int(read.train.images.sum()) == 2 * (0 + 1 + 2 + 3 + 4)
    assert read.test.labels.tolist() == [5, 9]
    assert read.augmented


class Evil:
    def __reduce__(self) -> Any:
        return print, ("this code runs while a pickle is read",)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (pickle.dumps({b"data": Evil(), b"labels": []}), "it asks for builtins.print"),
        (pickle.dumps({b"data": np.zeros((2, 3072))}, protocol=2), "is not a batch of CIFAR-10"),
        (pickle.dumps([1], protocol=2), "is not a batch of CIFAR-10"),
        (b"\x80", "is not a batch of CIFAR-10"),
    ],
)
def test_a_dangerous_or_damaged_pickle_is_refused(
    content: bytes, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_cifar(tmp_path, "cifar-10-batches-py")
    (tmp_path / "cifar-10-batches-py" / "data_batch_3").write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        load_data("cifar10", tmp_path, seed=0)
    assert "data_batch_3" in str(caught.value)
    assert capsys.readouterr().out == ""


def test_a_binary_batch_must_be_whole(tmp_path: Path) -> None:
    write_cifar(tmp_path, "cifar-10-batches-bin")
    path = tmp_path / "cifar-10-batches-bin" / "test_batch.bin"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataError, match=r"test_batch\.bin is not a whole number of records"):
        load_data("cifar10", tmp_path, seed=0)


def test_missing_files_are_named_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_cifar(tmp_path, "cifar-10-batches-py")
    (tmp_path / "cifar-10-batches-py" / "data_batch_4").unlink()
    with pytest.raises(DataMissingError) as caught:
        find_files("cifar10", tmp_path)
    message = str(caught.value)
    assert ": missing data_batch_4; " in message
    assert f"{tmp_path}/cifar10/cifar-10-batches-bin" in message
    assert "put the original files there on every host" in message
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(DataMissingError, match="pip install scikit-learn"):
        find_files("digits", tmp_path)


def test_digits_are_split_by_class_and_seed(tmp_path: Path) -> None:
    first, again, other = (load_data("digits", tmp_path, seed) for seed in (0, 0, 1))
    assert (len(first.train), len(first.test)) == (1437, 360)
    assert torch.equal(first.test.images, again.test.images)
    assert not torch.equal(first.test.images, other.test.images)
    for split, share in ((first.train, 1437 / 1797), (first.test, 360 / 1797)):
        whole = torch.bincount(first.train.labels) + torch.bincount(first.test.labels)
        assert (torch.bincount(split.labels) - whole * share).abs().max() < 2
    images = torch.cat([first.train.images, first.test.images])
    everything = first.normalized(images)
    assert abs(float(everything.mean())) < 1e-3
    assert abs(float(everything.std()) - 1) < 1e-3


def test_crops_shift_and_mirror() -> None:
    images = torch.arange(2 * 3 * 6 * 6, dtype=torch.uint8).view(2, 3, 6, 6)
    padding = data.CROP_PADDING
    still = Crops(torch.full((9, 2), padding), torch.zeros(9, dtype=torch.bool))
    assert torch.equal(still.apply(images, torch.tensor([4, 7])), images)
    mirrored = Crops(still.shifts, torch.ones(9, dtype=torch.bool))
    assert torch.equal(mirrored.apply(images, torch.tensor([4, 7])), images.flip(3))
    down = Crops(torch.tensor([[padding + 1, padding - 2], [padding, padding]]), still.mirrored)
    shifted = down.apply(images, torch.tensor([0, 1]))
    assert torch.equal(shifted[1], images[1])
    assert torch.equal(shifted[0, :, :5, 2:], images[0, :, 1:, :4])
    assert int(shifted[0, :, 5].sum()) == 0


def test_crops_belong_to_the_sample_and_the_epoch() -> None:
    images = torch.randint(0, 256, (50, 3, 32, 32), dtype=torch.uint8)
    crops = Crops.of_epoch(50, seed=3, epoch=2)
    whole = crops.apply(images, torch.arange(50))
    some = torch.tensor([41, 3, 17])
    assert torch.equal(crops.apply(images[some], some), whole[some])
    other = Crops.of_epoch(50, seed=3, epoch=3).apply(images, torch.arange(50))
    assert not torch.equal(other, whole)
    assert crops.shifts.min() == 0
    assert crops.shifts.max() == 2 * data.CROP_PADDING
