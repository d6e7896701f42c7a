"""The queue of samples, and the replicas that answer them in batches.

Each replica has a task that takes a batch when the replica is free, and a thread that computes it.
All other work is in the event loop's thread, so this module needs no locks.
"""

import asyncio
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic
from typing import Any, NamedTuple, Protocol

import torch

from trainer.output import say_error
from trainer.serve.config import Settings
from trainer.serve.kind import Array, Kind
from trainer.serve.metrics import Metrics
from trainer.serve.offers import Offer
from trainer.serve.refusal import Refusal
from trainer.serve.requests import REQUEST


class Computing(Protocol):
    """A model on a device: that of a checkpoint, or a custom handler."""

    kind: Kind
    device: torch.device
    precision: str

    def scores(self, values: list[Any]) -> Any:
        """Return the answer for each sample: a row of scores, a value, or its fault."""


@dataclass(frozen=True)
class Serving:
    """A served checkpoint, and its model on each replica's device."""

    offer: Offer
    models: tuple[Computing, ...]


class Answer(NamedTuple):
    """The answer to a sample."""

    scores: Any  # float32 [K], or the answer of a custom function.
    serving: Serving  # The checkpoint that computed them.
    queued: float  # Seconds that the sample waited.
    computed: float  # Seconds that its batch took.
    batch: int  # Samples in that batch.


@dataclass(eq=False)
class Sample:
    """A sample in the queue."""

    value: Array
    kind: Kind  # Of the model for which it was read.
    future: asyncio.Future[Answer]
    since: float  # time.monotonic().
    request: str  # The id of its request.


class Batcher:
    """A bounded queue before the replicas."""

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self.serving: Serving | None = None
        self.reason = "the server is starting"  # Why no checkpoint is served yet.
        self._settings, self._metrics = settings, metrics
        self._waiting: deque[Sample] = deque()
        self._reserved = 0  # Places in the queue, including samples that are being decoded.
        self._claimed = 0  # Places for which one large request waits.
        self._freed = asyncio.Event()
        self._hurry = False
        self._arrived, self._turn = asyncio.Event(), asyncio.Lock()
        self._threads = [ThreadPoolExecutor(1, "replica") for _ in range(settings.replicas)]
        metrics.queue.set_function(lambda: self._reserved + self._claimed)

    def ready(self) -> Serving:
        """Return the served checkpoint; raises Refusal if there is none yet."""
        if self.serving is None:
            fix = "try again when /ready answers 200"
            raise Refusal(503, f"not ready: {self.reason}", fix, Retry_After="2")
        return self.serving

    async def reserve(self, count: int) -> None:
        """Reserve places in the queue, or raise Refusal; each must be used by `put` or freed.

        Small requests would take each free place at once, and a large one would never find enough.
        So one large request at a time waits, and others are refused meanwhile.
        """
        most = self._settings.queue
        if count > most:
            raise Refusal(413, f"{count} samples in one request", f"send {most} at most")
        large = count > min(self._settings.size, most // 2)
        if self._claimed or (self._reserved + count > most and not large):
            fix = "try again in a second, or ask the operator of this server for more GPUs"
            what = f"{self._reserved + self._claimed} samples wait already, {most} may"
            raise Refusal(429, what, fix, Retry_After="1")
        if self._reserved + count > most:
            self._claimed = count
            try:
                while self._reserved + count > most:
                    self._freed.clear()
                    await self._freed.wait()
            finally:
                self._claimed = 0
        self._reserved += count

    def free(self, count: int) -> None:
        """Free reserved places."""
        self._reserved -= count
        self._freed.set()

    def put(self, value: Array, kind: Kind, *, urgent: bool = False) -> "asyncio.Future[Answer]":
        """Queue a sample whose place is reserved; an urgent one may exceed the limit.

        An urgent sample does not wait for others in its batch. A cancelled one leaves the queue.
        """
        self._reserved += urgent
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        sample = Sample(value, kind, future, monotonic(), REQUEST.get())
        self._waiting.append(sample)
        future.add_done_callback(lambda _: self._leave(sample))
        self._hurry = self._hurry or urgent
        # Replicas are only notified of the first sample and of a full batch.
        if urgent or len(self._waiting) in (1, self._settings.size):
            self._arrived.set()
        return future

    async def _take(self) -> list[Sample]:
        """Wait for the next batch."""
        size, window = self._settings.size, self._settings.window
        async with self._turn:
            while True:
                due = self._waiting[0].since + window if self._waiting else float("inf")
                if self._hurry or len(self._waiting) >= size or due <= monotonic():
                    if batch := self._pop(size):
                        return batch
                    continue
                self._arrived.clear()
                with suppress(TimeoutError):
                    left = None if due == float("inf") else due - monotonic()
                    await asyncio.wait_for(self._arrived.wait(), left)

    def _pop(self, size: int) -> list[Sample]:
        """Remove up to `size` samples from the queue, and free their places."""
        batch = [self._waiting.popleft() for _ in range(min(size, len(self._waiting)))]
        self.free(len(batch))
        self._hurry = self._hurry and bool(self._waiting)
        return batch

    def _leave(self, sample: Sample) -> None:
        """Free the place of a sample whose client no longer waits."""
        if sample.future.cancelled() and sample in self._waiting:
            self._waiting.remove(sample)
            self.free(1)

    async def work(self, replica: int) -> None:
        """Answer batches in a loop; use a newer checkpoint from the next batch on."""
        while True:
            batch = await self._take()
            serving = self.ready()
            model = serving.models[replica]
            batch = [sample for sample in batch if self._fits(sample, model)]
            if not batch:
                continue
            began, loop = monotonic(), asyncio.get_running_loop()
            values = [sample.value for sample in batch]
            try:
                found = await loop.run_in_executor(self._threads[replica], model.scores, values)
            except Exception as error:
                self._failed(batch, model, error)
                continue
            self._metrics.batches.observe(len(batch))
            took = monotonic() - began
            for sample, scores in zip(batch, found, strict=True):
                if isinstance(scores, Exception):
                    self._failed([sample], model, scores)
                elif not sample.future.done():
                    waited = began - sample.since
                    answer = Answer(scores, serving, waited, took, len(batch))
                    sample.future.set_result(answer)

    @staticmethod
    def _fits(sample: Sample, model: Computing) -> bool:
        """Whether a sample is for a model of this kind; if not, refuse it."""
        # An index out of range would be a CUDA error, after which the process cannot use the GPU.
        if sample.kind is model.kind or sample.kind == model.kind:
            return True
        refusal = Refusal(503, "the model has just been replaced by another kind", "ask /model")
        sample.future.set_exception(refusal)
        return False

    def _failed(self, batch: list[Sample], model: Computing, error: Exception) -> None:
        self._metrics.failures.inc()
        reason = str(error).splitlines()[0] if str(error) else repr(error)
        host = self._settings.host
        asked = ", ".join(dict.fromkeys(sample.request for sample in batch))
        say_error(
            f"serve {host}: error: a batch of {len(batch)} failed on {model.device}: {reason} "
            f"(request {asked})"
        )
        for frame in getattr(error, "frames", ()):
            say_error(frame)
        for sample in batch:
            if not sample.future.done():
                fix = "try again; the server's log has the reason for its operator"
                sample.future.set_exception(Refusal(500, "the model failed", fix))

    def close(self) -> None:
        """End the threads."""
        for thread in self._threads:
            thread.shutdown(wait=False, cancel_futures=True)
