"""The JSON documents of a tree: the plan, and the files that launcher and servers read."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from kit.model import Gpu, Host
from kit.plan.types import Placement
from kit.plan.work import JobPlan, Plan, ServerPlan
from trainer.contract.keys import written


def _compact(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _rows(rows: list[str], indent: str) -> str:
    """Lay rows out one a line: a changed host is a changed line."""
    if not rows:
        return "[]"
    return "[\n" + ",\n".join(f"{indent}  {row}" for row in rows) + f"\n{indent}]"


def _object(items: dict[str, str], indent: str = "") -> str:
    lines = ",\n".join(f"{indent}  {_compact(key)}: {text}" for key, text in items.items())
    return "{\n" + lines + f"\n{indent}}}"


def plan_json(plan: Plan, generated: str, *, whole: bool) -> str:
    """Write the plan for programs: one line for each host and each placement.

    The rendered file is not the `whole`: it leaves out ranks, as a host more would change the lines
    of all behind it, and what the exchange costs and others would.
    """
    network = dataclasses.asdict(plan.network) | {"nccl": dict(plan.network.nccl)}
    return (
        _object(
            {
                "generated": _compact(generated),
                "cluster": _compact(plan.cluster),
                "engine": _compact(plan.engine),
                "network": _compact(network),
                "hosts": _rows([_compact(_host(host)) for host in plan.hosts], "  "),
                "jobs": _rows([_job(job, whole=whole) for job in plan.jobs], "  "),
                "servers": _rows([_server(server) for server in plan.servers], "  "),
                "notes": _rows([_compact(note) for note in plan.notes], "  "),
            }
        )
        + "\n"
    )


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


def _job(job: JobPlan, *, whole: bool) -> str:
    items = {
        "name": job.name,
        "image": job.image,
        "world_size": job.world_size,
        "nodes": {"min": job.nodes[0], "max": job.nodes[1]},
        "batch": dataclasses.asdict(job.batch),
        "precision": dataclasses.asdict(job.precision) if job.precision else None,
        "traffic": dataclasses.asdict(job.traffic),
        "rendezvous": {"host": job.rendezvous.host, "endpoint": job.rendezvous.endpoint},
    }
    if whole:
        items["exchange"] = dataclasses.asdict(job.exchange) if job.exchange else None
    rows = [_compact(_placement(placement, whole=whole)) for placement in job.placements]
    compact = {key: _compact(value) for key, value in items.items()}
    return _object({**compact, "hosts": _rows(rows, "      ")}, "    ")


def _server(server: ServerPlan) -> str:
    items = {
        "name": server.name,
        "job": server.server.job,
        "checkpoint": server.server.checkpoint,
        "image": server.image,
        "urls": server.urls,
        "sources": server.sources,
    }
    rows = [_compact(_placement(placement, whole=False)) for placement in server.placements]
    compact = {key: _compact(value) for key, value in items.items()}
    return _object({**compact, "hosts": _rows(rows, "      ")}, "    ")


def _placement(placement: Placement, *, whole: bool) -> dict[str, Any]:
    return {
        "host": placement.host.name,
        "processes": placement.processes,
        **({"first_rank": placement.first_rank} if whole else {}),
        "devices": placement.devices,
    }


def job_json(job: JobPlan, generated: str) -> str:
    """Write the job file: what the launcher and the trainer read, the same on every host."""
    document: dict[str, Any] = {"generated": generated, "name": job.name}
    if job.job.train is None or job.job.exchange is None:
        document["command"] = job.job.command
    else:
        checkpoint = dataclasses.replace(job.job.checkpoint, shared=job.shared_checkpoints)
        document |= {
            "train": written(job.job.train),
            "exchange": written(job.job.exchange),
            "checkpoint": written(checkpoint),
            "metrics": {"port": job.job.metrics_port or 0},
        }
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def server_json(plan: ServerPlan, generated: str) -> str:
    """Write the server's file: what trainer.serve reads, the same on every host."""
    server = plan.server
    document = {
        "generated": generated,
        "name": server.name,
        "job": server.job,
        "checkpoint": server.checkpoint,
        "port": server.port,
        "batch": {"size": server.batch_size, "window": server.window / 1000},
        "queue": server.queue,
        "timeout": server.timeout,
        "body": server.body,
        "pixels": server.pixels,
        "token": server.token.name if server.token else None,
    }
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"
