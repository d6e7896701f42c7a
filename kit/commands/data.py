"""`kit data`: data sets that every host gets before a job starts."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import click

from kit import values
from kit.commands.options import with_paths
from kit.commands.progress import Transfers
from kit.commands.tables import console, table
from kit.commands.targets import target_for, with_engine
from kit.datasets import agents, programs, sizes
from kit.datasets.cluster import DataCluster, complete_on
from kit.datasets.programs import Message
from kit.datasets.sizes import Stored
from kit.datasets.upload import upload_of
from kit.errors import InputError, KitError, joined
from kit.hosts.docker import concurrently
from kit.model import DataSet
from kit.paths import Paths, identity
from kit.runtime.rendered import Rendered, rendered
from kit.runtime.status import ENDED
from kit.runtime.target import Target
from kit.values import WrongValueError, count, show_bytes
from trainer.contract.code import PREFIX
from trainer.contract.words import nearest, some

ELSEWHERE = ("torchvision:", "https://", "http://", "s3://", "hf://")
"""The beginnings of sources that the storage host reads by itself."""


@click.group("data", short_help="Store data sets once, for all hosts.")
def command() -> None:
    """Store data sets once, and bring them to every host that needs them.

    The host with `roles: [storage]` keeps them. A job names them with `data: [NAME]`; each of its
    hosts fetches them before it starts, from the storage host and from each other.
    """


class _Cluster:
    """The files of a command: the rendered tree, its target, and the data services."""

    def __init__(self, paths: Paths, engine: str | None) -> None:
        self.cluster, own = identity(paths)
        tree = paths.tree(self.cluster)
        self.rendered: Rendered = rendered(tree)
        if self.rendered.data is None:
            raise InputError(
                f"{tree} has no data services",
                "write `data: {}` in the inventory, or `data: [NAME]` in a job, then `kit render`",
            )
        self.target: Target = target_for(engine or own, self.cluster, tree)
        folder = self.target.data_folder()
        self.services = DataCluster(self.cluster, self.rendered.data, folder)
        self._inventory = paths.inventory

    @property
    def storage(self) -> str:
        """The storage host's name."""
        return self.services.data.storage.name

    def stored(self) -> tuple[list[Stored], list[Stored]]:
        """Return the stored data sets and the code of jobs; keep the former's sizes for `plan`."""
        stored = self.services.stored()
        code = [each for each in stored if each.name.startswith(PREFIX)]
        data = [each for each in stored if each not in code]
        sizes.store(self._inventory, data)
        return data, code


def _with_cluster(function: Callable[..., Any]) -> Callable[..., Any]:
    return with_engine(with_paths(function))


_as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@command.command("add")
@_with_cluster
@click.argument("name")
@click.argument("source")
@click.option("--licence", default="", help="Its licence, or the licence's address.")
@click.option("--version", type=click.IntRange(1), help="Default: one more than the newest.")
@_as_json
def add(
    paths: Paths,
    engine: str | None,
    name: str,
    source: str,
    licence: str,
    version: int | None,
    *,
    as_json: bool,
) -> None:
    """Store SOURCE as a new version of the data set NAME.

    SOURCE is one of: torchvision:NAME, a data set that torchvision knows (MNIST, CIFAR10, …), which
    the storage host downloads; https://…, s3://BUCKET/FOLDER/ or hf://OWNER/NAME[@REVISION], which
    it downloads too; HOST:/PATH, a folder or archive of the storage host; or a folder, file or
    archive of this machine, which kit sends there. Run the command again to continue an
    interrupted download or upload.
    """
    cluster = _Cluster(paths, engine)
    _name(name)
    options: tuple[str, ...] = ("--licence", licence) if licence else ()
    options += ("--version", str(version)) if version else ()
    with Transfers() as shown:
        place = _place(cluster, name, source, shown.show)
        if place.path != source:
            options += ("--described", source)
        done = cluster.services.add(name, place.path, options, shown.show, place.reads)
    done["left_out"] = [*place.left_out, *done["left_out"]]
    cluster.stored()
    if as_json:
        click.echo(json.dumps(done))
        return
    size, files = show_bytes(int(done["bytes"])), count(int(done["files"]), "file")
    title = f"{done['name']}@{done['version']}"
    click.echo(f"{title}: {size} in {files} on {cluster.storage}")
    if done["left_out"]:
        click.echo(f"left out, as hidden: {some(done['left_out'])}")
    click.echo(
        f"a job names it with `data: [{name}]`; `kit data prefetch {name}` fetches it before"
    )


