"""Batch and gradient arithmetic."""

from __future__ import annotations

from collections.abc import Sequence

from kit.jobs import Job
from kit.plan.types import Batch, Placement, Traffic
from trainer.contract.batch import accumulation, global_batch, rate_factor

GRADIENT_BYTES = 4
"""DDP reduces gradients in the parameters' type. It is fp32, also with autocast."""

LARGEST_LINEAR = 8192
"""The largest batch for which linear scaling kept the accuracy (Goyal et al. 2017, figure 1)."""

PARAMETERS = {
    ("cnn", "digits"): 53_002,
    ("cnn", "mnist"): 421_642,
    ("cnn", "fashion_mnist"): 421_642,
    ("cnn", "cifar10"): 545_098,
    ("cnn", "cifar100"): 556_708,
    ("lenet", "mnist"): 61_706,
    ("lenet", "fashion_mnist"): 61_706,
    ("lenet", "cifar10"): 62_006,
    ("lenet", "cifar100"): 69_656,
    ("airbench", "cifar10"): 1_971_352,
    ("airbench", "cifar100"): 1_994_392,
    ("resnet18", "mnist"): 11_172_810,
    ("resnet18", "fashion_mnist"): 11_172_810,
    ("resnet18", "cifar10"): 11_173_962,
    ("resnet18", "cifar100"): 11_220_132,
}
"""Parameters of the trainer's models. tests/test_contract.py counts them."""
BUCKET = 25 * 2**20
FIRST_BUCKET = 2**20
"""The bytes of DDP's buckets (`bucket_cap_mb`), and of its first one (torch's
`dist._DEFAULT_FIRST_BUCKET_BYTES`)."""


def batch(job: Job, world_size: int) -> Batch:
    """Compute the global batch of a job, and the learning rate with it.

    The suggested learning rate follows the linear scaling rule of Goyal et al. 2017
    (arXiv 1706.02677): if the batch grows by k, multiply the learning rate by k. The rule is for
    SGD and batches up to 8,192. In all other cases nothing is suggested.
    """
    total: int | None
    rate: float | None
    if job.train:
        steps, total = accumulation(job.train, world_size), global_batch(job.train, world_size)
        rate = job.train.learning_rate * rate_factor(job.train, total)
    else:
        steps, rate = 1, None
        total = job.batch_size * world_size if job.batch_size else None
    suggested = None
    if total and job.reference_batch:
        suggested = scaled(job, total, job.reference_batch)
    return Batch(job.batch_size, steps, total, job.reference_batch, rate, suggested)


def scaled(job: Job, total: int, reference: int) -> float | None:
    """Return a job's learning rate, scaled linearly from one global batch to another.

    Return None if the batch is the same, the optimizer is not SGD, the batch exceeds LARGEST_LINEAR
    or the training scales the rate by itself.
    """
    if (
        job.train is None
        or job.train.optimizer != "sgd"
        or job.train.rate_batch is not None
        or not reference != total <= LARGEST_LINEAR
    ):
        return None
    return float(f"{job.train.learning_rate * total / reference:.4g}")


def parameters(job: Job) -> int | None:
    """Return the number of the model's parameters, or None if it is unknown.

    The parameters for custom data and of torchvision's models depend on what is found there,
    so only the job can give them.
    """
    if job.train is None:
        return job.parameters
    return PARAMETERS.get((job.train.model, job.train.dataset), job.parameters)


def ring_seconds(size: float, ranks: int, speed: int) -> float:
    """Return the seconds of a ring all-reduce of `size` bytes over links of `speed` bit/s.

    Each of n ranks sends 2(n-1)/n of the bytes (Patarasuk & Yuan 2009, doi
    10.1016/j.jpdc.2008.09.002). A ring that visits each host once puts this on each host's link.
    """
    return 2 * (ranks - 1) / ranks * size * 8 / speed


def traffic(job: Job, placements: Sequence[Placement]) -> Traffic:
    """Compute the time of one ring all-reduce of the gradients on the slowest link."""
    count = parameters(job)
    size = count * GRADIENT_BYTES if count is not None else None
    if len(placements) < 2:
        return Traffic(count, size, None, None, None)
    slowest = min(placements, key=lambda placement: placement.host.speed).host
    ranks = sum(placement.processes for placement in placements)
    seconds = None
    if size is not None:
        seconds = ring_seconds(size, ranks, slowest.speed)
    return Traffic(count, size, slowest.name, slowest.speed, seconds)


def last_bucket(size: float) -> float:
    """Return the bytes of DDP's bucket that is complete when the backward pass ends.

    `size` is that of all gradients as they are computed: buckets are compressed afterwards.
    """
    if size <= FIRST_BUCKET:
        return size
    return (size - FIRST_BUCKET) % BUCKET or BUCKET
