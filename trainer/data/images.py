"""Images that stay in their files until they are used, decoded ahead in worker processes.

Shapes: N samples, S pixels a side. Images are uint8 until they are used.
"""

from __future__ import annotations

import atexit
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self

import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from trainer.contract.words import some
from trainer.data.decoding import Member, Transform, decode, fault_of, jpeg_content
from trainer.data.pictures import View
from trainer.data.samples import DamagedError, DataError, Samples
from trainer.data.shards import seed_of, seeded
from trainer.data.workers import AHEAD, end_workers, outlive_the_stop, workers

Image.MAX_IMAGE_PIXELS = None  # The files are the user's own, and of any size.
CHUNK = 32  # Images in one request to a worker.
APART = 256
TRANSFORM = 2  # A separate random stream, independent of others with the same seed.
SEARCH = 20.0  # Seconds of the search for further damaged files: other ranks wait meanwhile.
BLOCK = 1024  # Pictures that are tried between two checks of the time.


class Request(NamedTuple):
    """Images to decode."""

    files: list[Path | Member]
    view: View
    transform: Transform | None  # A random one to S x S, for training images.
    seeds: list[int]  # Of the transform, for each image.
    packed: bool = False  # Whether JPEG files are left to the GPU.


class Fault(NamedTuple):
    """The fault of a request; it is returned, as an exception would have a worker's traceback."""

    text: str
    damaged: bool

    @classmethod
    def of(cls, error: DataError) -> Fault:
        """Convert an error to a fault."""
        return cls(str(error), isinstance(error, DamagedError))

    def error(self) -> DataError:
        """Convert the fault back to its error."""
        return DamagedError(self.text) if self.damaged else DataError(self.text)


class Decoder(Protocol):
    """Decodes and augments JPEG files on a GPU (trainer/vision/gpu.py)."""

    def decode(self, contents: Sequence[Tensor]) -> list[Tensor]:
        """Decode files uint8 [bytes] to images uint8 [3, height, width]; raises RuntimeError."""

    def augment(self, images: Sequence[Tensor], seeds: Sequence[int], change: Transform) -> Tensor:
        """Change images to uint8 [n, 3, S, S], each with its seed."""


class Decoding(Dataset[Any]):
    """Maps requests to images uint8 [n, 3, S, S], or to a fault with the file's name.

    If the GPU decodes, the result is a list of JPEG files uint8 [bytes] for it, and of images
    uint8 [3, S, S] that it cannot decode.
    """

    def __getitem__(self, request: Request) -> Tensor | list[Tensor] | Fault:
        """Decode some images."""
        if request.packed:
            return self._packed(request)
        images = [torch.empty(0, 3, side := request.view.side, side, dtype=torch.uint8)]
        for number, file in enumerate(request.files):
            try:
                if request.transform:
                    torch.manual_seed(request.seeds[number])
                images.append(decode(file, request.view, request.transform)[None])
            except DataError as error:
                return Fault.of(error)
        return torch.cat(images)

    def _packed(self, request: Request) -> list[Tensor] | Fault:
        found = []
        for file, seed in zip(request.files, request.seeds, strict=True):
            try:
                content = jpeg_content(file)
                if content is None:
                    torch.manual_seed(seed)
                    content = decode(file, request.view, request.transform)
                found.append(content)
            except DataError as error:
                return Fault.of(error)
        return found


class Requests(Sampler[Request]):
    """Passes requests to the loader, and records their batches."""

    def __init__(self) -> None:
        self.batches: Iterable[tuple[ImageFiles, Tensor, int | None]] = ()
        self.begun: deque[tuple[ImageFiles, Tensor, int | None]] = deque()  # Not used yet.

    def __iter__(self) -> Iterator[Request]:
        for samples, indices, epoch in self.batches:
            self.begun.append((samples, indices, epoch))
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

    def take(self, samples: ImageFiles, indices: Tensor) -> tuple[list[Any], int | None]:
        """Return the workers' results for a batch, and its epoch; raises DataError.

        A batch that is not the next expected one is decoded now, without an epoch.
        """
        begun = self._requests.begun
        if not begun or begun[0][0] is not samples or not torch.equal(begun[0][1], indices):
            self.expect([(samples, indices, None)])
        *_, epoch = begun.popleft()
        try:
            parts = [next(self._decoded) for _ in torch.split(indices, CHUNK)]
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
            raise DataError(f"a process that decodes images has ended: {reason}") from error
        for part in parts:
            if isinstance(part, Fault):
                raise part.error()
        return parts, epoch


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
        generator=torch.Generator(),  # The global one is for the training alone.
    )


READER = Reader()
"""The reader of this process: it never reads samples of training and test at the same time."""


