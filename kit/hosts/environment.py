"""The environment in which docker reads rendered files."""

from __future__ import annotations

from collections.abc import Mapping

NAMES = frozenset({"HOME", "LANG", "LOGNAME", "PATH", "TMPDIR", "USER"})
FAMILIES = ("AWS_", "AZURE_", "CLOUDSDK_", "DOCKER_", "GNUPG", "GOOGLE_", "LC_", "SSH_", "XDG_")
"""What docker, its ssh and its helpers for logins to registries are set up by."""


def clean(environ: Mapping[str, str]) -> dict[str, str]:
    """Keep of an environment what docker itself needs.

    Docker fills what a file leaves open from its environment. Whoever deploys must not change what
    containers get, nor leave proxies or passwords in them; COMPOSE_* would choose other files.
    """
    return {
        name: value for name, value in environ.items() if name in NAMES or name.startswith(FAMILIES)
    }
