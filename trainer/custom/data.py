"""The user's own data sets: tensors in memory, or map-style Datasets read in worker processes."""

from __future__ import annotations

import atexit
import random
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler, TensorDataset, default_collate

from trainer.contract.job import Train
from trainer.contract.words import some
from trainer.custom.code import CodeError, blamed, find, kind_of, place_of
from trainer.custom.functions import data_settings
from trainer.custom.nested import first_tensor, mapped
from trainer.data.samples import DataError, DataSet, Samples
from trainer.data.shards import generator
from trainer.data.workers import AHEAD, end_workers, outlive_the_stop, workers

PARTS = ("train", "test")
IGNORED = -100  # The label that torch's cross-entropy ignores.
RANDOM = 3  # A separate random stream, independent of others with the same seed.


@dataclass(frozen=True)
class OwnData(DataSet):
    """The user's own data: inputs are used unchanged."""

    sample: tuple[int, ...] = ()  # The shape of an input; empty if it is not a single tensor.
    kind: str = ""  # The torch dtype of its values, such as float32.

    @property
    def shape(self) -> tuple[int, ...]:
        """As in `DataSet`."""
        return self.sample

    def preparation(self) -> dict[str, Any]:
        """As in `DataSet`: the description of inputs for a server."""
        return {"shape": list(self.shape), "type": self.kind}

    @property
    def text(self) -> bool:
        """As in `DataSet`."""
        return False

    def prepared(self, inputs: Any) -> Any:
        """As in `DataSet`: return the inputs unchanged."""
        return inputs


@dataclass(frozen=True, eq=False)
class OwnTensors(Samples):
    """Inputs and targets in memory: tensors of any shape [N, ...]."""

    def to(self, device: torch.device) -> OwnTensors:  # noqa: ARG002
        """As in `Samples`; they stay on the CPU, as they may not fit on a GPU."""
        return self

    def take(self, indices: Tensor, device: torch.device) -> tuple[Tensor, Tensor]:
        """As in `Samples`."""
        return self.inputs[indices].to(device), self.labels[indices].to(device)


@dataclass(frozen=True, eq=False)
class OwnSamples(OwnTensors):
    """The samples of a map-style Dataset; `inputs` is empty, `labels` only has their number."""

    part: int  # The index of its Dataset in the reader.
    reader: Reader
    seed: int

    def expect(self, batches: Iterable[Tensor], epoch: int | None = None) -> None:
        """As in `Samples`, in worker processes."""
        self.reader.expect(self.request(indices, epoch) for indices in batches)

    def take(self, indices: Tensor, device: torch.device) -> tuple[Any, Any]:
        """As in `Samples`; raises CodeError if a sample cannot be read."""
        inputs, targets = self.reader.take(self.request(indices, None))
        return mapped(inputs, lambda each: each.to(device)), mapped(
            targets, lambda each: each.to(device)
        )

    def request(self, indices: Tensor, epoch: int | None) -> Request:
        """Return the request for a batch."""
        chosen = indices.tolist()
        words = ((epoch or 0, number, RANDOM) for number in chosen)
        seeds = [generator(self.seed, *each).initial_seed() for each in words]
        return Request(self.part, chosen, seeds)


class Request(NamedTuple):
    """Samples to read, each with the seed of its random augmentation."""

    part: int
    indices: Sequence[int]
    seeds: Sequence[int]


class Reading(Dataset[Any]):
    """Maps requests to batches, or to a fault in the user's code."""

    def __init__(self, parts: Sequence[Dataset[Any]], place: str, names: tuple[str, ...]) -> None:
        self._parts, self._place, self._names = parts, place, names

    def __getitem__(self, request: Request) -> Any:
        """Return a batch or a fault, as an exception would have a worker's traceback."""
        try:
            with blamed(self._place):
                batch = default_collate(
                    [self._sample(request, at) for at in range(len(request[1]))]
                )
            if isinstance(batch, list) and len(batch) == 2:
                check_labels(batch[1], self._names, self._place, request)
        except CodeError as error:
            return error
        return batch

    def _sample(self, request: Request, at: int) -> Any:
        seed = request.seeds[at]
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)
        return self._parts[request.part][request.indices[at]]


class Requests(Sampler[Request]):
    """Passes requests to the loader, and records those that have begun."""

    def __init__(self) -> None:
        self.wanted: Iterable[Request] = ()
        self.begun: deque[Request] = deque()

    def __iter__(self) -> Iterator[Request]:
        for request in self.wanted:
            self.begun.append(request)
            yield request


