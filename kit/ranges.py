"""Ranges of hosts and addresses, such as `gpu[001-512]`."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable

from kit.values import WrongValueError

_BRACKET = re.compile(r"([^\[\]]*)\[([0-9]{1,9})-([0-9]{1,9})\]([^\[\]]*)")
_IP_RANGE = re.compile(r"([0-9.]+)\s*-\s*([0-9.]+)")
MOST_HOSTS = 100_000
"""A longer range is a typing error."""


def is_range(name: str) -> bool:
    """Return whether a host's name is a range."""
    return "[" in name or "]" in name


def parts(pattern: str) -> tuple[str, str, str, str]:
    """Return the text before the bracket of a range, its two numbers, and the text after it.

    Raises:
        WrongValueError: The text has not exactly one well-formed bracket.
    """
    match = _BRACKET.fullmatch(pattern)
    if match is None:
        raise WrongValueError(
            f"{pattern!r} is not a range", "write one bracket, as in gpu[001-512]"
        )
    head, first, last, tail = match.groups()
    return head, first, last, tail


def expand(pattern: str) -> list[str]:
    """Expand `gpu[001-003]` to gpu001, gpu002, gpu003. Leading zeros set the width.

    Raises:
        WrongValueError: The bracket is malformed, or its range is descending or too long.
    """
    head, first, last, tail = parts(pattern)
    _check_span(pattern, int(first), int(last))
    width = len(first) if first.startswith("0") else 0
    return [f"{head}{number:0{width}d}{tail}" for number in range(int(first), int(last) + 1)]


def members(patterns: Iterable[str]) -> set[str]:
    """Return the names that names and ranges stand for.

    Raises:
        WrongValueError: A range is malformed.
    """
    return {name for each in patterns for name in (expand(each) if is_range(each) else [each])}


def expand_addresses(pattern: str, count: int) -> list[str]:
    """Expand an address for `count` hosts.

    The forms are `10.0.0.[1-64]`, `gpu[001-512].lab` and `10.1.0.1-10.1.2.0`, a range of
    consecutive IPv4 addresses.

    Raises:
        WrongValueError: It is not a range, is malformed, or has another length.
    """
    span = _IP_RANGE.fullmatch(pattern)
    if span:
        addresses = _consecutive(pattern, span[1], span[2])
    elif is_range(pattern):
        addresses = expand(pattern)
    else:
        raise WrongValueError(
            f"{pattern!r} is one address for {count} hosts",
            "write a range, as in 10.0.0.[1-64] or 10.1.0.1-10.1.2.0",
        )
    if len(addresses) != count:
        raise WrongValueError(
            f"{pattern!r} holds {len(addresses)} addresses for {count} hosts",
            "make the two ranges equally long",
        )
    return addresses


def _consecutive(pattern: str, first: str, last: str) -> list[str]:
    try:
        low, high = int(ipaddress.IPv4Address(first)), int(ipaddress.IPv4Address(last))
    except ValueError:
        raise WrongValueError(
            f"{pattern!r} is not a range of IPv4 addresses", "write for example 10.1.0.1-10.1.2.0"
        ) from None
    _check_span(pattern, low, high)
    return [str(ipaddress.IPv4Address(number)) for number in range(low, high + 1)]


def _check_span(pattern: str, first: int, last: int) -> None:
    if last < first:
        raise WrongValueError(f"{pattern!r} runs backwards", "put the smaller number first")
    if last - first >= MOST_HOSTS:
        raise WrongValueError(
            f"{pattern!r} stands for {last - first + 1} hosts", f"at most {MOST_HOSTS} are taken"
        )
