"""Images that stay in their files until they are used, decoded ahead in worker processes.

Shapes: N samples, S pixels a side. Images are uint8 until they are used.
"""

from __future__ import annotations

import atexit
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from trainer.data.pictures import opened, square
from trainer.data.samples import DataError, Samples
from trainer.data.shards import generator
from trainer.data.workers import AHEAD, end_workers, outlive_the_stop, workers

Image.MAX_IMAGE_PIXELS = None  # The files are the user's own, and of any size.
CHUNK = 32  # Images in one request to a worker.
TRANSFORM = 2  # A random stream of its own, independent of others with the same seed.
Transform = Callable[[Image.Image], Image.Image]


class Member(Protocol):
    """An image in a larger file; its text names both."""

    def open(self) -> IO[bytes]:
        """Return its content; raises DataError."""


class Request(NamedTuple):
    """Images to decode."""

    files: list[Path | Member]
    side: int
    transform: Transform | None  # A random one to S x S, for training images.
    seeds: list[int]  # Of the transform, for each image.


class Decoding(Dataset[Any]):
    """Decodes requests: to uint8 [n, 3, S, S], or to an error that names the file."""

    def __getitem__(self, request: Request) -> Tensor | str:
        """Decode some images; an exception would come with a worker's traceback."""
        images = [torch.empty(0, 3, request.side, request.side, dtype=torch.uint8)]
        for number, file in enumerate(request.files):
            try:
                if request.transform:
                    torch.manual_seed(request.seeds[number])
                images.append(decode(file, request.side, request.transform)[None])
            except DataError as error:
                return str(error)
        return torch.cat(images)


def decode(file: Path | Member, side: int, transform: Transform | None = None) -> Tensor:
    """Decode to uint8 [3, S, S]: transformed, or the centre crop; raises DataError."""
    try:
        with Image.open(file if isinstance(file, Path) else file.open()) as image:
            if transform:  # Its smallest crops are a quarter of the image's side.
                crop = np.array(transform(opened(image, 4 * side)))
                return torch.from_numpy(crop).permute(2, 0, 1)
            return torch.from_numpy(square(opened(image, 2 * side), side))
    except DataError:  # The image could not be read.
        raise
    except Exception as error:  # Its class depends on the format.
        raise DataError(f"{file} can not be decoded ({error}); replace or delete it") from error


class Requests(Sampler[Request]):
    """Gives the loader its requests, and records their batches."""

    def __init__(self) -> None:
        self.batches: Iterable[tuple[ImageFiles, Tensor, int | None]] = ()
        self.begun: deque[tuple[ImageFiles, Tensor]] = deque()  # Not used yet.

    def __iter__(self) -> Iterator[Request]:
        for samples, indices, epoch in self.batches:
            self.begun.append((samples, indices))
            for chunk in torch.split(indices, CHUNK):
                yield samples.request(chunk.tolist(), epoch)


class Reader:
    """Decodes batches of images in the order of their use."""

    def __init__(self) -> None:
        self._requests = Requests()
        self._loader: DataLoader[Any] | None = None
        self._decoded: Iterator[Any] = iter(())

    def expect(self, batches: Iterable[tuple[ImageFiles, Tensor, int | None]]) -> None:
        """Begin to decode batches; those expected before are dropped."""
        self._requests.batches = batches
        self._requests.begun.clear()
        # The workers persist from one order to the next.
        if self._loader is None:
            self._loader = load(self._requests)
        self._decoded = iter(self._loader)

    def take(self, samples: ImageFiles, indices: Tensor) -> Tensor:
        """Return images of a batch, uint8 [n, 3, S, S]; raises DataError.

        A batch that is not the next expected one is decoded now.
        """
        begun = self._requests.begun
        if not begun or begun[0][0] is not samples or not torch.equal(begun[0][1], indices):
            self.expect([(samples, indices, None)])
        begun.popleft()
        try:
            parts = [next(self._decoded) for _ in torch.split(indices, CHUNK)]
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
            raise DataError(f"a process that decodes images has ended: {reason}") from error
        for part in parts:
            if isinstance(part, str):
                raise DataError(part)
        return torch.cat(parts)


def load(requests: Requests) -> DataLoader[Any]:
    """Make a loader for requests, with as many workers as this rank has cores."""
    atexit.register(end_workers)
    return DataLoader(
        Decoding(),
        batch_size=None,
        sampler=requests,
        num_workers=workers(),
        prefetch_factor=AHEAD,
        persistent_workers=True,
        # Other start methods would import torch again in each worker; they use no GPU.
        multiprocessing_context="fork",
        worker_init_fn=outlive_the_stop,
    )


READER = Reader()
"""The reader of this process: it never reads samples of training and test at the same time."""


@dataclass(frozen=True, eq=False)
class ImageFiles(Samples):
    """Images in files, so that memory does not limit their number; `inputs` is empty."""

    files: list[Path]
    transform: Transform | None = None  # A random one for training, else a centre crop.
    seed: int = 0

    @property
    def paths(self) -> list[Path]:
        """As of `Samples`."""
        return self.files

    def file(self, number: int) -> Path | Member:
        """Where an image is."""
        return self.files[number]

    def request(self, indices: list[int], epoch: int | None) -> Request:
        """Return the request for a worker; without an epoch, no transform is random."""
        transform = None if epoch is None else self.transform
        words = [(epoch or 0, number, TRANSFORM) for number in indices] if transform else []
        seeds = [generator(self.seed, *each).initial_seed() for each in words]
        side = self.inputs.shape[-1]
        return Request([self.file(number) for number in indices], side, transform, seeds)

    def expect(self, batches: Iterable[Tensor], epoch: int | None = None) -> None:
        """As of `Samples`, in worker processes."""
        READER.expect((self, indices, epoch) for indices in batches)

    def take(self, indices: Tensor, device: torch.device) -> tuple[Tensor, Tensor]:
        """As of `Samples`; raises DataError if a file can not be decoded."""
        return READER.take(self, indices).to(device), self.labels[indices].to(device)
