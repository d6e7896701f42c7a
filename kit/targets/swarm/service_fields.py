"""The fields of a Swarm's service, from its specification in Docker's API. Pure.

They have the names of Docker's Compose format. Other settings of a service, for example by `docker
service update --host-add`, have the names of Docker's API.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from kit.targets.fields import Fields, capabilities, kept, mount_text

NAMESPACE = "com.docker.stack."
"""Docker's own labels."""
PLAIN_MODE = 0o444
"""Docker's mode of the files of configs and secrets."""
IGNORED = frozenset(
    {
        "Name",
        "TaskTemplate.ForceUpdate",
        "TaskTemplate.Runtime",
        "TaskTemplate.Placement.Platforms",
        "TaskTemplate.ContainerSpec.Isolation",
        "UpdateConfig.Monitor",
        "RollbackConfig",
    }
)
"""Fields that Docker sets itself, and fields that change no container."""


def of_service(spec: Mapping[str, Any], networks: Mapping[str, str]) -> Fields:
    """Return the fields of a service's specification in Docker's API."""
    rest = _Rest(spec)
    take = rest.take
    container = "TaskTemplate.ContainerSpec."
    health, restart = f"{container}Healthcheck.", "TaskTemplate.RestartPolicy."
    resources, placement = "TaskTemplate.Resources.", "TaskTemplate.Placement."
    fields: Fields = {
        "image": take(f"{container}Image"),
        "entrypoint": tuple(take(f"{container}Command") or ()),
        "command": tuple(take(f"{container}Args") or ()),
        "user": take(f"{container}User"),
        "working_dir": take(f"{container}Dir"),
        "init": take(f"{container}Init"),
        "read_only": take(f"{container}ReadOnly"),
        "stop_signal": take(f"{container}StopSignal"),
        "stop_grace_period": rest.seconds(f"{container}StopGracePeriod"),
        **dict(_environment(take(f"{container}Env"))),
        **_labels("labels", take(f"{container}Labels")),
        "cap_add": capabilities(take(f"{container}CapabilityAdd")),
        "cap_drop": capabilities(take(f"{container}CapabilityDrop")),
        **{
            f"ulimits.{each['Name']}": f"{each.get('Soft', 0)}:{each.get('Hard', 0)}"
            for each in take(f"{container}Ulimits") or ()
        },
        "healthcheck.test": tuple(take(f"{health}Test") or ()),
        "healthcheck.retries": take(f"{health}Retries"),
        "healthcheck.interval": rest.seconds(f"{health}Interval"),
        "healthcheck.timeout": rest.seconds(f"{health}Timeout"),
        "healthcheck.start_period": rest.seconds(f"{health}StartPeriod"),
        "healthcheck.start_interval": rest.seconds(f"{health}StartInterval"),
        **dict(map(_mounted, take(f"{container}Mounts") or ())),
        **dict(_held("configs", take(f"{container}Configs"))),
        **dict(_held("secrets", take(f"{container}Secrets"))),
        **dict(map(_published, take("EndpointSpec.Ports") or ())),
        **{
            f"networks.{networks.get(each['Target'], each['Target'])}": (
                tuple(sorted(each.get("Aliases") or ())) or True
            )
            for each in take("TaskTemplate.Networks") or ()
        },
        "logging.driver": take("TaskTemplate.LogDriver.Name"),
        **_labels("logging", take("TaskTemplate.LogDriver.Options")),
        **_mode(take("Mode")),
        "deploy.endpoint_mode": take("EndpointSpec.Mode") or "vip",
        **_labels("deploy.labels", take("Labels")),
        "deploy.restart_policy.condition": take(f"{restart}Condition"),
        "deploy.restart_policy.delay": rest.seconds(f"{restart}Delay"),
        "deploy.restart_policy.max_attempts": take(f"{restart}MaxAttempts"),
        "deploy.restart_policy.window": rest.seconds(f"{restart}Window"),
        "deploy.update_config.parallelism": take("UpdateConfig.Parallelism"),
        "deploy.update_config.order": take("UpdateConfig.Order"),
        "deploy.update_config.failure_action": take("UpdateConfig.FailureAction"),
        "deploy.placement.constraints": tuple(take(f"{placement}Constraints") or ()),
        "deploy.placement.max_replicas_per_node": take(f"{placement}MaxReplicas"),
        "deploy.resources.limits.memory": take(f"{resources}Limits.MemoryBytes"),
        "deploy.resources.limits.cpus": (take(f"{resources}Limits.NanoCPUs") or 0) / 1e9,
        **dict(_generic(take(f"{resources}Reservations.GenericResources"))),
    }
    return kept(fields) | rest.left()


class _Rest:
    """A specification from which known values are taken; what is left was set by hand."""

    def __init__(self, spec: Mapping[str, Any]) -> None:
        self._spec = spec
        self._taken = set(IGNORED)

    def take(self, path: str) -> Any:
        """Return a value by its path; None if it is not set."""
        self._taken.add(path)
        value: Any = self._spec
        for key in path.split("."):
            value = (value or {}).get(key)
        return value

    def seconds(self, path: str) -> float:
        """Return a duration in seconds; the API has nanoseconds."""
        return float((self.take(path) or 0) / 1e9)

    def left(self) -> Fields:
        return dict(self._left("", self._spec))

    def _left(self, prefix: str, value: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
        for key, each in value.items():
            path = f"{prefix}{key}"
            if path in self._taken:
                continue
            if isinstance(each, dict):
                yield from self._left(f"{path}.", each)
            elif each:
                yield path, str(each)


def _environment(lines: Iterable[str] | None) -> Iterator[tuple[str, str]]:
    for line in lines or ():
        name, _, value = line.partition("=")
        yield f"environment.{name}", value


def _labels(kind: str, labels: Mapping[str, str] | None) -> Fields:
    own = (labels or {}).items()
    return {f"{kind}.{name}": value for name, value in own if not name.startswith(NAMESPACE)}


def _mounted(mount: Mapping[str, Any]) -> tuple[str, str]:
    size = (mount.get("TmpfsOptions") or {}).get("SizeBytes")
    text = mount_text(mount["Type"], mount.get("Source"), mount.get("ReadOnly"), size)
    return f"volumes.{mount['Target']}", text


def _held(kind: str, entries: Iterable[Mapping[str, Any]] | None) -> Iterator[tuple[str, str]]:
    key = {"configs": "ConfigName", "secrets": "SecretName"}[kind]
    for each in entries or ():
        mode = each["File"].get("Mode", PLAIN_MODE)
        extra = "" if mode == PLAIN_MODE else f" mode {mode:o}"
        yield f"{kind}.{each['File']['Name']}", each[key] + extra


def _published(port: Mapping[str, Any]) -> tuple[str, str]:
    name = f"ports.{port['TargetPort']}/{port['Protocol']}"
    return name, f"{port.get('PublishedPort')} {port['PublishMode']}"


def _mode(mode: Mapping[str, Any]) -> Fields:
    (kind,) = mode
    # As text: zero is a value here, to which somebody has scaled the service.
    replicas = str(mode[kind].get("Replicas", 0)) if kind == "Replicated" else None
    return {"deploy.mode": kind.lower(), "deploy.replicas": replicas}


def _generic(resources: Iterable[Mapping[str, Any]] | None) -> Iterator[tuple[str, object]]:
    for each in resources or ():
        own = each.get("DiscreteResourceSpec") or each.get("NamedResourceSpec") or {}
        yield f"deploy.resources.{own.get('Kind')}", own.get("Value")
