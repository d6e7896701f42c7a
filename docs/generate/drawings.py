"""Drawings in CIFAR-10's format: `python -m docs.generate.drawings FOLDER`.

They stand in for CIFAR-10 where it cannot be fetched: the same ten classes, 32 x 32 pixels, and
the same files (cs.toronto.edu/~kriz/cifar.html, "binary version"), but drawn by a program. A small
network learns most of them within a few epochs, and mistakes some for similar ones.
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

from PIL import Image, ImageDraw, ImageFilter

SIDE, SCALE = 32, 3
"""Pixels of a side, and how many times larger it is drawn: reducing it smooths the edges."""
NOISE = 0.25
"""Share of the noise in each pixel."""
Point = tuple[float, float]
Shape = tuple[str, str, Sequence[Point]]
"""What is drawn, in which colour, and where: corners in a square from -1 to 1, y downwards."""


def box(colour: str, left: float, top: float, right: float, bottom: float) -> Shape:
    """A rectangle, which turns with the drawing."""
    return "polygon", colour, ((left, top), (right, top), (right, bottom), (left, bottom))


def disc(colour: str, x: float, y: float, radius: float) -> Shape:
    """A circle."""
    return "disc", colour, ((x, y), (radius, 0))


def part(colour: str, *points: Point) -> Shape:
    """A polygon."""
    return "polygon", colour, points


LEGS = tuple(box("body", x, 0.2, x + 0.13, 0.85) for x in (-0.6, -0.38, 0.3, 0.52))
CLASSES: dict[str, tuple[Shape, ...]] = {
    "airplane": (
        part("body", (-0.95, 0), (-0.7, -0.14), (0.8, -0.12), (0.95, 0), (0.8, 0.14), (-0.7, 0.1)),
        part("body", (0.25, 0), (-0.35, -0.75), (-0.55, -0.75), (-0.2, 0)),
        part("other", (0.25, 0), (-0.35, 0.75), (-0.55, 0.75), (-0.2, 0)),
        part("other", (-0.65, 0), (-0.95, -0.4), (-0.8, 0)),
    ),
    "automobile": (
        part("other", (-0.5, 0), (-0.3, -0.45), (0.3, -0.45), (0.55, 0)),
        box("body", -0.9, -0.05, 0.9, 0.38),
        disc("dark", -0.5, 0.4, 0.22),
        disc("dark", 0.5, 0.4, 0.22),
    ),
    "bird": (
        part("body", (-0.7, 0.15), (0, -0.2), (0.55, -0.15), (0.4, 0.2), (-0.2, 0.35)),
        part("other", (-0.05, 0), (-0.45, -0.75), (0.3, -0.1)),
        disc("body", 0.55, -0.28, 0.22),
        part("dark", (0.72, -0.35), (0.98, -0.22), (0.72, -0.2)),
    ),
    "cat": (
        part("body", (-0.62, -0.8), (-0.6, 0), (-0.1, -0.4)),
        part("body", (0.62, -0.8), (0.6, 0), (0.1, -0.4)),
        disc("body", 0, 0.08, 0.62),
        disc("dark", -0.25, 0, 0.1),
        disc("dark", 0.25, 0, 0.1),
        disc("other", 0, 0.3, 0.12),
    ),
    "deer": (
        part("body", (-0.7, -0.15), (0.5, -0.15), (0.6, 0.25), (-0.7, 0.25)),
        *LEGS,
        part("body", (0.4, -0.1), (0.62, -0.6), (0.9, -0.45), (0.6, 0.1)),
        part("dark", (0.6, -0.55), (0.3, -0.95), (0.42, -0.95), (0.68, -0.58)),
        part("dark", (0.72, -0.55), (0.8, -0.98), (0.92, -0.95), (0.78, -0.5)),
    ),
    "dog": (
        disc("body", 0, 0.05, 0.6),
        part("other", (-0.45, -0.55), (-0.85, -0.1), (-0.75, 0.45), (-0.5, 0.1)),
        part("other", (0.45, -0.55), (0.85, -0.1), (0.75, 0.45), (0.5, 0.1)),
        disc("dark", -0.23, -0.05, 0.1),
        disc("dark", 0.23, -0.05, 0.1),
        disc("dark", 0, 0.32, 0.17),
    ),
    "frog": (
        part("body", (-0.85, 0.6), (-0.5, -0.1), (0.5, -0.1), (0.85, 0.6)),
        disc("body", -0.35, -0.2, 0.26),
        disc("body", 0.35, -0.2, 0.26),
        disc("dark", -0.35, -0.24, 0.12),
        disc("dark", 0.35, -0.24, 0.12),
        box("other", -0.45, 0.2, 0.45, 0.3),
    ),
    "horse": (
        part("body", (-0.75, -0.2), (0.5, -0.2), (0.6, 0.25), (-0.7, 0.25)),
        *LEGS,
        part("body", (0.3, -0.1), (0.5, -0.75), (0.95, -0.5), (0.65, 0.1)),
        part("dark", (0.25, -0.2), (0.42, -0.85), (0.55, -0.7), (0.42, -0.1)),
        part("dark", (-0.72, -0.2), (-0.98, 0.4), (-0.85, 0.4), (-0.62, -0.05)),
    ),
    "ship": (
        part("body", (-0.95, 0.15), (0.95, 0.15), (0.65, 0.6), (-0.7, 0.6)),
        box("other", -0.5, -0.2, 0.4, 0.15),
        box("dark", -0.15, -0.7, 0.08, -0.2),
    ),
    "truck": (
        box("body", -0.92, -0.6, 0.35, 0.35),
        part("other", (0.4, -0.3), (0.7, -0.3), (0.92, 0.05), (0.92, 0.35), (0.4, 0.35)),
        disc("dark", -0.6, 0.42, 0.2),
        disc("dark", -0.1, 0.42, 0.2),
        disc("dark", 0.65, 0.42, 0.2),
    ),
}  # fmt: skip
"""The classes in CIFAR-10's order."""
GROUNDS = ("sky", "water", "grass", "road")
HUES = {"sky": 145, "water": 165, "grass": 75, "road": 25}
LIKELY = {"airplane": "sky", "bird": "sky", "ship": "water", "automobile": "road", "truck": "road"}
"""Grounds that half of a class's drawings have; those of other classes are on grass."""


