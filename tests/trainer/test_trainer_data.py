"""Readers of the data sets, on small files that the tests write."""

import gzip
import pickle
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits

from tests.trainer.hosts import DEADLINE, ROOT
from tests.trainer.small import settings
from trainer.data.crops import Crops
from trainer.data.decoding import decode
from trainer.data.files import CIFAR10_FOLDERS, MNIST_FILES, DataMissingError, find_files
from trainer.data.images import ImageFiles
from trainer.data.load import load_data
from trainer.data.pictures import View
from trainer.data.samples import DamagedError, DataError


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
    read = load_data(settings("mnist"), tmp_path / "data")
    assert read.train.inputs.shape == (6, 1, 28, 28)
    assert read.test.inputs.shape == (4, 1, 28, 28)
    assert read.train.labels.tolist() == [0, 1, 2, 3, 4, 5]
    assert read.train.inputs[0, 0, 0, :12].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]
    assert (read.classes, read.padding) == (10, 0)
    black = read.prepared(torch.zeros(1, 1, 28, 28, dtype=torch.uint8))
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
        load_data(settings("mnist"), tmp_path)
    assert MNIST_FILES[0] in str(caught.value)


def test_a_packed_file_that_is_cut_short_is_named(tmp_path: Path) -> None:
    write_mnist(tmp_path / "mnist", packed=True)
    path = tmp_path / "mnist" / f"{MNIST_FILES[1]}.gz"
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(DataError, match=r"train-labels-idx1-ubyte\.gz is damaged"):
        load_data(settings("mnist"), tmp_path)


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
    read = load_data(settings("cifar10"), tmp_path)
    assert read.train.inputs.shape == (10, 3, 32, 32)
    assert read.train.labels.tolist() == [0, 9, 1, 9, 2, 9, 3, 9, 4, 9]
    assert read.train.inputs[::2, 1, 0, 31].tolist() == [0, 1, 2, 3, 4]
    assert int(read.train.inputs.sum()) == 2 * (0 + 1 + 2 + 3 + 4)
    assert read.test.labels.tolist() == [5, 9]
    assert read.classes == 10


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
        load_data(settings("cifar10"), tmp_path)
    assert "data_batch_3" in str(caught.value)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("keep", [0, 1, 6145])
def test_a_binary_batch_must_be_whole(keep: int, tmp_path: Path) -> None:
    write_cifar(tmp_path, "cifar-10-batches-bin")
    path = tmp_path / "cifar-10-batches-bin" / "test_batch.bin"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(DataError, match=r"test_batch\.bin is not a batch of CIFAR-10"):
        load_data(settings("cifar10"), tmp_path)


def test_missing_files_are_named_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_cifar(tmp_path, "cifar-10-batches-py")
    (tmp_path / "cifar-10-batches-py" / "data_batch_4").unlink()
    with pytest.raises(DataMissingError) as caught:
        find_files(settings("cifar10"), tmp_path)
    message = str(caught.value)
    assert ": missing data_batch_4; " in message
    assert f"{tmp_path}/cifar10/cifar-10-batches-bin" in message
    assert "put the original files there on every host" in message
    assert message.endswith(f"kriz/cifar-10-binary.tar.gz | tar xzC {tmp_path}")
    with pytest.raises(DataMissingError) as caught:
        find_files(settings("mnist"), tmp_path)
    # The braces are those that curl takes for four files.
    assert str(caught.value).endswith("/{train,t10k}-{images-idx3,labels-idx1}-ubyte.gz'")
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(DataMissingError, match="pip install scikit-learn"):
        find_files(settings("digits"), tmp_path)
    with pytest.raises(DataMissingError, match="pip install pillow"):
        find_files(settings("folder"), tmp_path)
    for need, train in {
        "torchvision/resnet18": settings("mnist", "torchvision/resnet18"),
        "augmentation": settings("folder", augmentation="rand"),
        "dataset: cifar100": settings("cifar100"),
    }.items():
        said = f"^{need} needs torchvision: the trainer image, or: pip install torchvision$"
        with pytest.raises(DataMissingError, match=said):
            find_files(train, tmp_path)


def test_digits_are_those_of_scikit_learn(tmp_path: Path) -> None:
    read = load_data(settings("digits"), tmp_path)
    found = [
        [*image.flatten().tolist(), int(label)]
        for part in (read.train, read.test)
        for image, label in zip(part.inputs, part.labels, strict=True)
    ]
    images, labels = load_digits(return_X_y=True)
    assert sorted(found) == sorted(
        [*map(int, image), label] for image, label in zip(images, labels, strict=True)
    )