class Reader:
    """Reads batches of a job's own Datasets in the order of their use."""

    def __init__(self, parts: Sequence[Dataset[Any]], place: str, names: tuple[str, ...]) -> None:
        self._requests = Requests()
        self._read: Iterator[Any] = iter(())
        self._reading = Reading(parts, place, names)
        self._loader: DataLoader[Any] | None = None

    def expect(self, requests: Iterable[Request]) -> None:
        """Begin to read batches; those expected before are dropped."""
        self._requests.wanted = requests
        self._requests.begun.clear()
        if self._loader is None:
            atexit.register(end_workers)
            self._loader = DataLoader(
                self._reading,
                batch_size=None,
                sampler=self._requests,
                num_workers=workers(),
                prefetch_factor=AHEAD,
                persistent_workers=True,
                # Other start methods would import torch again in each worker; they use no GPU.
                multiprocessing_context="fork",
                worker_init_fn=outlive_the_stop,
                generator=torch.Generator(),  # The global one is for the training alone.
            )
        self._read = iter(self._loader)

    def take(self, request: Request) -> tuple[Any, Any]:
        """Return a batch; if it is not the next expected one, read it now. Raises CodeError."""
        begun = self._requests.begun
        if not begun or begun[0][:2] != request[:2]:
            self.expect([request])
        begun.popleft()
        try:
            batch = next(self._read)
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
            raise DataError(f"a process that reads samples has ended: {reason}") from error
        if isinstance(batch, CodeError):
            raise batch
        inputs, targets = batch
        return inputs, targets


def load_own(train: Train, root: Path) -> OwnData:
    """Load the user's own data set; `root` is the data folder. Raises CodeError."""
    function = find(train.dataset)
    place = place_of(function)
    with blamed(place):
        found = function(data_settings(train, root))
    if not isinstance(found, tuple | list) or len(found) not in (2, 3):
        raise CodeError(f"{place}: it returns a {kind_of(found)}, not train and test")
    train_part, test_part, *labels = found
    pair = zip((train_part, test_part), PARTS, strict=True)
    parts = tuple(checked(part, name, place) for part, name in pair)
    with blamed(place):
        names = tuple(map(str, *labels)) if labels else ()
    shape, kind = described(parts[0], place)
    nothing = torch.zeros(1)
    reader = Reader(parts, place, names)
    first, second = (
        samples(part, at, reader, train.seed, names, place) for at, part in enumerate(parts)
    )
    return OwnData(
        first, second, nothing, nothing, len(names), labels=names, sample=shape, kind=kind
    )


def checked(part: Any, name: str, place: str) -> Dataset[Any]:
    """Return a part of the data as a Dataset; raises CodeError."""
    if isinstance(part, tuple | list) and part and all(isinstance(each, Tensor) for each in part):
        if len(part) != 2 or any(each.ndim == 0 for each in part) or len({*map(len, part)}) > 1:
            shapes = ", ".join(str(list(each.shape)) for each in part)
            what = "not of inputs [N, ...] and targets [N, ...]"
            raise CodeError(f"{place}: the {name} part has tensors of the shapes {shapes}, {what}")
        part = TensorDataset(*part)
    if not (hasattr(part, "__getitem__") and hasattr(part, "__len__")) or isinstance(part, tuple):
        what = "not a map-style Dataset, nor a tuple of inputs and targets"
        raise CodeError(f"{place}: the {name} part is a {kind_of(part)}, {what}")
    with blamed(f"{place}: the length of the {name} part"):
        if len(part) == 0:
            raise CodeError(f"{place}: the {name} part is empty")
    dataset: Dataset[Any] = part
    return dataset


def check_labels(labels: Any, names: tuple[str, ...], place: str, request: Request) -> None:
    """Raise CodeError if a label is not a class: on a GPU this looks like a hardware fault.

    Targets of other types, and those that the loss ignores, are not checked.
    """
    is_class = isinstance(labels, Tensor) and labels.dtype == torch.int64 and labels.ndim == 1
    if not names or not is_class:
        return
    wrong = (labels != IGNORED) & ((labels < 0) | (labels >= len(names)))
    if wrong.any():
        at = int(wrong.nonzero()[0])
        what = f"sample {request.indices[at]} of {PARTS[request.part]} has label {int(labels[at])}"
        classes = f"labels are 0 to {len(names) - 1}, for the classes {some(names)}"
        raise CodeError(f"{place}: {what}; {classes}")


def samples(
    part: Dataset[Any], at: int, reader: Reader, seed: int, names: tuple[str, ...], place: str
) -> Samples:
    """Return a part as samples; a TensorDataset needs no workers. Raises CodeError."""
    if type(part) is TensorDataset and len(part.tensors) == 2:
        check_labels(part.tensors[1], names, place, Request(at, range(len(part)), ()))
        return OwnTensors(*part.tensors)
    number = torch.zeros(len(part), dtype=torch.uint8)  # type: ignore[arg-type]
    return OwnSamples(torch.empty(0), number, at, reader, seed)


def described(part: Dataset[Any], place: str) -> tuple[tuple[int, ...], str]:
    """Return the shape and the type of a sample's input; raises CodeError."""
    with blamed(f"{place}: the first sample"):
        sample = part[0]
    if not isinstance(sample, tuple | list) or len(sample) != 2:
        raise CodeError(f"{place}: a sample is a {kind_of(sample)}, not a pair of input and target")
    with blamed(f"{place}: the first sample"):
        batch = default_collate([sample])
        first_tensor(batch[1])
    if not isinstance(batch[0], Tensor):
        return (), ""
    return tuple(batch[0].shape[1:]), str(batch[0].dtype).removeprefix("torch.")
