"""The rows of `kit top`: GPUs with the ranks that hold them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from kit.runtime.status import ENDED, HostStatus, JobStatus, RankPace
from kit.top.smi import Gpu

SLOW = 1.3
"""A rank is slow if its own work takes this many times the median of the others, as in the trainer
(trainer/core/watch.py)."""
LEAST = 0.005
"""Smaller differences of a step, in seconds, may be chance."""


@dataclass(frozen=True, slots=True)
class Row:
    """A GPU of a host, a rank, or both; `gpu` is None for a rank on a CPU.

    `holder` is a job or a server, "" if the GPU is free. `factor` is the rank's own work relative
    to the median of the other ranks; None if it is not known.
    """

    host: str
    gpu: Gpu | None
    holder: str = ""
    rank: int | None = None
    pace: RankPace | None = None
    factor: float | None = None
    slow: bool = False


def rows(
    gpus: Mapping[str, Iterable[Gpu]], statuses: Sequence[JobStatus], hosts: Sequence[str]
) -> tuple[Row, ...]:
    """Return the rows, sorted by host and GPU; `gpus` are those of each host."""
    living = [status for status in statuses if status.state not in ENDED]
    held = {
        _key(host.host, uuid): row
        for status in living
        for host in status.hosts
        for uuid, row in _held(status, host)
    }
    seen = {name: list(_of_gpus(name, found, held)) for name, found in gpus.items()}
    shown = {(row.holder, row.rank) for own in seen.values() for row in own}
    listing: list[Row] = []
    for name in dict.fromkeys([*hosts, *gpus]):
        listing += seen.get(name, ())
        listing += [
            _row(status, host, rank)
            for status in living
            for host in status.hosts
            if host.host == name
            for rank in host.ranks
            if (status.job, rank) not in shown
        ]
    return tuple(listing)


def _of_gpus(name: str, gpus: Iterable[Gpu], held: Mapping[str, Row]) -> Iterator[Row]:
    for gpu in sorted(gpus, key=lambda gpu: gpu.index):
        known = (held.get(_key(name, each)) for each in (gpu.uuid, str(gpu.index)))
        yield _with_gpu(next(filter(None, known), Row(name, None)), gpu)


def _key(host: str, gpu: str) -> str:
    """Return a name of a GPU among all hosts: its UUID, or its host and index."""
    return f"{host}/{gpu}" if gpu.isdecimal() else gpu.lower()


def _with_gpu(row: Row, gpu: Gpu) -> Row:
    return Row(row.host, gpu, row.holder, row.rank, row.pace, row.factor, row.slow)


def _held(status: JobStatus, host: HostStatus) -> Iterator[tuple[str, Row]]:
    """Yield the GPUs of a host's part; the nth of a job's container is that of its nth rank."""
    uuids = host.seen or host.devices
    ranks = host.ranks if len(host.ranks) == len(uuids) else ()
    for number, uuid in enumerate(uuids):
        if ranks:
            yield uuid, _row(status, host, ranks[number])
        else:
            yield uuid, Row(host.host, None, status.job)


def _row(status: JobStatus, host: HostStatus, rank: int) -> Row:
    pace = next((each for each in status.paces if each.rank == rank), None)
    others = [each.work for each in status.paces if each.rank != rank]
    if pace is None or not others:
        return Row(host.host, None, status.job, rank, pace)
    usual = median(others)
    factor = pace.work / usual if usual else None
    slow = factor is not None and factor > SLOW and pace.work - usual > LEAST
    return Row(host.host, None, status.job, rank, pace, factor, slow)
