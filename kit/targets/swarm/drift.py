"""The actual state of a stack's services, compared with the stack's file, field by field. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kit.queue.words import GIVEN, NPROC, OWNER, WAITED
from kit.targets.fields import Fields, by_hand, compared
from kit.targets.swarm.file_fields import of_file
from kit.targets.swarm.pool import SINCE
from kit.targets.swarm.service_fields import of_service
from kit.targets.swarm.state import FILE_LABEL, VISIBLE, Cluster, Service

OF_QUEUE = frozenset(
    {
        "deploy.replicas",
        "deploy.resources.kit_gpu",
        f"deploy.labels.{SINCE}",
        f"environment.{VISIBLE}",
        *(f"environment.{name}" for name in (NPROC, GIVEN, WAITED)),
    }
)
"""The fields that the queue changes in the services of its jobs."""


def drift(
    stack: str, text: str, variables: Mapping[str, str], version: str, cluster: Cluster
) -> str:
    """Return the changes by hand in a stack since its deploy, or "" if there are none.

    `text` is that of its file and `version` its hash; `variables` are those of the file. A stack of
    another version is deployed anyway.
    """
    services = cluster.stack(stack)
    if not services or any(each.label(FILE_LABEL) != version for each in services):
        return ""
    return by_hand(differences(text, variables, services, dict(cluster.networks)))


def differences(
    text: str,
    variables: Mapping[str, str],
    services: Sequence[Service],
    networks: Mapping[str, str],
) -> list[str]:
    """Return the differences between a stack's file and its services, in words.

    `networks` are Swarm's names of networks by ID.
    """
    wanted = of_file(text, variables)
    actual = {service.part: of_service(service.spec, networks) for service in services}
    lines = [f"{part} is not there" for part in wanted if part not in actual]
    lines += [f"{part} is not in its file" for part in actual if part not in wanted]
    for part in (each for each in wanted if each in actual):
        strict = actual[part].keys() if wanted[part].whole else ()
        left = _without_queue if f"deploy.labels.{OWNER}" in actual[part] else Fields
        differ = compared(left(wanted[part].fields), left(actual[part]), strict=strict)
        lines += [f"{part}: {each}" for each in differ]
    return lines


def _without_queue(fields: Fields) -> Fields:
    """Leave out the fields that the queue changes: the service's replicas and its GPUs."""
    return {name: value for name, value in fields.items() if name not in OF_QUEUE}
