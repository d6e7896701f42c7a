"""Access to registries through the hosts' engines: digests, logins, explained errors."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from kit.addresses import registry_host
from kit.errors import InputError, KitError
from kit.files import read_plain
from kit.hosts.docker import Docker
from kit.model import Locked
from kit.platforms import ARCHITECTURES

HUB = "docker.io"
_HUB_LOGIN = "https://index.docker.io/v1/"
"""The key of Docker Hub's login in Docker's configuration."""

# Patterns in Docker's errors, each with its hint; `explained` fills in the braces.
_MEANINGS = (
    (
        "server gave HTTP response to HTTPS client",
        "{registry} has no certificate. If you trust the network, write\n"
        '  "insecure-registries": ["{registry}"]\n'
        "into /etc/docker/daemon.json of {engine}, then there: sudo systemctl reload docker\n"
        "(on a host of the inventory, for a registry that kit serves: kit host prepare --run)",
    ),
    (
        "x509|certificate",
        "{engine} does not trust the registry's certificate: copy its authority's certificate to\n"
        "/etc/docker/certs.d/{registry}/ca.crt there",
    ),
    (
        "no basic auth|unauthorized|authentication required|denied",
        "log in here as a user with access: docker {option}login {registry}",
    ),
    (
        "connection refused|no such host|timeout|timed out|deadline|no route to host|unreachable",
        "check that the registry runs, and that {engine} reaches {registry}",
    ),
    (
        "manifest unknown|not found|name unknown",
        "check its name, and that it was pushed (`kit image build`, `kit image push`)",
    ),
)


def registry_of(image: str) -> str:
    """Return the registry of an image's name, by Docker's rules."""
    return registry_host(image) or HUB


def explained(error: KitError, image: str, engine: Docker) -> KitError:
    """Add the cause and the remedy to a registry's error."""
    if isinstance(error, InputError):
        return error  # The docker command is missing.
    for words, hint in _MEANINGS:
        if re.search(words, error.message, re.IGNORECASE):
            option = f"-H {engine.url} " if engine.url else ""
            remedy = hint.format(registry=registry_of(image), engine=engine.name, option=option)
            return KitError(f"{image}: {error.message}", remedy)
    return KitError(f"{image}: {error.message}", error.hint)


def locked(engine: Docker, image: str) -> Locked:
    """Return an image's digest and platforms, which the engine asks its registry for.

    Raises:
        KitError: The engine cannot be reached, or the registry gives no digest.
    """
    headers = login(registry_of(image))
    try:
        answer = engine.get(f"/distribution/{image}/json", headers=headers)
    except KitError as error:
        raise explained(error, image, engine) from None
    return Locked(str(answer["Descriptor"]["digest"]), _platforms(answer.get("Platforms") or ()))


def _platforms(listed: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the platforms of an image, such as `linux/arm64`, without attestations (`unknown`).

    The variants of amd64 and arm64 are left out: Docker has only v1 and v8.
    """
    found = set()
    for each in listed:
        system, architecture = str(each.get("os", "")), str(each.get("architecture", ""))
        variant = "" if architecture in ARCHITECTURES else str(each.get("variant", ""))
        if "unknown" not in {system, architecture} and system and architecture:
            found.add("/".join(filter(None, (system, architecture, variant))))
    return tuple(sorted(found))


def login(registry: str) -> dict[str, str]:
    """Return the header with the user's login for a registry, as `docker login` stored it.

    It is empty if there is no login. The registry then decides whether it needs one.

    Raises:
        InputError: Docker's configuration cannot be used.
    """
    folder = os.environ.get("DOCKER_CONFIG")
    path = (Path(folder) if folder else Path.home() / ".docker") / "config.json"
    server = _HUB_LOGIN if registry == HUB else registry
    try:
        credentials = _credentials(json.loads(read_plain(path)), server)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, AttributeError, LookupError) as error:
        raise InputError(f"{path}: cannot read the login: {error}", "docker needs it too") from None
    if not credentials:
        return {}
    text = json.dumps({**credentials, "serveraddress": server})
    return {"X-Registry-Auth": base64.urlsafe_b64encode(text.encode()).decode()}


def _credentials(config: dict[str, Any], server: str) -> dict[str, str]:
    helper = config.get("credHelpers", {}).get(server) or config.get("credsStore")
    if helper:
        return _from_helper(f"docker-credential-{helper}", server)
    entries = {_host(key): entry for key, entry in config.get("auths", {}).items()}
    entry = entries.get(_host(server), {})
    if token := entry.get("identitytoken"):
        return {"identitytoken": token}
    text = base64.b64decode(entry.get("auth", ""), validate=True).decode()
    user, _, password = text.partition(":")
    return {"username": user, "password": password} if user else {}


def _from_helper(helper: str, server: str) -> dict[str, str]:
    program = shutil.which(helper)
    if program is None:
        raise LookupError(f"it names {helper}, which is not installed")
    done = subprocess.run(
        [program, "get"], input=server, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        return {}  # The helper has no login for this registry.
    credentials = json.loads(done.stdout)
    if credentials["Username"] == "<token>":
        return {"identitytoken": credentials["Secret"]}
    return {"username": credentials["Username"], "password": credentials["Secret"]}


def _host(server: str) -> str:
    return re.sub("^https?://", "", server).partition("/")[0]
