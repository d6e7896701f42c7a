"""Parsers and formatters of units and names, and what groups values.

Each parser raises `WrongValueError` with the mistake and its correction.
"""

from __future__ import annotations

import ipaddress
import re
import shlex
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
_DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
# What ssh, and docker's URL of an engine, take as the name of a host (OpenSSH, valid_hostname).
_ALIAS = re.compile(r"(?!-)[\w.~+=-]+")
_BARE_UUID = r"[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}"
_GPU_UUID = re.compile(rf"(GPU|MIG)-[0-9A-Za-z][-0-9A-Za-z/]*|{_BARE_UUID}")
_UUID_SHAPE = "xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx"
_LEAST_DIGITS = 8
"""A UUID with fewer digits is a made-up name, as in examples."""
# https://github.com/distribution/reference/blob/main/regexp.go, without the digest's length.
_WORDS = r"[a-zA-Z0-9]([-a-zA-Z0-9]*[a-zA-Z0-9])?(\.[a-zA-Z0-9]([-a-zA-Z0-9]*[a-zA-Z0-9])?)*"
_DOMAIN = rf"({_WORDS}|\[[a-fA-F0-9:]+\])(:[0-9]+)?"
_NAME = r"[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*"
_IMAGE = re.compile(
    rf"({_DOMAIN}/)?{_NAME}(/{_NAME})*(:[A-Za-z0-9_][-.A-Za-z0-9_]{{0,127}})?(@[a-z0-9]+:[0-9a-f]+)?"
)
# IFNAMSIZ limits the length; characters with a meaning for the shell or NCCL are excluded.
_INTERFACE = re.compile(r"[A-Za-z0-9][-A-Za-z0-9_.@]{0,14}")


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
    """Parse a duration after which something is told; 0 is never."""
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
    if isinstance(text, str) and _DNS_LABEL.fullmatch(text):
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
"""What shares the memory of a host whose GPU has none of its own."""


def names_gpu(device: str) -> bool:
    """Return whether a device is named by its UUID, not by an index or as `all`.

    A GPU that is a part of the processor, as of a Jetson, has a UUID without `GPU-`.
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
    """Return the listed UUIDs that a UUID means: itself, else all of which it is the beginning."""
    word = uuid.lower()
    beginning = [each for each in listed if each.lower().startswith(word)]
    return [each for each in beginning if each.lower() == word] or beginning


def address(text: object) -> str:
    """Check an IP address or DNS name (RFC 1123)."""
    if isinstance(text, str) and re.fullmatch(r"[0-9.]+", text):
        try:
            return _of_one_machine(ipaddress.IPv4Address(text))
        except ipaddress.AddressValueError:
            raise WrongValueError(
                f"{text!r} is not an IPv4 address", "write four numbers from 0 to 255"
            ) from None
    if isinstance(text, str) and ":" in text:
        try:
            return _of_one_machine(ipaddress.IPv6Address(text))
        except ipaddress.AddressValueError:
            bare = text.removeprefix("[").removesuffix("]")
            if bare != text and ":" in bare and "]" not in bare:
                raise WrongValueError(f"{text!r} has brackets", f"write {bare}") from None
            raise WrongValueError(
                f"{text!r} is not an address", "leave the port out: 192.168.8.151"
            ) from None
    labels = text.split(".") if isinstance(text, str) else [""]
    if len(str(text)) <= 253 and all(_DNS_LABEL.fullmatch(label.lower()) for label in labels):
        return str(text)
    fix = "write for example 192.168.8.151"
    if isinstance(text, str) and _ALIAS.fullmatch(text):
        fix += f", and an alias of ~/.ssh/config as `ssh: {text}`"
    raise WrongValueError(f"{text!r} is neither an IP address nor a host name", fix)


def is_address(text: str) -> bool:
    """Return whether a text is an IP address."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def same_address(one: str, other: str) -> bool:
    """Return whether two texts are the same name or IP address; IPv6 has several spellings."""
    if is_address(one) and is_address(other):
        return ipaddress.ip_address(one) == ipaddress.ip_address(other)
    return one.lower() == other.lower()


