"""Fields of services and containers, in rendered files and in engines. Pure.

Fields have the names of Docker's Compose format.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

Fields = dict[str, object]
"""Values by the names of fields, without those that are empty, zero or Docker's default."""

Shape = type | tuple[type, ...] | list[Any] | dict[str, Any]
"""The form of a value: of a type, a list of mappings with known keys, or such a mapping."""

LATER = frozenset({"healthcheck.start_interval"})
"""Fields that an engine of the supported versions may lack."""
HIDDEN = "environment."
"""Fields whose values are not shown: people may have written secrets there by hand."""
SHOWN = 3
"""The most differences that are listed."""
UNITS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
SIZES = {"": 0, "b": 0, "k": 10, "m": 20, "g": 30, "t": 40}


def fits(value: Any, shape: Shape) -> bool:
    """Return whether a value has no other keys and forms than a shape.

    People may replace the templates, and write what these readers do not understand.
    """
    if isinstance(shape, dict):
        known = isinstance(value, dict) and value.keys() <= shape.keys()
        return known and all(fits(each, shape[key]) for key, each in value.items())
    if isinstance(shape, list):
        return isinstance(value, list) and all(fits(each, shape[0]) for each in value)
    return isinstance(value, shape)


def kept(fields: Mapping[str, object]) -> Fields:
    """Leave out empty fields: the engine does not distinguish them from unset ones."""
    return {name: value for name, value in fields.items() if value}


def compared(wanted: Fields, actual: Fields, *, strict: Collection[str]) -> Iterator[str]:
    """Yield the differences between a file's fields and an engine's, in words, sorted.

    Fields that the file lacks are compared only if they are among `strict`.
    """
    for name in sorted(wanted.keys() | (actual.keys() & strict)):
        want, have = wanted.get(name), actual.get(name)
        if want == have or (have is None and name in LATER) or _same_image(name, want, have):
            continue
        hidden = name.startswith(HIDDEN)
        if want is None:
            yield (
                f"{name} is set" if hidden else f"{name} is {_text_of(have)}, which its file lacks"
            )
        elif have is None:
            yield f"{name} is missing"
        else:
            yield (
                f"{name} is changed"
                if hidden
                else f"{name} is {_text_of(have)}, not {_text_of(want)}"
            )


def _same_image(name: str, want: object, have: object) -> bool:
    """Return whether an image is the file's; Swarm adds the digest that the registry gave."""
    return name == "image" and str(have).partition("@")[0] == want


def _text_of(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def by_hand(differences: Sequence[str]) -> str:
    """Return the first differences and the number of the others; "" if there are none."""
    more = f" (and {len(differences) - SHOWN} more)" if len(differences) > SHOWN else ""
    return f"changed by hand: {'; '.join(differences[:SHOWN])}{more}" if differences else ""


def interpolated(text: str, variables: Mapping[str, str]) -> str:
    """Replace variables as Docker does; the rendered files have only these forms."""

    def value(match: re.Match[str]) -> str:
        return variables.get(match[1], match[2] or "") if match[1] else "$"

    return re.sub(r"\$\$|\$\{(\w+)(?::-([^}]*))?\}", value, text)


def understood(text: str) -> bool:
    """Return whether a file has no custom variables, whose values only its deployer knows."""
    lines = (line for line in text.splitlines() if not line.lstrip().startswith("#"))
    return not any(re.search(r"\$(?!\{KIT_SECRET_)", line.replace("$$", "")) for line in lines)


def seconds(text: str | None) -> float:
    """Return a duration of Go, such as `1m30s`, in seconds."""
    parts = re.findall(r"([\d.]+)(ns|us|ms|s|m|h)", text or "")
    return float(sum(float(number) * UNITS[unit] for number, unit in parts))


def size(text: str | int | None) -> int:
    """Return a size of Docker, such as `2g`, in bytes."""
    match = re.fullmatch(r"(\d+)([bkmgt]?)b?", str(text or 0).lower())
    assert match is not None, text
    return int(match[1]) << SIZES[match[2]]


def capabilities(names: Iterable[str] | None) -> tuple[str, ...]:
    """Return the names of capabilities without their prefix, sorted."""
    return tuple(sorted(name.upper().removeprefix("CAP_") for name in names or ()))


def limits(value: int | Mapping[str, int]) -> str:
    """Return a ulimit of a file as text."""
    both = {"soft": value, "hard": value} if isinstance(value, int) else value
    soft, hard = both.get("soft", 0), both.get("hard", 0)
    return f"{soft}:{hard}"


def mount_text(kind: str, source: str | None, read_only: bool | None, size: int | None) -> str:
    """Return a mount as text; a tmpfs may have a size in bytes."""
    options = ("read-only" if read_only else "", f"{size} bytes" if size else "")
    return " ".join(each for each in (kind, source or "", *options) if each)
