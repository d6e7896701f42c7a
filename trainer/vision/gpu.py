"""JPEG files that the GPU decodes and augments, by nvJPEG in torchvision.

Shapes: N images, S pixels a side.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from io import BytesIO

import torch
from PIL import Image
from torch import Tensor
from torchvision import io

from trainer.data.decoding import Transform
from trainer.data.shards import seeded
from trainer.output import say


class GpuDecoder:
    """Decodes on a device; torchvision has a different decoder for each kind of device."""

    def __init__(self, device: torch.device) -> None:
        """Raises RuntimeError, or AttributeError, if torchvision cannot decode on it."""
        self.device = device
        content = BytesIO()
        Image.new("RGB", (16, 16)).save(content, "JPEG")
        self.decode([torch.frombuffer(bytearray(content.getvalue()), dtype=torch.uint8)])

    def decode(self, contents: Sequence[Tensor]) -> list[Tensor]:
        """Decode files uint8 [bytes] to images uint8 [3, height, width] on the device.

        Raises RuntimeError if it cannot decode one of them.
        """
        with warnings.catch_warnings():
            # Deprecated for TorchCodec; once it is removed, the CPU decodes, and a line is logged.
            warnings.simplefilter("ignore", DeprecationWarning)
            found: list[Tensor] = io.decode_jpeg(
                list(contents), mode=io.ImageReadMode.RGB, device=self.device
            )
        return found

    def augment(self, images: Sequence[Tensor], seeds: Sequence[int], change: Transform) -> Tensor:
        """Change images to uint8 [N, 3, S, S], each with its seed."""
        found = []
        for image, seed in zip(images, seeds, strict=True):
            with seeded(seed):
                found.append(change(image))
        return torch.stack(found)


def gpu_decoder(device: torch.device, name: str) -> GpuDecoder | None:
    """Return a decoder for a rank's GPU; without one, report the reason and return None."""
    if device.type != "cuda":
        say(f"decode: {name} has no GPU: its images are decoded on the CPU")
        return None
    try:
        return GpuDecoder(device)
    except (RuntimeError, AttributeError) as error:
        reason = str(error).splitlines()[0]
        say(f"decode: {name}: torchvision cannot decode on the GPU ({reason}): the CPU does it")
        return None