def endpoint(host: str, port: int) -> str:
    """Return `address:port`, with an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def login(text: str) -> str:
    """Check an SSH login: `user@host` or `host`, optionally with `:port` (IPv6 in brackets).

    The host is a name that ssh knows: also an alias of ~/.ssh/config, which is no DNS name.
    """
    example = "write for example user1@pc1"
    user, at, place = text.rpartition("@")
    if text.startswith("-") or (at and not user) or not text.isprintable() or " " in text:
        raise WrongValueError(f"{text!r} is not a login", example)
    port: str | None = None
    if place.startswith("["):
        host, bracket, rest = place[1:].partition("]")
        if not bracket or ":" not in host or (rest and not rest.startswith(":")):
            raise WrongValueError(f"{text!r} is not a login", example)
        port = rest[1:] if rest else None
    elif place.count(":") == 1:
        host, _, port = place.partition(":")
    else:
        host = place
    if port is not None and not (re.fullmatch("[0-9]{1,5}", port) and 0 < int(port) < 65536):
        raise WrongValueError(f"{text!r} has no usable port", "write for example user1@pc1:2222")
    host = _ssh_host(host)
    if ":" in host:
        return f"{user}{at}[{host}]" + (f":{port}" if port else "")
    return text


def _ssh_host(text: str) -> str:
    """Check the host of a login: an IP address, also a link-local one with its zone, or a name."""
    bare, percent, zone = text.partition("%")
    if ":" in text:
        if percent and not _INTERFACE.fullmatch(zone):
            raise WrongValueError(f"{text!r} names no interface", f"write {bare}%eth0")
        try:
            ip = ipaddress.IPv6Address(bare)
        except ValueError:
            return address(bare)  # Its error says what is wrong.
        if ip.is_link_local:
            if not zone:
                what = f"{ip} is an address on every link"
                raise WrongValueError(what, f"add the interface here: {ip}%eth0 (`ip address`)")
            return f"{ip}%{zone}"
        return address(bare)
    if re.fullmatch(r"[0-9]+\.[0-9]+\.[0-9.]+", text):
        return address(text)
    if _ALIAS.fullmatch(text):
        return text
    raise WrongValueError(
        f"{text!r} is not a host that ssh and docker take",
        "give it an alias of letters, digits, '.', '_' and '-' in ~/.ssh/config (`Host gpu1`)",
    )


def split_login(text: str) -> tuple[str, str, str]:
    """Split a checked login into `user@` or "", the host without brackets, and the port or ""."""
    user, at, place = text.rpartition("@")
    host, _, port = place.removeprefix("[").partition("]:" if place.startswith("[") else ":")
    return f"{user}{at}", host.removesuffix("]"), port


def ssh_words(login: str) -> str:
    """Return the command for people: `ssh -p 2222 user1@pc1`. ssh itself takes no `host:port`."""
    user, host, port = split_login(login)
    return shlex.join(["ssh", *(["-p", port] if port else []), user + host])


def _of_one_machine(ip: ipaddress.IPv4Address | ipaddress.IPv6Address) -> str:
    reserved = ip.is_reserved and not ip.is_loopback  # ::1 is in a reserved block
    everywhere = ip.is_multicast or ip.is_unspecified or reserved
    if everywhere or (ip.version == 6 and ip.is_link_local):
        raise WrongValueError(
            f"{ip} is not the address of one machine",
            "write the one that the other hosts reach it by (see `ip address`)",
        )
    return str(ip)


def host_name(text: object) -> str:
    """Check a name of a server in its clients' URLs: an address, a name, or * for all."""
    try:
        return "*" if text == "*" else address(text).lower()
    except WrongValueError as error:
        fix = 'write a name without scheme and port, such as digits.example.com, or "*" for all'
        raise WrongValueError(error.what, fix) from None


def http_path(text: object) -> str:
    """Check the path of a URL, with its query if it has one."""
    if not isinstance(text, str) or not re.fullmatch(r"/[!-~]*", text) or "#" in text:
        raise WrongValueError(
            f"{shown(text)} is not the path of a URL", "write for example /health"
        )
    return text


def subnet(text: object) -> str:
    """Check an IPv4 network in CIDR notation."""
    example = "write for example 10.200.0.0/16"
    if not isinstance(text, str) or "/" not in text:
        raise WrongValueError(f"{shown(text)} is not an IPv4 network", example)
    try:
        return str(ipaddress.IPv4Network(text))
    except ValueError as error:
        reason = str(error).replace(f"{text} ", "it ").replace(f" in {text!r}", "")
        raise WrongValueError(f"{text!r} is not an IPv4 network: {reason}", example) from None


def image(text: object) -> str:
    """Check an image's name: registry, path, tag, digest."""
    if isinstance(text, str) and _IMAGE.fullmatch(text):
        return text
    first, slash, rest = text.partition("/") if isinstance(text, str) else ("", "", "")
    if slash and (meant := bracketed(first)) and _IMAGE.fullmatch(f"{meant}/{rest}"):
        raise WrongValueError(
            f"{shown(text)} has an IPv6 address without brackets", f'write "{meant}/{rest}"'
        )
    raise WrongValueError(
        f"{shown(text)} is not the name of an image",
        "write for example registry.lab:5000/trainer:1.4",
    )


