"""From a picture in a file to the pixels that a model sees, in training and in serving.

Without torch: the server's decoders import it.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps


def eight_bits(image: Image.Image) -> Image.Image:
    """The picture with 8 bits a channel and without a palette, as the rest has it."""
    image.load()
    if image.mode.startswith("I"):  # 16 bits of grey; `convert` alone would clip them.
        found = image.point(lambda value: value * (1 / 257)).convert("L")
        if "transparency" in found.info:
            found.info["transparency"] = round(found.info["transparency"] / 257)
        return found
    if image.mode in ("1", "P", "PA"):
        return image.convert("RGBA" if image.has_transparency_data else "RGB")
    return image


def upright(image: Image.Image) -> Image.Image:
    """A picture of 8 bits turned as its EXIF says, what is transparent on white, as browsers do."""
    turned = ImageOps.exif_transpose(image)
    if turned.has_transparency_data:
        below = Image.new("RGBA", turned.size, "white")
        turned = Image.alpha_composite(below, turned.convert("RGBA"))
    return turned


def opened(image: Image.Image, least: int) -> Image.Image:
    """An image file's picture in RGB, of a size from which `least` pixels a side can be taken.

    JPEG can be decoded at a fraction of its size, in a fraction of the time.
    """
    image.draft(image.mode, (least, least))
    return upright(eight_bits(image)).convert("RGB")


def square(image: Image.Image, side: int) -> NDArray[Any]:
    """uint8 [3, S, S]: the shorter side scaled to S, the longer one cut."""
    return np.array(ImageOps.fit(image, (side, side))).transpose(2, 0, 1)
