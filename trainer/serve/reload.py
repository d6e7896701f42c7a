"""Checks for a better checkpoint every few seconds, loads it and serves it.

Each source and each candidate has its own task with deadlines, so none waits for a slow one.
"""

import asyncio
import socket
import threading
from collections.abc import Callable, Coroutine, Hashable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from typing import Any, NamedTuple

import torch

from trainer.checkpoints.format import Saved
from trainer.checkpoints.manifest import UnusableError
from trainer.serve.batching import Serving
from trainer.serve.client import PATIENCE, Address, SourceError
from trainer.serve.config import Settings
from trainer.serve.model import Content, Model
from trainer.serve.offers import Offer, candidates, place
from trainer.serve.sources import Endpoint, OwnFolder, Pause, Source
from trainer.serve.warnings import Warnings

TOGETHER = 1.0  # Seconds to wait for the answers of sources before a choice.
ALONE = 10.0  # Seconds of a fetch from another host before a concurrent one may begin.
FETCHES = 3  # Concurrent fetches from other hosts.
ASKED = 64  # Concurrent requests to sources.
SILENT = 60.0  # Seconds after which the last list of a silent source is ignored.


class Reason(NamedTuple):
    """Why no checkpoint is served yet."""

    text: str  # For clients and the log.
    more: str  # For the log only.


@dataclass(eq=False)
class Known:
    """The known state of a source."""

    source: Source
    asking: Pause
    fetching: Pause
    offers: list[Offer] = field(default_factory=list)
    answered: float = 0.0  # time.monotonic().
    silent: bool = False  # Whether the last request failed.