def registry_host(image: str) -> str:
    """Return the registry in an image's name, or "" for Docker Hub: Docker's rule."""
    first, slash, _ = image.partition("/")
    named = slash and ("." in first or ":" in first or first == "localhost")
    return first if named else ""


def split_endpoint(text: str) -> tuple[str, str]:
    """Split `host:port` or `[IPv6]:port`; the port is "" if there is none."""
    host, bracket, port = text.removeprefix("[").partition("]")
    if not bracket:
        host, _, port = text.partition(":")
    return host, port.removeprefix(":")


def bracketed(text: str) -> str:
    """Return `[IPv6]:port` for an IPv6 address that lacks the brackets, else "".

    Of `fd00::1:5000`, the last group is the port, which has four or five digits mostly.
    """
    host, _, port = text.rpartition(":")
    if ":" in host and is_address(host) and re.fullmatch("[0-9]{4,5}", port):
        return f"[{host}]:{port}"
    return f"[{text}]:5000" if ":" in text and is_address(text) else ""


def registry(text: object) -> str:
    """Check a registry's address: a name or IP address, optionally with a port."""
    example = "write for example registry.lab:5000"
    if isinstance(text, list):
        raise WrongValueError("brackets without quotes are a list", 'write "[fd00::1]:5000"')
    if not isinstance(text, str) or not re.fullmatch(_DOMAIN, text):
        plain = re.sub(r"^[a-z]+://", "", str(text)).split("/")[0]
        meant = bracketed(plain) or (plain if re.fullmatch(_DOMAIN, plain) else "")
        fix = f'write "{meant}"' if "[" in meant else f"write {meant}"
        usable = meant and meant != str(text)
        raise WrongValueError(
            f"{shown(text)} is not the address of a registry", fix if usable else example
        )
    name, port = split_endpoint(text)
    if ":" in name and not is_address(name):
        raise WrongValueError(f"{text!r} has no usable IPv6 address", 'write "[fd00::1]:5000"')
    if port and not 0 < int(port) < 65536:
        raise WrongValueError(f"{text!r} has no usable port", example)
    if not port and "." not in name and ":" not in name and name != "localhost":
        what = f"Docker takes {text!r} for an account on Docker Hub, as it has no dot and no port"
        raise WrongValueError(what, f"write for example {text}:5000")
    return text


def alertmanager(text: object) -> str:
    """Check an Alertmanager's address: a name or IP address, and a port."""
    written = text if isinstance(text, str) else ""
    plain = re.sub(r"^https?://", "", written).split("/")[0]
    name, port = split_endpoint(plain)
    if meant := bracketed(plain):
        raise WrongValueError(f"{shown(text)} has no brackets", f'write "{meant}"')
    if not re.fullmatch(_DOMAIN, plain):
        raise WrongValueError(f"{shown(text)} is not a host and a port", "write alerts.lab:9093")
    if not port or not 0 < int(port) < 65536:
        raise WrongValueError(f"{written} has no usable port", f"write {endpoint(name, 9093)}")
    if plain != written:
        raise WrongValueError(f"{shown(text)} is not a host and a port", f"write {plain}")
    return written


def nfs_export(text: object) -> str:
    """Check an NFS export: `server:/path`."""
    if isinstance(text, str) and re.fullmatch(r"[A-Za-z0-9][-.A-Za-z0-9]*:/[^\s,]*", text):
        return text
    server, colon, path = text.partition(":/") if isinstance(text, str) else ("", "", "")
    bare = server.removeprefix("[").removesuffix("]")
    if ":" in bare and is_address(bare) and not re.search(r"[\s,]", path):
        if server == f"[{bare}]":
            return f"{server}{colon}{path}"
        raise WrongValueError(f"{shown(text)} has no brackets", f'write "[{bare}]:/{path}"')
    raise WrongValueError(
        f"{shown(text)} is not an NFS export", "write for example 192.168.8.151:/export/data"
    )


def interface(text: object) -> str:
    """Check the name of one network interface."""
    if isinstance(text, str) and _INTERFACE.fullmatch(text):
        return text
    raise WrongValueError(
        f"{shown(text)} is not the name of one interface", "write for example eth0 (see `ip link`)"
    )


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
    """Format a time for people: `48 s`, `12 min`, `7 h 20 min`."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def grouped(pairs: Iterable[tuple[KeyT, ValueT]]) -> dict[KeyT, tuple[ValueT, ...]]:
    """Return the values of each key, in their order."""
    found: defaultdict[KeyT, list[ValueT]] = defaultdict(list)
    for key, value in pairs:
        found[key].append(value)
    return {key: tuple(values) for key, values in found.items()}
