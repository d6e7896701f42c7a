"""buildx builders for images of several platforms: each platform is built on a host that has it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from kit.errors import KitError
from kit.hosts.docker import Docker
from kit.model import Host
from kit.platforms import platform
from kit.values import Say


@dataclass(frozen=True, slots=True)
class Node:
    """An engine that builds for some platforms; `url` is None for this machine's own."""

    name: str
    url: str | None
    platforms: tuple[str, ...]


def nodes_of(
    engine: Docker, own: str, hosts: Iterable[Host], platforms: Sequence[str]
) -> tuple[Node, ...]:
    """Return the engines that build for `platforms`: `engine`, and a host per missing platform.

    `own` is the platform of `engine`. If no host has a platform, `engine` emulates it.
    """
    others: dict[str, Host] = {}
    for host in hosts:
        others.setdefault(platform(host.architecture), host)
    here = tuple(each for each in platforms if each == own or each not in others)
    nodes = [Node(engine.name, engine.url, here)] if here else []
    for each in platforms:
        if each not in here:
            there = Docker.of(others[each])
            nodes.append(Node(there.name, there.url, (each,)))
    return tuple(nodes)


def make_builder(engine: Docker, nodes: Sequence[Node], http: str, say: Say) -> str:
    """Create the builder of these nodes unless it exists; return its name.

    It is kept, so that the next build reuses its cache. `http` is a registry without TLS.

    Raises:
        KitError: A node cannot be reached.
    """
    name = builder_name(nodes, http)
    with suppress(KitError):
        engine.command("no such builder", "buildx", "inspect", name)
        return name
    for number, node in enumerate(nodes):
        say(f"making builder {name}: {node.name} builds {', '.join(node.platforms)}")
        try:
            _add(engine, node, name, http, append=number > 0)
        except KitError:
            if number:  # The next build would find the incomplete builder.
                engine.command("the builder stays", "buildx", "rm", name)
            raise
    return name


def _add(engine: Docker, node: Node, name: str, http: str, *, append: bool) -> None:
    # On the host's network, it reaches and resolves the same names as the host.
    options = ["--driver", "docker-container", "--driver-opt", "network=host", "--name", name]
    options += ["--platform", ",".join(node.platforms), *(["--append"] if append else [])]
    with TemporaryDirectory(prefix="kit-builder-") as folder:
        config = Path(folder) / "buildkitd.toml"
        config.write_text(f'[registry."{http}"]\n  http = true\n' if http else "")
        place = [node.url] if node.url else []
        what = f"{node.name} cannot be a node of the builder"
        engine.command(what, "buildx", "create", *options, "--config", str(config), *place)


def builder_name(nodes: Sequence[Node], http: str) -> str:
    """Return a builder's name, which depends on its nodes and its registry."""
    content = [http, *([node.url, *node.platforms] for node in nodes)]
    return f"kit-{hashlib.sha256(json.dumps(content).encode()).hexdigest()[:8]}"
