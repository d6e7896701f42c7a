"""Jobs are started by Compose: look at all hosts, decide, then do it, all hosts at once.

Compose runs on this machine and reaches a host's engine over SSH; what its file mounts is copied to
the host before, where the project lies as a whole and can be started again by hand.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from kit.docker import Docker
from kit.engine import Say, deployment, size
from kit.engine.compose_decide import Action, Kind, Seen, decide, own_volume
from kit.engine.compose_hosts import Hosts, all_well
from kit.engine.compose_look import look
from kit.engine.hostfolder import HostFolder
from kit.errors import InputError, KitError
from kit.model import Host
from kit.plan.types import JobPlan
from kit.secrets import read_secrets

T = TypeVar("T")
UNCHANGED = "nothing was changed on any host"


def decided(hosts: Hosts, jobs: Sequence[JobPlan], *, fresh: bool) -> tuple[Action, ...]:
    """Look at the hosts and return what is to be done.

    Raises:
        KitError: Something is in the way, or a host that a job needs does not answer.
    """
    _require_compose()
    images = {job.image for job in jobs}
    volumes = {own_volume(job) for job in jobs}
    needed = {part.host.name: job.name for job in jobs for part in job.placements}
    for name, job in needed.items():
        if not hosts.file(job, name).is_file():
            what = f"{hosts.file(job, name)} is not there: the files are for another engine"
            raise InputError(what, "write `engine: compose` in the inventory, run `kit render`")
    found = hosts.on(hosts.all, lambda host: look(host, hosts.dockers[host.name], images, volumes))
    all_well({name: found[name] for name in needed}, UNCHANGED)
    seen = {name: one for name, one in found.items() if isinstance(one, Seen)}
    return decide(hosts.cluster, jobs, seen, fresh=fresh)


def deploy(hosts: Hosts, jobs: Sequence[JobPlan], *, fresh: bool, say: Say) -> None:
    """Start the jobs, one after the other, once every image is on every host.

    Raises:
        KitError: One could not be started; it was taken down again, those before it run.
    """
    secrets = {job.name: read_secrets(job) for job in jobs}
    actions = decided(hosts, jobs, fresh=fresh)
    _pull(hosts, jobs, actions, say)
    started: list[str] = []
    for job in jobs:
        try:
            own = [action for action in actions if action.job == job.name]
            _start(hosts, job, own, secrets[job.name])
        except KitError as error:
            runs = f"{', '.join(started)}: started before" if started else "no other was started"
            raise KitError(f"{error.message}\n{runs}", error.hint) from None
        started.append(job.name)
        say(f"{job.name}: started as {size(job)}")


def _require_compose() -> None:
    try:
        with Docker("this machine", None).acting("docker compose version") as client:
            client.compose.version()
    except InputError:
        raise
    except KitError:
        raise InputError(
            "docker compose is not installed here, and kit starts the projects with it",
            "install docker-compose-plugin of Docker, or docker-compose of Debian 13",
        ) from None


def _pull(hosts: Hosts, jobs: Sequence[JobPlan], actions: Iterable[Action], say: Say) -> None:
    images = {job.name: job.image for job in jobs}
    wanted: dict[str, set[str]] = {}
    for action in actions:
        if action.kind is Kind.PULL:
            wanted.setdefault(action.host, set()).add(images[action.job])

    def pull(host: Host) -> None:
        for image in sorted(wanted[host.name]):
            say(f"{host.name}: pulls {image}")
            began = time.monotonic()
            with hosts.dockers[host.name].acting(f"pull {image}") as client:
                client.image.pull(image, quiet=True)
            say(f"{host.name}: has {image}, after {time.monotonic() - began:.1f} s")

    all_well(hosts.on(wanted, pull), f"push the image, or correct its name; {UNCHANGED}")


def _start(
    hosts: Hosts, job: JobPlan, actions: Sequence[Action], secrets: Mapping[str, str]
) -> None:
    _on(hosts, actions, Kind.REMOVE, partial(hosts.remove, job.name))
    _on(hosts, actions, Kind.FORGET, partial(_forget, hosts, job))
    folders = _on(hosts, actions, Kind.START, partial(_send, hosts, job.name))
    began = time.time()
    try:
        up = partial(_up, hosts, job, folders, secrets)
        _on(hosts, actions, Kind.START, up)
    except BaseException as error:
        left = _take_down(hosts, job)
        if isinstance(error, KitError):
            raise KitError(f"{error.message}\n{left}", error.hint) from None
        raise
    hosts.home.forget(job.name)
    hosts.home.add_to_history(deployment(job, began))


def _on(
    hosts: Hosts, actions: Iterable[Action], kind: Kind, work: Callable[[Host], T]
) -> dict[str, T]:
    """Do it on all hosts at once that have such an action."""
    return all_well(hosts.on([a.host for a in actions if a.kind is kind], work))


def _forget(hosts: Hosts, job: JobPlan, host: Host) -> None:
    hosts.dockers[host.name].request("DELETE", f"/volumes/{own_volume(job)}")


def _send(hosts: Hosts, job: str, host: Host) -> str:
    """Copy the project and what it mounts; return the folder on the host."""
    tree = hosts.tree
    paths = [hosts.file(job, host.name), tree / "jobs" / f"{job}.json", tree / "launch.py"]
    files = {
        path.relative_to(tree).as_posix(): path.read_bytes() for path in paths if path.exists()
    }
    return HostFolder(host, hosts.cluster).put(files)


def _up(
    hosts: Hosts,
    job: JobPlan,
    folders: Mapping[str, str],
    secrets: Mapping[str, str],
    host: Host,
) -> None:
    """Start a host's project; Compose takes secrets from its environment, and no argument."""
    project = ("--file", str(hosts.file(job.name, host.name)), "--project-name", job.stack)
    # What the file mounts lies on the host: its paths begin there.
    folder = ("--project-directory", f"{folders[host.name]}/hosts/{host.name}")
    up = ("up", "--detach", "--quiet-pull", "--pull", "never")
    engine = hosts.dockers[host.name]
    engine.command(f"start {job.name}", "compose", *project, *folder, *up, env=secrets)


def _take_down(hosts: Hosts, job: JobPlan) -> str:
    """Remove what a deploy that failed has started; say what is left."""
    names = [placement.host.name for placement in job.placements]
    removed = hosts.on(names, partial(hosts.remove, job.name))
    left = [name for name, error in removed.items() if isinstance(error, KitError)]
    gone = f"{job.name} was taken down again on {', '.join(sorted(set(names) - set(left)))}"
    if left:
        gone += f"; a part may run on {', '.join(left)}: `kit stop {job.name}` when that is back"
    return gone
