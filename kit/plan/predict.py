"""The speed of a job on more and more hosts, predicted from measured steps and links.

A step takes its computing time and the part of the exchange that computing does not hide. DDP sends
a bucket of gradients as soon as the backward pass has computed it (Li et al. 2020, arXiv
2006.15704); `kit bench step` measured the computing time with the data.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from math import inf

from kit.measurements import Measurements, StepTime
from kit.plan.exchange import LADDER, OF_A_SCRIPT, SHOWN, SHRUNK
from kit.plan.traffic import GRADIENT_BYTES, last_bucket, ring_seconds
from kit.plan.types import Placement
from kit.plan.work import JobPlan

FORWARD = 1 / 3
"""The share of the forward pass in the computing time: a backward pass computes two products for
each one of the forward pass, the gradients of the inputs and of the weights."""
PAYLOAD = 1448 / 1538
"""The share of TCP's payload on Ethernet with an MTU of 1,500; for declared speeds."""
OVERLAY = 1398 / 1448
"""The rest of that payload without VXLAN's 50 bytes. Measured: 0.96 (docs/performance.md)."""
WORTH = 0.5
"""An added host is worthwhile if it adds at least this share of its own speed alone."""
GOOD = 0.9
"""The efficiency from which on no advice is needed."""
FACTORS = (1.5, 2, 3, 4, 5, 8, 10, 16, 20, 32, 50, 64, 100, 200, 400)
BATCHES = (2, 4, 8, 16, 32)
"""How many times faster links and larger batches are tried for the advice."""

