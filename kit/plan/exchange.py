"""The cost of the exchange between hosts, and the mode that leaves enough time for computing.

All figures assume no overlap: they are upper bounds for the exchange and lower bounds for the
share of computing. DDP sends the first gradients while it computes the last ones (Li et al. 2020,
arXiv 2006.15704); this overlap is at most as long as the backward pass. Latency is ignored, because
the exchanges are megabytes long.
"""

from __future__ import annotations

from collections.abc import Sequence

from kit.jobs import Job
from kit.plan.traffic import ring_seconds
from kit.plan.types import ExchangePlan, ExchangeWay, Placement, Traffic

ASSUMED_SECONDS = 0.060
"""Computing time of a step if the job gives none. It is a guess, and shown as one."""
FINE = 0.90
"""From this share of computing on, no change is advised."""
WANTED = 0.95
"""The advice is the smallest change that reaches this share."""
SHRUNK = {"none": 1, "fp16": 2, "bf16": 2}
"""The factor by which compression shrinks an exchange. PowerSGD is missing: at rank r it sends
r(n+m) values for each n×m matrix (Vogels et al. 2019, arXiv 1905.13727), and the number of
parameters does not give the shapes of the matrices."""
OVERLAPPED_STEPS = (4, 8, 16, 32)
"""Lin et al. 2018 (arXiv 1808.07217) use 16 local steps on CIFAR-10, after synchronous steps."""
DILOCO_STEPS = (64, 128, 256, 512)
"""Douillard et al. 2023 (arXiv 2311.08105) use 500 local steps."""

OF_A_SCRIPT = (("every_step", 1, "none", False), ("every_step", 1, "fp16", False))
"""The modes that a script with DDP can use: plain gradients, or fp16_compress_hook."""
LADDER = (
    *OF_A_SCRIPT,
    *(("local_sgd", steps, by, False) for steps in (2, 4) for by in ("none", "fp16")),
    *(("local_sgd", steps, "fp16", True) for steps in OVERLAPPED_STEPS),
    *(("diloco", steps, "fp16", True) for steps in DILOCO_STEPS),
)
"""Exchange modes, from the smallest change of the training to the largest. On 1 Gbit/s compressed
gradients at every step are not enough; overlapped local steps are (docs/performance.md)."""
SHOWN = (
    *OF_A_SCRIPT,
    ("local_sgd", 8, "fp16", True),
    ("diloco", 128, "fp16", True),
)
"""The modes that are listed beside the job's own mode."""


def exchange(job: Job, placements: Sequence[Placement], traffic: Traffic) -> ExchangePlan | None:
    """Compute the cost of the job's exchange, the cost of other modes, and the advice.

    Args:
        job: The job. A `command` is assumed to use DDP; only its own keys are known.
        placements: The hosts of the job. Their GPUs count as equally fast.
        traffic: The gradients and the slowest link.

    Returns:
        None if the hosts exchange nothing or the model's size is unknown.
    """
    if traffic.gradient_bytes is None or traffic.speed is None:
        return None
    seconds = job.step_seconds or ASSUMED_SECONDS
    costs = _Costs(placements, traffic.gradient_bytes, traffic.speed, seconds)
    own = job.exchange
    now: ExchangeWay | None = costs.way("every_step", 1, "none", overlap=False)
    if own is not None:
        steps = 1 if own.mode == "every_step" else own.every_steps
        known = own.compression in SHRUNK
        overlap = own.overlap
        now = costs.way(own.mode, steps, own.compression, overlap=overlap) if known else None
    largest = max(placements, key=lambda placement: placement.processes)
    return ExchangePlan(
        compute_seconds=seconds,
        assumed=job.step_seconds is None,
        chosen=now,
        ways=tuple(
            costs.way(*way[:3], overlap=way[3]) for way in SHOWN if own or way in OF_A_SCRIPT
        ),
        advice=_advice(
            [costs.way(*way[:3], overlap=way[3]) for way in LADDER if own or way in OF_A_SCRIPT],
            now,
        ),
        largest_host=largest.host.name,
        alone_seconds=costs.alone,
    )


def _advice(ways: Sequence[ExchangeWay], now: ExchangeWay | None) -> ExchangeWay | None:
    """Choose the first mode that is fast enough, or the fastest one if none is."""
    if now is None or now.compute_share >= FINE:
        return None
    enough = [way for way in ways if way.compute_share >= WANTED]
    best = enough[0] if enough else max(ways, key=lambda way: way.compute_share)
    return best if best.compute_share > now.compute_share else None


class _Costs:
    """The figures that all modes share: ranks, bytes, slowest link, computing time."""

    def __init__(
        self, placements: Sequence[Placement], size: int, speed: int, seconds: float
    ) -> None:
        self.ranks = sum(placement.processes for placement in placements)
        self.size, self.speed, self.seconds = size, speed, seconds
        # A rank's batch stays the same, so one host needs more steps for the same samples.
        self.alone = seconds * self.ranks / max(each.processes for each in placements)

    def way(self, mode: str, steps: int, compression: str, *, overlap: bool) -> ExchangeWay:
        """Compute the cost of one exchange mode.

        Local SGD averages the parameters (Stich 2018, arXiv 1805.09767). DiLoCo averages their
        changes (Douillard et al. 2023, arXiv 2311.08105). Both do it once in `steps` steps and send
        as many values as there are gradients. The synchronous steps at the beginning are ignored.
        With overlap an exchange runs during the next round (Sun et al. 2024, arXiv 2401.16265).
        """
        size = self.size // SHRUNK[compression]
        once = ring_seconds(size, self.ranks, self.speed)
        a_step = (max(0.0, once - steps * self.seconds) if overlap else once) / steps
        whole = self.seconds + a_step
        return ExchangeWay(
            mode=mode,
            every_steps=steps,
            compression=compression,
            overlap=overlap,
            exchange_bytes=size,
            exchange_seconds=once,
            step_seconds=a_step,
            compute_share=self.seconds / whole,
            speed_up=self.alone / whole,
        )
