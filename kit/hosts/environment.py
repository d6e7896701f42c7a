"""The environment of docker when it reads rendered files."""

from __future__ import annotations

from collections.abc import Mapping

NAMES = frozenset({"HOME", "LANG", "LOGNAME", "PATH", "TMPDIR", "USER"})
FAMILIES = ("AWS_", "AZURE_", "CLOUDSDK_", "DOCKER_", "GNUPG", "GOOGLE_", "LC_", "SSH_", "XDG_")
"""The settings of docker, its ssh and its credential helpers."""


def clean(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that docker itself needs.

    Docker fills missing values of a file from its environment. The user's environment must not
    change containers, or leave proxies and passwords in them; COMPOSE_* would select other files.
    """
    return {
        name: value for name, value in environ.items() if name in NAMES or name.startswith(FAMILIES)
    }
