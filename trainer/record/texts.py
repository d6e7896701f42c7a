"""Generates a sample text with a language model."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from trainer.text.vocabulary import Vocabulary

LENGTH, TEMPERATURE, SEED = 240, 0.8, 0
"""Tokens, their temperature and the seed: the same at each checkpoint of each run."""


@torch.no_grad()
def write_text(model: nn.Module, vocabulary: Vocabulary, context: int, device: torch.device) -> str:
    """Generate a text from its beginning; the training's random generators do not change."""
    draw = torch.Generator().manual_seed(SEED)
    written = [vocabulary.start]
    for _ in range(LENGTH):
        window = torch.tensor([written[-context:]], device=device)
        scores: Tensor = model(window)[0, :, -1].float().cpu()
        shares = (scores / TEMPERATURE).softmax(dim=0)
        written.append(int(torch.multinomial(shares, 1, generator=draw)))
    return vocabulary.decode(written[1:])
