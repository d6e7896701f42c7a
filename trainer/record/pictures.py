"""Small PNG files of test images, without a package for images."""

from __future__ import annotations

import struct
import zlib

import torch
from torch import Tensor
from torch.nn import functional

SIDE = 64
"""Pixels a side of the largest picture; larger images are reduced."""


def png(image: Tensor) -> bytes:
    """Encode uint8 [C, S, S], grey (C 1) or colour (C 3), as PNG (W3C PNG specification)."""
    channels, height, width = image.shape
    rows = image.permute(1, 2, 0).reshape(height, width * channels).contiguous()
    plain = b"".join(b"\0" + row.numpy().tobytes() for row in rows)
    colour = 2 if channels == 3 else 0
    header = struct.pack(">IIBBBBB", width, height, 8, colour, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(plain, 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(content)) + name + content
        + struct.pack(">I", zlib.crc32(name + content))
        for name, content in parts
    )  # fmt: skip


def reduced(images: Tensor, largest: int) -> Tensor:
    """Scale uint8 [N, C, S, S] with values up to `largest` to 0 to 255, and S to at most `SIDE`."""
    found = images.float() * (255 / largest)
    if images.shape[-1] > SIDE:
        found = functional.interpolate(found, (SIDE, SIDE), mode="area")
    return found.round().clamp(0, 255).to(torch.uint8)
