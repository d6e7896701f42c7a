"""Parsers of addresses: of hosts and logins, of networks, of registries and their images.

Each parser raises `WrongValueError` with the mistake and its correction.
"""

from __future__ import annotations

import ipaddress
import re
import shlex

from kit.values import DNS_LABEL, WrongValueError
from trainer.contract.words import shown

# Host names that ssh and docker's engine URLs accept (OpenSSH, valid_hostname).
_ALIAS = re.compile(r"(?!-)[\w.~+=-]+")
# https://github.com/distribution/reference/blob/main/regexp.go, without the digest's length.
_WORDS = r"[a-zA-Z0-9]([-a-zA-Z0-9]*[a-zA-Z0-9])?(\.[a-zA-Z0-9]([-a-zA-Z0-9]*[a-zA-Z0-9])?)*"
_DOMAIN = rf"({_WORDS}|\[[a-fA-F0-9:]+\])(:[0-9]+)?"
_NAME = r"[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*"
_IMAGE = re.compile(
    rf"({_DOMAIN}/)?{_NAME}(/{_NAME})*(:[A-Za-z0-9_][-.A-Za-z0-9_]{{0,127}})?(@[a-z0-9]+:[0-9a-f]+)?"
)
# IFNAMSIZ limits the length; characters with a meaning for the shell or NCCL are excluded.
_INTERFACE = re.compile(r"[A-Za-z0-9][-A-Za-z0-9_.@]{0,14}")


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
    if len(str(text)) <= 253 and all(DNS_LABEL.fullmatch(label.lower()) for label in labels):
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

    The host may be an alias of ~/.ssh/config, which is not a DNS name.
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
    """Check the host of a login: a name or an IP address; link-local addresses have a zone."""
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
        "write for example registry.lab:5000/trainer:0.2.0",
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

    In `fd00::1:5000`, the last group is the port: most ports have four or five digits.
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


def interfaces(value: object) -> str:
    """Check the name of an interface, or a list of names; return them with commas, as NCCL does."""
    if not isinstance(value, list):
        return interface(value)
    names = [interface(each) for each in value]
    if not names or len(set(names)) < len(names) or "auto" in names:
        what = f"{shown(value)} is not a list of different interfaces"
        raise WrongValueError(what, "write for example [enp1s0f0np0, enp1s0f1np1]")
    return ",".join(names)


def interface(text: object) -> str:
    """Check the name of one network interface."""
    if isinstance(text, str) and _INTERFACE.fullmatch(text):
        return text
    raise WrongValueError(
        f"{shown(text)} is not the name of one interface", "write for example eth0 (see `ip link`)"
    )