class _Place(NamedTuple):
    """Where the storage host finds a source."""

    path: str
    reads: str | None = None
    """The folder of the host or the address behind it; None for an upload."""
    left_out: tuple[str, ...] = ()


def _place(
    cluster: _Cluster, name: str, source: str, say: Callable[[str, str, int, int | None], object]
) -> _Place:
    """Find a source, and send it if it is on this machine."""
    if source.startswith(ELSEWHERE):
        return _Place(source, source)
    match = re.fullmatch(r"([a-z0-9][-a-z0-9]*):(/.+)", source)
    if match:
        if match[1] != cluster.storage:
            what = f"{match[1]} is not the host that stores the data sets"
            raise InputError(what, f"copy it to {cluster.storage}, or name a path of this machine")
        return _Place(match[2], match[2])
    path = Path(source)
    if not path.exists():
        what = f"{source}: there is no such file or folder here"
        raise InputError(what, f"write a path, {', '.join(f'{each}…' for each in ELSEWHERE)}")
    if cluster.services.folder is not None:
        return _Place(str(path.resolve()))
    upload = upload_of(path)
    return _Place(cluster.services.upload(name, upload, say), left_out=upload.left_out)


@command.command("ls")
@_with_cluster
@_as_json
def list_(paths: Paths, engine: str | None, *, as_json: bool) -> None:
    """List the stored data sets: size, version, and the hosts that have a complete copy."""
    cluster = _Cluster(paths, engine)
    (stored, code), statuses = cluster.stored(), cluster.services.statuses()
    silent = {host: error for host, error in statuses.items() if isinstance(error, KitError)}
    if as_json:
        document = {
            "storage": cluster.storage,
            "datasets": [
                asdict(each) | {"complete": complete_on(statuses, each)} for each in stored
            ],
            "code": [asdict(each) | {"complete": complete_on(statuses, each)} for each in code],
            "hosts": {
                host: {"error": status.message} if isinstance(status, KitError) else status
                for host, status in statuses.items()
            },
        }
        click.echo(json.dumps(document, indent=2))
        return
    if not stored:
        click.echo(f"{cluster.storage} stores no data set: `kit data add NAME SOURCE` adds one")
    else:
        rows = table("data set", "size", "files", "complete on", "source", right=("size", "files"))
        for each in stored:
            title = f"{each.name}@{each.version}"
            hosts = ", ".join(dict.fromkeys((cluster.storage, *complete_on(statuses, each))))
            if cluster.services.folder is not None:
                hosts = "this machine"
            rows.add_row(title, show_bytes(each.bytes), f"{each.files:,}", hosts, each.source)
        console().print(rows)
    if code:
        size = show_bytes(sum(each.bytes for each in code))
        click.echo(f"code of jobs: {count(len(code), 'version')}, {size}; --json lists them")
    absent = [host for host, error in silent.items() if isinstance(error, agents.AbsentError)]
    if absent:
        click.echo(f"no data agent runs on {', '.join(absent)}: a deploy or a prefetch starts it")
    for host, error in silent.items():
        if host not in absent:
            click.echo(f"note: {error.message}", err=True)


@command.command("verify")
@_with_cluster
@click.argument("names", nargs=-1, metavar="[NAME[@VERSION]]…")
def verify(paths: Paths, engine: str | None, names: tuple[str, ...]) -> int:
    """Compare the stored files with their checksums; by default all."""
    cluster = _Cluster(paths, engine)
    chosen = [_data_set(each).title for each in names]
    if not names:
        chosen = [f"{each.name}@{each.version}" for each in cluster.services.stored()]
    failed = 0
    with Transfers() as shown:
        for title in chosen:
            try:
                _verify(cluster, title, shown)
            except KitError as error:
                failed += 1
                click.echo(str(error), err=True)
    return 1 if failed else 0


def _verify(cluster: _Cluster, title: str, shown: Transfers) -> None:
    def say(message: Message) -> None:
        if message.get("state") in {"intact", "damaged"}:
            click.echo(f"{message['name']}@{message['version']} is {message['state']}")
            for line in message.get("damage", []):
                click.echo(f"  {line}")
        elif isinstance(message.get("bytes"), int):
            shown.show(title, "verifying", message["bytes"], message.get("total"))

    programs.run(cluster.services.programs(), ("verify", title, "--json"), say)


