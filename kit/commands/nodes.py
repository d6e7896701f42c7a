"""The nodes of Kubernetes, for `kit discover`."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click

from kit.commands.tables import console, table
from kit.model import Inventory, Kubernetes
from kit.targets.kubernetes.kubectl import Kubectl
from kit.targets.kubernetes.lower import ROLE
from kit.targets.kubernetes.nodes import compare, read_node
from kit.values import show_size


def show_nodes(inventory: Inventory, settings: Kubernetes, *, as_json: bool) -> None:
    """Print the nodes, and what the inventory lacks.

    Raises:
        KitError: The cluster does not answer, or its nodes may not be read.
    """
    found = Kubectl(settings, Path(ROLE)).read("nodes")["items"]
    nodes = sorted(map(read_node, found), key=lambda node: node.name)
    if as_json:
        document = {"hosts": list(map(asdict, nodes)), "failed": []}
        click.echo(json.dumps(document, indent=2, ensure_ascii=False))
        return
    rows = table("node", "address", "GPUs", "product", "memory", "", right=("GPUs",))
    for node in nodes:
        memory = show_size(node.memory) if node.memory else "-"
        rows.add_row(node.name, node.address, str(node.gpus), node.product or "-", memory, node.why)
    console().print(rows)
    pool, product = settings.pool, settings.product
    for note in compare(nodes, inventory.hosts, pool=pool, product=product):
        click.echo(f"note: {note}")