def test_digits_are_split_by_class_and_seed(tmp_path: Path) -> None:
    first, again, other = (
        load_data(settings("digits", split_seed=seed), tmp_path) for seed in (0, 0, 1)
    )
    assert (len(first.train), len(first.test)) == (1437, 360)
    assert torch.equal(first.test.inputs, again.test.inputs)
    assert not torch.equal(first.test.inputs, other.test.inputs)
    for split, share in ((first.train, 1437 / 1797), (first.test, 360 / 1797)):
        whole = torch.bincount(first.train.labels) + torch.bincount(first.test.labels)
        assert (torch.bincount(split.labels) - whole * share).abs().max() < 2
    everything = first.prepared(first.train.inputs)
    assert abs(float(everything.mean())) < 1e-3
    assert abs(float(everything.std()) - 1) < 1e-3


def save(
    file: Path, size: tuple[int, int], colour: tuple[int, int, int], mode: str = "RGB"
) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).convert(mode).save(file)


RED, BLUE = (250, 0, 0), (0, 0, 250)


@pytest.mark.parametrize(("epochs", "pixels"), [(10, 2), (11, 4)])
def test_a_short_training_shifts_its_images_less(tmp_path: Path, epochs: int, pixels: int) -> None:
    write_cifar(tmp_path, "cifar-10-batches-bin")
    assert load_data(settings("cifar10", epochs=epochs), tmp_path).padding == pixels


def write_folder(root: Path, parts: tuple[str, ...], count: int = 3) -> None:
    for part in parts:
        for number in range(count):
            save(root / part / "blue" / f"{number}.png", (20, 30), BLUE)
            save(root / part / "red" / f"{number}.JPG", (200, 90), RED)
        (root / part / "blue" / "._1.png").write_bytes(b"what macOS leaves")
        (root / part / "red" / "notes.txt").write_text("no image")


CPU = torch.device("cpu")


@pytest.mark.parametrize("test", ["test", "val"])
def test_a_folder_of_images(test: str, tmp_path: Path) -> None:
    write_folder(tmp_path / "pets", ("train", test))
    (tmp_path / "pets" / "test").mkdir(exist_ok=True)
    read = load_data(settings("folder", path="pets", image_size=16), tmp_path)
    assert (len(read.train), len(read.test), read.classes, read.padding) == (6, 6, 2, 1)
    assert read.labels == tuple(sorted(each.name for each in (tmp_path / "pets/train").iterdir()))
    indices = torch.tensor([4, 0, 5])
    read.train.expect([indices])
    images, labels = read.train.take(indices, CPU)
    assert (images.shape, images.dtype) == ((3, 3, 16, 16), torch.uint8)
    assert labels.tolist() == [1, 0, 1]
    # Red, blue, red; JPEG is not exact.
    expected = torch.tensor([RED, BLUE, RED]).view(3, 3, 1, 1).expand(3, 3, 16, 16)
    assert (images.int() - expected).abs().max() <= 4
    assert read.train.inputs.shape[1:] == images.shape[1:]
    white = read.prepared(torch.full((1, 3, 2, 2), 255, dtype=torch.uint8))
    torch.testing.assert_close(white[0, 0], torch.full((2, 2), (1 - 0.485) / 0.229))


def test_a_folder_without_a_test_is_split_by_class_and_seed(tmp_path: Path) -> None:
    write_folder(tmp_path, ("train",), count=10)
    save(tmp_path / "train" / "alone" / "1.png", (9, 9), RED)
    first, again, other = (
        load_data(settings("folder", split_seed=seed, image_size=8), tmp_path) for seed in (0, 0, 1)
    )
    everything = torch.arange(4)
    assert torch.bincount(first.train.labels).tolist() == [1, 8, 8]
    assert torch.bincount(first.test.labels).tolist() == [0, 2, 2]
    assert isinstance(first.test, ImageFiles)
    assert isinstance(again.test, ImageFiles)
    assert isinstance(other.test, ImageFiles)
    assert isinstance(first.train, ImageFiles)
    assert first.test.files == again.test.files
    assert first.test.files != other.test.files
    assert not set(first.test.files) & set(first.train.files)
    images, labels = first.test.take(everything, CPU)
    # The third channel is blue's, of class 1.
    assert (images[:, 2].float().mean(dim=(1, 2)) > 100).tolist() == (labels == 1).tolist()


def test_images_are_scaled_by_the_shorter_side_and_cut_in_the_middle(tmp_path: Path) -> None:
    wide = Image.new("RGB", (60, 20), RED)
    wide.paste(BLUE, (20, 0, 40, 20))
    for rotation, name in ((0, "wide.png"), (90, "high.webp")):
        wide.rotate(rotation, expand=True).save(tmp_path / name, lossless=True)
        image = decode(tmp_path / name, View(10))
        assert image.shape == (3, 10, 10)
        assert image[2, 5, 5] == 250
        assert image[0].float().mean() < 20


