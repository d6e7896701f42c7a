"""The server behind the routes: checkpoints, batches, answers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import monotonic
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from trainer.contract import events
from trainer.output import emit, say
from trainer.serve import pictures, schema
from trainer.serve.batching import Answer, Batcher, Serving
from trainer.serve.config import Settings
from trainer.serve.connections import EVERY, Connections
from trainer.serve.decoding import Decoders
from trainer.serve.gpus import Gpus
from trainer.serve.handler import HandlerWatcher
from trainer.serve.inputs import JSON, Limits, json_values, read_object, read_samples
from trainer.serve.kind import PIXELS, Array, Kind
from trainer.serve.metrics import Metrics
from trainer.serve.model import devices
from trainer.serve.refusal import Refusal
from trainer.serve.reload import Reason, Watcher
from trainer.serve.waiting import unless_gone, within

SMALL = 2**14  # Bytes of JSON whose parsing takes about as long as a request to a decoder.
CLASSES = 20_000  # The most in one answer, over all its samples.


class Server:
    """The state shared by the routes."""

    def __init__(self, settings: Settings, gpus: Gpus, limits: Connections) -> None:
        self.settings, self.gpus, self.metrics = settings, gpus, Metrics()
        self.limits, self.decoders = limits, Decoders()
        self.batcher = Batcher(settings, self.metrics)
        self.devices = devices(settings.replicas)

    @asynccontextmanager
    async def life(self, _: FastAPI) -> AsyncIterator[None]:
        """Watch for checkpoints and answer requests, from the start until after the last one."""
        loop = asyncio.get_running_loop()

        def wait(why: Reason) -> None:
            if self.batcher.serving is None and self.batcher.reason != why.text:
                say(f"serve {self.settings.host}: waits: {why.text} ({why.more})")
                self.batcher.reason = why.text

        watching = HandlerWatcher if self.settings.handler else Watcher
        watcher = watching(
            self.settings,
            self.devices,
            lambda serving: loop.call_soon_threadsafe(self.take, serving),
            lambda why: loop.call_soon_threadsafe(wait, why),
        )
        tasks = [asyncio.create_task(self.batcher.work(n)) for n in range(len(self.devices))]
        chores = (self.gpus.watch(), self.tell(), self.drop_late_clients())
        tasks += [asyncio.create_task(chore) for chore in chores]
        watcher.start()
        yield
        await loop.run_in_executor(None, watcher.end)
        for task in tasks:
            task.cancel()
        self.batcher.close()
        self.decoders.close()

    def take(self, serving: Serving) -> None:
        """Serve another checkpoint from the next batch on."""
        offer, self.batcher.serving = serving.offer, serving
        if self.settings.handler:
            say(
                f"serve {self.settings.host}: {self.settings.handler} has loaded the files of "
                f"{self.settings.job}, the newest is {offer.name}"
            )
            self._emit_serving()
            self.metrics.reloads.inc()
            return
        choice = {"best": ", the best so far", "newest": ", the newest"}
        say(
            f"serve {self.settings.host}: serves {offer.name} of {self.settings.job}"
            f"{choice.get(self.settings.checkpoint, '')}: epoch {offer.epoch}, "
            f"{offer.figure or 'accuracy unknown'}, from {offer.host}"
        )
        self._emit_serving()
        self.metrics.reloads.inc()
        self.metrics.step.set(offer.step)
        self.metrics.written.set(offer.written)
        if offer.accuracy is not None:
            self.metrics.accuracy.set(offer.accuracy)

    def emit_state(self) -> None:
        """Emit the GPUs and the present checkpoint."""
        emit(events.Started(gpus=self.gpus.uuids))
        self._emit_serving()

    def _emit_serving(self) -> None:
        if serving := self.batcher.serving:
            offer, replicas = serving.offer, len(self.devices)
            emit(events.Serving(checkpoint=offer.name, replicas=replicas, source=offer.host))

    async def tell(self) -> None:
        """Log the traffic once a minute, and repeat the state."""
        while True:
            await asyncio.sleep(60)
            if line := self.metrics.minute():
                say(f"serve {self.settings.host}: {line}")
                self.emit_state()

    async def drop_late_clients(self) -> None:
        """Drop, every second, the connections whose clients are too slow."""
        while True:
            await asyncio.sleep(EVERY)
            self.limits.drop_late()

    def kind(self, *, text: bool) -> Kind:
        """Return the kind of the served model; raises Refusal if there is none, or another."""
        kind = self.batcher.ready().models[0].kind
        if kind.text != text:
            does, path = ("writes", "/complete") if kind.text else ("classifies", "/predict")
            raise Refusal(404, f"{self.settings.name} {does}", f"use POST {path}")
        return kind

    async def classify(
        self, request: Request, content_type: str, top: int | None = None, *, show: bool = False
    ) -> JSONResponse:
        """Read the samples of a request and compute them; answer with `top` classes for each.

        With `show`, the answer also has the first sample as the model gets it.
        """
        began, body, kind = monotonic(), await request.body(), self.kind(text=False)

        async def work() -> tuple[list[Answer], int, str | None]:
            values, wanted = await self.read(body, content_type, kind)
            count = min(top or wanted, len(kind.labels))
            if len(values) * count > CLASSES:
                what = f"{len(values)} samples with {count} classes each"
                raise Refusal(413, what, f"ask for {CLASSES} classes of all samples at most")
            await self.batcher.reserve(len(values))
            futures = [self.batcher.put(value, kind) for value in values]
            picture = (
                asyncio.to_thread(pictures.shown, values[0], kind)
                if show and not kind.handled
                else None
            )
            return await asyncio.gather(*futures), count, await picture if picture else None

        answers, count, picture = await unless_gone(request, within(self.settings.timeout, work()))
        found: list[dict[str, Any]] = [
            {"answer": answer.scores} if kind.answers else {"classes": self.classes(answer, count)}
            for answer in answers
        ]
        if picture:
            found[0]["input"] = picture
        return JSONResponse({"predictions": found, **self.about(answers, began)})

    async def read(
        self, body: bytes, content_type: str, kind: Kind
    ) -> tuple[Array | list[Any], int]:
        """Read samples and the number of requested classes; a decoder reads large bodies."""
        limits = Limits(self.settings.queue, self.settings.pixels)
        if kind.handled and content_type == JSON:
            return json_values(read_object(body), limits.samples), 1
        await self.batcher.reserve(1)  # The queue's limit also bounds concurrent reads.
        try:
            if content_type == JSON and len(body) < SMALL and b'"image"' not in body:
                return read_samples(body, content_type, kind, limits)
            return await self.decoders.read(body, content_type, kind, limits)
        finally:
            self.batcher.free(1)

    @staticmethod
    def classes(answer: Answer, top: int) -> list[dict[str, Any]]:
        """The likeliest classes, in order."""
        labels, order = answer.serving.models[0].kind.labels, (-answer.scores).argsort()[:top]
        return [
            {"class": labels[n], "index": int(n), "probability": round(float(answer.scores[n]), 6)}
            for n in order
        ]

    def about(self, answers: list[Answer], began: float) -> dict[str, Any]:
        """Describe an answer: its checkpoint, its latency, its batch."""
        last = max(answers, key=lambda answer: answer.serving.offer.step)
        seconds = {
            "queue": max(answer.queued for answer in answers),
            "batch": max(answer.computed for answer in answers),
            "total": monotonic() - began,
        }
        return {
            "checkpoint": schema.checkpoint(last.serving.offer, self.settings),
            "latency_ms": {name: round(value * 1000, 3) for name, value in seconds.items()},
            "batch_size": max(answer.batch for answer in answers),
        }

    def model(self) -> dict[str, Any]:
        """Describe the served model and its server."""
        settings, serving = self.settings, self.batcher.serving
        content: dict[str, Any] = {
            "name": settings.name,
            "job": settings.job,
            "ready": serving is not None,
            "needs_token": settings.needs_token,
            "reason": None if serving else self.batcher.reason,
            "replicas": [str(device) for device in self.devices],
            "gpus": self.gpus.described(),
            "batch": {"size": settings.size, "window": settings.window},
            "limits": {"queue": settings.queue, "body": settings.body, "pixels": settings.pixels},
        }
        if serving:
            kind, precision = serving.models[0].kind, serving.models[0].precision
            content |= {
                "kind": "numbers" if kind.answers else "text" if kind.text else "image",
                "dataset": kind.dataset,
                "model": kind.model,
                "precision": precision,
                "drawn": kind.dataset in pictures.DRAWN,
                "input": {
                    "shape": kind.shape,
                    "values": kind.values or ("a text" if kind.text else PIXELS),
                },
                "classes": kind.labels,
                "checkpoint": schema.checkpoint(serving.offer, settings),
            }
        return content