Way = tuple[str, int, str, bool]
"""Mode, steps between exchanges, compression, overlap."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """A job on `hosts`. Times are in seconds; `compute` and `exchange` are parts of `step`.

    `exchange` is the part that computing does not hide. `speed_up` is relative to the fastest host
    alone, `efficiency` to the sum of the hosts' speeds alone.
    """

    hosts: tuple[str, ...]
    ranks: int
    compute: float
    exchange: float
    step: float
    images_per_second: float
    speed_up: float
    efficiency: float


@dataclass(frozen=True, slots=True)
class WayForecast:
    """All hosts with one way to exchange."""

    mode: str
    every_steps: int
    compression: str
    overlap: bool
    images_per_second: float
    efficiency: float


@dataclass(frozen=True, slots=True)
class Prediction:
    """The speed on 1 to all hosts, the fastest first, with the job's own way to exchange.

    `steps` are the measured times. `measured_links`: the speed between hosts was measured. `worth`
    is the largest number of hosts in `forecasts` up to which added hosts add half of their own
    speed. `wanted_speed` (bits per second) or `wanted_batch` (samples of a GPU) alone would give
    all hosts an efficiency of 90 %; None if they have it. `better_without` names GPUs without which
    the job is faster, and the factor.
    """

    steps: tuple[StepTime, ...]
    measured_links: bool
    forecasts: tuple[Forecast, ...]
    ways: tuple[WayForecast, ...]
    worth: int
    wanted_speed: float | None
    wanted_batch: int | None
    better_without: tuple[str, float] | None


@dataclass(frozen=True, slots=True)
class _Member:
    """A host, with the computing seconds of a step on each of its GPUs."""

    placement: Placement
    seconds: tuple[float, ...]

    @property
    def name(self) -> str:
        return self.placement.host.name


@dataclass(frozen=True, slots=True)
class _Group:
    """Hosts, and the bits per second of an all-reduce among them."""

    members: tuple[_Member, ...]
    speed: float

    @property
    def seconds(self) -> list[float]:
        """The computing seconds of a step on each GPU."""
        return [seconds for member in self.members for seconds in member.seconds]


@dataclass(frozen=True)
class _Links:
    """The links between hosts: `measured` ones before the declared ones."""

    measured: Measurements

    @cached_property
    def of_hosts(self) -> dict[str, float]:
        return self.measured.link_speeds()

    def group(self, members: Iterable[_Member]) -> _Group:
        """Return a group: its all-reduce was measured, or is that of its slowest link."""
        chosen = tuple(members)
        speed = self.measured.reduction_speed([member.name for member in chosen]) or min(
            self.of_hosts.get(member.name, member.placement.host.speed * PAYLOAD)
            for member in chosen
        )
        return _Group(chosen, speed)


@dataclass(frozen=True, slots=True)
class _Costs:
    """The cost of a step: gradients of `size` bytes, exchanged in one `way`.

    `faster` multiplies the speed of each group. `batch` are the samples of a step on one GPU of
    `ranks`, of which the last of `accumulation` parts computes during an exchange; if the global
    batch is `fixed`, fewer GPUs have more of both. `auto`: the batch is divided by the speed of the
    GPUs.
    """

    size: float
    way: Way
    batch: float
    accumulation: int
    ranks: int
    fixed: bool
    auto: bool
    faster: float

    def share(self, group: _Group) -> float:
        """Return the samples of a step on a GPU of this group, as a multiple of `batch`."""
        return self.ranks / len(group.seconds) if self.fixed else 1.0

    def compute(self, group: _Group) -> float:
        """Return the computing seconds of a step: all wait for the slowest GPU."""
        times = [each * self.share(group) for each in group.seconds]
        return len(times) / sum(1 / each for each in times) if self.auto else max(times)

    def exchange(self, group: _Group, compute: float) -> float:
        """Return the seconds of a step's exchange that computing does not hide."""
        if len(group.members) < 2:
            return 0.0
        mode, every, compression, overlap = self.way
        whole = self.ring(group, self.size / SHRUNK[compression])
        if mode == "every_step":
            parts = max(1.0, self.accumulation * self.share(group))
            backward = (1 - FORWARD) * compute / parts
            last = self.ring(group, last_bucket(self.size) / SHRUNK[compression])
            return max(last, whole - backward)
        return (max(0.0, whole - every * compute) if overlap else whole) / every

    def ring(self, group: _Group, size: float) -> float:
        """Return the seconds of an all-reduce of `size` bytes among the hosts' ranks."""
        return ring_seconds(size, len(group.seconds), 1) / (group.speed * self.faster)

    def rate(self, group: _Group) -> float:
        """Return the samples per second of the hosts together."""
        compute = self.compute(group)
        samples = len(group.seconds) * self.batch * self.share(group)
        return samples / (compute + self.exchange(group, compute))

    def rate_of(self, member: _Member) -> float:
        """Return the samples per second of one host alone."""
        return self.rate(_Group((member,), inf))

    def efficiency(self, group: _Group) -> float:
        """Return the speed relative to the sum of the hosts' speeds alone."""
        return self.rate(group) / sum(map(self.rate_of, group.members))

    def forecast(self, group: _Group) -> Forecast:
        """Return the forecast for these hosts."""
        compute = self.compute(group)
        exchange = self.exchange(group, compute)
        rate, alone = self.rate(group), [self.rate_of(member) for member in group.members]
        return Forecast(
            hosts=tuple(member.name for member in group.members),
            ranks=len(group.seconds),
            compute=compute,
            exchange=exchange,
            step=compute + exchange,
            images_per_second=rate,
            speed_up=rate / max(alone),
            efficiency=rate / sum(alone),
        )


def predict(job: JobPlan, measured: Measurements, *, overlay: bool) -> Prediction | None:
    """Predict the speed of a job; `overlay`: its hosts exchange over an overlay network.

    Returns:
        None if no step was measured, the size of the model or its exchange is unknown, or the model
        is divided.
    """
    steps = tuple(each for each in measured.steps if each.job == job.name)
    way = _own_way(job)
    if not steps or way is None or not job.placements or job.division:
        return None
    samples = job.batch.total or steps[0].batch_size * job.world_size
    costs = _Costs(
        size=job.traffic.gradient_bytes or steps[0].parameters * GRADIENT_BYTES,
        way=way,
        batch=samples / job.world_size,
        accumulation=job.batch.accumulation,
        ranks=job.world_size,
        fixed=bool(job.job.train and job.job.train.global_batch),
        auto=bool(job.job.train and job.job.train.balance == "auto"),
        faster=OVERLAY if overlay else 1.0,
    )
    members = sorted(
        (_Member(each, _seconds(each, steps, costs.batch)) for each in job.placements),
        key=lambda member: -costs.rate_of(member),
    )
    links = _Links(measured)
    groups = [links.group(members[:number]) for number in _numbers(len(members))]
    forecasts = tuple(costs.forecast(group) for group in groups)
    whole = groups[-1]
    good = forecasts[-1].efficiency >= GOOD
    return Prediction(
        steps=steps,
        measured_links=bool(measured.links or measured.reductions),
        forecasts=forecasts,
        ways=_ways(job, costs, whole) if len(members) > 1 else (),
        worth=_worth(forecasts, [costs.rate_of(member) for member in whole.members]),
        wanted_speed=None if good else _wanted_speed(costs, whole),
        wanted_batch=None if good or costs.fixed else _wanted_batch(costs, whole),
        better_without=_better_without(costs, links, whole),
    )


