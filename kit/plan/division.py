"""How a model is divided among the ranks of a job: the grid, its places, and the memory of a GPU.

The trainer numbers the ranks the same way (trainer/parallel/grid.py): tensor changes fastest, then
shard, then pipeline, then data.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from kit.jobs import Job
from kit.plan.gpus import BF16, capability, room_on
from kit.plan.traffic import GRADIENT_BYTES, parameters
from kit.plan.types import Division, Memory, Placement
from kit.values import show_bytes
from trainer.contract.gpt import Gpt, gpt_of
from trainer.contract.job import Parallel, Train
from trainer.contract.samples import VOCABULARY

CHARACTERS = 100
"""The approximate number of tokens of a text of characters; only the trainer counts them."""
TRAINED = 50304
"""The number of tokens of a tokenizer.json, which the plan does not read: that of GPT-2, rounded
up to a multiple of 64."""
OPTIMIZER = {"sgd": 4, "adam": 8, "adamw": 8}
"""Bytes of an optimizer's state for each parameter: float32 averages, of which Adam has two."""
INNER, OUTER = (48, 36), (16, 12)
"""Bytes that a block keeps for the backward pass, for each feature of each token, in float32 and in
16 bits: of its hidden values, which a tensor group divides, and of its inputs and norms. As torch
saves them (tests/test_division.py counts); rotary positions add ROTARY."""
ROTARY = (12.5, 6.25)
SCORES = 12
"""Bytes for each token and each score of it: float32 scores, their softmax and its gradient."""
CONTEXT = 2**30
"""Bytes of CUDA's context, NCCL's buffers and the allocator's gaps on each GPU, roughly."""


def division(job: Job, placements: Sequence[Placement]) -> Division | None:
    """Describe how a job's ranks divide its model; None if each has a whole one.

    The job must have no faults.
    """
    train, parallel = job.train, job.parallel
    if train is None or not parallel.used or not placements:
        return None
    ranks = sum(placement.processes for placement in placements)
    sizes = sizes_of(parallel, ranks)
    return Division(
        sizes=sizes,
        within_hosts=_within_hosts(sizes, placements),
        memory=memory(job, train, placements, parallel),
        room=least_room(job, placements),
    )


