"""Looks for a better checkpoint every few seconds, and has it served once it is ready to."""

import threading
from collections.abc import Callable

import torch

from trainer.checkpoints.format import UnusableError
from trainer.output import complain
from trainer.serve.batching import Serving
from trainer.serve.config import Settings
from trainer.serve.model import Content, Model
from trainer.serve.sources import Offer, candidates, fetch, offers


class Watcher(threading.Thread):
    """A thread beside the one that answers, which goes on with the old model meanwhile."""

    def __init__(
        self,
        settings: Settings,
        devices: list[torch.device],
        take: Callable[[Serving], object],
        wait: Callable[[str], object],
    ) -> None:
        """`take` is given what to serve from now on, `wait` why nothing is served yet."""
        super().__init__(name="watcher", daemon=True)
        self._settings, self._devices = settings, devices
        self._take, self._wait = take, wait
        self._ended = threading.Event()
        self._served: Offer | None = None
        self._broken: set[Offer] = set()
        self._told: set[str] = set()

    def run(self) -> None:
        """Look until `end` is called."""
        while not self._ended.is_set():
            try:
                self.look()
            except Exception as error:
                self._warn(f"can not look for checkpoints ({error!r})")
            self._ended.wait(self._settings.poll)

    def end(self) -> None:
        """Look no more."""
        self._ended.set()
        self.join(1)

    def look(self) -> None:
        """Serve the best checkpoint that is better than the present one and can be used."""
        settings = self._settings
        found = offers(settings)
        for offer in candidates(found, settings.checkpoint, self._served):
            if offer in self._broken or self._ended.is_set():
                continue
            if serving := self._load(offer):
                self._served = offer
                self._take(serving)
                return
        if self._served is None:
            self._wait(reason(settings, found))

    def _load(self, offer: Offer) -> Serving | None:
        """Fetch, verify, build and try a checkpoint; None where it can not be used."""
        try:
            content = Content(fetch(offer, self._settings))
            models = tuple(Model(content, device) for device in self._devices)
            for model in models:
                model.warm_up(self._settings.size)
        except UnusableError as error:
            self._broken.add(offer)  # Nor is it fetched again.
            self._warn(f"passes over {offer.name} from {offer.place}: {error}")
        except OSError as error:  # It may be pruned, or its host be gone for a moment.
            self._warn(f"can not fetch {offer.name} from {offer.place}: {error}; tries again")
        except torch.cuda.OutOfMemoryError:
            room = "the GPU has no room for it beside the model that is served"
            self._warn(f"passes over {offer.name}: {room}; lower batch.size")
        else:
            return Serving(offer, models)
        return None

    def _warn(self, text: str) -> None:
        """Say it once."""
        if text not in self._told:
            self._told.add(text)
            complain(f"serve {self._settings.host}: warning: {text}")


def reason(settings: Settings, found: list[Offer]) -> str:
    """Why nothing is served yet."""
    places = [str(settings.folder), *("{}:{}".format(*source) for source in settings.sources)]
    what = "complete checkpoint" if settings.checkpoint in ("newest", "best") else "such checkpoint"
    if settings.checkpoint in ("newest", "best") and found:
        return f"none of {len(found)} checkpoints of {settings.job} can be used, see the log"
    name = "" if what == "complete checkpoint" else f" ({settings.checkpoint})"
    return f"there is no {what} of {settings.job}{name} yet in {', '.join(places)}"
