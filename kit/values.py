"""Parsers and formatters of units and names, and a function that groups values.

Each parser raises `WrongValueError` with the mistake and its correction.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import TypeVar

from trainer.contract.words import shown

KeyT = TypeVar("KeyT")
ValueT = TypeVar("ValueT")
Say = Callable[[str], object]
"""Shows one line of progress."""

_SIZE_UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_SPEED_UNITS = {"Mbit": 10**6, "Gbit": 10**9}
_LARGEST = 2**63 - 1
DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_BARE_UUID = r"[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}"
_GPU_UUID = re.compile(rf"(GPU|MIG)-[0-9A-Za-z][-0-9A-Za-z/]*|{_BARE_UUID}")
_UUID_SHAPE = "xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx"
_PUBLIC_KEY = re.compile(r"(ssh-[a-z0-9-]+|ecdsa-[a-z0-9-]+|sk-[a-z0-9.@-]+) (\S+)( .*)?")
_LEAST_DIGITS = 8
"""A UUID with fewer digits is a made-up name, as in examples."""


class WrongValueError(ValueError):
    """A value that cannot be used, with the mistake and its correction."""

    def __init__(self, what: str, fix: str) -> None:
        super().__init__(f"{what}; {fix}")
        self.what = what
        self.fix = fix


def _number_and_unit(text: object, kind: str, example: str) -> tuple[Fraction, str, str]:
    """Return the number, its text, and the unit."""
    match = re.fullmatch(
        r"\s*([0-9]{1,30}(?:\.[0-9]{1,30})?)\s*([A-Za-z/]*)\s*",
        str(text) if isinstance(text, (str, int, float)) and not isinstance(text, bool) else "",
        re.ASCII,
    )
    if match is None:
        raise WrongValueError(f"{shown(text)} is not a {kind}", f"write for example {example}")
    return Fraction(match[1]), match[1], match[2]


def _whole(text: object, number: Fraction, unit: int, kind: str, example: str) -> int:
    amount = int(number * unit)
    if not 0 < amount <= _LARGEST:
        raise WrongValueError(f"{text!r} is not a {kind}", f"write for example {example}")
    return amount


def size(text: object) -> int:
    """Parse a size such as `24GiB` into bytes."""
    number, amount, unit = _number_and_unit(text, "size", "24GiB")
    if unit in _SIZE_UNITS:
        return _whole(text, number, _SIZE_UNITS[unit], "size", "24GiB")
    if not unit:
        bytes_ = number >= 2**20 and number.denominator == 1
        fix = show_size(int(number)) if bytes_ else f"{amount}MiB or {amount}GiB"
        raise WrongValueError(f"{text!r} has no unit", f"write {fix}")
    meant = {"k": "KiB", "m": "MiB", "g": "GiB", "t": "TiB"}.get(unit[0].lower())
    if meant and unit.lower() in {unit[0].lower() + rest for rest in ("", "b", "ib")}:
        raise WrongValueError(
            f"{text!r} has the unit {unit}, which is not exact", f"write {amount}{meant}"
        )
    raise WrongValueError(
        f"{text!r} has the unknown unit {unit}",
        f"use KiB, MiB, GiB or TiB, for example {amount}GiB",
    )


def speed(text: object) -> int:
    """Parse a link speed such as `1Gbit` into bits per second."""
    number, amount, unit = _number_and_unit(text, "link speed", "1Gbit")
    if unit in _SPEED_UNITS:
        return _whole(text, number, _SPEED_UNITS[unit], "link speed", "1Gbit")
    if not unit:
        raise WrongValueError(f"{text!r} has no unit", f"write {amount}Mbit or {amount}Gbit")
    raise WrongValueError(
        f"{text!r} has the unit {unit}, but links are measured in Mbit or Gbit (per second)",
        f"write for example {_meant_speed(number, unit)}",
    )


def _meant_speed(number: Fraction, unit: str) -> str:
    """Guess the speed of an unknown unit: `125MB/s`, `1Gb` and `1Gbps` mean 1Gbit."""
    prefix = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}.get(unit[0].lower())
    if prefix is None:
        return "1Gbit"
    in_bytes = re.fullmatch(r"[A-Za-z]i?(B(/s|ps)?|bytes?)", unit)
    bits = int(number * prefix * (8 if in_bytes else 1))
    return show_speed(bits) if bits else "1Gbit"


def duration(text: object) -> int:
    """Parse a duration such as `90s`, `5m` or `2h` into seconds."""
    number, amount, unit = _number_and_unit(text, "duration", "60s")
    seconds = {"s": 1, "m": 60, "h": 3600}.get(unit)
    if seconds is None:
        wrong = f"has the unknown unit {unit}" if unit else "has no unit"
        raise WrongValueError(f"{text!r} {wrong}", f"use s, m or h, for example {amount}s")
    return _whole(text, number, seconds, "duration", "60s")


def patience(value: object) -> int:
    """Parse a duration after which something is reported; 0 is never."""
    if value == 0 and value is not False:
        return 0
    try:
        return duration(value)
    except WrongValueError as error:
        raise WrongValueError(error.what, f"{error.fix}, or 0 for never") from None


def data_set(value: object) -> str:
    """Check the name of a data set: it is a folder's name and a part of URLs."""
    if isinstance(value, str) and re.fullmatch(r"[a-z0-9][a-z0-9._-]{0,62}", value):
        return value
    fix = "use lower-case letters, digits, '.', '_' and '-', as in cifar10"
    if isinstance(value, str) and "@" in value:
        name, _, version = value.partition("@")
        fix = f"write `{{name: {name}, version: {version}}}`"
    raise WrongValueError(f"{shown(value)} is not the name of a data set", fix)


