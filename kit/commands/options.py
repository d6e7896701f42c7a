"""Options and arguments that several commands share."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from kit.errors import InputError
from kit.model import Host
from kit.paths import Paths
from trainer.contract.words import nearest

_PATH = click.Path(path_type=Path)


def with_paths(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options for the project's paths to a command, as the argument `paths`."""

    @click.option(
        "-i",
        "--inventory",
        type=_PATH,
        default=Path("inventory.yaml"),
        show_default=True,
        help="File of the machines.",
    )
    @click.option(
        "--jobs",
        "jobs_dir",
        type=_PATH,
        help="Folder of the jobs.  [default: jobs beside the inventory]",
    )
    @click.option(
        "-o",
        "--output",
        type=_PATH,
        help="Folder of the rendered tree.  [default: compose/<cluster> beside the inventory]",
    )
    @click.option("--templates", type=_PATH, help="Folder of templates that replace kit's own.")
    @functools.wraps(function)
    def wrapped(
        inventory: Path,
        jobs_dir: Path | None,
        output: Path | None,
        templates: Path | None,
        **rest: Any,
    ) -> Any:
        return function(paths=Paths(inventory, jobs_dir, output, templates), **rest)

    return wrapped


def chosen_hosts(hosts: Sequence[Host], names: Sequence[str]) -> list[Host]:
    """Return the hosts with these names; without names, all.

    Raises:
        InputError: A name is not in the inventory.
    """
    known = {host.name: host for host in hosts}
    for name in names:
        if name not in known:
            raise InputError(f"there is no host {name}", nearest(name, known))
    return [known[name] for name in dict.fromkeys(names)] or list(hosts)
