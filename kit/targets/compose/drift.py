"""The actual state of a host's containers, compared with the host's Compose file. Pure.

Fields that the file lacks come from the container's image. kit therefore compares only the fields
of the file, and the fields that give a container more access to its host.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml

from kit.queue.words import GIVEN, NPROC, OWNER, WAITED
from kit.targets.compose.containers import Container
from kit.targets.fields import (
    Fields,
    Shape,
    by_hand,
    capabilities,
    compared,
    fits,
    interpolated,
    kept,
    limits,
    mount_text,
    seconds,
    size,
    understood,
)

SERVICE: Shape = {
    **dict.fromkeys(("image", "user", "working_dir", "pid", "network_mode"), str),
    **dict.fromkeys(("stop_grace_period", "restart"), str),
    **dict.fromkeys(("init", "read_only"), bool),
    **dict.fromkeys(("entrypoint", "command", "cap_add", "cap_drop"), list),
    **dict.fromkeys(("environment", "ulimits"), dict),
    "shm_size": (str, int),
    "volumes": [dict.fromkeys(("type", "source", "target", "read_only", "bind"), object)],
    "deploy": {
        "resources": {
            "limits": {"memory": (str, int), "cpus": (str, int, float)},
            "reservations": {"devices": list},
        }
    },
}
LEFT = frozenset(
    {"configs", "devices", "healthcheck", "labels", "logging", "networks", "ports", "secrets"}
    | {"security_opt", "tmpfs"}
)
"""Keys of a service that are not compared."""
STRICT = frozenset({"gpus", "cap_add", "deploy.resources.limits.memory", "privileged", "pid"})
"""Fields that are also compared if the file lacks them."""

OF_QUEUE = frozenset(
    {"gpus", "restart", *(f"environment.{name}" for name in (NPROC, GIVEN, WAITED))}
)
"""The fields that the queue changes in the containers of its jobs."""


def drift(text: str, containers: Sequence[Container]) -> str:
    """Return the changes by hand in the containers of a file, or "" if there are none."""
    document = yaml.load(interpolated(text, {}), Loader=yaml.CSafeLoader)
    services, closed = document["services"], understood(text)
    differences = []
    for one in (one for one in containers if one.service in services):
        service = services[one.service]
        told_by = {key: each for key, each in service.items() if key not in LEFT}
        # A custom template may write it in another way.
        whole = closed and fits(told_by, SERVICE)
        image = {"image": service.get("image") if closed else ""}
        wanted = kept(_wanted(service, document) if whole else image)
        left = _without_queue if OWNER in one.labels else Fields
        actual = of_container(one.spec)
        differ = compared(left(wanted), left(actual), strict=STRICT if whole else ())
        differences += [f"{one.service}: {each}" for each in differ]
    return by_hand(differences)


def _without_queue(fields: Fields) -> Fields:
    """Leave out the fields that the queue changes: the GPUs, and the number of restarts."""
    return {name: value for name, value in fields.items() if name not in OF_QUEUE}


def _wanted(service: Mapping[str, Any], document: Mapping[str, Any]) -> Fields:
    resources = service.get("deploy", {}).get("resources", {})
    devices = resources.get("reservations", {}).get("devices", ())
    return {
        "image": service["image"],
        **{each: tuple(map(str, service.get(each, ()))) for each in ("entrypoint", "command")},
        **{each: service.get(each) for each in ("user", "working_dir", "init", "read_only", "pid")},
        "stop_grace_period": seconds(service.get("stop_grace_period")),
        **{
            f"environment.{key}": str(value)
            for key, value in service.get("environment", {}).items()
        },
        **{each: capabilities(service.get(each)) for each in ("cap_add", "cap_drop")},
        **{f"ulimits.{key}": limits(value) for key, value in service.get("ulimits", {}).items()},
        "restart": service.get("restart"),
        "shm_size": size(service.get("shm_size")),
        "network_mode": service.get("network_mode"),
        **{
            f"volumes.{each['target']}": _volume(each, document)
            for each in service.get("volumes", ())
        },
        "deploy.resources.limits.memory": size(resources.get("limits", {}).get("memory")),
        "gpus": tuple(gpu for each in devices for gpu in _gpus(each)),
    }


def _gpus(device: Mapping[str, Any]) -> Iterator[str]:
    """Yield the GPUs of a reservation: their names, or `all`."""
    yield from map(str, device.get("device_ids") or (device.get("count", "all"),))


def _volume(mount: Mapping[str, Any], document: Mapping[str, Any]) -> str:
    named = (document.get("volumes") or {}).get(mount.get("source")) or {}
    source = named.get("name") or mount.get("source")
    if mount["type"] == "volume" and not named.get("name") and source:
        source = f"{document['name']}_{source}"
    return mount_text(mount["type"], source, mount.get("read_only"), None)


def of_container(spec: Mapping[str, Any]) -> Fields:
    """Return the fields of a container, from GET /containers/<id>/json."""
    config, host = spec["Config"], spec["HostConfig"]
    restart = host["RestartPolicy"]
    retries = f":{restart['MaximumRetryCount']}" if restart["MaximumRetryCount"] else ""
    own = host["NetworkMode"] in {"host", "none"}
    return kept(
        {
            "image": config["Image"],
            "entrypoint": tuple(config["Entrypoint"] or ()),
            "command": tuple(config["Cmd"] or ()),
            "user": config["User"],
            "working_dir": config["WorkingDir"],
            "init": host.get("Init"),
            "read_only": host["ReadonlyRootfs"],
            "pid": host["PidMode"],
            "privileged": host["Privileged"],
            "stop_grace_period": float(config.get("StopTimeout") or 0),
            **{f"environment.{key}": value for key, value in _environment(config["Env"])},
            "cap_add": capabilities(host["CapAdd"]),
            "cap_drop": capabilities(host["CapDrop"]),
            **{
                f"ulimits.{each['Name']}": f"{each['Soft']}:{each['Hard']}"
                for each in host["Ulimits"] or ()
            },
            "restart": f"{restart['Name']}{retries}",
            "shm_size": host["ShmSize"],
            "network_mode": host["NetworkMode"] if own else None,
            **{f"volumes.{each['Target']}": _mounted(each) for each in host.get("Mounts") or ()},
            **{f"volumes.{each.split(':')[1]}": _bound(each) for each in host.get("Binds") or ()},
            "deploy.resources.limits.memory": host["Memory"],
            "gpus": tuple(gpu for each in host["DeviceRequests"] or () for gpu in _requested(each)),
        }
    )


def _environment(lines: Sequence[str] | None) -> Iterator[tuple[str, str]]:
    for line in lines or ():
        name, _, value = line.partition("=")
        yield name, value


def _mounted(mount: Mapping[str, Any]) -> str:
    return mount_text(mount["Type"], mount.get("Source"), mount.get("ReadOnly"), None)


def _bound(text: str) -> str:
    """Return a mount in the short form `source:target:options`."""
    source, _, rest = text.partition(":")
    kind = "bind" if source.startswith("/") else "volume"
    return mount_text(kind, source, "ro" in rest.partition(":")[2].split(","), None)


def _requested(request: Mapping[str, Any]) -> Iterator[str]:
    count = request["Count"]
    yield from request["DeviceIDs"] or ("all" if count == -1 else str(count),)
