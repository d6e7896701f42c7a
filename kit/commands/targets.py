"""Which target a command talks to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from kit.model import EngineName
from kit.paths import launcher_path
from kit.runtime.target import Target
from kit.workload.types import Workload


def with_engine(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the option `--engine`, as the argument `engine` (None: the inventory's)."""
    return click.option(
        "--engine",
        type=click.Choice([name.value for name in EngineName]),
        help="Instead of the inventory's engine; `local` is this machine.",
    )(function)


def target_for(name: str, cluster: str, tree: Path, workloads: Sequence[Workload] = ()) -> Target:
    """Return the target; `workloads` are all that the plan has, where something is to be deployed.

    Raises:
        InputError: The tree, which tells the hosts, was not rendered.
    """
    # Each is imported where it is used: imports were most of the time of `kit status`.
    if name == EngineName.SWARM:
        from kit.targets.swarm.target import SwarmTarget

        return SwarmTarget(cluster, tree)
    if name == EngineName.COMPOSE:
        from kit.targets.compose.target import ComposeTarget

        return ComposeTarget(cluster, tree)
    from kit.targets.local.target import LocalTarget

    return LocalTarget(cluster, tree, launcher_path(), workloads)