@command.command("rm")
@_with_cluster
@click.argument("name", metavar="NAME@VERSION")
@click.option("--yes", is_flag=True, help="Do not ask.")
def remove(paths: Paths, engine: str | None, name: str, *, yes: bool) -> None:
    """Delete one version from the storage host and from the caches of all hosts.

    Refused while a deployed job names it.
    """
    cluster = _Cluster(paths, engine)
    data = _data_set(name)
    if data.version is None:
        raise InputError(f"{name} has no version", f"write for example {name}@1")
    _refuse_used(cluster, data)
    if not yes:
        if not sys.stdin.isatty():
            what = "without a terminal kit cannot ask for confirmation"
            raise InputError(what, f"add --yes to delete {data.title} on all hosts")
        click.confirm(f"delete {data.title} on all hosts?", abort=True)
    programs.run(cluster.services.programs(), ("rm", data.title, "--json"))
    cluster.stored()
    click.echo(f"{data.title}: deleted on {cluster.storage}")
    _remove_copies(cluster, data)


def _refuse_used(cluster: _Cluster, data: DataSet) -> None:
    deployed = {status.job for status in cluster.target.status() if status.state not in ENDED}
    users = [
        job
        for job, needs in cluster.rendered.needs.items()
        if job in deployed
        and any(each.name == data.name and each.version in {None, data.version} for each in needs)
    ]
    if users:
        what = f"{data.title} is named by {', '.join(users)}, which is deployed"
        raise KitError(what, f"end it with `kit stop {' '.join(users)}`")


def _remove_copies(cluster: _Cluster, data: DataSet) -> None:
    """Delete the copies of the hosts whose agents answer; the others delete theirs when full."""
    if cluster.services.folder is not None:
        return

    def delete(find: Callable[[], agents.Agent]) -> None:
        agent = find()
        held = agent.ask("GET", "/status").get("held", [])
        if any(
            (each.get("name"), each.get("version")) == (data.name, data.version) for each in held
        ):
            agent.ask("DELETE", f"/{data.name}/{data.version}")

    finders = {h: find for h, find in cluster.services.finders().items() if h != cluster.storage}
    for host, result in zip(finders, concurrently(delete, finders.values()), strict=True):
        if isinstance(result, KitError) and not isinstance(result, agents.AbsentError):
            click.echo(f"note: a copy stays on {host}: {result.message}", err=True)


@command.command("prefetch")
@_with_cluster
@click.argument("name", metavar="NAME[@VERSION]")
@click.argument("hosts", nargs=-1)
def prefetch(paths: Paths, engine: str | None, name: str, hosts: tuple[str, ...]) -> None:
    """Fetch a data set to HOSTS before a job needs it; by default to all hosts with GPUs.

    It starts the data services if they do not run.
    """
    cluster = _Cluster(paths, engine)
    data, finders = _data_set(name), cluster.services.finders()
    for host in hosts:
        if host not in finders:
            raise InputError(f"no data agent is planned for {host}", nearest(host, finders))
    chosen = {host: finders[host] for host in hosts or finders}
    cluster.target.start_data(tuple(chosen), click.echo)
    with Transfers() as shown:

        def fetch(host: str) -> Message:
            agent = agents.started(chosen[host])
            return agents.use(agent, data, partial(_fetching, shown, host))

        results = dict(zip(chosen, concurrently(fetch, chosen), strict=True))
    failed = [error for error in results.values() if isinstance(error, KitError)]
    ready = [host for host, result in results.items() if not isinstance(result, KitError)]
    if ready:
        click.echo(f"{data.title}: complete on {', '.join(ready)}")
    if failed:
        raise joined(failed)


def _fetching(shown: Transfers, host: str, message: Message) -> None:
    if isinstance(message.get("bytes"), int):
        state = f"fetching {message.get('name')}@{message.get('version')}"
        shown.show(host, state, message["bytes"], message.get("total"))


def _name(name: str) -> str:
    try:
        return values.data_set(name)
    except WrongValueError as error:
        raise InputError(error.what, error.fix) from None


def _data_set(text: str) -> DataSet:
    """Parse NAME or NAME@VERSION."""
    name, at, version = text.partition("@")
    if at and not re.fullmatch("[1-9][0-9]{0,8}", version):
        raise InputError(f"{text}: {version!r} is not a version", f"write for example {name}@1")
    return DataSet(_name(name), int(version) if at else None)