@pytest.mark.parametrize("mode", ["L", "P", "CMYK", "1"])
def test_images_of_any_mode_become_rgb(mode: str, tmp_path: Path) -> None:
    save(tmp_path / "a.jpg" if mode == "CMYK" else tmp_path / "a.png", (9, 9), (255,) * 3, mode)
    (file,) = tmp_path.iterdir()
    assert decode(file, View(8)).flatten(1).float().mean(dim=1).tolist() == pytest.approx(
        [255] * 3, abs=3
    )


@pytest.mark.parametrize("content", [b"", b"no image", None])
def test_all_images_that_can_not_be_decoded_are_named(
    content: bytes | None, tmp_path: Path
) -> None:
    write_folder(tmp_path, ("train", "test"), count=20)
    for number in (1, *range(3, 15)):
        file = tmp_path / "train" / "red" / f"{number}.JPG"
        file.write_bytes(file.read_bytes()[:-300] if content is None else content)
    read = load_data(settings("folder"), tmp_path)
    read.train.expect([torch.arange(40)])
    with pytest.raises(DamagedError, match=r"train/red/1\.JPG cannot be decoded .* 3 more; repl"):
        read.train.take(torch.arange(40), CPU)


def test_an_image_that_can_not_be_read_is_no_damage(tmp_path: Path) -> None:
    """Its disk or its server may answer the next time."""
    write_folder(tmp_path, ("train", "test"))
    read = load_data(settings("folder"), tmp_path)
    (tmp_path / "train" / "red" / "1.JPG").unlink()
    with pytest.raises(DataError, match=r"train/red/1\.JPG cannot be read") as caught:
        read.train.take(torch.arange(6), CPU)
    assert not isinstance(caught.value, DamagedError)


def test_a_folder_whose_test_would_be_empty_is_named(tmp_path: Path) -> None:
    write_folder(tmp_path, ("train",), count=1)
    with pytest.raises(DataError, match="2 pictures of 2 classes leave none for the test"):
        load_data(settings("folder"), tmp_path)


def test_batches_are_decoded_ahead_in_the_order_in_which_they_are_taken(tmp_path: Path) -> None:
    write_folder(tmp_path, ("train", "test"), count=40)
    read = load_data(settings("folder", image_size=8), tmp_path)
    batches = [torch.arange(50), torch.arange(50, 80), torch.tensor([79, 0, 41])]
    read.train.expect(batches)
    for batch in batches[:2]:
        images, labels = read.train.take(batch, CPU)
        # The first channel is red's, of class 1.
        assert (images[:, 0].float().mean(dim=(1, 2)) > 100).tolist() == (labels == 1).tolist()
    # A batch other than the next one, of another part; then one that is no longer expected.
    assert len(read.test.take(torch.arange(3), CPU)[0]) == 3
    assert read.train.take(batches[2], CPU)[1].tolist() == [1, 0, 1]
    # The share of a rank where there are more ranks than images for the test.
    assert read.test.take(torch.arange(0), CPU)[0].shape == (0, 3, 8, 8)


