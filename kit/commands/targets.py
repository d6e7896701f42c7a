"""The choice of the target."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from kit.model import EngineName
from kit.paths import Paths, identity, launcher_path
from kit.runtime.target import Target
from kit.workload.types import Workload


def with_engine(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the option `--engine` to a command (None: the inventory's engine)."""
    return click.option(
        "--engine",
        type=click.Choice([name.value for name in EngineName]),
        help="Instead of the inventory's engine; `local` is this machine.",
    )(function)


def target_for(name: str, cluster: str, tree: Path, workloads: Sequence[Workload] = ()) -> Target:
    """Return the target; a deploy needs all `workloads` of the plan.

    Raises:
        InputError: The tree, which lists the hosts, was not rendered.
    """
    return _TARGETS[EngineName(name)](cluster, tree, workloads)


def target_of(paths: Paths, engine: str | None) -> Target:
    """Return the target of a project: an `engine` that a person names, or the inventory's.

    Raises:
        InputError: There is no inventory, or its tree was not rendered.
    """
    cluster, own = identity(paths)
    return target_for(engine or own, cluster, paths.tree(cluster))


# Each imports on demand: imports took most of the time of `kit status`.
def _local(cluster: str, tree: Path, workloads: Sequence[Workload]) -> Target:
    from kit.targets.local.target import LocalTarget

    return LocalTarget(cluster, tree, launcher_path(), workloads)


def _compose(cluster: str, tree: Path, _: Sequence[Workload]) -> Target:
    from kit.targets.compose.target import ComposeTarget

    return ComposeTarget(cluster, tree)


def _swarm(cluster: str, tree: Path, _: Sequence[Workload]) -> Target:
    from kit.targets.swarm.target import SwarmTarget

    return SwarmTarget(cluster, tree)


def _kubernetes(cluster: str, tree: Path, _: Sequence[Workload]) -> Target:
    from kit.targets.kubernetes.target import KubernetesTarget

    return KubernetesTarget(cluster, tree)


_TARGETS = {
    EngineName.LOCAL: _local,
    EngineName.COMPOSE: _compose,
    EngineName.SWARM: _swarm,
    EngineName.KUBERNETES: _kubernetes,
}
