"""Which engine a command talks to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from kit.engine import Engine
from kit.engine.compose import ComposeEngine
from kit.engine.local import LocalEngine
from kit.engine.swarm import SwarmEngine
from kit.model import EngineName
from kit.project import launcher_path


def with_engine(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the option `--engine`, as the argument `engine` (None: the inventory's)."""
    return click.option(
        "--engine",
        type=click.Choice([name.value for name in EngineName]),
        help="Instead of the inventory's, as `local`: this machine.",
    )(function)


def engine_for(name: str, cluster: str, tree: Path) -> Engine:
    """Return the engine.

    Raises:
        InputError: The tree, which tells the hosts, was not rendered.
    """
    if name == EngineName.SWARM:
        return SwarmEngine(cluster, tree)
    if name == EngineName.COMPOSE:
        return ComposeEngine(cluster, tree)
    return LocalEngine(cluster, tree, launcher_path())
