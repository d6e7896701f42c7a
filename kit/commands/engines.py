"""Which engine a command talks to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from kit.engine import Engine
from kit.engine.local import LocalEngine
from kit.errors import InputError
from kit.model import EngineName
from kit.project import launcher_path


def with_engine(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the option `--engine`, as the argument `engine` (None: the inventory's)."""
    return click.option(
        "--engine",
        type=click.Choice([name.value for name in EngineName]),
        help="Instead of the inventory's. So far kit carries out local (this machine) and compose.",
    )(function)


def engine_for(name: str, cluster: str, tree: Path) -> Engine:
    """Return the engine.

    Raises:
        InputError: kit does not carry that one out.
    """
    if name == EngineName.COMPOSE:
        # Here and not above: `kit plan` has no need of Docker's client.
        from kit.engine.compose import ComposeEngine

        return ComposeEngine(cluster, tree)
    if name != EngineName.LOCAL:
        how = (
            f"sh {tree}/label-nodes.sh, then docker stack deploy -c for each of "
            f"{tree}/*.stack.yaml, the platform first"
        )
        raise InputError(
            f"kit renders for engine {name}, but does not yet carry it out",
            f"deploy the files by hand ({how}) and ask Docker about them;\n"
            "jobs on this machine: --engine local",
        )
    return LocalEngine(cluster, tree, launcher_path())
