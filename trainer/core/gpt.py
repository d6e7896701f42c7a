"""The GPT, and its division: layers among the ranks of a tensor group, blocks in stages.

Shapes: N samples of a batch, T tokens, W features (the width), H heads, K tokens in the vocabulary,
P ranks of a tensor group. From text, int64 [N, T], to logits of the next tokens, [N, K, T].
"""

from __future__ import annotations

from itertools import pairwise
from zlib import crc32

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from trainer.contract.gpt import Gpt
from trainer.data.shards import generator
from trainer.parallel.sharded import Division

BASE = 10_000.0
"""Base of rotary positions: wavelengths are 2 pi to 2 pi times this (Su et al. 2021, sect. 3.3)."""


class GPT(nn.Module):
    """GPT-2 (Radford et al. 2019) without biases, or with rotary positions.

    A stage of a pipeline lacks some parts: `embedding` and `positions` belong to the first stage,
    `norm` and `head` to the last, and each stage has some `blocks` under the names that they have
    in the whole model.
    """

    embedding: nn.Embedding | None
    norm: nn.LayerNorm | None

    def __init__(
        self,
        size: Gpt,
        classes: int,
        context: int,
        *,
        recompute: bool = False,
        end: int | None = None,
    ) -> None:
        """`initialise` sets the weights. `end`: the token with which each document begins.

        With `recompute`, only the input of each block is kept: the backward pass recomputes its
        activations, to save memory (Chen et al. 2016, arXiv 1604.06174).
        """
        super().__init__()
        self.size, self.recompute, self.end = size, recompute, end
        self.embedding = nn.Embedding(classes, size.width)
        learned = size.positions == "learned"
        self.positions = nn.Embedding(context, size.width) if learned else None
        self.blocks = nn.ModuleDict({str(n): Block(size) for n in range(size.layers)})
        self.norm = nn.LayerNorm(size.width, bias=False)
        self.head = None if size.tied else nn.Linear(size.width, classes, bias=False)

    def forward(self, inputs: Tensor, tokens: Tensor | None = None) -> Tensor:
        """From [N, T] to [N, K, T]; in a later stage, from the previous stage's features [N, T, W].

        A later stage also needs the `tokens`, [N, T]. A stage that is not the last returns
        features.
        """
        features = self.embed(inputs) if self.embedding else inputs
        seen = self.seen(inputs if tokens is None else tokens)
        for block in self.blocks.values():
            if self.recompute and self.training:
                features = checkpoint(block, features, seen, use_reentrant=False)
            else:
                features = block(features, seen)
        return self.scores(self.norm(features)) if self.norm else features

    def seen(self, tokens: Tensor) -> Tensor | None:
        """Return the attention mask, bool [N, 1, T, T]: a token sees earlier ones of its document.

        None if there are no documents: then each token sees all earlier ones.
        """
        if self.end is None:
            return None
        documents = (tokens == self.end).cumsum(dim=1)
        same = documents[:, None, :, None] == documents[:, None, None, :]
        return same.tril()

    def embed(self, tokens: Tensor) -> Tensor:
        """From [N, T] to [N, T, W]."""
        assert self.embedding
        features: Tensor = self.embedding(tokens)
        if self.positions:
            features = features + self.positions(
                torch.arange(tokens.shape[1], device=tokens.device)
            )
        return functional.dropout(features, self.size.dropout, self.training)

    def scores(self, features: Tensor) -> Tensor:
        """From normalised features [N, T, W] to [N, K, T]."""
        if self.head:
            scores: Tensor = self.head(features)
        else:  # Weight tying: the scores use the embedding of tokens too.
            assert self.embedding
            scores = functional.linear(features, self.embedding.weight)
        return scores.transpose(1, 2)


