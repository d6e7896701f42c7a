"""Decodes one image file to a tensor, and describes faults."""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from trainer.data.pictures import View, opened
from trainer.data.samples import DamagedError, DataError

ORIENTATION = 274  # EXIF's tag.
Transform = Callable[[Any], Any]
"""A function of a Pillow image or, on a GPU, of a tensor uint8 [3, height, width]."""


class Member(Protocol):
    """An image in a larger file; `str` gives the names of both."""

    def open(self) -> IO[bytes]:
        """Return its content; raises DataError."""


def jpeg_content(file: Path | Member) -> Tensor | None:
    """Read a JPEG file, uint8 [bytes], if a GPU decodes it as the CPU does; otherwise None.

    The CPU decodes files in CMYK, and files with a rotation in EXIF. Raises DataError.
    """
    try:
        with file.open("rb") if isinstance(file, Path) else file.open() as stream:
            content = stream.read()
        with Image.open(BytesIO(content)) as image:
            if image.format != "JPEG" or image.mode not in ("RGB", "L"):
                return None
            if image.getexif().get(ORIENTATION, 1) != 1:
                return None
    except DataError:
        raise
    except Exception as error:
        raise _fault(file, error) from error
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


def decode(file: Path | Member, view: View, transform: Transform | None = None) -> Tensor:
    """Decode to uint8 [3, S, S]: transformed, or the centre crop; raises DataError."""
    try:
        with Image.open(file if isinstance(file, Path) else file.open()) as image:
            if transform:  # Its smallest crops have about a quarter of the image's side.
                crop = np.array(transform(opened(image, 4 * view.side)))
                return torch.from_numpy(crop).permute(2, 0, 1)
            return torch.from_numpy(view.of(image))
    except DataError:  # The image could not be read.
        raise
    except Exception as error:
        raise _fault(file, error) from error


def _fault(file: Path | Member, error: Exception) -> DataError:
    """Convert an error, whose class depends on the format."""
    if isinstance(error, OSError) and error.errno is not None:
        return DataError(f"{file} cannot be read ({error.strerror})")
    return DamagedError(f"{file} cannot be decoded ({error})")


def fault_of(file: Path | Member) -> str:
    """Return why a picture cannot be decoded, or ""."""
    try:
        decode(file, View(1))
    except DataError as error:
        return str(error)
    return ""