def checkpoint(value: object) -> str:
    """Check the choice of a checkpoint: `newest`, `best`, or a checkpoint's name."""
    if isinstance(value, str) and re.fullmatch(r"newest|best|step-[0-9]{8}", value):
        return value
    raise WrongValueError(
        f"{shown(value)} is not a checkpoint", "write newest, best, or a name as step-00000300"
    )


def user(text: object) -> str:
    """Parse a user as Docker does: `1000`, `1000:1000`, or names that the image defines.

    Raises:
        WrongValueError: It is not a user.
    """
    word = "[A-Za-z0-9_][-A-Za-z0-9_.]*"
    if type(text) is int and 0 <= text < 2**32:
        return str(text)
    if isinstance(text, str) and re.fullmatch(f"{word}(:{word})?", text):
        return text
    raise WrongValueError(f"{shown(text)} is not a user", 'write `"1000:1000"`, in quotes')


def dns_label(text: object) -> str:
    """Check a name that becomes part of service, host and volume names (RFC 1123 label)."""
    if isinstance(text, str) and DNS_LABEL.fullmatch(text):
        return text
    meant = label_of(text) if isinstance(text, str) else ""
    if isinstance(text, int) and not isinstance(text, bool):
        raise WrongValueError(f"{text} is a number, not a text", f'write "{text}", in quotes')
    if isinstance(text, float):
        raise WrongValueError(f"this is the number {text}, not a text", "write it in quotes")
    raise WrongValueError(
        f"{shown(text)} is not a DNS label (at most 63 lower-case letters, digits, inner hyphens)",
        f"write for example {meant or 'gpu01'}",
    )


def label_of(text: str) -> str:
    """Return the DNS label that is nearest to a name, or "" if it has no letters and digits."""
    return re.sub(r"[^a-z0-9-]+", "-", text.lower()).strip("-")[:63].strip("-")


def gpu_uuid(text: object) -> str:
    """Check a GPU's or MIG instance's UUID as `nvidia-smi -L` prints it."""
    if isinstance(text, str) and _GPU_UUID.fullmatch(text):
        return text
    raise WrongValueError(
        f"{shown(text)} is not a GPU's UUID",
        "copy what `nvidia-smi -L` prints: GPU-… or MIG-…",
    )


SHARERS = "the GPU, /dev/shm and the page cache"
"""Users of the memory of a host whose GPU has none of its own."""


