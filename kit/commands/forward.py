"""`kit forward`."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from functools import partial

import click

from kit.commands.options import with_paths
from kit.commands.targets import target_of, with_engine
from kit.errors import InputError
from kit.hosts import forward
from kit.hosts.environment import clean
from kit.paths import Paths
from kit.project import load_lowered
from kit.runtime.access import chosen_host
from kit.runtime.target import Target
from kit.targets.lower import platform_of
from kit.targets.lowered import Lowered
from trainer.contract.words import nearest


@click.command("forward", short_help="Forward a port of a rank or a service to this machine.")
@click.argument("name")
@click.argument("port", required=False, metavar="[[LOCAL:]PORT]")
@with_paths
@with_engine
@click.option("--host", help="Its container on this host.")
@click.option("--rank", type=int, help="The container of this rank.  [default: 0]")
def command(
    name: str,
    port: str | None,
    paths: Paths,
    engine: str | None,
    *,
    host: str | None,
    rank: int | None,
) -> None:
    """Forward a port of a job's container or of a platform's service to 127.0.0.1, until Ctrl-C.

    `kit forward train 6006` forwards the TensorBoard beside rank 0 of the job train, also if it
    listens only on its own loopback; the container needs python3. `kit forward grafana` forwards a
    service that kit runs; `kit forward grafana 8000:` selects the port on this machine.
    """
    target = target_of(paths, engine)
    known = target.known()
    if name in known or host is not None or rank is not None:
        return _to_container(target, name, port, host, rank)
    return _to_service(load_lowered(paths), name, port, sorted(known))


def _to_container(
    target: Target, name: str, port: str | None, host: str | None, rank: int | None
) -> None:
    if port is None:
        raise InputError(f"which port of {name}?", f"write for example `kit forward {name} 6006`")
    here, there = ports(port, None)
    chosen = chosen_host(target.status(), name, host, rank)
    access = target.access(name, chosen.host)
    if not access.container:
        what = f"{name} runs on this machine: its ports are here already"
        raise InputError(what, f"open http://{forward.HERE}:{there}/")
    command = access.command(forward.words(there), terminal=False)
    say = partial(click.echo, err=True)

    def ready(opened: int) -> None:
        click.echo(f"http://{forward.HERE}:{opened}/ is port {there} of {name} on {chosen.host}")

    with suppress(KeyboardInterrupt):
        forward.serve(here, command, clean(os.environ), say, ready)


def _to_service(lowered: Lowered, name: str, port: str | None, jobs: list[str]) -> None:
    services = platform_of(lowered.plan, lowered.engine)
    if name not in services:
        known = [*jobs, *services]
        fix = nearest(name, known) if known else "nothing is deployed: `kit deploy`"
        raise InputError(f"there is no job or service {name}", fix)
    host, served = services[name]
    here, there = ports(port, served)

    def ready() -> None:
        click.echo(f"http://{forward.HERE}:{here}/ is {name} on {host.name}")

    with suppress(KeyboardInterrupt):
        forward.tunnel(host, here, host.address, there, ready)


def ports(text: str | None, default: int | None) -> tuple[int, int]:
    """Return the port here and the port there of `LOCAL:PORT`, `LOCAL:` or `PORT`."""
    match = re.fullmatch(r"(?:(\d{1,5}):)?(\d{1,5})?", text or "")
    there = int(match[2]) if match and match[2] else default
    here = int(match[1]) if match and match[1] else there
    if here is None or there is None or not (0 < here < 65536 and 0 < there < 65536):
        raise InputError(f"{text} is not a port", "write for example 6006, or 8006:6006")
    return here, there
