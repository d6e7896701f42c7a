"""Registries, as the hosts' engines see them: digests, logins, and what their refusals mean."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

from kit.docker import Docker
from kit.errors import InputError, KitError

HUB = "docker.io"
_HUB_LOGIN = "https://index.docker.io/v1/"
"""The name under which docker keeps the login of its Hub."""

# What Docker says in a refusal, and what there is to do. `{registry}` and `{engine}` are filled in.
_MEANINGS = (
    (
        "server gave HTTP response to HTTPS client",
        "{registry} has no certificate. Where you trust the network, write\n"
        '  "insecure-registries": ["{registry}"]\n'
        "into /etc/docker/daemon.json of {engine}, and restart Docker there",
    ),
    (
        "x509|certificate",
        "{engine} does not know who signed the registry's certificate: put that authority's into\n"
        "/etc/docker/certs.d/{registry}/ca.crt there",
    ),
    (
        "no basic auth|unauthorized|authentication required|denied",
        "log in here, with a user that may: docker login {registry}",
    ),
    (
        "connection refused|no such host|timeout|timed out|deadline|no route to host|unreachable",
        "is the registry up, and does {engine} reach {registry}?",
    ),
    (
        "manifest unknown|not found|name unknown",
        "is it spelt right, and was it pushed? the trainer's: `kit image build`, `kit image push`",
    ),
)


def registry_of(image: str) -> str:
    """Return the registry of an image's name, as Docker reads it."""
    first, slash, _ = image.partition("/")
    named = slash and ("." in first or ":" in first or first == "localhost")
    return first if named else HUB


def explained(error: KitError, image: str, engine: str) -> KitError:
    """Add to a registry's refusal what it means and what there is to do."""
    if isinstance(error, InputError):
        return error  # docker is not even there
    for words, hint in _MEANINGS:
        if re.search(words, error.message, re.IGNORECASE):
            told = hint.format(registry=registry_of(image), engine=engine)
            return KitError(f"{image}: {error.message}", told)
    return KitError(f"{image}: {error.message}", error.hint)


def digest(engine: Docker, image: str) -> str:
    """Ask an image's registry for its digest, through an engine's own eyes.

    Raises:
        KitError: The engine cannot be reached, or the registry does not tell.
    """
    headers = login(registry_of(image))
    try:
        answer = engine.get(f"/distribution/{image}/json", headers=headers)
    except KitError as error:
        raise explained(error, image, engine.name) from None
    return str(answer["Descriptor"]["digest"])


def login(registry: str) -> dict[str, str]:
    """Return the header with this user's login for a registry, as `docker login` has stored it.

    It is empty where there is none: the registry then says whether it wants one.

    Raises:
        InputError: Docker's own configuration cannot be read.
    """
    config = _docker_config()
    server = _HUB_LOGIN if registry == HUB else registry
    helper = config.get("credHelpers", {}).get(server) or config.get("credsStore")
    found = _from_helper(helper, server) if helper else _from_file(config, server)
    if not found:
        return {}
    text = json.dumps({**found, "serveraddress": server})
    return {"X-Registry-Auth": base64.urlsafe_b64encode(text.encode()).decode()}


def _docker_config() -> dict[str, Any]:
    folder = os.environ.get("DOCKER_CONFIG")
    path = (Path(folder) if folder else Path.home() / ".docker") / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read: {error}", "docker itself needs it") from None
    return config if isinstance(config, dict) else {}


def _from_helper(helper: str, server: str) -> dict[str, str]:
    try:
        done = subprocess.run(
            [f"docker-credential-{helper}", "get"],
            input=server,
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError as error:
        raise InputError(
            f"docker's configuration names docker-credential-{helper}, which cannot be run: {error}"
        ) from None
    if done.returncode != 0:
        return {}  # it has no login for this one
    found = json.loads(done.stdout)
    if found["Username"] == "<token>":
        return {"identitytoken": found["Secret"]}
    return {"username": found["Username"], "password": found["Secret"]}


def _from_file(config: dict[str, Any], server: str) -> dict[str, str]:
    entries = {_host(key): entry for key, entry in config.get("auths", {}).items()}
    entry = entries.get(_host(server), {})
    if token := entry.get("identitytoken"):
        return {"identitytoken": token}
    user, _, password = base64.b64decode(entry.get("auth", "")).decode().partition(":")
    return {"username": user, "password": password} if user else {}


def _host(server: str) -> str:
    return re.sub("^https?://", "", server).partition("/")[0]
