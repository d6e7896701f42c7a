"""The global batch: the samples of one optimizer step, over all ranks."""

from __future__ import annotations

import math

from trainer.contract.job import Train


def accumulation(train: Train, world_size: int) -> int:
    """Return the micro-steps of a step on each of `world_size` ranks."""
    if train.global_batch is None:
        return train.accumulation
    return -(-train.global_batch // (train.batch_size * world_size))


def global_batch(train: Train, world_size: int) -> int:
    """Return the samples of a step: the job's `global_batch`, or the sum over its ranks."""
    if train.global_batch is not None:
        return train.global_batch
    return train.batch_size * train.accumulation * world_size


def rate_factor(train: Train, samples: int) -> float:
    """Return the factor of the learning rate for a step of `samples`.

    For sgd the ratio of the batches (Goyal et al. 2017, arXiv 1706.02677), for adam and adamw its
    square root (Malladi et al. 2022, arXiv 2205.10287); the job's `rate_limit` limits the result.
    """
    if train.rate_batch is None:
        return 1.0
    ratio = samples / train.rate_batch
    factor = ratio if train.optimizer == "sgd" else math.sqrt(ratio)
    limit = train.rate_limit
    return factor if limit is None else min(factor, max(1.0, limit / train.learning_rate))
