"""The bearer token of clients. Standard library only: the endpoint has no torch."""

import re
from collections.abc import Mapping
from pathlib import Path

SECRETS = Path("/run/secrets")


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
        raise ValueError(f"token: {where}; give the secret, or leave token out")
    if not re.fullmatch("[!-~]+", token):
        what = f"{name} has a space or something else than ASCII in it, which no header can carry"
        raise ValueError(f"token: {what}; choose letters and digits")
    return token.encode()
