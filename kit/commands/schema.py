"""`kit schema`."""

from __future__ import annotations

import json

import click
from pydantic import BaseModel

from kit.config.inventory import InventorySection
from kit.config.job import JobSection
from kit.config.server import ServerSection

SECTIONS: dict[str, type[BaseModel]] = {
    "inventory": InventorySection,
    "job": JobSection,
    "server": ServerSection,
}


def schema_text(what: str) -> str:
    """Return the JSON Schema of `inventory`, `job` or `server`, for editors."""
    schema = SECTIONS[what].model_json_schema()
    document = {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


@click.command("schema", short_help="Print a JSON Schema for editors.")
@click.argument("what", type=click.Choice(list(SECTIONS)))
def command(what: str) -> None:
    """Print the JSON Schema of inventory.yaml, of a job or of a server, for editors."""
    click.echo(schema_text(what), nl=False)
