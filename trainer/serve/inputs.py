"""Reads the samples in the body of a request.

Small bodies are read in the server's process, others in a decoder (decoder.py), whose time and
memory do not affect other requests. A request is refused before large objects are created from it:
types and lengths are checked during the traversal of lists, and numpy never gets text.
"""

import base64
import binascii
import json
import re
from typing import Any, NamedTuple

import numpy as np
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from trainer.serve.kind import Array, Kind
from trainer.serve.pictures import decode
from trainer.serve.refusal import Refusal

TOP = 10  # Default number of classes in an answer.
DEPTH = 4  # The most levels of nested lists: samples, channels, rows, pixels.
DIGITS = 7  # Of a number of classes.
JSON, FORM = "application/json", "multipart/form-data"
JSON_FIX = 'send JSON such as {"inputs": [...]} or {"image": "<base64>"}'
FORM_FIX = "send a form (multipart/form-data) whose field image is a file"
PARTS = 2  # The most parts of a form.
HALF = re.compile(r"\\u[dD][89a-fA-F]")  # A surrogate in JSON; a single one is not valid text.


class Limits(NamedTuple):
    """The sizes that a request may have."""

    samples: int
    pixels: int  # Of a picture.


def read_object(body: bytes, fix: str = JSON_FIX) -> dict[str, Any]:
    """Read the JSON object in a body, and check that its texts are valid; raises Refusal."""
    try:
        content = json.loads(text := body.decode(json.detect_encoding(body)))
        if HALF.search(text):  # For most bodies, the search is the only cost.
            json.dumps(content, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise Refusal(400, f"the body is not JSON ({error})", fix) from error
    if not isinstance(content, dict):
        raise Refusal(422, "the body is not an object", fix)
    return content


def require_keys(content: dict[str, Any], *known: str) -> None:
    """Raise Refusal if an object has an unknown key: a misspelt one would be ignored otherwise."""
    if unknown := [key for key in content if key not in known]:
        shown = json.dumps(unknown[0][:100], ensure_ascii=not unknown[0].isprintable())
        raise Refusal(422, f"{shown}: is no key of this request", f"send {', '.join(known)} alone")


def json_values(content: dict[str, Any], most: int) -> list[Any]:
    """Return the inputs for a custom handler, any JSON values; raises Refusal."""
    require_keys(content, "inputs")
    found = content.get("inputs")
    if not isinstance(found, list) or not found:
        raise Refusal(422, "inputs: is not a list of values", 'send {"inputs": [...]}')
    if len(found) > most:
        raise Refusal(413, f"{len(found)} samples in one request", f"send {most} at most")
    return found


def read_top(value: Any) -> int:
    """Read the number of classes to answer; raises Refusal."""
    text = "" if isinstance(value, bool) else str(value)
    if not text.isdecimal() or len(text) > DIGITS or int(text) < 1:
        raise Refusal(422, "top: is not a valid number", "send a whole number from 1 on")
    return int(text)


def read_samples(body: bytes, content_type: str, kind: Kind, limits: Limits) -> tuple[Array, int]:
    """Read the samples, float32 [N, C, S, S], and the number of classes; raises Refusal."""
    if content_type != JSON:
        require_pictures(kind)
        return decode(file_in_form(body, content_type), kind, limits.pixels)[None], TOP
    return samples(read_object(body), kind, limits)


def samples(content: dict[str, Any], kind: Kind, limits: Limits) -> tuple[Array, int]:
    """Read the samples in `inputs`, or the one in `image`, and `top`; raises Refusal."""
    require_keys(content, "inputs", "image", "top")
    top = read_top(content.get("top", TOP))
    if ("inputs" in content) == ("image" in content):
        raise Refusal(422, "the body needs either inputs or image", JSON_FIX)
    if "inputs" in content:
        read = own_numbers if kind.values else numbers
        return read(content["inputs"], kind, limits.samples), top
    require_pictures(kind)
    try:
        picture = base64.b64decode(content["image"], validate=True)
    except (TypeError, ValueError, binascii.Error) as error:
        raise Refusal(422, "image: is not base64", "encode the file's bytes in base64") from error
    return decode(picture, kind, limits.pixels)[None], top


def require_pictures(kind: Kind) -> None:
    """Raise Refusal if a model takes numbers."""
    if kind.values:
        fix = f'send JSON such as {{"inputs": [...]}}, of {by(kind.shape)} numbers'
        raise Refusal(422, "image: this model takes no pictures", fix)


def by(shape: tuple[int, ...]) -> str:
    """Format a shape."""
    return " x ".join(map(str, shape)) or "single"


def own_numbers(content: Any, kind: Kind, most: int) -> Array:
    """Read a list of samples of custom data, each of the kind's shape; raises Refusal."""
    wanted = by(kind.shape)
    fix = f"send a list of samples, each an array of {wanted} numbers ({kind.values})"
    try:
        if isinstance(content, list) and len(content) > most:
            raise Refusal(413, f"{len(content)} samples in one request", f"send {most} at most")
        shape = measured(content, max(most, *kind.shape, 1), deepest=len(kind.shape) + 1)
        if shape[1:] != kind.shape or not shape:
            raise Refusal(422, f"inputs: is {by(shape)}, not N x {wanted}", fix)
        values = np.array(content, np.int64 if kind.integers else np.float32)
    except (ValueError, OverflowError) as error:
        raise Refusal(422, f"inputs: {error}", fix) from error
    if not np.isfinite(values).all():
        raise Refusal(422, "inputs: has NaN or infinity in it", fix)
    if kind.integers and not np.array_equal(values, np.array(content, np.float64)):
        raise Refusal(422, "inputs: has fractions in it", fix)
    return values


def numbers(content: Any, kind: Kind, most: int) -> Array:
    """Read one array or a list of them, 0 (black) to 255 (white); raises Refusal.

    A sample of one channel may lack that dimension.
    """
    wanted = " x ".join(map(str, kind.shape))
    fix = f"send one array of {wanted} numbers from 0 (black) to 255 (white), or a list of them"
    longest = max(most, *kind.shape)
    try:
        if isinstance(content, list) and len(content) > longest:
            raise Refusal(413, f"{len(content)} samples in one request", f"send {most} at most")
        shape = measured(content, longest)
        one = kind.shape[1:] if kind.shape[0] == 1 and len(shape) < DEPTH else kind.shape
        if shape not in (one, kind.shape) and shape[1:] not in (one, kind.shape):
            found = " x ".join(map(str, shape)) or "no array"
            raise Refusal(422, f"inputs: is {found}, not {wanted}", fix)
        values = np.array(content, np.float32).reshape(-1, *kind.shape)
    except ValueError as error:
        raise Refusal(422, f"inputs: {error}", fix) from error
    except OverflowError as error:
        raise Refusal(422, "inputs: has a number of hundreds of digits in it", fix) from error
    if len(values) > most:
        raise Refusal(413, f"{len(values)} samples in one request", f"send {most} at most")
    if not np.isfinite(values).all():
        raise Refusal(422, "inputs: has NaN or infinity in it", fix)
    if values.min() < 0 or values.max() > 255:
        raise Refusal(422, f"inputs: goes from {values.min():g} to {values.max():g}", fix)
    return values * np.float32(kind.largest / 255)


def measured(
    content: Any, longest: int, depth: int = 1, *, deepest: int = DEPTH
) -> tuple[int, ...]:
    """Return the shape of numbers in lists of at most `longest`; raises ValueError."""
    if type(content) in (int, float):
        return ()
    if type(content) is not list:
        raise ValueError("has something else than numbers in it")
    if not 0 < len(content) <= longest:
        reason = f"a list of {len(content)} is longer than any that it takes, {longest}"
        raise ValueError(reason if content else "is empty")
    kinds = set(map(type, content))
    if kinds <= {int, float}:
        return (len(content),)
    if not kinds <= {int, float, list}:
        raise ValueError("has something else than numbers in it")
    if depth == deepest:
        raise ValueError(f"has more than {deepest} dimensions")
    shapes = {measured(each, longest, depth + 1, deepest=deepest) for each in content}
    if len(shapes) > 1:
        raise ValueError("the rows are not of the same length")
    return (len(content), *shapes.pop())


class Part:
    """A part of a form."""

    def __init__(self) -> None:
        self.options: dict[bytes, bytes] = {}  # Of its Content-Disposition.
        self.data = bytearray()


class Form:
    """Collects the parts of a form; the methods are the parser's callbacks."""

    def __init__(self) -> None:
        self.parts: list[Part] = []
        self._name, self._value = bytearray(), bytearray()

    def on_part_begin(self) -> None:
        """Begin a part; raises Refusal if there are too many."""
        if len(self.parts) == PARTS:
            raise Refusal(400, "the form has too many parts", FORM_FIX)
        self.parts.append(Part())

    def on_header_field(self, data: bytes, start: int, end: int) -> None:
        """Append to a header's name."""
        self._name += data[start:end]

    def on_header_value(self, data: bytes, start: int, end: int) -> None:
        """Append to a header's value."""
        self._value += data[start:end]

    def on_header_end(self) -> None:
        """Keep the header that has the part's name."""
        if self._name.lower() == b"content-disposition":
            self.parts[-1].options = parse_options_header(bytes(self._value))[1]
        self._name.clear()
        self._value.clear()

    def on_part_data(self, data: bytes, start: int, end: int) -> None:
        """Append to a part's content."""
        self.parts[-1].data += data[start:end]


def file_in_form(body: bytes, content_type: str) -> bytes:
    """Return the file in the form's field `image`; raises Refusal."""
    form, (_, options) = Form(), parse_options_header(content_type)
    names = [name for name in dir(form) if name.startswith("on_")]
    callbacks: Any = {name: getattr(form, name) for name in names}
    try:
        parser = MultipartParser(options.get(b"boundary", b""), callbacks)
        parser.write(body)
        parser.finalize()
    except (FormParserError, ValueError) as error:
        raise Refusal(400, f"the form is damaged ({error})", FORM_FIX) from error
    for part in form.parts:
        if part.options.get(b"name") == b"image" and b"filename" in part.options:
            return bytes(part.data)
    raise Refusal(422, "there is no file in the field image", FORM_FIX)
