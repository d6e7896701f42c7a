"""The hosts of a rendered tree. Targets read them from here, not from the inventory.

So a mistake in the inventory does not prevent `kit status` and `kit stop`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kit.errors import InputError
from kit.files import read_plain
from kit.model import Host


@dataclass(frozen=True, slots=True)
class Rendered:
    """The hosts of a rendered tree, with their jobs and servers.

    `devices` are the GPUs by workload and host, `urls` the addresses of each server.
    """

    hosts: tuple[Host, ...]
    devices: dict[str, dict[str, tuple[str, ...]]]
    urls: dict[str, tuple[str, ...]]


def rendered(tree: Path) -> Rendered:
    """Read plan.json of a rendered tree. The hosts have no GPUs.

    Raises:
        InputError: There is no rendered tree.
    """
    try:
        plan = json.loads(read_plain(tree / "plan.json"))
        hosts = tuple(_host(host) for host in plan["hosts"])
        devices = {
            job["name"]: {part["host"]: tuple(part["devices"]) for part in job["hosts"]}
            for job in (*plan["jobs"], *plan["servers"])
        }
        urls = {server["name"]: tuple(server["urls"]) for server in plan["servers"]}
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        what = f"{tree / 'plan.json'} has no valid list of hosts ({error})"
        raise InputError(what, "write it with `kit render`") from None
    return Rendered(hosts, devices, urls)


def _host(host: dict[str, Any]) -> Host:
    name, roles = host["name"], tuple(host["roles"])
    return Host(name, host["address"], host["ssh"], roles, (), None, host["speed"], ("hosts", name))
