"""Jobs are started by Compose: look at all hosts, decide, then do it, all hosts at once.

Compose runs on this machine and reaches a host's engine over SSH; what its file mounts is copied to
the host before, where the project lies as a whole and can be started again by hand.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from kit.docker import Docker
from kit.engine import Say, deployment, left_alone, size
from kit.engine.compose_decide import Action, Kind, Seen, decide, own_volume
from kit.engine.compose_hosts import Hosts, all_well
from kit.engine.compose_look import look
from kit.engine.hostfolder import HostFolder
from kit.errors import InputError, KitError
from kit.model import Host
from kit.plan.work import JobPlan, Work, document_of
from kit.render import file_version
from kit.secrets import read_secrets

T = TypeVar("T")
UNCHANGED = "nothing was changed on any host"


def decided(hosts: Hosts, jobs: Sequence[Work], *, fresh: bool) -> tuple[Action, ...]:
    """Look at the hosts and return what is to be done.

    Raises:
        KitError: Something is in the way, or a host that a job needs does not answer.
    """
    _require_compose()
    images = {job.image for job in jobs}
    volumes = {own_volume(job) for job in jobs if isinstance(job, JobPlan)}
    needed = [(job.name, name) for job in jobs for name in job.parts]
    versions = {part: _version(hosts.file(*part)) for part in needed}
    found = hosts.on(hosts.all, lambda host: look(host, hosts.dockers[host.name], images, volumes))
    all_well({name: found[name] for _, name in needed}, UNCHANGED)
    seen = {name: one for name, one in found.items() if isinstance(one, Seen)}
    return decide(hosts.cluster, jobs, versions, seen, fresh=fresh)


def _version(file: Path) -> str:
    if not file.is_file():
        what = f"{file} is not there: the files are for another engine"
        raise InputError(what, "write `engine: compose` in the inventory, run `kit render`")
    return file_version(file.read_text(encoding="utf-8"))


def deploy(hosts: Hosts, jobs: Sequence[Work], *, fresh: bool, say: Say) -> None:
    """Bring the work up, once every image is on every host, and all that ends has ended.

    Raises:
        KitError: One could not be started; it was taken down again, those before it run.
    """
    secrets = {job.name: read_secrets(job) for job in jobs if job.placements}
    actions = decided(hosts, jobs, fresh=fresh)
    _pull(hosts, jobs, actions, say)
    _end(hosts, jobs, actions, say)
    started: list[str] = []
    for job in jobs:
        own = [action for action in actions if action.job == job.name]
        if not any(action.kind is Kind.START for action in own):
            say(left_alone(job))
            continue
        try:
            _start(hosts, job, own, secrets[job.name])
        except KitError as error:
            runs = f"{', '.join(started)}: started before" if started else "no other was started"
            raise KitError(f"{error.message}\n{runs}", error.hint) from None
        started.append(job.name)
        say(f"{job.name}: started as {size(job)}")


def _end(hosts: Hosts, jobs: Sequence[Work], actions: Sequence[Action], say: Say) -> None:
    """End what is to be started anew, or has no part any more; all hosts of a job at once.

    What trains agrees on a last checkpoint meanwhile.
    """
    for job in jobs:
        own = [action for action in actions if action.job == job.name]
        for action in own:
            if action.kind is Kind.END:
                say(f"{action.host}: ends {job.name}: {action.step.cause}")
        _on(hosts, own, Kind.END, partial(hosts.end, job.name))
        _on(hosts, own, Kind.REMOVE, partial(hosts.remove, job.name))


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


def _pull(hosts: Hosts, jobs: Sequence[Work], actions: Iterable[Action], say: Say) -> None:
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


def _start(hosts: Hosts, job: Work, actions: Sequence[Action], secrets: Mapping[str, str]) -> None:
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


def _forget(hosts: Hosts, job: Work, host: Host) -> None:
    hosts.dockers[host.name].request("DELETE", f"/volumes/{own_volume(job)}")


def _send(hosts: Hosts, job: str, host: Host) -> str:
    """Copy the project and what it mounts; return the folder on the host."""
    tree = hosts.tree
    paths = [hosts.file(job, host.name), tree / document_of(job), tree / "launch.py"]
    files = {
        path.relative_to(tree).as_posix(): path.read_bytes() for path in paths if path.exists()
    }
    return HostFolder(host, hosts.cluster).put(files)


def _up(
    hosts: Hosts,
    job: Work,
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


def _take_down(hosts: Hosts, job: Work) -> str:
    """Remove what a deploy that failed has started; say what is left."""
    names = job.parts
    removed = hosts.on(names, partial(hosts.remove, job.name))
    left = [name for name, error in removed.items() if isinstance(error, KitError)]
    gone = f"{job.name} was taken down again on {', '.join(sorted(set(names) - set(left)))}"
    if left:
        gone += f"; a part may run on {', '.join(left)}: `kit stop {job.name}` when that is back"
    return gone
