"""The hosts of a rendered tree. Targets read them from here, not from the inventory.

A mistake in the inventory therefore does not prevent `kit status` and `kit stop`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kit.errors import InputError
from kit.files import read_plain
from kit.model import DataSet, Host, Kubernetes
from kit.plan.data import DataPlan
from kit.runtime.health import Check


@dataclass(frozen=True, slots=True)
class Rendered:
    """The hosts of a rendered tree, with their jobs and servers.

    `devices` are the GPUs by workload and host, `urls` the addresses of each server, `checks` the
    health checks of custom servers and of proxies. `data` is None
    without data services; `needs` are the data sets of each job, `spares` the hosts that stand by.
    `indexes` are the indexes of each host's GPUs in the inventory, by their UUIDs in lower case.
    `queue` is the pool of the queue as a document, `queued` are its jobs. `kubernetes` are the
    settings of the Kubernetes cluster, if the inventory has them.
    """

    hosts: tuple[Host, ...]
    devices: dict[str, dict[str, tuple[str, ...]]]
    urls: dict[str, tuple[str, ...]]
    data: DataPlan | None = None
    needs: Mapping[str, tuple[DataSet, ...]] = field(default_factory=dict)
    checks: Mapping[str, Check] = field(default_factory=dict)
    spares: Mapping[str, frozenset[str]] = field(default_factory=dict)
    indexes: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    queue: Mapping[str, Any] = field(default_factory=dict)
    queued: frozenset[str] = frozenset()
    kubernetes: Kubernetes | None = None

    @property
    def fixed(self) -> dict[str, dict[str, tuple[str, ...]]]:
        """The GPUs of the workloads that the queue does not move, as `devices`."""
        return {name: gpus for name, gpus in self.devices.items() if name not in self.queued}


def rendered(tree: Path) -> Rendered:
    """Read plan.json of a rendered tree. The hosts have no GPUs.

    Raises:
        InputError: There is no rendered tree.
    """
    try:
        plan = json.loads(read_plain(tree / "plan.json"))
        hosts = tuple(_host(host) for host in plan["hosts"])
        devices = {
            job["name"]: {
                part["host"]: tuple(part["devices"])
                for part in (*job["hosts"], *job.get("spares", ()))
            }
            for job in (*plan["jobs"], *plan["servers"])
        }
        spares = {
            job["name"]: frozenset(part["host"] for part in job["spares"])
            for job in plan["jobs"]
            if "spares" in job
        }
        indexes = {
            host["name"]: {
                gpu["id"].lower(): place for place, gpu in enumerate(host.get("gpus", ()))
            }
            for host in plan["hosts"]
        }
        urls = {server["name"]: tuple(server["urls"]) for server in plan["servers"]}
        checks = {
            server["name"]: Check(
                server.get("health", ""), tuple(devices[server["name"]]), server.get("proxy", "")
            )
            for server in plan["servers"]
            if "health" in server or "proxy" in server
        }
        data = _data(plan["data"], hosts) if "data" in plan else None
        queued = frozenset(job["name"] for job in plan["jobs"] if "queue" in job)
        queue = plan.get("queue", {})
        own = plan.get("kubernetes")
        kubernetes = Kubernetes(**own) if own else None
        needs = {job["name"]: _needs(job["data"]) for job in plan["jobs"] if "data" in job}
    except FileNotFoundError:
        what = f"nothing is rendered yet: {tree} has no plan.json"
        raise InputError(what, "run `kit render`") from None
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        what = f"{tree / 'plan.json'} has no valid list of hosts ({error})"
        raise InputError(what, "write it with `kit render`") from None
    work = (devices, urls, data, needs, checks, spares, indexes, queue, queued)
    return Rendered(hosts, *work, kubernetes=kubernetes)


def _data(data: dict[str, Any], hosts: tuple[Host, ...]) -> DataPlan:
    by_name = {host.name: host for host in hosts}
    return DataPlan(
        storage=by_name[data["storage"]],
        agents=tuple(by_name[name] for name in data["agents"]),
        port=data["port"],
        peer_port=data["peer_port"],
        cache=data["cache"],
        volume=data["volume"],
        image=data["image"],
    )


def _needs(data: list[dict[str, Any]]) -> tuple[DataSet, ...]:
    return tuple(DataSet(each["name"], each["version"], each.get("stream", False)) for each in data)


def _host(host: dict[str, Any]) -> Host:
    name, roles = host["name"], tuple(host["roles"])
    return Host(name, host["address"], host["ssh"], roles, (), None, host["speed"], ("hosts", name))
