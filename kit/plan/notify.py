"""The receivers of a job's notifications: mistakes in the names of their secrets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kit.errors import INVENTORY, Fault, Loc
from kit.jobs import Job
from kit.model import Inventory, Receiver, Secret


def notify_faults(inventory: Inventory, jobs: Sequence[Job]) -> Iterator[Fault]:
    """Find secrets of receivers that have the name of another secret of a job."""
    for job in jobs:
        names = {each.name: each for each in job.secrets}
        for source, receivers in ((INVENTORY, inventory.notify), (job.name, job.notify)):
            for loc, secret in _secrets(receivers):
                other = names.setdefault(secret.name, secret)
                if other != secret:
                    what = f"job {job.name} has another secret {secret.name}"
                    yield Fault(source, loc, what, "rename one of the two")


def _secrets(receivers: Sequence[Receiver]) -> Iterator[tuple[Loc, Secret]]:
    for index, each in enumerate(receivers):
        for key, value in (("url", each.url), ("key", each.key)):
            if isinstance(value, Secret):
                yield ("notify", index, key), value
