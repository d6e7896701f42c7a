"""The fields of the services in a rendered stack, as `docker stack deploy` understands them. Pure.

Fields have the names of Docker's Compose format, with the values of
https://github.com/docker/cli/tree/master/cli/compose/convert.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from kit.targets.fields import (
    Fields,
    Shape,
    capabilities,
    fits,
    interpolated,
    kept,
    limits,
    mount_text,
    seconds,
    size,
    understood,
)

TIMES = dict.fromkeys(("interval", "timeout", "start_period", "start_interval"), str)
DEPLOY: Shape = {
    "mode": str,
    "replicas": int,
    "endpoint_mode": str,
    "labels": dict,
    "restart_policy": {"condition": str, "delay": str, "max_attempts": int, "window": str},
    "update_config": {"parallelism": int, "order": str, "failure_action": str, "monitor": str},
    "placement": {"constraints": list, "max_replicas_per_node": int},
    "resources": {
        "limits": {"memory": (str, int), "cpus": (str, int, float)},
        "reservations": {"generic_resources": list},
    },
}
SERVICE: Shape = {
    **dict.fromkeys(("image", "user", "working_dir", "stop_signal", "stop_grace_period"), str),
    **dict.fromkeys(("init", "read_only"), bool),
    **dict.fromkeys(("entrypoint", "command", "cap_add", "cap_drop"), list),
    **dict.fromkeys(("environment", "labels", "ulimits"), dict),
    "healthcheck": {"test": list, "retries": int, **TIMES},
    "volumes": [dict.fromkeys(("type", "source", "target", "read_only", "tmpfs", "bind"), object)],
    "configs": [{"source": str, "target": str}],
    "secrets": [str],
    "ports": [{"target": int, "published": int, "protocol": str, "mode": str}],
    "networks": (list, dict),
    "logging": {"driver": str, "options": dict},
    "deploy": DEPLOY,
}


@dataclass(frozen=True, slots=True)
class Wanted:
    """The fields of a service in a file. `whole`: the file has no other fields."""

    fields: Fields
    whole: bool


def of_file(text: str, variables: Mapping[str, str]) -> dict[str, Wanted]:
    """Return the fields of each service of a rendered stack.

    If a custom template writes a service in another way, only its image is known, and with custom
    variables not even that.
    """
    document = yaml.load(interpolated(text, variables), Loader=yaml.CSafeLoader)
    closed = understood(text)
    return {
        name: Wanted(kept(_wanted(name, service, document)), whole=True)
        if closed and fits(service, SERVICE) and _named(service, document)
        else Wanted(kept({"image": service.get("image") if closed else ""}), whole=False)
        for name, service in document["services"].items()
    }


def _named(service: Mapping[str, Any], document: Mapping[str, Any]) -> bool:
    """Return whether all that a service uses has a name; otherwise Docker makes up names."""
    used = [("networks", each) for each in service.get("networks", ())]
    used += [("configs", each["source"]) for each in service.get("configs", ())]
    used += [("secrets", each) for each in service.get("secrets", ())]
    mounts = (each for each in service.get("volumes", ()) if each["type"] == "volume")
    used += [("volumes", each["source"]) for each in mounts if each.get("source")]
    return all(((document.get(kind) or {}).get(key) or {}).get("name") for kind, key in used)


def _wanted(name: str, service: Mapping[str, Any], document: Mapping[str, Any]) -> Fields:
    deploy = service.get("deploy", {})
    health, restart = service.get("healthcheck", {}), deploy.get("restart_policy", {})
    update, resources = _update(deploy.get("update_config")), deploy.get("resources", {})
    mode, logging = deploy.get("mode", "replicated"), service.get("logging", {})
    return {
        "image": service["image"],
        **{each: tuple(map(str, service.get(each, ()))) for each in ("entrypoint", "command")},
        **{each: service.get(each) for each in ("user", "working_dir", "init", "read_only")},
        "stop_signal": service.get("stop_signal"),
        "stop_grace_period": seconds(service.get("stop_grace_period")),
        **{
            f"environment.{key}": str(value)
            for key, value in service.get("environment", {}).items()
        },
        **{f"labels.{key}": str(value) for key, value in service.get("labels", {}).items()},
        **{each: capabilities(service.get(each)) for each in ("cap_add", "cap_drop")},
        **{f"ulimits.{key}": limits(value) for key, value in service.get("ulimits", {}).items()},
        "healthcheck.test": tuple(map(str, health.get("test", ()))),
        "healthcheck.retries": health.get("retries"),
        **{
            f"healthcheck.{key}": seconds(health.get(key))
            for key in ("interval", "timeout", "start_period", "start_interval")
        },
        **_volumes(service, document),
        **dict(_files("configs", service, document)),
        **dict(_files("secrets", service, document)),
        **{f"ports.{each['target']}/{each['protocol']}": _port(each) for each in _ports(service)},
        **dict(_networks(name, service, document)),
        "logging.driver": logging.get("driver"),
        **{f"logging.{key}": str(value) for key, value in logging.get("options", {}).items()},
        "deploy.mode": mode,
        "deploy.replicas": str(deploy.get("replicas", 1)) if mode == "replicated" else None,
        "deploy.endpoint_mode": deploy.get("endpoint_mode", "vip"),
        **{f"deploy.labels.{key}": str(value) for key, value in deploy.get("labels", {}).items()},
        "deploy.restart_policy.condition": restart.get("condition"),
        "deploy.restart_policy.delay": seconds(restart.get("delay")),
        "deploy.restart_policy.max_attempts": restart.get("max_attempts"),
        "deploy.restart_policy.window": seconds(restart.get("window")),
        **{f"deploy.update_config.{key}": value for key, value in update.items()},
        "deploy.placement.constraints": tuple(deploy.get("placement", {}).get("constraints", ())),
        "deploy.placement.max_replicas_per_node": deploy.get("placement", {}).get(
            "max_replicas_per_node"
        ),
        "deploy.resources.limits.memory": size(resources.get("limits", {}).get("memory")),
        "deploy.resources.limits.cpus": float(resources.get("limits", {}).get("cpus", 0)),
        **{
            f"deploy.resources.{each['kind']}": each["value"]
            for entry in resources.get("reservations", {}).get("generic_resources", ())
            for each in entry.values()
        },
    }


def _update(config: Mapping[str, object] | None) -> Mapping[str, object]:
    known = {"parallelism": 1, "failure_action": "pause", **config} if config else {}
    known.pop("monitor", None)  # It changes no container.
    return known


def _volumes(service: Mapping[str, Any], document: Mapping[str, Any]) -> Fields:
    def text_of(mount: Mapping[str, Any]) -> str:
        named = (document.get("volumes") or {}).get(mount.get("source")) or {}
        return mount_text(
            mount["type"],
            named.get("name") or mount.get("source"),
            mount.get("read_only"),
            mount.get("tmpfs", {}).get("size"),
        )

    return {f"volumes.{mount['target']}": text_of(mount) for mount in service.get("volumes", ())}


def _files(
    kind: str, service: Mapping[str, Any], document: Mapping[str, Any]
) -> Iterator[tuple[str, str]]:
    """Yield the names in Swarm of configs or secrets, by their paths in the container."""
    for each in service.get(kind, ()):
        source = each["source"] if isinstance(each, dict) else each
        target = each.get("target", source) if isinstance(each, dict) else each
        yield f"{kind}.{target}", document[kind][source]["name"]


def _ports(service: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    ports: Sequence[Mapping[str, Any]] = service.get("ports", ())
    return ports


def _port(port: Mapping[str, Any]) -> str:
    return f"{port['published']} {port['mode']}"


def _networks(
    name: str, service: Mapping[str, Any], document: Mapping[str, Any]
) -> Iterator[tuple[str, object]]:
    """Yield the aliases of a service by network; Docker adds its name where it has its own DNS."""
    networks = service.get("networks", ())
    for each in networks:
        own = (networks[each] or {}).get("aliases", ()) if isinstance(networks, dict) else ()
        network = document["networks"][each]["name"]
        yield f"networks.{network}", (tuple(sorted({*own, name})) if network != "host" else True)