def _own_way(job: JobPlan) -> Way | None:
    own = job.job.exchange
    if own is None:
        return OF_A_SCRIPT[0]
    if own.compression not in SHRUNK:
        return None
    every = 1 if own.mode == "every_step" else own.every_steps
    return (own.mode, every, own.compression, own.overlap)


def _seconds(placement: Placement, steps: Sequence[StepTime], batch: float) -> tuple[float, ...]:
    """Return the computing time on each GPU; of unknown ones, the slowest that was measured."""
    times = {each.gpu: each.seconds * batch / each.batch_size for each in steps}
    slowest = max(times.values())
    return tuple(times.get(gpu.model or gpu.title, slowest) for gpu in placement.gpus)


def _numbers(hosts: int) -> list[int]:
    """Return the numbers of hosts to show: all up to 8, then doubling, then all."""
    powers = [2**power for power in range(4, hosts.bit_length())]
    return sorted({*range(1, min(hosts, 8) + 1), *powers, hosts})


def _ways(job: JobPlan, costs: _Costs, group: _Group) -> tuple[WayForecast, ...]:
    """Return the job's way, those that are always shown, and the first that is good enough."""
    possible = [way for way in LADDER if job.job.exchange or way in OF_A_SCRIPT]
    shown = dict.fromkeys((costs.way, *(way for way in SHOWN if way in possible)))
    for way in possible:
        if replace(costs, way=way).efficiency(group) >= GOOD:
            shown.setdefault(way)
            break
    costed = (replace(costs, way=way) for way in shown)
    return tuple(WayForecast(*one.way, one.rate(group), one.efficiency(group)) for one in costed)


def _worth(forecasts: Sequence[Forecast], alone: Sequence[float]) -> int:
    """Return the number of hosts up to which the added ones add half of their own speed.

    Only the numbers of the forecasts are tested (all up to eight): a test of each number would need
    4,000 sums over 4,000 hosts.
    """
    for before, after in pairwise(forecasts):
        first, last = len(before.hosts), len(after.hosts)
        gain = after.images_per_second - before.images_per_second
        if gain < WORTH * sum(alone[first:last]):
            return first
    return len(alone)


def _wanted_speed(costs: _Costs, group: _Group) -> float | None:
    for factor in FACTORS:
        if replace(costs, faster=costs.faster * factor).efficiency(group) >= GOOD:
            return group.speed * factor
    return None


def _wanted_batch(costs: _Costs, group: _Group) -> int | None:
    for factor in BATCHES:
        compute = costs.compute(group) * factor
        if compute / (compute + costs.exchange(group, compute)) >= GOOD:
            return round(factor * costs.batch) // costs.accumulation
    return None


def _better_without(costs: _Costs, links: _Links, group: _Group) -> tuple[str, float] | None:
    """Return the slowest GPUs if the others are faster alone, and how many times."""
    slowest = max(group.seconds)
    left = [
        replace(member, seconds=tuple(each for each in member.seconds if each < slowest))
        for member in group.members
    ]
    left = [member for member in left if member.seconds]
    factor = costs.rate(links.group(left)) / costs.rate(group) if left else 0.0
    if factor <= 1:
        return None
    names = [
        f"{gpu.model or gpu.title} of {member.name}"
        for member in group.members
        for gpu, seconds in zip(member.placement.gpus, member.seconds, strict=True)
        if seconds == slowest
    ]
    return ", ".join(dict.fromkeys(names)), factor
