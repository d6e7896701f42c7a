"""The oldest torch that may read a checkpoint. Standard library only."""

import re
from importlib import metadata

OLDEST = (2, 6)


def torch_fault(version: str) -> str:
    """Return why a version of torch is too old; empty if it is not, or if it is unknown."""
    found = re.match(r"(\d+)\.(\d+)", version)
    if not found or (int(found[1]), int(found[2])) >= OLDEST:
        return ""
    why = "a damaged or forged checkpoint could run code (CVE-2025-32434)"
    return f"torch {version} is too old, {why}; use an image with torch 2.6 or newer"


def installed_torch() -> str:
    """Return the version of torch without importing it; empty if it is unknown."""
    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return ""
