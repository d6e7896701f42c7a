"""The units and words that people write, and what they mean.

Each parser raises `WrongValueError` with what is wrong and what would be right.
"""

from __future__ import annotations

import ipaddress
import re

_SIZE_UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_SPEED_UNITS = {"Mbit": 10**6, "Gbit": 10**9}
_DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_GPU_UUID = re.compile(r"(GPU|MIG)-[0-9A-Za-z][-0-9A-Za-z/]*")


class WrongValueError(ValueError):
    """A value that cannot be used: what is wrong, and what would be right."""

    def __init__(self, what: str, fix: str) -> None:
        super().__init__(f"{what}; {fix}")
        self.what = what
        self.fix = fix


def _number_and_unit(text: object, kind: str, example: str) -> tuple[float, str]:
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z/]*)\s*", str(text))
    if isinstance(text, bool) or match is None:
        raise WrongValueError(f"{text!r} is not a {kind}", f"write for example {example}")
    return float(match[1]), match[2]


def size(text: object) -> int:
    """Parse a size such as `24GiB` into bytes."""
    number, unit = _number_and_unit(text, "size", "24GiB")
    if unit in _SIZE_UNITS:
        return int(number * _SIZE_UNITS[unit])
    amount = f"{number:g}"
    if not unit:
        raise WrongValueError(f"{text!r} has no unit", f"write {amount}MiB or {amount}GiB")
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
    number, unit = _number_and_unit(text, "link speed", "1Gbit")
    if unit in _SPEED_UNITS:
        if number <= 0:
            raise WrongValueError(f"{text!r} is no speed", "write for example 1Gbit")
        return int(number * _SPEED_UNITS[unit])
    amount = f"{number:g}"
    if not unit:
        raise WrongValueError(f"{text!r} has no unit", f"write {amount}Mbit or {amount}Gbit")
    prefix = {"m": "Mbit", "g": "Gbit"}.get(unit[0].lower(), "Gbit")
    raise WrongValueError(
        f"{text!r} has the unit {unit}; links are measured in Mbit or Gbit (per second)",
        f"write for example {amount}{prefix}",
    )


def duration(text: object) -> int:
    """Parse a duration such as `90s`, `5m` or `2h` into seconds."""
    number, unit = _number_and_unit(text, "duration", "60s")
    seconds = {"s": 1, "m": 60, "h": 3600}.get(unit)
    if seconds is None:
        raise WrongValueError(
            f"{text!r} has no unit that is known", f"write for example {number:g}s"
        )
    return int(number * seconds)


def dns_label(text: object) -> str:
    """Check a name that becomes part of service, host and volume names (RFC 1123 label)."""
    if isinstance(text, str) and _DNS_LABEL.fullmatch(text):
        return text
    meant = re.sub(r"[^a-z0-9-]+", "-", str(text).lower()).strip("-")[:63].strip("-")
    fix = f"write for example {meant}" if meant else "write for example gpu01"
    raise WrongValueError(
        f"{str(text)!r} is not a DNS label (at most 63 lower-case letters, digits, inner hyphens)",
        fix,
    )


def gpu_uuid(text: object) -> str:
    """Check a GPU's or MIG instance's UUID as `nvidia-smi -L` prints it."""
    if isinstance(text, str) and _GPU_UUID.fullmatch(text):
        return text
    raise WrongValueError(
        f"{text!r} is not a GPU's UUID",
        "copy what `nvidia-smi -L` prints: GPU-… or MIG-…",
    )


def address(text: object) -> str:
    """Check an IP address or DNS name (RFC 1123)."""
    if isinstance(text, str) and re.fullmatch(r"[0-9.]+", text):
        try:
            return str(ipaddress.IPv4Address(text))
        except ValueError:
            raise WrongValueError(
                f"{text!r} is not an IPv4 address", "write four numbers from 0 to 255"
            ) from None
    if isinstance(text, str) and ":" in text:
        try:
            return str(ipaddress.IPv6Address(text))
        except ValueError:
            raise WrongValueError(
                f"{text!r} is not an address", "leave the port out: 192.168.8.151"
            ) from None
    labels = text.split(".") if isinstance(text, str) else [""]
    if len(str(text)) <= 253 and all(_DNS_LABEL.fullmatch(label.lower()) for label in labels):
        return str(text)
    raise WrongValueError(
        f"{text!r} is neither an IP address nor a host name", "write for example 192.168.8.151"
    )


def subnet(text: object) -> str:
    """Check an IPv4 network in CIDR notation."""
    try:
        return str(ipaddress.IPv4Network(str(text)))
    except ValueError as error:
        raise WrongValueError(
            f"{text!r} is not an IPv4 network: {error}", "write for example 10.200.0.0/16"
        ) from None


def show_size(number: int) -> str:
    """Write bytes as `size` reads them: the largest unit that keeps the number whole."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if number and number % _SIZE_UNITS[unit] == 0:
            return f"{number // _SIZE_UNITS[unit]}{unit}"
    return f"{number}B"


def show_speed(bits: int) -> str:
    """Write bits per second as `speed` reads them."""
    unit = "Gbit" if bits >= 10**9 else "Mbit"
    return f"{bits / _SPEED_UNITS[unit]:g}{unit}"