def drawing(label: str, chance: random.Random) -> Image.Image:
    """Draw an object of a class: place, size, turn, colours and noise differ."""
    ground = LIKELY.get(label, "grass") if chance.random() < 0.5 else chance.choice(GROUNDS)
    image = Image.new("RGB", (SIDE * SCALE,) * 2, colour(HUES[ground], 90, 190, chance))
    colours = {
        "body": colour(chance.randrange(256), chance.randrange(40, 200), 150, chance),
        "other": colour(chance.randrange(256), chance.randrange(40, 200), 110, chance),
        "dark": colour(0, 40, 45, chance),
    }
    size = SIDE * SCALE / 2 * chance.uniform(0.55, 0.95)
    turn, mirror = chance.gauss(0, 0.2), chance.choice((-1, 1))
    x, y = (SIDE * SCALE / 2 + chance.gauss(0, SIDE * SCALE / 14) for _ in "xy")
    sine, cosine = math.sin(turn), math.cos(turn)

    def place(point: Point) -> Point:
        across, down = mirror * point[0] * size, point[1] * size
        return x + across * cosine - down * sine, y + across * sine + down * cosine

    pencil = ImageDraw.Draw(image)
    for kind, name, points in CLASSES[label]:
        if kind == "disc":
            pencil.circle(place(points[0]), points[1][0] * size, fill=colours[name])
        else:
            pencil.polygon([place(point) for point in points], fill=colours[name])
    smooth = image.filter(ImageFilter.GaussianBlur(1)).reduce(SCALE)
    noise = Image.frombytes("RGB", (SIDE, SIDE), chance.randbytes(3 * SIDE * SIDE))
    return Image.blend(smooth, noise, NOISE)


def colour(hue: int, saturation: int, value: int, chance: random.Random) -> tuple[int, int, int]:
    """Return a colour near one in HSV; each number is from 0 to 255."""
    near = (min(255, max(0, round(chance.gauss(each, 18)))) for each in (saturation, value))
    pixel = Image.new("HSV", (1, 1), (hue, *near)).convert("RGB").getpixel((0, 0))
    assert isinstance(pixel, tuple)
    return int(pixel[0]), int(pixel[1]), int(pixel[2])


def rows(number: int, chance: random.Random) -> Iterator[bytes]:
    """Yield samples as in CIFAR-10: a byte of the class, then the red, green and blue pixels."""
    labels = list(CLASSES)
    for _ in range(number):
        label = chance.randrange(len(labels))
        planes = drawing(labels[label], chance).split()
        yield bytes([label]) + b"".join(plane.tobytes() for plane in planes)


def write(folder: Path, train: int, test: int) -> None:
    """Write CIFAR-10's six files with so many training and test samples in all."""
    made = folder / "cifar-10-batches-bin"
    made.mkdir(parents=True, exist_ok=True)
    files = {f"data_batch_{number}.bin": train // 5 for number in range(1, 6)}
    for seed, (name, number) in enumerate({**files, "test_batch.bin": test}.items()):
        (made / name).write_bytes(b"".join(rows(number, random.Random(seed))))


def main() -> None:
    """Write the files."""
    parser = argparse.ArgumentParser(prog="docs.generate.drawings", description="Draw a data set.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--train", type=int, default=15000, help="training images (15000)")
    parser.add_argument("--test", type=int, default=3000, help="test images (3000)")
    asked = parser.parse_args()
    write(asked.folder, asked.train, asked.test)


if __name__ == "__main__":
    main()
