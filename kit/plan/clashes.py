"""What two parts of a plan may not share: a port of a host, and names that Swarm can not hold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kit.errors import INVENTORY, Fault, Loc
from kit.model import EngineName, Inventory
from kit.plan.images import served_registry
from kit.plan.work import JobPlan, ServerPlan, Work
from kit.values import count

LONGEST_SERVICE = 63
"""Swarm refuses longer service names, the stack's name included."""
LONGEST_CONFIG = 64
"""Swarm refuses longer names of configs and secrets."""

_Listener = tuple[Loc, str, str, int]
"""Where a port is written, the address and the host that it is on, and the port."""


def port_faults(inventory: Inventory, work: Sequence[Work]) -> list[Fault]:
    """Refuse what would listen on the same port of the same host."""
    faults = []
    seen: dict[tuple[str, int], tuple[str, Loc, str]] = {}
    served = served_registry(inventory, None)
    if served is not None:
        address = next(host.address for host in inventory.hosts if host.name == served.host)
        seen[address, served.port] = (INVENTORY, ("registry", "address"), "the registry's")
    for each in work:
        for place, address, host, port in _listeners(inventory.engine, each):
            own = (each.name, place, f"{_called(each)}'s")
            first = seen.setdefault((address, port), own)
            if first == own:
                continue
            source, other, whose = first
            what = f"port {port} of {host} is already {whose} ({{line}})"
            free = port % 65535 + 1
            section = f"{place[0]}: {{port: {free}}}" if place[1:] else f"{place[0]}: {free}"
            faults.append(Fault(each.name, place, what, f"write `{section}`", other, source))
            break  # a thousand hosts are one mistake
    return faults


def _called(plan: Work) -> str:
    return f"job {plan.name}" if isinstance(plan, JobPlan) else plan.name


def _listeners(engine: EngineName, plan: Work) -> Iterator[_Listener]:
    """Return what a job or a server opens on its hosts' own network."""
    return _training(engine, plan) if isinstance(plan, JobPlan) else _serving(engine, plan)


def _training(engine: EngineName, plan: JobPlan) -> Iterator[_Listener]:
    place, metrics = plan.rendezvous, plan.job.metrics_port
    local = place.address == "127.0.0.1"
    on_hosts = plan.host_network or local
    if on_hosts:
        yield ("rendezvous", "port"), place.address, place.host, place.port
    # Of a network of its own, Compose publishes it.
    if metrics is None or not (on_hosts or engine is EngineName.COMPOSE):
        return
    for host in (placement.host for placement in plan.placements):
        yield ("metrics", "port"), "127.0.0.1" if local else host.address, host.name, metrics


def _serving(engine: EngineName, plan: ServerPlan) -> Iterator[_Listener]:
    # Every engine publishes the port on the host itself.
    for host in (placement.host for placement in plan.placements):
        address = "127.0.0.1" if engine is EngineName.LOCAL else host.address
        yield ("port",), address, host.name, plan.server.port
    if plan.host_network or engine is EngineName.COMPOSE:
        for host in (host for holder in plan.holders for host in holder.hosts):
            if plan.host_network or plan.offers(host.name):
                yield ("transfer_port",), host.address, host.name, plan.server.transfer_port


def name_faults(inventory: Inventory, work: Sequence[Work]) -> list[Fault]:
    """Refuse names that Swarm would refuse at the deploy."""
    if inventory.engine is not EngineName.SWARM:
        return []
    faults = []
    for plan in work:
        for kind, name, most, whose in _names(plan):
            if len(name) > most:
                what = f"{name} is too long a name for a Swarm {kind} (at most {most})"
                over = count(len(name) - most, "letter")
                faults.append(Fault(plan.name, (), what, f"shorten {whose} by {over}"))
    most = LONGEST_SERVICE - len("-platform_network")
    if inventory.network.driver == "overlay" and len(inventory.cluster) > most:
        what = f"{inventory.cluster} is too long: <cluster>-platform_network is a Swarm service"
        fix = f"write at most {most} letters"
        faults.append(Fault(INVENTORY, ("cluster",), what, fix))
    return faults


def _names(plan: Work) -> Iterator[tuple[str, str, int, str]]:
    """Return what a stack brings into the Swarm: kind, longest name, how long it may be, whose."""
    whose = "the job's" if isinstance(plan, JobPlan) else "the server's"
    services = [service.name for service in plan.services]
    if isinstance(plan, ServerPlan):
        services += [holder.name for holder in plan.holders]
    longest = max(services, key=len, default="")
    yield "service", f"{plan.stack}_{longest}", LONGEST_SERVICE, f"{whose} or the host's name"
    yield "config", f"{plan.stack}-launcher-{'0' * 8}", LONGEST_CONFIG, f"{whose} name"
    secrets = [f"{plan.stack}-{secret.name}-{'0' * 8}" for secret in plan.secrets]
    longest = max(secrets, key=len, default="")
    yield "secret", longest, LONGEST_CONFIG, f"{whose} or the secret's name"
