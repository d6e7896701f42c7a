"""Digits as drawn with a finger: lines in a square of 0 to 1, y downwards."""

from math import cos, pi, sin

from PIL import Image, ImageDraw

Line = list[tuple[float, float]]


def arc(x: float, y: float, rx: float, ry: float, begin: float, end: float) -> Line:
    """Part of an ellipse around (x, y), from one angle to another, in turns from the right."""
    angles = [2 * pi * (begin + (end - begin) * step / 10) for step in range(11)]
    return [(x + rx * cos(angle), y + ry * sin(angle)) for angle in angles]


STROKES: dict[int, list[Line]] = {
    0: [arc(0.5, 0.5, 0.22, 0.34, 0.75, 1.75)],
    1: [[(0.38, 0.3), (0.52, 0.16), (0.52, 0.84)]],
    2: [[*arc(0.5, 0.34, 0.2, 0.18, 0.55, 1.1), (0.3, 0.82), (0.74, 0.82)]],
    3: [[*arc(0.48, 0.33, 0.2, 0.17, 0.6, 1.25), *arc(0.48, 0.66, 0.22, 0.17, 0.75, 1.4)]],
    4: [[(0.56, 0.14), (0.28, 0.58), (0.76, 0.58)], [(0.6, 0.36), (0.6, 0.86)]],
    5: [[(0.7, 0.16), (0.38, 0.16), (0.35, 0.46), *arc(0.48, 0.63, 0.21, 0.2, 0.66, 1.4)]],
    6: [[(0.62, 0.14), (0.4, 0.4), *arc(0.5, 0.66, 0.18, 0.18, 0.5, 1.55)]],
    7: [[(0.28, 0.16), (0.72, 0.16), (0.44, 0.86)]],
    8: [[*arc(0.5, 0.33, 0.16, 0.17, 0.25, 1.25), *arc(0.5, 0.67, 0.19, 0.17, 0.75, 1.75)]],
    9: [[*arc(0.5, 0.34, 0.18, 0.18, 0.0, 1.0), (0.66, 0.6), (0.56, 0.86)]],
}


def draw(
    digit: int,
    side: int = 280,
    pen: float = 0.08,
    scale: float = 1.0,
    shift: tuple[float, float] = (0.0, 0.0),
    slant: float = 0.0,
) -> Image.Image:
    """White on black; `pen` is the width of the line, `slant` how far the top leans."""
    image = Image.new("L", (side, side))
    canvas, width = ImageDraw.Draw(image), round(pen * side)
    for line in STROKES[digit]:
        points = [
            (
                side * (0.5 + scale * (x - 0.5 + slant * (0.5 - y)) + shift[0]),
                side * (0.5 + scale * (y - 0.5) + shift[1]),
            )
            for x, y in line
        ]
        canvas.line(points, fill=255, width=width, joint="curve")
        for x, y in points:
            r = width / 2
            canvas.ellipse((x - r, y - r, x + r, y + r), fill=255)
    return image
