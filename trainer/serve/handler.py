"""A custom handler: a class that answers with the files that a script has written.

    class Handler:
        def load(self, folder: pathlib.Path) -> None
            Read the files of the job's checkpoint folder; called once for each version of them.
        def predict(self, batch: list) -> list
            A JSON value for each input, also JSON values; the batch has one or more.

A replica is one instance on its own GPU, which is torch's current device.
"""

import contextlib
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from trainer.core.job import JobError
from trainer.custom.code import CodeError, blame, blamed, find, place_of
from trainer.output import say_error
from trainer.serve.batching import Serving
from trainer.serve.config import Settings
from trainer.serve.kind import JSON_VALUES, Kind
from trainer.serve.offers import Offer
from trainer.serve.reload import Reason

Stamp = tuple[tuple[str, int, int], ...]
"""Name, size and time (ns) of each file: it differs if a file has changed."""


class HandlerModel:
    """An instance of the handler on one device, with the interface of `Model`."""

    precision = ""

    def __init__(self, settings: Settings, folder: Path, device: torch.device) -> None:
        """Raises CodeError for a fault in the user's code."""
        self.kind = Kind("", settings.handler, (), (), 0, JSON_VALUES, answers=True)
        self.device = device
        made: Any = find(settings.handler)
        for name, parameter in (("load", "folder"), ("predict", "batch")):
            if not callable(getattr(made, name, None)):
                module = place_of(sys.modules[made.__module__])
                what = f"{settings.handler} has no function {name}(self, {parameter})"
                raise CodeError(f"{module}: {what}")
        self._place = place_of(made.predict)
        with self._blamed(place_of(made.load)):
            self._handler = made()
            self._handler.load(folder)

    def scores(self, values: list[Any]) -> list[Any]:
        """Return an answer for each input, or its fault.

        If a batch fails, its inputs are computed one by one: a fault affects only its own input.
        """
        try:
            return self._predict(values)
        except JobError as error:
            if len(values) == 1:
                return [error]
        return [answer for value in values for answer in self.scores([value])]

    def _predict(self, values: list[Any]) -> list[Any]:
        with self._blamed(self._place), torch.inference_mode():
            found = self._handler.predict(values)
            found = found.tolist() if isinstance(found, torch.Tensor) else list(found)
            json.dumps(found, allow_nan=False, ensure_ascii=False).encode()
        if len(found) != len(values):
            what = f"it returned {len(found)} values for {len(values)} inputs"
            raise CodeError(f"{self._place}: {what}")
        return found

    @contextlib.contextmanager
    def _blamed(self, place: str) -> Iterator[None]:
        on = torch.cuda.device(self.device) if self.device.type == "cuda" else None
        with on or contextlib.nullcontext(), blamed(place):
            try:
                yield
            except Exception:
                raise
            except BaseException as error:  # Such as asyncio's CancelledError: it ends the server.
                raise blame(error, place) from None


class HandlerWatcher(threading.Thread):
    """A thread that loads the handler, and reloads it when files have changed and settled."""

    def __init__(
        self,
        settings: Settings,
        devices: list[torch.device],
        take: Callable[[Serving], object],
        wait: Callable[[Reason], object],
    ) -> None:
        """As in `Watcher`: `take` gets the handler to use, `wait` the reason why there is none."""
        super().__init__(name="watcher", daemon=True)
        self._settings, self._devices, self._take, self._wait = settings, devices, take, wait
        self._ended = threading.Event()
        self._tried: Stamp | None = None
        self._before: Stamp | None = None

    def run(self) -> None:
        """Check at intervals until `end` is called."""
        while not self._ended.is_set():
            self.look()
            self._ended.wait(self._settings.poll)

    def end(self) -> None:
        """Stop the checks."""
        self._ended.set()
        self.join(1)

    def look(self) -> None:
        """Load the files if they are new and did not change since the last check."""
        found = stamp(self._settings.folder)
        rest, self._before = found == self._before, found
        if not found:
            text = f"the job {self._settings.job} has not written any file yet"
            self._wait(Reason(text, f"there is none in {self._settings.folder}"))
        elif rest and found != self._tried:
            self._tried = found
            self._load(found)

    def _load(self, found: Stamp) -> None:
        settings = self._settings
        try:
            made = [HandlerModel(settings, settings.folder, device) for device in self._devices]
        except (JobError, torch.cuda.OutOfMemoryError, MemoryError) as error:
            say_error(f"serve {settings.host}: error: {error}")
            for frame in error.frames if isinstance(error, CodeError) else ():
                say_error(frame)
            self._wait(Reason(f"{settings.handler} cannot be loaded", str(error)))
            return
        name, size, when = max(found, key=lambda each: each[2])
        offer = Offer(name, 0, 0, None, settings.host, when / 1e9, "", size, None)
        self._take(Serving(offer, tuple(made)))


def stamp(folder: Path) -> Stamp:
    """Return the stamp of all files below a folder, without hidden ones."""
    found = []
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            path = Path(place, name)
            with contextlib.suppress(OSError):  # The script may replace it.
                if not name.startswith("."):
                    about = path.stat()
                    shown = str(path.relative_to(folder))
                    found.append((shown, about.st_size, about.st_mtime_ns))
    return tuple(sorted(found))
