"""What people would run instead, for comparison: plain loops of torch alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


def torchvision_steps(
    model: nn.Module, images: Tensor, labels: Tensor, device: torch.device, batch: int
) -> Callable[[], None]:
    """An epoch of torchvision's references/classification/train.py with --amp, without its loader.

    Images are float32 [N, 3, S, S] in pinned memory, as its loader returns them: decoding, which
    takes most of the time on most machines, is not counted. bf16 instead of the script's fp16.
    """
    model = model.to(device).train()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)

    def run_epoch() -> None:
        for start in range(0, len(images), batch):
            image = images[start : start + batch].to(device, non_blocking=True)
            target = labels[start : start + batch].to(device, non_blocking=True)
            with torch.amp.autocast(device.type, torch.bfloat16):
                loss = criterion(model(image), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if start == 0:
                loss.item()  # As its metric logger does in some steps.

    return run_epoch


class NanoBlock(nn.Module):
    """A block of nanoGPT's model.py, without biases and dropout."""

    def __init__(self, heads: int, width: int) -> None:
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = (nn.LayerNorm(width, bias=False) for _ in range(2))
        self.c_attn = nn.Linear(width, 3 * width, bias=False)
        self.c_proj = nn.Linear(width, width, bias=False)
        self.c_fc = nn.Linear(width, 4 * width, bias=False)
        self.mlp_proj = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """From [N, T, W] to the same shape."""
        n, t, w = x.shape
        parts = self.c_attn(self.ln_1(x)).split(w, dim=2)
        q, k, v = (each.view(n, t, self.heads, w // self.heads).transpose(1, 2) for each in parts)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.c_proj(y.transpose(1, 2).contiguous().view(n, t, w))
        fed: Tensor = self.mlp_proj(functional.gelu(self.c_fc(self.ln_2(x))))
        return x + fed


class Nano(nn.Module):
    """nanoGPT's model: GPT-2 with tied embeddings."""

    def __init__(self, layers: int, heads: int, width: int, context: int, tokens: int) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(tokens, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(NanoBlock(heads, width) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width, bias=False)
        self.lm_head = nn.Linear(width, tokens, bias=False)
        self.wte.weight = self.lm_head.weight
        for name, weight in self.named_parameters():
            if weight.ndim > 1:
                scale = 0.02 / (math.sqrt(2 * layers) if name.endswith("proj.weight") else 1)
                nn.init.normal_(weight, 0, scale)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """The mean loss of tokens and targets, int64 [N, T] each."""
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        scores = self.lm_head(self.ln_f(x))
        return functional.cross_entropy(scores.view(-1, scores.size(-1)), targets.view(-1))


def nano_steps(
    model: Any, tokens: Tensor, device: torch.device, batch: int, context: int, steps: int
) -> Callable[[], None]:
    """So many steps of nanoGPT's train.py: batches from the CPU, AdamW, clipping, bf16."""
    draw = torch.Generator().manual_seed(0)
    optimizer = torch.optim.AdamW(
        model.parameters(), 6e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True
    )

    def get_batch() -> tuple[Tensor, Tensor]:
        places = torch.randint(len(tokens) - context - 1, (batch,), generator=draw).tolist()
        rows = [torch.stack([tokens[at + ahead : at + ahead + context] for at in places])
                for ahead in (0, 1)]  # fmt: skip
        if device.type != "cuda":
            return rows[0], rows[1]
        x, y = (each.pin_memory().to(device, non_blocking=True) for each in rows)
        return x, y

    def run_steps() -> None:
        x, y = get_batch()
        for _ in range(steps):
            with torch.amp.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
                loss = model(x, y)
            x, y = get_batch()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        loss.item()

    return run_steps
