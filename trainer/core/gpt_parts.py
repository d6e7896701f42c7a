"""How the GPT is divided inside: its layers among ranks of a tensor group, its blocks in stages.

Shapes: N samples, T tokens, W features, H heads, K tokens known, P ranks of a tensor group.
"""

from __future__ import annotations

from itertools import pairwise

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    parallelize_module,
)

from trainer.contract.gpt import Gpt
from trainer.core.gpt import GPT
from trainer.parallel.sharded import Division


def divide_layers(model: nn.Module, mesh: DeviceMesh) -> None:
    """Give each rank of a tensor group some heads, hidden values and tokens of the GPT.

    As in Megatron-LM (Shoeybi et al. 2019, arXiv 1909.08053): each rank computes the attention of
    H / P heads and 4 W / P hidden values; after both, the ranks sum their features [N, T, W]. So
    each block has two exchanges forward and two backward. With tied weights the embedding is whole
    on each rank, otherwise each has the rows of K / P tokens.
    """
    plan: dict[str, ParallelStyle] = {
        "blocks.*.query_key_value": ColwiseParallel(),
        "blocks.*.attention_out": RowwiseParallel(),
        "blocks.*.hidden_in": ColwiseParallel(),
        "blocks.*.hidden_out": RowwiseParallel(),
    }
    assert isinstance(model, GPT)
    if model.head:
        plan["embedding"] = RowwiseParallel(input_layouts=Replicate())
        plan["head"] = ColwiseParallel(output_layouts=Replicate())
    parallelize_module(model, mesh, plan)


def keep_stage(model: nn.Module, number: int, stages: int) -> None:
    """Remove all but one stage of the GPT: its blocks, and the embedding or the scores."""
    assert isinstance(model, GPT)
    first, end = bounds(model.size, stages)[number]
    for name in list(model.blocks):
        if not first <= int(name) < end:
            del model.blocks[name]
    if number > 0:
        model.embedding = model.positions = None
    if number < stages - 1:
        model.norm = model.head = None


def bounds(size: Gpt, stages: int) -> list[tuple[int, int]]:
    """Return the blocks of each stage, as the first and the one after the last.

    The blocks are divided evenly; of the rest, the stages in the middle get one more each, as the
    first has the embedding too and the last the scores.
    """
    least, more = divmod(size.layers, stages)
    start = (stages - more + 1) // 2
    counts = [least + (start <= number < start + more) for number in range(stages)]
    ends = [sum(counts[:number]) for number in range(stages + 1)]
    return list(pairwise(ends))


GPT_DIVISION = Division(divide_layers, keep_stage)
