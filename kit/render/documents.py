"""The plan as JSON, for programs."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from typing import Any

from kit.model import Gpu, Host
from kit.plan.data import DataPlan, Sizes, fetches, stream_rates
from kit.plan.queue import PoolPlan
from kit.plan.types import Placement
from kit.plan.work import JobPlan, ServerPlan
from kit.queue.document import document_of
from kit.targets.lowered import Lowered
from kit.workload.documents import generated
from kit.workload.types import Workload


def header(lowered: Lowered, *sources: str) -> str:
    """Return the first line of a file."""
    return generated(lowered.plan.file, *sources)


def _compact(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _rows(rows: list[str], indent: str) -> str:
    """Write one row per line, so that a changed host is a changed line in a diff."""
    if not rows:
        return "[]"
    return "[\n" + ",\n".join(f"{indent}  {row}" for row in rows) + f"\n{indent}]"


def _object(items: dict[str, str], indent: str = "") -> str:
    lines = ",\n".join(f"{indent}  {_compact(key)}: {text}" for key, text in items.items())
    return "{\n" + lines + f"\n{indent}}}"


def plan_json(
    lowered: Lowered,
    generated: str,
    *,
    predictions: Mapping[str, object] | None = None,
    sizes: Sizes | None = None,
) -> str:
    """Return the plan as JSON, with one line for each host and each placement.

    With `predictions` (dataclasses by job) it also contains the costs of the exchange modes and
    the ranks: a new host changes the ranks of all later hosts. With the `sizes` of data sets, it
    contains the times of their first fetch.
    """
    plan, whole = lowered.plan, predictions is not None
    network = dataclasses.asdict(plan.network) | {"nccl": dict(plan.network.nccl)}
    jobs = [
        _job(
            job,
            lowered.workload(job.name),
            (predictions or {}).get(job.name),
            plan.data,
            sizes,
            whole=whole,
        )
        for job in plan.jobs
    ]
    servers = [_server(server, lowered.workload(server.name)) for server in plan.servers]
    return (
        _object(
            {
                "generated": _compact(generated),
                "cluster": _compact(plan.cluster),
                "engine": _compact(lowered.engine),
                "network": _compact(network),
                "hosts": _rows([_compact(_host(host)) for host in plan.hosts], "  "),
                "jobs": _rows(jobs, "  "),
                "servers": _rows(servers, "  "),
                **({"data": _compact(_data(plan.data))} if plan.data else {}),
                **({"queue": _queue(plan.pool)} if plan.shared else {}),
                **(
                    {"kubernetes": _compact(dataclasses.asdict(plan.kubernetes))}
                    if plan.kubernetes
                    else {}
                ),
                "notes": _rows([_compact(note) for note in lowered.notes], "  "),
            }
        )
        + "\n"
    )


def _queue(pool: PoolPlan) -> str:
    document = document_of(pool)
    parts = {key: _compact(value) for key, value in document.items()}
    rows = {name: _compact(host) for name, host in document["hosts"].items()}
    return _object({**parts, "hosts": _object(rows, "    ")}, "  ")


def _data(data: DataPlan) -> dict[str, Any]:
    return {
        "storage": data.storage.name,
        "agents": [host.name for host in data.agents],
        "port": data.port,
        "peer_port": data.peer_port,
        "cache": data.cache,
        "volume": data.volume,
        "image": data.image,
    }


def _host(host: Host) -> dict[str, Any]:
    return {
        "name": host.name,
        "address": host.address,
        "ssh": host.ssh,
        "roles": host.roles,
        "speed": host.speed,
        "gpus": [_gpu(gpu) for gpu in host.gpus],
    }


def _gpu(gpu: Gpu) -> dict[str, Any]:
    known = {"id": gpu.id, "model": gpu.model, "memory": gpu.memory, "use": gpu.use}
    return {key: value for key, value in known.items() if value is not None}


def _job(
    job: JobPlan,
    workload: Workload,
    prediction: Any,
    data: DataPlan | None,
    sizes: Sizes | None,
    *,
    whole: bool,
) -> str:
    rendezvous, precision = workload.rendezvous, workload.precision
    items = {
        "name": job.name,
        "image": job.image,
        "world_size": job.world_size,
        "nodes": {"min": job.nodes[0], "max": job.nodes[1]},
        "batch": dataclasses.asdict(job.batch),
        "precision": dataclasses.asdict(precision) if precision else None,
        "traffic": dataclasses.asdict(job.traffic),
        "rendezvous": rendezvous
        and {"host": rendezvous.host.name, "endpoint": rendezvous.endpoint},
    }
    if job.division:
        items["parallel"] = {
            "sizes": job.division.sizes,
            "within_hosts": job.division.within_hosts,
            "memory": job.division.memory and dataclasses.asdict(job.division.memory),
        }
    if job.job.data:
        items["data"] = [each.document() for each in job.job.data]
        if data is not None and sizes is not None:
            downloads = fetches(data, job.job.fetched, job.hosts, sizes)
            items["fetches"] = [
                {
                    "name": each.data.name,
                    "hosts": [host.name for host in each.hosts],
                    "bytes": each.bytes,
                    "seconds": each.seconds,
                }
                for each in downloads
            ]
            if job.job.streamed:
                items["streams"] = _streams(data, job, sizes)
    if whole:
        items["exchange"] = dataclasses.asdict(job.exchange) if job.exchange else None
        items["prediction"] = dataclasses.asdict(prediction) if prediction else None
    compact = {key: _compact(value) for key, value in items.items()}
    compact["hosts"] = _placements(job.placements, whole=whole)
    if job.job.queue:
        compact["queue"] = _compact(dataclasses.asdict(job.job.queue))
    if job.spares:
        compact["spares"] = _placements(job.spares, whole=False)
    return _object(compact, "    ")


def _placements(placements: Iterable[Placement], *, whole: bool) -> str:
    return _rows([_compact(_placement(each, whole=whole)) for each in placements], "      ")


def _streams(data: DataPlan, job: JobPlan, sizes: Sizes) -> list[dict[str, Any]]:
    return [
        {
            "name": each.data.name,
            "hosts": [host.name for host in each.hosts],
            "bytes": each.bytes,
            "bytes_per_second": each.rate,
        }
        for each in stream_rates(data, job.job.streamed, job.hosts, sizes)
    ]


def _server(server: ServerPlan, workload: Workload) -> str:
    items = {
        "name": server.name,
        "job": server.server.job or None,
        "checkpoint": server.server.checkpoint if server.checkpoints else None,
        "image": server.image,
        "urls": workload.urls,
        "sources": workload.sources,
        **({"health": workload.health} if workload.health else {}),
        **({"proxy": workload.urls[-1] + workload.ready} if workload.proxied else {}),
    }
    compact = {key: _compact(value) for key, value in items.items()}
    return _object({**compact, "hosts": _placements(server.placements, whole=False)}, "    ")


def _placement(placement: Placement, *, whole: bool) -> dict[str, Any]:
    return {
        "host": placement.host.name,
        "processes": placement.processes,
        **({"first_rank": placement.first_rank} if whole else {}),
        "devices": [gpu.id for gpu in placement.gpus],
    }
