"""`kit init`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import click

from kit import __version__, addresses, tree, values
from kit.addresses import endpoint, registry_host
from kit.commands.discover import show_hosts
from kit.commands.schema import SECTIONS, schema_text
from kit.discover.ask import Login, ask
from kit.discover.cable import shared_fast_network
from kit.discover.entries import scalar
from kit.discover.facts import DiscoveredHost, HostFacts
from kit.discover.match import logins_of, named
from kit.discover.notes import notes_of
from kit.discover.update import engine_for, new_inventory
from kit.errors import InputError, KitError
from kit.paths import TREES, Paths
from kit.project import load_lowered
from kit.render.templates import BUILT_IN
from kit.rendered import render_lowered
from kit.values import WrongValueError, count

STARTER = BUILT_IN / "init"
INVENTORY, JOB = "inventory.yaml", "jobs/digits.yaml"
TAGGED = f"trainer:{__version__}"
"""The trainer's image of this version."""
IMAGE = f"registry.example.com/{TAGGED}"
"""The image in the starter's job."""
REGISTRY_PORT = 5000
"""The port of the registry that kit serves on the first host."""


def starter_files() -> dict[str, str]:
    """Return the files of a new project: texts by path."""
    files = {
        path.relative_to(STARTER).as_posix(): path.read_text(encoding="utf-8")
        for path in sorted(STARTER.rglob("*"))
        if path.is_file()
    }
    schemas = {f".schema/{what}.schema.json": schema_text(what) for what in SECTIONS}
    return files | schemas


@click.command("init", short_help="Start a GitOps repository.")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option(
    "--hosts", metavar="LOGINS", help="Discover these hosts, as in user1@pc1,user2@pc2, and render."
)
@click.option("--image", help="The image of the job; its registry goes into the inventory.")
def command(folder: Path, hosts: str | None, image: str | None) -> int:
    """Start a GitOps repository in FOLDER: inventory, a job, Makefile, CI example.

    With --hosts the inventory describes these machines, as `kit discover` finds them, and the files
    are rendered. Without --image kit will serve a registry on the first of them. It overwrites
    nothing, and writes nothing if a host or a file fails.
    """
    if image is not None:
        _check_image(image)
    files = starter_files()
    own = [*files, *([f"{TREES}/{_cluster(folder)}"] if hosts is not None else [])]
    existing = [path for path in own if (folder / path).exists()]
    if existing:
        raise InputError(
            f"{folder} holds {', '.join(existing)} already",
            "choose an empty folder, or move it away",
        )
    if hosts is None:
        if image is not None:
            files[JOB] = files[JOB].replace(IMAGE, _image_scalar(image))
        with _all_or_nothing(folder):
            _write(folder, files)
        click.echo(f"next: cd {folder}, write your hosts into inventory.yaml, make plan render")
        return 0
    discovered = _discovered(hosts)
    with _all_or_nothing(folder):
        _write(folder, files | _described(folder, discovered, image))
        _render(folder)
    build = "" if image else f", kit image build --push --on {discovered[0].name}"
    click.echo(
        f"next: cd {folder}, kit host prepare --run, kit swarm up{build}, make render deploy"
    )
    return 0


def _check_image(image: str) -> None:
    try:
        addresses.image(image)
    except WrongValueError as error:
        raise InputError(error.what, error.fix) from None


def _discovered(hosts: str) -> list[DiscoveredHost]:
    """Query the hosts, and print the facts about them.

    Raises:
        InputError: A login is not valid, or there is none.
        KitError: A host does not answer, or cannot be in the inventory.
    """
    logins = [each.strip() for each in hosts.split(",") if each.strip()]
    if not logins:
        raise InputError("--hosts names no host", "write for example --hosts user1@pc1,user2@pc2")
    asked = logins_of(logins, None)
    answers = ask([Login(each.name, each.ssh) for each in asked])
    facts = [(each, answers[Login(each.name, each.ssh)]) for each in asked]
    answered = [(each, answer) for each, answer in facts if isinstance(answer, HostFacts)]
    show_hosts(answered)
    hosts_named, refused = named(answered, shared_fast_network([each for _, each in answered]))
    failed = [*(answer for _, answer in facts if isinstance(answer, KitError)), *refused]
    if failed:
        hint = "nothing was written: run it again when all answer, or leave a host out"
        raise KitError("\n".join(map(str, failed)), hint)
    for note in notes_of(hosts_named):
        click.echo(f"note: {note}")
    return hosts_named


def _described(folder: Path, hosts: list[DiscoveredHost], image: str | None) -> dict[str, str]:
    """Return the inventory of the hosts, and the job with its image."""
    inventory = new_inventory(_cluster(folder), engine_for(hosts), hosts).text
    if image:
        own = registry_host(image)
        registry = f"registry: {{address: {json.dumps(own)}}}\n" if own else ""
    else:
        address = endpoint(hosts[0].address, REGISTRY_PORT)
        image = f"{address}/{TAGGED}"
        registry = (
            "# kit serves it, without a certificate: every daemon.json lists it.\n"
            f'registry: {{address: "{address}", host: {scalar(hosts[0].name)}}}\n'
        )
    starter = starter_files()
    schema = starter[INVENTORY].splitlines(keepends=True)[0]
    job = starter[JOB].replace(IMAGE, _image_scalar(image))
    return {INVENTORY: f"{schema}{inventory}{registry}", JOB: job}


def _image_scalar(image: str) -> str:
    """Return an image's name as YAML: the brackets of an IPv6 address would begin a list."""
    return scalar(image) if image.startswith("[") else image


def _cluster(folder: Path) -> str:
    """Return the cluster's name: the folder's, as a DNS label."""
    return values.label_of(folder.resolve().name) or "pool"


@contextmanager
def _all_or_nothing(folder: Path) -> Iterator[None]:
    """Remove what was written if something fails: then a second try finds the folder as it was."""
    before = set(_paths(folder))
    try:
        yield
    except BaseException:
        for path in sorted(set(_paths(folder)) - before, reverse=True):
            with suppress(OSError):
                path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
        raise


def _paths(folder: Path) -> Iterator[Path]:
    """Yield the folder, those above it, and everything at the places that kit writes in it."""
    folder = folder.absolute()
    yield from (each for each in (folder, *folder.parents) if each.exists())
    for name in {Path(path).parts[0] for path in (*starter_files(), TREES)}:
        if (folder / name).exists():
            yield from (folder / name, *(folder / name).rglob("*"))


def _write(folder: Path, files: Mapping[str, str]) -> None:
    for path, text in files.items():
        target = folder / path
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")
        except OSError as error:
            raise InputError(f"{target}: cannot be written: {error.strerror}") from None
    click.echo(f"{folder}: {count(len(files), 'file')}")


def _render(folder: Path) -> None:
    paths = Paths(folder / INVENTORY, None, None, None)
    lowered = load_lowered(paths)
    root = paths.tree(lowered.cluster)
    rendered = render_lowered(lowered, paths)
    tree.write(root, rendered)
    click.echo(f"{root}: {count(len(rendered), 'file')} for engine {lowered.engine}")
