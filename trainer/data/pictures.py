"""Prepares a picture in a file for a model, in training and in serving.

It does not import torch: the server's decoders use this module.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

HALF = 128  # Of 255: lower values are dark, or hardly visible in the alpha channel.
DARK = 0.01  # Share of dark pixels from which a picture is not all light.
FILTERS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}


@dataclass(frozen=True)
class View:
    """The conversion of a picture to a model's input of S x S."""

    side: int  # S.
    resize: int = 0
    """Pixels to which the shorter side is resized; 0: to S."""
    interpolation: str = "bilinear"  # With `resize`.

    def of(self, image: Image.Image) -> NDArray[Any]:
        """Decode an open image file to uint8 [3, S, S]."""
        if not self.resize:
            return square(opened(image, 2 * self.side), self.side)
        # Bit-identical to torchvision: a JPEG decoded at a fraction of its size would differ.
        return centre(upright(eight_bits(image)).convert("RGB"), self)


def eight_bits(image: Image.Image) -> Image.Image:
    """Convert a picture to 8 bits a channel, without a palette; RGBA or LA if it is transparent."""
    image.load()
    if image.mode.startswith("I"):  # 16-bit grey; `convert` alone would clip it.
        found = image.point(lambda value: value * (1 / 257)).convert("L")
        if (clear := found.info.pop("transparency", None)) is not None:
            # The transparent one of 65,536 values: in 8 bits, other values would equal it.
            found.putalpha(Image.fromarray(np.uint8(255) * (np.asarray(image) != clear)))
        return found
    if image.mode in ("1", "P", "PA") or "transparency" in image.info:
        return image.convert("RGBA" if image.has_transparency_data else "RGB")
    return image


def upright(image: Image.Image) -> Image.Image:
    """Rotate an 8-bit picture by its EXIF; replace transparency by white or black."""
    turned = ImageOps.exif_transpose(image)
    if turned.has_transparency_data:
        below = Image.new("RGBA", turned.size, background(turned))
        turned = Image.alpha_composite(below, turned.convert("RGBA"))
    return turned


def background(image: Image.Image) -> str:
    """The background for a picture with transparent parts: white, as in browsers, or black.

    Black is for pictures that are all light, which white would hide. Hardly visible parts, such as
    a shadow, do not count if others are visible.
    """
    grey, alpha = np.asarray(image.convert("L")), np.asarray(image.getchannel("A"))
    seen = grey[alpha >= min(HALF, max(1, int(alpha.max())))]
    return "black" if seen.size and np.mean(seen < HALF) < DARK else "white"


def opened(image: Image.Image, least: int) -> Image.Image:
    """Decode an image file to RGB, at a size of at least `least` pixels a side if it has them.

    JPEG can be decoded at a fraction of its size, in a fraction of the time.
    """
    image.draft(image.mode, (least, least))
    return upright(eight_bits(image)).convert("RGB")


def square(image: Image.Image, side: int) -> NDArray[Any]:
    """Return uint8 [3, S, S]: the shorter side scaled to S, the longer one cropped."""
    return np.array(ImageOps.fit(image, (side, side))).transpose(2, 0, 1)


def centre(image: Image.Image, view: View) -> NDArray[Any]:
    """Return uint8 [3, S, S], as torchvision's Resize and CenterCrop of Pillow images."""
    width, height, short = *image.size, min(image.size)
    size = (view.resize * width // short, view.resize * height // short)
    resized = image.resize(size, FILTERS[view.interpolation]) if size != image.size else image
    left, top = (round((length - view.side) / 2.0) for length in size)
    crop = resized.crop((left, top, left + view.side, top + view.side))
    return np.array(crop).transpose(2, 0, 1)