class Watcher(threading.Thread):
    """A thread beside the one that answers requests with the old model meanwhile."""

    def __init__(
        self,
        settings: Settings,
        devices: list[torch.device],
        take: Callable[[Serving], object],
        wait: Callable[[Reason], object],
    ) -> None:
        """`take` gets the checkpoint to serve from now on, `wait` the reason why none is served."""
        super().__init__(name="watcher", daemon=True)
        self._settings, self._devices = settings, devices
        self._take, self._wait = take, wait
        self._ended = threading.Event()
        self._warnings = Warnings(settings.host)
        self._served: Offer | None = None
        self._refused: set[Offer] = set()  # Until they change or disappear.
        self._sources: dict[Address | None, Known] = {}
        self._addresses: dict[Address, set[Address]] = {}  # The last known ones of each name.
        self._tasks: dict[Hashable, asyncio.Task[None]] = {}
        self._fetches: dict[Offer, float] = {}  # Running fetches, with their start.
        self._loader = ThreadPoolExecutor(1, "loader")  # One model at a time, to limit memory.
        self._places = asyncio.Semaphore(ASKED)

    def run(self) -> None:
        """Check at intervals until `end` is called."""
        asyncio.run(self._watch())

    def end(self) -> None:
        """Stop the checks."""
        self._ended.set()
        self.join(1)

    async def _watch(self) -> None:
        warn = partial(self._warnings.tell, None)
        self._add(OwnFolder(self._settings, warn))
        while not self._ended.is_set():
            try:
                await self.look()
            except Exception as error:
                warn(f"cannot look for checkpoints ({error!r})")
            await asyncio.sleep(self._settings.poll)

    def _add(self, source: Source) -> None:
        least = self._settings.poll
        self._sources[source.address] = Known(source, Pause(least), Pause(least))

    def _start(self, key: Hashable, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a task, which is known by its key until it ends."""
        task = self._tasks[key] = asyncio.create_task(work)
        task.add_done_callback(lambda _: self._tasks.pop(key))
        return task

    async def look(self) -> None:
        """Request the lists of all sources, and begin to fetch the best better checkpoints."""
        if "names" not in self._tasks:
            await asyncio.wait([self._start("names", self._resolve())], timeout=TOGETHER)
        now = monotonic()
        due = [each for each in self._sources.values() if each.asking.over(now)]
        asked = [self._start(each, self._ask(each)) for each in due if each not in self._tasks]
        if asked:
            await asyncio.wait(asked, timeout=TOGETHER)
        self._choose()

    async def _resolve(self) -> None:
        """Resolve the sources: a service's name has the addresses of several hosts."""
        loop = asyncio.get_running_loop()
        for host, port in self._settings.sources:
            with suppress(OSError, UnicodeError):  # A name may temporarily have no address.
                async with asyncio.timeout(PATIENCE):
                    entries = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
                self._addresses[host, port] = {(str(entry[4][0]), port) for entry in entries}
        found = set().union(*self._addresses.values())
        for address in sorted(found - self._sources.keys()):
            self._add(Endpoint(address, self._settings, partial(self._warnings.tell, address)))
        for gone in self._sources.keys() - found - {None}:
            del self._sources[gone]

    async def _ask(self, known: Known) -> None:
        """Request a source's list of checkpoints."""
        try:
            async with self._places:
                known.offers = await known.source.look()
        except Exception as error:  # A source may send anything.
            known.silent = True
            known.asking.failed(monotonic())
            address = known.source.address
            where = place(address) if address else str(self._settings.folder)
            reason = str(error) if isinstance(error, SourceError) else ascii(error)[:300]
            text = f"gets no list of checkpoints from {where}: {reason}"
            self._warnings.tell(address, f"{text}; asks again from time to time")
        else:
            known.silent, known.answered = False, monotonic()
            known.asking.succeeded()

    def _choose(self) -> None:
        """Begin to fetch the best candidates, as far as running fetches allow."""
        now, sources = monotonic(), list(self._sources.values())
        listed, before = self._offers(now)
        self._refused &= {*listed, *before}
        for offer in candidates(listed, self._settings.checkpoint, self._served, before):
            known = self._sources[offer.address]
            if offer not in self._refused and known.fetching.over(now) and self._room(offer, now):
                self._fetches[offer] = now
                self._start(offer, self._use(known, offer))
        if not self._served and not self._fetches:
            silent = any(known.silent for known in sources)
            self._wait(reason(self._settings, listed, silent=silent))

    def _offers(self, now: float) -> tuple[list[Offer], list[Offer]]:
        """Return the present offers, and those of sources that do not answer at present."""
        listed, before = list[Offer](), list[Offer]()
        for known in self._sources.values():
            if not known.silent:
                listed += known.offers
            elif now - known.answered < SILENT:
                before += known.offers
        return listed, before

    def _room(self, offer: Offer, now: float) -> bool:
        """Whether a fetch may begin beside the running ones."""
        if any(each.address == offer.address for each in self._fetches):
            return False
        others = [began for each, began in self._fetches.items() if each.address]
        few = len(others) < FETCHES and all(now - began >= ALONE for began in others)
        return offer.address is None or few

    async def _use(self, known: Known, offer: Offer) -> None:
        """Fetch, verify, build and try a checkpoint; serve it if it is usable."""
        fault = ""
        try:
            saved = await known.source.fetch(offer)
            loop = asyncio.get_running_loop()
            models = await loop.run_in_executor(self._loader, self._load, saved)
        except UnusableError as error:
            fault = f"skips {offer.name} from {offer.place}: {error}"
            self._refused.add(offer)  # Do not fetch it again.
        except (SourceError, OSError, MemoryError) as error:  # It may be pruned, or its host down.
            text = str(error) or "there is no memory for it"
            fault = f"cannot fetch {offer.name} from {offer.place}: {text}; tries again"
        except torch.cuda.OutOfMemoryError:
            room = "it does not fit on the GPU beside the served model"
            fault = f"skips {offer.name}: {room}; lower batch.size"
        except Exception as error:  # A checkpoint may have any content.
            text = ascii(error)[:300]
            fault = f"skips {offer.name} from {offer.place}: it cannot be used ({text})"
            self._refused.add(offer)
        finally:
            del self._fetches[offer]
        if fault:
            known.fetching.failed(monotonic())
            self._warnings.tell(offer.address, fault)
        else:
            known.fetching.succeeded()
            self._serve(Serving(offer, models))

    def _load(self, saved: Saved) -> tuple[Model, ...]:
        """Build a checkpoint's model on each device, and try it; raises UnusableError."""
        content = Content(saved, self._settings.model)
        models = tuple(Model(content, device) for device in self._devices)
        for model in models:
            model.warm_up(self._settings.size)
        return models

    def _serve(self, serving: Serving) -> None:
        """Serve a checkpoint, unless a better one is already served."""
        wish = self._settings.checkpoint
        listed, before = self._offers(monotonic())
        if candidates([serving.offer], wish, self._served, listed + before):
            self._served = serving.offer
            self._take(serving)
            for offer in self._fetches.keys() - candidates(self._fetches, wish, self._served):
                self._tasks[offer].cancel()


def reason(settings: Settings, found: list[Offer], *, silent: bool) -> Reason:
    """Return why no checkpoint is served yet; `silent`: a source does not answer."""
    job, wish = settings.job, settings.checkpoint
    places = [str(settings.folder), *(place(source) for source in settings.sources)]
    if wish not in ("newest", "best"):
        text = f"{wish} of {job} is not there yet"
    elif found:
        return Reason(f"none of {len(found)} checkpoints of {job} can be used", "see above")
    else:
        text = f"the training {job} has not saved yet"
    if silent:
        text += ", or the host that has it does not answer"
    return Reason(text, f"there is no checkpoint in {', '.join(places)}")
