"""Images in tar shards, fetched shortly before their use.

Shapes: N samples, M shards.

The order of an epoch depends only on seed and epoch, as for other data sets, so no sample is
left out or repeated at any world size. Each shard belongs to one of up to 64 lanes, by its number.
A window has one shard of each lane, and its samples are shuffled. A global batch is sorted by lane
before the ranks divide it, so each rank always reads about the same lanes, and hosts fetch
different shards.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import threading
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

import numpy as np
import torch
from torch import Tensor

from trainer.contract.job import Train
from trainer.contract.words import some
from trainer.data.crops import image_transform
from trainer.data.images import ImageFiles, repeated
from trainer.data.pictures import View
from trainer.data.samples import DataError
from trainer.data.shards import generator, permutation
from trainer.data.views import test_view
from trainer.streaming.files import Member, ShardFiles, settled
from trainer.streaming.index import PARTS, Index, Shard, parts_of, read

LANES = 64
"""Shards that are shuffled together; a rank of W reads about 64 / W of them at the same time."""
CACHE_GIB = 32
AHEAD = 4
"""Shards that a rank fetches before they are used."""
LANE = 3  # A separate random stream, independent of others with the same seed.


class Prefetch:
    """Fetches a rank's shards in the order of their use, a few ahead."""

    def __init__(self, files: ShardFiles, shards: list[Shard]) -> None:
        self._files, self._shards = files, shards
        self._stop, self._permits = threading.Event(), threading.Semaphore(0)
        self._used: set[int] = set()

    def begin(self, batches: Iterable[Tensor]) -> None:
        """Restart; `batches` have the numbers of their shards, int64 [n] each."""
        self.end()
        self._stop, self._permits = threading.Event(), threading.Semaphore(AHEAD)
        self._used = set()
        place = (batches, self._stop, self._permits)
        threading.Thread(target=self._fetch, args=place, daemon=True).start()

    def use(self, shards: Iterable[int]) -> None:
        """Mark shards as used, so that as many others can be fetched."""
        for number in set(shards) - self._used:
            self._used.add(number)
            self._permits.release()

    def end(self) -> None:
        """Stop fetching after the present shard."""
        self._stop.set()
        self._permits.release()

    def _fetch(
        self, batches: Iterable[Tensor], stop: threading.Event, permits: threading.Semaphore
    ) -> None:
        fetched = set[int]()
        for batch in batches:
            for number in sorted(set(batch.tolist())):
                if number in fetched:
                    continue
                fetched.add(number)
                permits.acquire()
                if stop.is_set():
                    return
                with suppress(DataError, OSError):  # The process that decodes reports it.
                    self._files.fetch(self._shards[number])