def sizes_of(parallel: Parallel, ranks: int) -> dict[str, int]:
    """Return the sizes of the grid's dimensions, the outermost first."""
    data = parallel.data or max(1, ranks // parallel.cell)
    return {
        "data": data,
        "pipeline": parallel.pipeline or 1,
        "shard": parallel.shard or 1,
        "tensor": parallel.tensor or 1,
    }


def _within_hosts(sizes: dict[str, int], placements: Sequence[Placement]) -> tuple[str, ...]:
    """Return the dimensions whose groups of ranks are on one host each."""
    dimensions, span = [], 1
    for name, size in reversed(sizes.items()):
        span *= size
        starts = [placement.first_rank for placement in placements]
        ends = [placement.first_rank + placement.processes for placement in placements]
        edges = {*starts, *ends}
        if all(edge % span == 0 for edge in edges):
            dimensions.append(name)
    return tuple(dimensions)


def least_room(job: Job, placements: Sequence[Placement]) -> int | None:
    """Return the least memory that a GPU of a job has for it, of those whose memory is known."""
    shared = job.limits.shared_memory
    rooms = [room_on(gpu, shared) for placement in placements for gpu in placement.gpus]
    return min((room for room in rooms if room is not None), default=None)


def memory(
    job: Job, train: Train, placements: Sequence[Placement], parallel: Parallel
) -> Memory | None:
    """Estimate the memory of the GPU that needs the most; None if the model's size is unknown."""
    if train.model != "gpt":
        total = parameters(job)
        if total is None:
            return None
        part = ceil(total / (parallel.shard or 1))
        gathered = total * GRADIENT_BYTES if (parallel.shard or 1) > 1 else 0
        return _of_parameters(train, part, gathered, None)
    size, half = gpt_of(train.options), _half(train, placements)
    stage, block = _largest_stage(train, size, parallel), _block(size, parallel)
    part, gathered = ceil(stage / (parallel.shard or 1)), 0
    if (parallel.shard or 1) > 1:
        # The first and last layers stay gathered; besides them one block, and the next in advance.
        ends = stage - _blocks_of_stage(size, parallel) * block
        gathered = (ends + 2 * block) * ((2 if half else GRADIENT_BYTES) + GRADIENT_BYTES)
    return _of_parameters(train, part, gathered, _activations(train, size, parallel, half=half))


def _of_parameters(train: Train, part: int, gathered: int, activations: int | None) -> Memory:
    return Memory(
        parameters=part * GRADIENT_BYTES,
        gradients=part * GRADIENT_BYTES,
        optimizer=part * OPTIMIZER[train.optimizer],
        gathered=gathered,
        activations=activations,
        context=CONTEXT,
    )


def _half(train: Train, placements: Sequence[Placement]) -> bool:
    """Whether the trainer computes in 16 bits."""
    if train.precision != "auto":
        return train.precision != "fp32"
    capabilities = [
        capability(gpu.model or "") for placement in placements for gpu in placement.gpus
    ]
    return bool(capabilities) and all(
        known is not None and known[1] >= BF16 for known in capabilities
    )


def _block(size: Gpt, parallel: Parallel) -> int:
    """Return the parameters of a block on one rank of a tensor group."""
    norms = 2 * size.width
    return (size.block_parameters - norms) // (parallel.tensor or 1) + norms


def _blocks_of_stage(size: Gpt, parallel: Parallel) -> int:
    return ceil(size.layers / (parallel.pipeline or 1))


def tokens_of(train: Train) -> int:
    """Return the number of tokens of the model; an estimate if only the trainer knows it."""
    if train.tokenizer is None:
        return CHARACTERS
    if train.tokenizer != "bpe":
        return TRAINED
    return -(-(train.vocabulary or VOCABULARY) // 64) * 64


def _largest_stage(train: Train, size: Gpt, parallel: Parallel) -> int:
    """Return the parameters of the largest stage on one rank of a tensor group."""
    table = tokens_of(train) * size.width
    positions = train.context * size.width if size.positions == "learned" else 0
    if not size.tied:
        table //= parallel.tensor or 1
    ends = table + positions + size.width
    if (parallel.pipeline or 1) == 1 and not size.tied:
        ends += table
    return _blocks_of_stage(size, parallel) * _block(size, parallel) + ends


def _activations(train: Train, size: Gpt, parallel: Parallel, *, half: bool) -> int:
    """Estimate the bytes that are kept for the backward pass.

    A stage of a pipeline keeps those of as many micro-batches as there are stages (1F1B).
    """
    tensor, pipeline = parallel.tensor or 1, parallel.pipeline or 1
    tokens = train.batch_size * train.context
    rotary = ROTARY[half] if size.positions == "rotary" else 0.0
    whole = (INNER[half] + rotary) / tensor + OUTER[half]
    blocks = _blocks_of_stage(size, parallel)
    kept = blocks * whole
    if train.activation_checkpointing:
        kept = blocks * (2 if half else 4) + whole
    in_flight = min(pipeline, train.accumulation) if pipeline > 1 else 1
    return round(tokens * size.width * kept * in_flight + tokens * tokens_of(train) * SCORES)


def shown(needs: Memory) -> str:
    """Describe the parts of an estimate."""
    parts = [
        ("parameters", needs.parameters),
        ("gradients", needs.gradients),
        ("optimizer", needs.optimizer),
        ("gathered layers", needs.gathered),
        ("activations", needs.activations or 0),
    ]
    return ", ".join(f"{name} {show_bytes(size)}" for name, size in parts if size)