@dataclass(frozen=True, eq=False)
class ImageFiles(Samples):
    """Images in files, so that memory does not limit their number; `inputs` is empty.

    A copy of a sample in an epoch is augmented differently; copy k of sample i has the number
    i + k N.
    """

    files: list[Path]
    transform: Transform | None = None  # A random one for training; None: a centre crop.
    seed: int = 0
    view: View = field(kw_only=True)
    copies: int = field(default=1, kw_only=True)  # Of an image in an epoch.
    decoder: Decoder | None = field(default=None, kw_only=True)  # The GPU's.

    @property
    def paths(self) -> list[Path]:
        """As in `Samples`."""
        return self.files

    @property
    def near(self) -> range:
        """The numbers of the images that are on this host."""
        return range(len(self))

    @property
    def numbers(self) -> int:
        """As in `Samples`."""
        return len(self) * self.copies

    def chosen(self, indices: Tensor, like: Self) -> Self:
        """As in `Samples`."""
        files = [self.files[number] for number in indices.tolist()]
        return replace(like, files=files, labels=self.labels[indices])

    def order(self, seed: int, epoch: int) -> Tensor:
        """As in `Samples`; if images have copies, others are left out."""
        order = super().order(seed, epoch)
        return repeated(order, self.copies) if self.copies > 1 else order

    def file(self, number: int) -> Path | Member:
        """The location of an image."""
        return self.files[number % len(self)]

    def request(self, indices: list[int], epoch: int | None) -> Request:
        """Return the request for a worker; without an epoch, without the random transform."""
        transform = None if epoch is None else self.transform
        seeds = self.seeds(indices, epoch) if transform and epoch is not None else []
        files = [self.file(number) for number in indices]
        packed = bool(self.decoder and transform)
        return Request(files, self.view, transform, seeds, packed)

    def seeds(self, indices: list[int], epoch: int) -> list[int]:
        """Return the seeds of the transform of some samples in an epoch."""
        return [seed_of(self.seed, epoch, number, TRANSFORM) for number in indices]

    def expect(self, batches: Iterable[Tensor], epoch: int | None = None) -> None:
        """As in `Samples`, in worker processes."""
        READER.expect((self, indices, epoch) for indices in batches)

    def take(self, indices: Tensor, device: torch.device) -> tuple[Tensor, Tensor]:
        """As in `Samples`; raises DataError, and DamagedError that names all damaged files."""
        labels = self.labels[indices % len(self)].to(device)
        try:
            parts, epoch = READER.take(self, indices)
        except DamagedError as error:
            raise all_damaged(self, str(error)) from error
        if parts and isinstance(parts[0], list):
            contents = [each for part in parts for each in part]
            return self._unpacked(indices.tolist(), contents, epoch or 0).to(device), labels
        return torch.cat(parts).to(device), labels

    def _unpacked(self, indices: list[int], contents: list[Tensor], epoch: int) -> Tensor:
        """Decode and augment on the GPU, or on the CPU if the GPU cannot decode an image."""
        assert self.decoder
        assert self.transform
        seeds = self.seeds(indices, epoch)
        packed = [place for place, content in enumerate(contents) if content.ndim == 1]
        try:
            images = self.decoder.decode([contents[place] for place in packed]) if packed else []
        except RuntimeError as error:
            if "CUDA error" in str(error):
                raise
            for place in packed:
                with seeded(seeds[place]):
                    file = self.file(indices[place])
                    contents[place] = decode(file, self.view, self.transform)
            return torch.stack(contents)
        found: dict[int, Tensor] = {}
        if images:
            own = [seeds[place] for place in packed]
            found = dict(
                zip(packed, self.decoder.augment(images, own, self.transform), strict=True)
            )
        device = next(iter(found.values())).device if found else torch.device("cpu")
        return torch.stack(
            [found.get(place, content).to(device) for place, content in enumerate(contents)]
        )


def all_damaged(images: ImageFiles, first: str) -> DamagedError:
    """Search for all files that cannot be decoded, up to SEARCH; `first` describes one of them."""
    end, near = time.monotonic() + SEARCH, images.near
    found, tried = [first], 0
    with ThreadPoolExecutor(workers()) as pool:
        while tried < len(near) and time.monotonic() < end:
            block = near[tried : tried + BLOCK]
            found += filter(None, pool.map(lambda number: fault_of(images.file(number)), block))
            tried += len(block)
    rest = f"; {tried:,} of {len(images):,} pictures were tried" if tried < len(images) else ""
    return DamagedError(f"{some(dict.fromkeys(found))}; replace or delete what is damaged{rest}")


def repeated(order: Tensor, copies: int) -> Tensor:
    """Repeat the first samples of an order int64 [N] `copies` times, and leave out the others.

    The copies of an image are `APART` places from each other, so that they are on different ranks
    and not mixed with each other (repeated augmentation: Hoffer et al. 2019, arXiv 1901.09335).
    """
    chosen = order[: -(-len(order) // copies)]
    shifts = len(order) * torch.arange(copies)[:, None]
    parts = [(part + shifts).flatten() for part in torch.split(chosen, APART)]
    return torch.cat(parts)[: len(order)]
