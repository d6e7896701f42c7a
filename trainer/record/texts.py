"""A sample of the text that a model of characters writes."""

from __future__ import annotations

import torch
from torch import Tensor, nn

LENGTH, TEMPERATURE, SEED = 240, 0.8, 0
"""Characters, their temperature and the seed: the same at each checkpoint of each run."""


@torch.no_grad()
def write_text(
    model: nn.Module, labels: tuple[str, ...], context: int, device: torch.device
) -> str:
    """Let a model write after a newline; the generators of the training stay as they are."""
    draw = torch.Generator().manual_seed(SEED)
    start = labels.index("\n") if "\n" in labels else 0
    written = [start]
    for _ in range(LENGTH):
        window = torch.tensor([written[-context:]], device=device)
        scores: Tensor = model(window)[0, :, -1].float().cpu()
        shares = (scores / TEMPERATURE).softmax(dim=0)
        written.append(int(torch.multinomial(shares, 1, generator=draw)))
    return "".join(labels[each] for each in written[1:])
