"""Pictures with transparent parts: they are put on what shows them."""

import numpy as np
import pytest
from PIL import Image

from tests.trainer.servers import encoded
from tests.trainer.strokes import draw
from trainer.serve.kind import Kind
from trainer.serve.pictures import decode
from trainer.serve.refusal import Refusal

DIGITS = Kind("digits", "cnn", (1, 8, 8), (), 16)
MNIST = Kind("mnist", "cnn", (1, 28, 28), (), 255)
COLOURS = Kind("cifar10", "cnn", (3, 32, 32), (), 255)
FOLDER = Kind("folder", "cnn", (3, 32, 32), (), 255)
PIXELS = 2**24
DIGIT = draw(3)

Colour = tuple[int, int, int]


def alone(ink: Colour, under: Colour, opacity: float = 1.0) -> Image.Image:
    """A digit and nothing else; `under` is the colour that transparent pixels have all the same."""
    image = Image.new("RGBA", DIGIT.size, under)
    image.paste(ink, mask=DIGIT.point(lambda value: 255 * (value > 0)))
    image.putalpha(DIGIT.point(lambda value: round(value * opacity)))
    return image


def by_index(grey: int) -> bytes:
    """With a palette in which all colours are equal."""
    image = Image.frombytes("P", DIGIT.size, DIGIT.point(lambda value: value > 127).tobytes())
    image.putpalette([grey] * 6)
    return encoded(image, transparency=0)


def by_colour(mode: str, grey: int) -> bytes:
    """Without a channel for it: one colour is transparent."""
    other = 255 - grey
    flat = DIGIT.point(lambda value: grey if value > 127 else other)
    if mode == "I;16":
        flat = Image.fromarray(np.asarray(flat, np.uint16) * 257)
        return encoded(flat, transparency=other * 257)
    image = flat.convert(mode)
    return encoded(image, transparency=(other,) * 3 if mode == "RGB" else other)


def with_shadow() -> Image.Image:
    """A white digit and its grey shadow."""
    shadow = alone((0, 0, 0), (0, 0, 0), 0.35)
    moved = Image.new("RGBA", DIGIT.size, (0, 0, 0, 0))
    moved.paste(shadow, (8, 8))
    return Image.alpha_composite(moved, alone((255, 255, 255), (0, 0, 0)))


def on_paper() -> Image.Image:
    """Black on a white sheet, with nothing around it."""
    image = Image.new("RGBA", (400, 400), (0, 0, 0, 0))
    image.paste((255, 255, 255, 255), (60, 60, 340, 340))
    image.paste((0, 0, 0, 255), (60, 60), DIGIT)
    return image


@pytest.mark.parametrize(
    "content",
    [
        *(
            encoded(alone((grey,) * 3, under))
            for grey in (0, 120, 135, 255)
            for under in ((0, 0, 0), (255, 255, 255), (12, 200, 99))
        ),
        encoded(alone((255, 255, 0), (0, 0, 0))),
        encoded(alone((0, 0, 255), (0, 0, 0))),
        *(encoded(alone((grey,) * 3, (0, 0, 0), 0.4)) for grey in (0, 255)),
        *(encoded(alone((grey,) * 3, (grey,) * 3).convert("LA")) for grey in (0, 255)),
        *(encoded(alone((grey,) * 3, (grey,) * 3), "WEBP") for grey in (0, 255)),
        *(by_index(grey) for grey in (0, 255)),
        *(by_colour(mode, grey) for mode in ("1", "L", "RGB", "I;16") for grey in (0, 255)),
        encoded(with_shadow()),
        encoded(on_paper()),
    ],
)
def test_a_digit_on_a_transparent_background_is_seen_as_on_black(content: bytes) -> None:
    for kind in (DIGITS, MNIST):
        found, drawn = decode(content, kind, PIXELS), decode(encoded(DIGIT), kind, PIXELS)
        assert np.abs(found - drawn).mean() < 0.02 * kind.largest


def test_a_transparent_picture_of_the_models_size_is_a_drawing_too() -> None:
    found = [
        decode(encoded(alone((grey,) * 3, (0, 0, 0)).resize((28, 28))), MNIST, PIXELS)
        for grey in (0, 255)
    ]
    assert np.abs(found[0] - found[1]).max() < 5
    assert found[0][0, 0, 0] == 0


@pytest.mark.parametrize("kind", [DIGITS, MNIST, COLOURS, FOLDER])
@pytest.mark.parametrize("size", [(300, 200), (28, 28)])
def test_a_picture_of_which_nothing_can_be_seen_is_refused(
    kind: Kind, size: tuple[int, int]
) -> None:
    clear = Image.new("RGBA", size, (200, 30, 90, 0))
    for content in (encoded(clear), encoded(clear.convert("LA")), encoded(clear, "WEBP")):
        with pytest.raises(Refusal, match="all of it is transparent") as caught:
            decode(content, kind, PIXELS)
        assert caught.value.status == 422


@pytest.mark.parametrize("kind", [COLOURS, FOLDER])
@pytest.mark.parametrize(
    ("colour", "expected"), [((255, 255, 255), 0), ((200, 30, 90), 255), ((0, 0, 0), 255)]
)
def test_models_of_colours_see_white_around_all_that_white_does_not_hide(
    kind: Kind, colour: Colour, expected: int
) -> None:
    corner = decode(encoded(alone(colour, (9, 9, 9))), kind, PIXELS)[:, 0, 0]
    assert corner.tolist() == [expected] * 3


def test_an_opaque_picture_with_an_alpha_channel_is_as_one_without() -> None:
    plain, opaque = (encoded(DIGIT.convert(mode)) for mode in ("RGB", "RGBA"))
    assert np.array_equal(decode(plain, COLOURS, PIXELS), decode(opaque, COLOURS, PIXELS))
