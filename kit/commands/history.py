"""`kit history`."""

from __future__ import annotations

import dataclasses
import json
from datetime import datetime

import click

from kit.commands.options import with_paths
from kit.commands.tables import console, table
from kit.commands.targets import target_for, with_engine
from kit.paths import Paths, identity


@click.command("history", short_help="Show what was deployed when, and by whom.")
@with_paths
@with_engine
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(paths: Paths, engine: str | None, *, as_json: bool) -> None:
    """Show what was deployed when, by whom and from which input, the newest first.

    Equal hashes mean equal input; comments and the order of keys do not count.
    """
    cluster, own = identity(paths)
    deployments = target_for(engine or own, cluster, paths.tree(cluster)).history()
    if as_json:
        click.echo(json.dumps([dataclasses.asdict(each) for each in deployments], indent=2))
        return
    rows = table("when", "job", "by", "inventory", "job's hash", "image")
    for each in deployments:
        when = datetime.fromtimestamp(each.time).astimezone().isoformat(" ", "seconds")
        rows.add_row(when, each.job, each.by, each.inventory, each.job_hash, each.image)
    console().print(rows)
