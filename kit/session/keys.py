"""The SSH keys of a person in ssh's files: the public key is beside the private one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from kit.errors import InputError
from kit.values import WrongValueError, public_key


def public_keys(home: Path, say: Callable[[str], None]) -> list[str]:
    """Return the lines of the public keys that ssh tries by itself; report files without a key."""
    found = []
    for path in sorted((home / ".ssh").glob("id_*.pub")):
        if path.name.endswith("-cert.pub"):
            continue
        try:
            found.append(key_of(path))
        except InputError as error:
            say(f"note: {error.message}: it is left out")
    return found


def key_of(path: Path) -> str:
    """Return the line of a public key file.

    Raises:
        InputError: It cannot be read, or is not a public key.
    """
    try:
        return public_key(" ".join(path.read_text(encoding="utf-8", errors="replace").split()))
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    except WrongValueError as error:
        raise InputError(f"{path} {error.what}", error.fix) from None


def private_files(public: Iterable[Path]) -> list[Path]:
    """Return the private files here that belong to public ones; an agent may have the others."""
    files = [path.absolute().with_suffix("") for path in public if path.suffix == ".pub"]
    return [path for path in files if path.is_file()]
