"""The decision on the steps that bring the data services up with Compose. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from kit.errors import KitError, once
from kit.plan.data import DataPlan
from kit.runtime.steps import Step
from kit.targets.compose.containers import Container, HostState
from kit.targets.compose.decide import HostStep, Pull
from kit.workload.names import DATA


@dataclass(frozen=True, slots=True)
class StartData(HostStep):
    """Start a host's data services, or bring them up to date."""


def steps_of_data(
    data: DataPlan, versions: Mapping[str, str], observed: Mapping[str, HostState]
) -> tuple[Step, ...]:
    """Return the steps for the hosts of `versions`, which are the hashes of their files.

    Raises:
        KitError: A port is in use.
    """
    causes = {
        host: cause
        for host, version in versions.items()
        if (cause := _cause(observed[host].data, version))
    }
    problems = [problem for host in causes for problem in _problems(data, host, observed[host])]
    if problems:
        raise KitError(once(problems), "nothing was changed on any host")
    pulls = [
        Pull(host, f"pull {data.image}", "the data services need it", DATA, host, data.image)
        for host in causes
        if data.image not in observed[host].images
    ]
    starts = [
        StartData(host, f"start the {_services(data, host)}", cause, DATA, host)
        for host, cause in causes.items()
    ]
    return (*pulls, *starts)


def _services(data: DataPlan, host: str) -> str:
    return "data server and agent" if host == data.storage.name else "data agent"


def _cause(containers: Sequence[Container], version: str) -> str:
    if not containers:
        return "it does not run"
    if any(one.version != version for one in containers):
        return "its file has changed"
    if not all(one.runs for one in containers):
        return "it has ended"
    return "" if all(one.healthy for one in containers) else "it is not healthy"


def _problems(data: DataPlan, host: str, observed: HostState) -> Iterator[str]:
    """Yield the ports that another program uses, not those that the services publish."""
    if any(one.runs for one in observed.data):
        return
    ports = [("peer_port", port) for port in data.peer_ports]
    if host == data.storage.name:
        ports.append(("port", data.port))
    for key, port in ports:
        if port in observed.ports:
            yield (
                f"{host}: port {port} is in use (`ss -tlnp` on the host shows by which process); "
                f"end that, or write `data: {{{key}: …}}` in the inventory"
            )