class Block(nn.Module):
    """Causal attention, then two layers for each token alone."""

    def __init__(self, size: Gpt) -> None:
        super().__init__()
        width = size.width
        self.head_width, self.rotary = width // size.heads, size.positions == "rotary"
        self.dropout = size.dropout
        self.attention_norm, self.norm = (nn.LayerNorm(width, bias=False) for _ in range(2))
        # The rows of a head's query, key and value are adjacent: then a part of the rows is a part
        # of the heads, which another rank can compute (parallel/).
        self.query_key_value = nn.Linear(width, 3 * width, bias=False)
        self.attention_out = nn.Linear(width, width, bias=False)
        self.hidden_in = nn.Linear(width, 4 * width, bias=False)
        self.hidden_out = nn.Linear(4 * width, width, bias=False)

    def forward(self, features: Tensor, seen: Tensor | None = None) -> Tensor:
        """From [N, T, W] to the same shape; `seen` as the GPT's."""
        features = features + self.left(self.attend(self.attention_norm(features), seen))
        hidden: Tensor = self.hidden_out(functional.gelu(self.hidden_in(self.norm(features))))
        return features + self.left(hidden)

    def left(self, features: Tensor) -> Tensor:
        """Apply dropout in training (Srivastava et al. 2014); return `features` in evaluation."""
        return functional.dropout(features, self.dropout, self.training)

    def attend(self, features: Tensor, seen: Tensor | None) -> Tensor:
        """Compute causal attention; torch chooses the kernel, such as FlashAttention."""
        parts = self.query_key_value(features).unflatten(2, (-1, 3, self.head_width))
        query, key, value = parts.permute(3, 0, 2, 1, 4)  # [N, H, T, W / H] each.
        if self.rotary:
            turned = rotations(query.shape[2], self.head_width, query.device)
            query, key = rotate(query, *turned), rotate(key, *turned)
        share = self.dropout if self.training else 0.0
        found = functional.scaled_dot_product_attention(
            query, key, value, attn_mask=seen, dropout_p=share, is_causal=seen is None
        )
        out: Tensor = self.attention_out(found.transpose(1, 2).flatten(2))
        return out


def rotations(length: int, width: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return cosines and sines of the positions' angles, float32 [T, width / 2] each."""
    speeds = BASE ** -(torch.arange(0, width, 2, device=device) / width)
    angles = torch.outer(torch.arange(length, device=device), speeds)
    return angles.cos(), angles.sin()


def rotate(features: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Rotate each pair of features [N, H, T, W / H] by its position's angle.

    The product of a query and a key then depends on their distance alone.
    """
    first, second = features.float().chunk(2, dim=-1)
    turned = (first * cosines - second * sines, first * sines + second * cosines)
    return torch.cat(turned, dim=-1).type_as(features)


@torch.no_grad()
def initialise(model: GPT, seed: int) -> None:
    """Initialise the GPT's weights as in GPT-2; they do not depend on the division.

    Each parameter has its own generator, so a rank draws only those of its stage, one at a time.
    """
    for name, weight in model.named_parameters():
        if weight.ndim < 2:
            weight.fill_(1.0)
            continue
        # Each block adds two terms; the variance of the sum must not grow with the layers.
        terms = 2 * model.size.layers if name.endswith("out.weight") else 1
        draw = generator(seed, crc32(name.encode()))
        whole = torch.empty(weight.shape).normal_(0, 0.02 / terms**0.5, generator=draw)
        if isinstance(weight, DTensor):
            whole = distribute_tensor(
                whole.to(weight.device), weight.device_mesh, weight.placements, src_data_rank=None
            )
        weight.copy_(whole)


def divide_layers(model: nn.Module, mesh: DeviceMesh) -> None:
    """Give each rank of a tensor group some heads, hidden values and tokens of the GPT.

    As in Megatron-LM (Shoeybi et al. 2019, arXiv 1909.08053): each rank computes the attention of
    H / P heads and 4 W / P hidden values; after both, the ranks sum their features [N, T, W]. So
    each block has two all-reduces forward and two backward. With tied weights each rank has the
    whole embedding, otherwise the rows of K / P tokens.
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
    """Reduce the GPT to one stage: some blocks, and the embedding or the head."""
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

    The blocks are divided evenly; stages in the middle get one of the remaining blocks each, as the
    first stage also has the embedding, and the last the head.
    """
    least, more = divmod(size.layers, stages)
    start = (stages - more + 1) // 2
    counts = [least + (start <= number < start + more) for number in range(stages)]
    ends = [sum(counts[:number]) for number in range(stages + 1)]
    return list(pairwise(ends))


GPT_DIVISION = Division(divide_layers, keep_stage)
