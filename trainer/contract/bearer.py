"""Bearer tokens of a server's clients, and the cluster's key. Standard library only."""

import base64
import binascii
import re
from collections.abc import Mapping
from hmac import compare_digest
from pathlib import Path

SECRETS = Path("/run/secrets")
KEY = "kit-key"
"""The secret with the cluster's key: no variable of a job has such a name."""


def read_token(name: str | None, environ: Mapping[str, str]) -> bytes | None:
    """Read the secret of that name: Docker's file or, if none, the variable; raises ValueError."""
    if name is None:
        return None
    try:
        text = (SECRETS / name).read_text(errors="replace")
    except OSError:
        text = environ.get(name, "")
    if not (token := text.strip()):
        where = f"neither {SECRETS / name} nor the variable {name} has it"
        fix = "`kit deploy` makes it" if name == KEY else "give the secret, or leave token out"
        raise ValueError(f"{'the key' if name == KEY else 'token'}: {where}; {fix}")
    if not re.fullmatch("[!-~]+", token):
        what = f"{name} has a space or something else than ASCII in it, which no header can carry"
        raise ValueError(f"token: {what}; choose letters and digits")
    return token.encode()


def read_key(environ: Mapping[str, str]) -> bytes | None:
    """Read the cluster's key, if KIT_KEY names its secret; raises ValueError."""
    return read_token(environ.get("KIT_KEY") or None, environ)


def has_token(authorization: str, token: bytes | None) -> bool:
    """Whether a header has the token, if one is needed."""
    kind, _, given = authorization.partition(" ")
    return token is None or (
        kind.lower() == "bearer" and compare_digest(given.strip().encode(), token)
    )


def has_key(authorization: str, key: bytes | None) -> bool:
    """Whether a header has the key, as a bearer token or as the password of a basic login.

    Torrent clients support only the latter.
    """
    kind, _, given = authorization.partition(" ")
    if key is None or kind.lower() != "basic":
        return has_token(authorization, key)
    try:
        login = base64.b64decode(given.strip().encode(), validate=True)
    except binascii.Error:
        return False
    return compare_digest(login.partition(b":")[2], key)