def public_key(key: object) -> str:
    """Check the line of a public SSH key, as `ssh-keygen -y` prints it."""
    example = "write a line as in ~/.ssh/id_ed25519.pub: ssh-ed25519 AAAA… anna@laptop"
    if isinstance(key, str) and "PRIVATE KEY" in key:
        fix = "write the line of its .pub file, and make a new key"
        raise WrongValueError("is a private key", fix)
    match = _PUBLIC_KEY.fullmatch(key) if isinstance(key, str) else None
    if match is None:
        raise WrongValueError("is not one public SSH key", example)
    try:
        content = base64.b64decode(match[2], validate=True)
    except binascii.Error:
        content = b""
    # RFC 4253, section 6.6: the key begins with the length and the name of its algorithm.
    if content[4 : 4 + len(match[1])] != match[1].encode():
        raise WrongValueError(f"is cut short, or no {match[1]}", example)
    return match[0]


def names_gpu(device: str) -> bool:
    """Return whether a device is named by its UUID, not by an index or as `all`.

    An integrated GPU, such as a Jetson's, has a UUID without `GPU-`.
    """
    return device.upper().startswith(("GPU-", "MIG-")) or bool(_GPU_UUID.fullmatch(device))


def cut_short(uuid: str) -> bool:
    """Return whether a UUID lacks its last digits: recipes for Swarm write `GPU-7af7a99b`."""
    digits = uuid.lower()
    digits = digits[4:] if digits.startswith(("gpu-", "mig-")) else digits
    if not _LEAST_DIGITS <= len(digits) < len(_UUID_SHAPE):
        return False  # Most are whole, and a pool has thousands.
    return _UUID_SHAPE.startswith(re.sub("[0-9a-f]", "x", digits))


def meant_gpus(uuid: str, listed: Iterable[str]) -> list[str]:
    """Return the listed UUIDs that a UUID means: itself, or else all that begin with it."""
    word = uuid.lower()
    beginning = [each for each in listed if each.lower().startswith(word)]
    return [each for each in beginning if each.lower() == word] or beginning


def show_size(number: int) -> str:
    """Format bytes for `size`, with the largest unit that gives a whole number."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if number and number % _SIZE_UNITS[unit] == 0:
            return f"{number // _SIZE_UNITS[unit]}{unit}"
    return f"{number}B"


def show_bytes(number: int) -> str:
    """Format an amount of data with three digits and a decimal unit: `170 MB`, `1.25 TB`."""
    size = float(number)
    for unit in ("B", "kB", "MB", "GB"):
        if float(f"{size:.3g}") < 1000:
            return f"{float(f'{size:.3g}'):g} {unit}"
        size /= 1000
    return f"{float(f'{size:.3g}'):,g} TB"


def show_speed(bits: int) -> str:
    """Format bits per second for `speed`."""
    unit = "Gbit" if bits >= 10**9 else "Mbit"
    return f"{bits / _SPEED_UNITS[unit]:g}{unit}"


def show_seconds(seconds: float) -> str:
    """Format a time with three digits: `2.26 ms`, `1.5 s`, `64,000 s`."""
    for number, unit in ((seconds * 1e3, "ms"), (seconds, "s")):
        rounded = float(f"{number:.3g}")
        if rounded < 1000:
            return f"{rounded:g} {unit}"
    return f"{seconds:,.0f} s"


def count(number: int, noun: str) -> str:
    """Format a number of things: `1 host`, `1,000 hosts`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def show_age(seconds: float) -> str:
    """Format a time for people: `48 s`, `12 min`, `7 h 20 min`, `12 h`."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 120:
        return f"{minutes} min"
    hours, rest = divmod(minutes, 60)
    return f"{hours} h {rest} min" if rest else f"{hours} h"


def grouped(pairs: Iterable[tuple[KeyT, ValueT]]) -> dict[KeyT, tuple[ValueT, ...]]:
    """Return the values of each key, in their order."""
    found: defaultdict[KeyT, list[ValueT]] = defaultdict(list)
    for key, value in pairs:
        found[key].append(value)
    return {key: tuple(values) for key, values in found.items()}