def test_images_are_decoded_by_other_processes_that_end_with_this_one(tmp_path: Path) -> None:
    write_folder(tmp_path, ("train", "test"))
    script = f"""
import multiprocessing, os, pathlib, signal, torch
from tests.trainer.small import settings
from trainer.data.load import load_data
train = load_data(settings("folder", image_size=8), pathlib.Path({str(tmp_path)!r})).train
train.take(torch.arange(2), torch.device("cpu"))
workers = multiprocessing.active_children()
for worker in workers:
    os.kill(worker.pid, signal.SIGTERM)  # As a stop does to the whole group.
train.take(torch.arange(2, 4), torch.device("cpu"))
print(*(worker.pid for worker in workers))
raise ValueError("with what it was about in a traceback")
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    workers = done.stdout.split()
    assert workers, done.stderr
    assert done.stderr.endswith("ValueError: with what it was about in a traceback\n")
    for worker in workers:
        state = Path("/proc", worker, "stat")
        assert not state.exists() or ") Z " in state.read_text()


def test_photographs_are_turned_as_their_exif_says(tmp_path: Path) -> None:
    picture = Image.new("RGB", (40, 20), RED)
    picture.paste(BLUE, (0, 0, 20, 20))
    exif = Image.Exif()
    exif[0x0112] = 6  # Orientation: a quarter to the right.
    picture.save(tmp_path / "phone.png", exif=exif)
    image = decode(tmp_path / "phone.png", View(10))
    assert image[:, 0, 5].tolist() == list(BLUE)
    assert image[:, 9, 5].tolist() == list(RED)


def test_a_text_is_cut_into_windows(tmp_path: Path) -> None:
    text = "añ€😀" * 60
    (tmp_path / "words.txt").write_text(text, "utf-8")
    read = load_data(settings("text", path="words.txt", context=7), tmp_path)
    assert (read.classes, read.padding) == (4, 0)
    assert read.labels == tuple(sorted("añ€😀"))
    assert (len(read.train), len(read.test)) == ((216 - 1) // 7, (24 - 1) // 7)
    numbers = torch.tensor([sorted("añ€😀").index(each) for each in text])
    every, following = read.train.take(torch.arange(30), CPU)
    assert torch.equal(every.flatten(), numbers[: 30 * 7])
    assert torch.equal(following.flatten(), numbers[1 : 30 * 7 + 1])
    assert torch.equal(read.test.take(torch.arange(3), CPU)[1].flatten(), numbers[217 : 217 + 21])
    inputs, labels = read.train.take(torch.tensor([2, 1]), CPU)
    assert torch.equal(inputs, every[[2, 1]])
    assert torch.equal(labels[:, :-1], inputs[:, 1:])
    assert torch.equal(read.prepared(inputs), inputs)


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"a" * 89, "train.context 8 needs 90 characters"), (b"\xff" * 99, "is not a text in UTF-8")],
)
def test_a_text_that_is_none_or_short_is_named(
    content: bytes, message: str, tmp_path: Path
) -> None:
    (tmp_path / "a.txt").write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        load_data(settings("text", path="a.txt"), tmp_path)
    assert "a.txt" in str(caught.value)
    (tmp_path / "a.txt").write_bytes(b"ab" * 45)
    assert len(load_data(settings("text", path="a.txt"), tmp_path).test) == 1


def test_a_missing_text_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataMissingError, match=f"curl .* -o '{tmp_path}/a.txt' https://raw"):
        find_files(settings("text", path="a.txt"), tmp_path)


def test_crops_shift_and_mirror() -> None:
    images = torch.arange(2 * 3 * 6 * 6, dtype=torch.uint8).view(2, 3, 6, 6)
    still = Crops(torch.zeros(9, 2, dtype=torch.int64), torch.zeros(9, dtype=torch.bool))
    assert torch.equal(still.apply(images, torch.tensor([4, 7])), images)
    mirrored = Crops(still.shifts, torch.ones(9, dtype=torch.bool))
    assert torch.equal(mirrored.apply(images, torch.tensor([4, 7])), images.flip(3))
    down = Crops(torch.tensor([[1, -2], [0, 0]]), still.mirrored)
    shifted = down.apply(images, torch.tensor([0, 1]))
    assert torch.equal(shifted[1], images[1])
    assert torch.equal(shifted[0, :, :5, 2:], images[0, :, 1:, :4])
    # Reflection padding at the border.
    assert torch.equal(shifted[0, :, 5, 2:], images[0, :, 4, :4])
    assert torch.equal(shifted[0, :, :5, :2], images[0, :, 1:, [2, 1]])


def test_crops_belong_to_the_sample_and_the_epoch() -> None:
    images = torch.randint(0, 256, (50, 3, 32, 32), dtype=torch.uint8)
    crops = Crops.of_epoch(50, seed=3, epoch=2, padding=4, mirror=True)
    whole = crops.apply(images, torch.arange(50))
    some = torch.tensor([41, 3, 17])
    assert torch.equal(crops.apply(images[some], some), whole[some])
    other = Crops.of_epoch(50, seed=3, epoch=3, padding=4, mirror=True).apply(
        images, torch.arange(50)
    )
    assert not torch.equal(other, whole)
    assert set(crops.shifts.flatten().tolist()) == set(range(-4, 5))
    few = Crops.of_epoch(99, seed=3, epoch=2, padding=2, mirror=True)
    assert set(few.shifts.flatten().tolist()) == set(range(-2, 3))


def test_each_image_is_mirrored_every_second_epoch() -> None:
    mirrored = [
        Crops.of_epoch(999, seed=3, epoch=epoch, padding=4, mirror=True).mirrored
        for epoch in range(4)
    ]
    assert 400 < int(mirrored[0].sum()) < 600
    assert torch.equal(mirrored[1], ~mirrored[0])
    assert torch.equal(mirrored[2], mirrored[0])
    assert torch.equal(mirrored[3], mirrored[1])
    assert not torch.equal(
        Crops.of_epoch(999, seed=4, epoch=0, padding=4, mirror=True).mirrored, mirrored[0]
    )