@dataclass(frozen=True, eq=False)
class StreamedImages(ImageFiles):
    """Images in shards; `files` is empty."""

    source: ShardFiles = field(kw_only=True)
    shards: list[Shard] = field(kw_only=True)  # M.
    shard: Tensor = field(kw_only=True)  # int64 [N].
    offset: Tensor = field(kw_only=True)  # int64 [N].
    length: Tensor = field(kw_only=True)  # int64 [N].
    prefetch: Prefetch = field(kw_only=True)

    def hold_out(self, share: float, seed: int, like: Self) -> tuple[Self, Self]:
        """As in `Samples`, by whole shards, so that the training only fetches its own."""
        order = torch.randperm(len(self.shards), generator=generator(seed))
        number = round(len(self.shards) * share)
        return self._of(order[number:], self), self._of(order[:number], like)

    def _of(self, shards: Tensor, like: Self) -> Self:
        """The samples of some shards, int64 [m], read in the way of `like`."""
        kept = shards.sort().values
        own = torch.isin(self.shard, kept)
        there = [self.shards[number] for number in kept.tolist()]
        columns = ("labels", "offset", "length")
        return replace(
            like,
            shards=there,
            shard=torch.searchsorted(kept, self.shard[own]),
            prefetch=Prefetch(self.source, there),
            **{name: getattr(self, name)[own] for name in columns},
        )

    @property
    def content(self) -> bytes:
        """A hash of the shards."""
        return hashlib.sha256("".join(each.sha256 for each in self.shards).encode()).digest()

    @property
    def near(self) -> range:
        """As in `ImageFiles`."""
        return range(0 if self.source.remote else len(self))

    @property
    def lanes(self) -> int:
        """The number of lanes."""
        return min(LANES, len(self.shards))

    def file(self, number: int) -> Member:
        """As in `ImageFiles`."""
        number %= len(self)
        shard = self.shards[int(self.shard[number])]
        return Member(self.source, shard, int(self.offset[number]), int(self.length[number]))

    def order(self, seed: int, epoch: int) -> Tensor:
        """As in `Samples`: consecutive windows, shuffled within each.

        The shuffled samples of each shard are spread evenly over the window, so that each global
        batch has about the same number from each lane.
        """
        window = torch.empty(len(self.shards), dtype=torch.int64)
        for lane in range(self.lanes):
            own = torch.arange(lane, len(self.shards), self.lanes)
            draw = generator(seed, epoch, lane, LANE)
            window[own[torch.randperm(len(own), generator=draw)]] = torch.arange(len(own))
        shuffled = permutation(len(self), seed, epoch)
        by_shard = shuffled[self.shard[shuffled].argsort(stable=True)]
        shard = self.shard[by_shard]
        counts = self.shard.bincount(minlength=len(self.shards))
        number = torch.arange(len(self)) - (counts.cumsum(0) - counts)[shard]  # In its shard.
        jitter = torch.rand(len(self), dtype=torch.float64, generator=generator(seed, epoch, LANE))
        order = by_shard[(window[shard] + (number + jitter) / counts[shard]).argsort(stable=True)]
        return repeated(order, self.copies) if self.copies > 1 else order

    def shard_of(self, numbers: Tensor) -> Tensor:
        """Return the shards of samples, int64 [n] each."""
        return self.shard[numbers % len(self)]

    def grouped(self, batch: Tensor) -> Tensor:
        """As in `Samples`: by lane."""
        return batch[(self.shard_of(batch) % self.lanes).argsort(stable=True)]

    def expect(self, batches: Iterable[Tensor], epoch: int | None = None) -> None:
        """As in `ImageFiles`; shards are fetched ahead."""
        known = list(batches)
        super().expect(known, epoch)  # This forks, so it must precede the thread.
        if self.source.remote:
            self.prefetch.begin(self.shard_of(batch) for batch in known)

    def take(self, indices: Tensor, device: torch.device) -> tuple[Tensor, Tensor]:
        """As in `ImageFiles`."""
        self.prefetch.use(self.shard_of(indices).tolist())
        return super().take(indices, device)


def load_shards(train: Train, root: Path) -> tuple[list[StreamedImages], tuple[str, ...]]:
    """Load the index of a job's shards: the parts, and the classes; raises DataError."""
    source = shard_files(train, root)
    index = read(source.index(), source.place)
    part_of = parts_of(index.names.tolist())
    there = [part for part in PARTS if part in {"train", "test", *part_of}]
    parts = [_part(index, part, part_of, train, source) for part in there]
    trained, *tested = (set(part.labels.tolist()) for part in parts)
    if strange := sorted(set().union(*tested) - trained):
        names = some(str(index.classes[label]) for label in strange)
        what = f"{source.place}: its shards to test have classes that those to train lack: {names}"
        raise DataError(f"{what}; make all from the same classes")
    return parts, tuple(index.classes.tolist())


def shard_files(train: Train, root: Path) -> ShardFiles:
    """Return the shards of a job, in a folder or at an address."""
    if not train.url:
        return ShardFiles(str(root / train.path))
    base = Path(os.environ.get("KIT_SHARD_CACHE") or Path(tempfile.gettempdir(), "kit-shards"))
    address = settled(train.url.rstrip("/"))
    name = hashlib.sha256(address.encode()).hexdigest()[:12]
    return ShardFiles(address, base / name, (train.cache_gib or CACHE_GIB) * 2**30)


def _part(
    index: Index, part: str, part_of: list[str], train: Train, source: ShardFiles
) -> StreamedImages:
    chosen = np.array([each == part for each in part_of])
    number = np.cumsum(chosen) - 1  # In the part.
    own = chosen[index.shard]
    if not own.any():
        raise DataError(f"{source.place}: its shards have no samples to {part}")
    columns = (number[index.shard], index.offset, index.length, index.label)
    shard, offset, length, label = (torch.from_numpy(column[own]) for column in columns)
    shards = [each for each, wanted in zip(index.shards, chosen, strict=True) if wanted]
    training = part == "train"
    view = View(train.image_size) if training else test_view(train)[0]
    return StreamedImages(
        torch.empty(0, 3, view.side, view.side, dtype=torch.uint8),
        label,
        [],
        image_transform(train) if training else None,
        train.seed,
        view=view,
        copies=(train.repeated_augmentation or 1) if training else 1,
        source=source,
        shards=shards,
        shard=shard,
        offset=offset,
        length=length,
        prefetch=Prefetch(source, shards),
    )
