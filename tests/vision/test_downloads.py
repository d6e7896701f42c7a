"""Downloads from a server of the test's own, in the formats of the true ones."""

import gzip
import hashlib
import io
import multiprocessing
import pickle
import tarfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torchvision import datasets, models

from tests.trainer.hosts import DEADLINE
from tests.trainer.test_trainer_data import idx
from trainer.contract.job import Train
from trainer.data.files import MNIST_FILES, DownloadError, find_files, to_download
from trainer.data.load import load_data
from trainer.datasets.errors import DataSetError
from trainer.datasets.sources.fill import from_torchvision
from trainer.vision.classifiers import build, starting_weights
from trainer.vision.downloads import download

COUNT = 30
# urllib leaves sockets of refused and redirected requests to the garbage collector.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


class Mirror(ThreadingHTTPServer):
    """Serves files, and records requests."""

    def __init__(self, files: dict[str, bytes]) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.files, self.asked = files, list[str]()
        self.url = f"http://127.0.0.1:{self.server_port}"


class Answer(BaseHTTPRequestHandler):
    server: Mirror

    def do_GET(self) -> None:
        name = self.path.rpartition("/")[2]
        if self.headers["Method"] != "HEAD":  # With that torchvision asks where a link leads.
            self.server.asked.append(name)
        content = self.server.files.get(name)
        self.send_response(404 if content is None else 200)
        self.send_header("Content-Length", str(len(content or b"")))
        self.end_headers()
        with suppress(BrokenPipeError):
            self.wfile.write(content or b"")

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Say nothing."""


@contextmanager
def serve(files: dict[str, bytes]) -> Iterator[Mirror]:
    with Mirror(files) as mirror:
        thread = threading.Thread(target=mirror.serve_forever)
        thread.start()
        try:
            yield mirror
        finally:
            mirror.shutdown()
            thread.join()


def md5(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def mnist(draw: np.random.Generator) -> dict[str, bytes]:
    shapes = ((COUNT, 28, 28), (COUNT,)) * 2
    arrays = (draw.integers(0, 256 if len(shape) > 1 else 10, shape) for shape in shapes)
    return {
        f"{name}.gz": gzip.compress(idx(array))
        for name, array in zip(MNIST_FILES, arrays, strict=True)
    }


def packed(folder: str, files: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(f"{folder}/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return stream.getvalue()


def batch(draw: np.random.Generator, key: str, classes: int) -> bytes:
    images = draw.integers(0, 256, (COUNT, 3072), dtype=np.uint8)
    labels = [int(label) for label in draw.integers(0, classes, COUNT)]
    content = pickle.dumps({"data": images, key: labels}, protocol=2)
    for text in ("data", key):  # The original files are Python 2's, whose texts are bytes.
        word = bytes([len(text)])
        content = content.replace(
            b"X" + word + b"\0\0\0" + text.encode(), b"U" + word + text.encode()
        )
    return content


def patch_cifar(
    monkeypatch: pytest.MonkeyPatch, kind: Any, names: tuple[str, ...], meta: tuple[str, str]
) -> bytes:
    """Make an archive, and let torchvision know its checksums; `meta` are a file and its key."""
    draw, hundred = np.random.default_rng(0), kind is datasets.CIFAR100
    key, classes = ("fine_labels", 100) if hundred else ("labels", 10)
    files = {name: batch(draw, key, classes) for name in names}
    files[meta[0]] = pickle.dumps({meta[1]: [f"kind {number}" for number in range(classes)]})
    content = packed(kind.base_folder, files)
    known = [[name, md5(files[name])] for name in names]
    monkeypatch.setattr(kind, "train_list", known[:-1])
    monkeypatch.setattr(kind, "test_list", known[-1:])
    monkeypatch.setattr(kind, "meta", {**kind.meta, "md5": md5(files[meta[0]])})
    monkeypatch.setattr(kind, "tgz_md5", md5(content))
    return content


@contextmanager
def mirror_of(name: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Mirror]:
    """Serve a small data set of the real format, with its checksums set in torchvision."""
    if "mnist" in name:
        kind: Any = datasets.MNIST if name == "mnist" else datasets.FashionMNIST
        files = mnist(np.random.default_rng(0))
        known = [(file, md5(content)) for file, content in files.items()]
        monkeypatch.setattr(kind, "resources", known)
        with serve(files) as mirror:
            monkeypatch.setattr(kind, "mirrors", [f"{mirror.url}/"])
            yield mirror
        return
    if name == "cifar10":
        kind, names = datasets.CIFAR10, (*(f"data_batch_{n}" for n in range(1, 6)), "test_batch")
        content = patch_cifar(monkeypatch, kind, names, ("batches.meta", "label_names"))
    else:
        kind = datasets.CIFAR100
        content = patch_cifar(monkeypatch, kind, ("train", "test"), ("meta", "fine_label_names"))
    with serve({kind.filename: content}) as mirror:
        monkeypatch.setattr(kind, "url", f"{mirror.url}/{kind.filename}")
        yield mirror


def job(dataset: Any, model: str = "cnn", **changes: Any) -> Train:
    return Train(
        dataset=dataset, model=model, epochs=1, batch_size=1, **{"download": True, **changes}
    )


def at_once(count: int, work: Callable[[], None]) -> list[int | None]:
    """Do the same in several processes; return their exit codes."""
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=work) for _ in range(count)]
    for each in processes:
        each.start()
    for each in processes:
        each.join(DEADLINE)
    return [each.exitcode for each in processes]


@pytest.mark.parametrize("name", ["mnist", "fashion_mnist", "cifar10", "cifar100"])
def test_one_process_of_a_host_downloads_while_the_others_wait(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train, root = job(name), tmp_path / "data"
    with mirror_of(name, monkeypatch) as mirror:
        assert to_download(train, root)
        assert at_once(3, lambda: download(train, root)) == [0, 0, 0]
        assert sorted(mirror.asked) == sorted(mirror.files)
    assert not to_download(train, root)
    assert find_files(train, root)
    assert sorted(each.name for each in root.iterdir() if each.name.startswith(".")) == [
        ".kit-download"
    ]
    data = load_data(train, root)
    shape = (1, 28, 28) if "mnist" in name else (3, 32, 32)
    parts = 5 if name == "cifar10" else 1
    assert data.train.inputs.shape == (parts * COUNT, *shape)
    assert (data.train.inputs.dtype, data.train.labels.dtype) == (torch.uint8, torch.int64)
    assert data.classes == len(data.labels) == (100 if name == "cifar100" else 10)
    # The files as torchvision reads them.
    kind: Any = {
        "mnist": datasets.MNIST,
        "fashion_mnist": datasets.FashionMNIST,
        "cifar10": datasets.CIFAR10,
        "cifar100": datasets.CIFAR100,
    }[name]
    expected = kind(root, train=False)
    picture, label = expected[3]
    image = data.test.inputs[3].permute(1, 2, 0).squeeze(-1).numpy()
    assert (np.array(picture) == image).all()
    assert (label, len(expected)) == (int(data.test.labels[3]), len(data.test))


@pytest.mark.parametrize("fault", ["gone", "damaged", "unreachable"])
def test_a_download_that_fails_names_the_host_and_leaves_nothing(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KIT_HOST", "pc7")
    train = job("fashion_mnist")
    with mirror_of("fashion_mnist", monkeypatch) as mirror:
        if fault == "damaged":
            mirror.files["t10k-labels-idx1-ubyte.gz"] = b"the portal of a hotel"
        elif fault == "gone":
            mirror.files.clear()
        else:
            monkeypatch.setattr(datasets.FashionMNIST, "mirrors", ["http://127.0.0.1:9/"])
        with pytest.raises(DownloadError, match=rf"^pc7: the download to {tmp_path} has failed: "):
            download(train, tmp_path)
    assert [each.name for each in tmp_path.iterdir()] == [".kit-download"]
    # Of a process that was killed in the middle: the next one clears up.
    (tmp_path / ".kit-download-x" / "FashionMNIST").mkdir(parents=True)
    with mirror_of("fashion_mnist", monkeypatch):
        download(train, tmp_path)
    assert sorted(each.name for each in tmp_path.iterdir()) == [".kit-download", "FashionMNIST"]


def test_what_is_there_needs_no_network_and_no_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with mirror_of("fashion_mnist", monkeypatch) as mirror:
        download(job("fashion_mnist"), tmp_path)
        asked = len(mirror.asked)
        (tmp_path / ".kit-download").unlink()
        download(job("fashion_mnist"), tmp_path)
        assert len(mirror.asked) == asked
    assert not (tmp_path / ".kit-download").exists()


def test_weights_by_name_are_downloaded_and_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "home"))
    stream = io.BytesIO()
    torch.save(build("torchvision/squeezenet1_1", 1000, 64).state_dict(), stream)
    content = stream.getvalue()
    name = f"squeezenet1_1-{hashlib.sha256(content).hexdigest()[:8]}.pth"
    weights = models.SqueezeNet1_1_Weights.IMAGENET1K_V1
    train = job("digits", "torchvision/squeezenet1_1", weights="IMAGENET1K_V1")
    with serve({name: b"the portal of a hotel"}) as mirror:
        monkeypatch.setattr(weights.value, "url", f"{mirror.url}/{name}")
        with pytest.raises(DownloadError, match="invalid hash value"):
            download(train, tmp_path)
        mirror.files[name] = content
        assert at_once(3, lambda: download(train, tmp_path)) == [0, 0, 0]
        assert mirror.asked == [name, name]
    assert (tmp_path / "weights" / name).read_bytes() == content
    assert starting_weights(train, 10, 64, tmp_path) is not None
    with suppress(FileNotFoundError):
        (tmp_path / "home").rmdir()


@pytest.mark.parametrize("name", ["cifar10", "fashion_mnist"])
def test_a_store_downloads_all_parts_of_a_data_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    with mirror_of(name, monkeypatch):
        from_torchvision(name, tmp_path, lambda *_: None)
    assert load_data(job(name), tmp_path).train.inputs.shape[0] == (
        5 * COUNT if name == "cifar10" else COUNT
    )
    left = [path for path in tmp_path.rglob("*") if path.name.endswith(".gz")]
    assert left == []  # The archives: their content lies beside them.


def test_an_unknown_data_set_of_torchvision_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataSetError, match="torchvision cannot download cifra10; did you mean"):
        from_torchvision("cifra10", tmp_path, lambda *_: None)
