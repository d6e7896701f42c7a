"""The values of secrets. They are read where kit runs, and kit stores them in no file."""

from __future__ import annotations

import hashlib
import os
import secrets
from pathlib import Path

from kit.errors import InputError
from kit.files import read_plain, replace
from kit.model import Secret
from kit.values import show_size
from kit.workload.types import Workload

LARGEST = 500 * 1024
"""Bytes. Swarm rejects larger secrets."""


def read_secrets(work: Workload) -> dict[str, str]:
    """Return the values of a workload's secrets by name.

    Raises:
        InputError: A secret is missing, or is not text of at most LARGEST bytes.
    """
    return {secret.name: read_secret(work.title, secret) for secret in work.secrets}


def read_secret(whose: str, secret: Secret) -> str:
    """Return the value of a secret; `whose` is for messages.

    Raises:
        InputError: It is missing, or is not text of at most LARGEST bytes.
    """
    where = f"{whose}: secret {secret.name}"
    if secret.file is None:
        value = os.environ.get(secret.name, "")
        if not value:
            raise InputError(f"{where}: the variable is not set here", f"export {secret.name}=…")
    else:
        path = Path(secret.file).expanduser()
        try:
            value = read_plain(path, largest=LARGEST).decode("utf-8").rstrip("\n")
        except (OSError, ValueError) as error:
            raise InputError(f"{where}: {path}: {error}", "write its value to this file") from None
        if not value:
            raise InputError(f"{where}: {path} is empty", "write its value to this file")
    if "\0" in value or len(value.encode()) > LARGEST:
        raise InputError(f"{where}: is not text of at most {show_size(LARGEST)}", "check its value")
    return value


def new_key() -> str:
    """Return a random key of a cluster: 256 bits.

    All jobs share it: the data services serve all of them, and a server's hosts change with every
    split.
    """
    return secrets.token_hex(32)


def own_key(path: Path) -> str:
    """Return the key in a file of this machine, which only its owner can read; make a missing one.

    Raises:
        InputError: The file cannot be read or written.
    """
    try:
        if not path.exists():
            replace(path, new_key(), mode=0o600)
        return read_plain(path).decode()
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: {error}", "correct its permissions") from None


def fingerprint(job: str, name: str, value: str) -> str:
    """Return a short hash that reveals no value: scrypt (RFC 7914), 8 hexadecimal digits."""
    salt = f"kit {job} {name}".encode()
    return hashlib.scrypt(value.encode(), salt=salt, n=2**14, r=8, p=1, dklen=4).hex()
