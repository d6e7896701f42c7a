"""The key `session` of a job: a container in which people work, instead of a script."""

from __future__ import annotations

import base64
import binascii
import re
from typing import Annotated

from pydantic import AfterValidator, Field

from kit.config.fields import AbsolutePath, Section, wrong
from kit.jobs import Session

OF_OTHERS = (
    *("batch_size", "reference_batch", "parameters", "step_seconds", "exchange", "checkpoint"),
    *("parallel", "faults", "framework", "quiet", "metrics", "rendezvous"),
)
"""The keys that have no meaning for a session."""
_KEY = r"(ssh-[a-z0-9-]+|ecdsa-[a-z0-9-]+|sk-[a-z0-9.@-]+) (\S+)( .*)?"


def _public_key(key: str) -> str:
    """Check the line of a public key, as `ssh-keygen -y` prints it."""
    if "PRIVATE KEY" in key:
        raise wrong("is a private key", "write the line of its .pub file, and make a new key")
    match = re.fullmatch(_KEY, key)
    example = "write a line as in ~/.ssh/id_ed25519.pub: ssh-ed25519 AAAA… anna@laptop"
    if match is None or "\n" in key:
        raise wrong("is not one public SSH key", example)
    try:
        content = base64.b64decode(match[2], validate=True)
    except binascii.Error:
        content = b""
    # RFC 4253, section 6.6: the key begins with the length and the name of its algorithm.
    if content[4 : 4 + len(match[1])] != match[1].encode():
        raise wrong(f"is cut short, or no {match[1]}", example)
    return key


def _home(home: str) -> str:
    if home == "/" or home.startswith(("/workspace", "/datasets", "/kit/", "/tmp")):
        raise wrong(f"{home} is a folder of the container", "write the home of the image's user")
    return home.rstrip("/")


class SessionSection(Section):
    """A container in which people work: with a shell, by SSH, and in JupyterLab."""

    keys: list[Annotated[str, AfterValidator(_public_key)]] = Field(
        [],
        examples=[["ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAA… anna@laptop"]],
        description="Public SSH keys of those who may come in; without any, only `kit shell` and "
        "JupyterLab lead into it",
    )
    home: Annotated[AbsolutePath, AfterValidator(_home)] = Field(
        "/root",
        description="The home of the image's user. It is a volume of the host, which stays, unless "
        "`mounts` has another one there",
    )


def to_session(section: SessionSection | None) -> Session | None:
    """Convert the section to a value."""
    return Session(section.home, tuple(section.keys)) if section else None
