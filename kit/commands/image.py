"""`kit image`: build, push and pin the trainer's image."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from kit import addresses, files
from kit import images as trainer
from kit.builders import nodes_of
from kit.commands.options import with_paths
from kit.config.load import Project
from kit.errors import InputError, KitError
from kit.hosts.docker import Docker
from kit.lock import lock_path, lock_text, read_lock
from kit.model import Host, Lock, Locked
from kit.paths import Paths, launcher_path
from kit.platforms import ARCHITECTURES, platform
from kit.project import load_project, lowered_of
from kit.registry import locked
from kit.targets.lowered import Lowered
from kit.values import Say, WrongValueError, count
from trainer.contract.words import nearest

HERE = "this machine"


def _on(what: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return click.option("--on", metavar="HOST", help=f"{what} with this host's Docker, over SSH.")


@click.group("image", short_help="Build, push and pin the trainer's image.")
def command() -> None:
    """Build the trainer's image, push it, and pin all images to their digests."""


@command.command("build", short_help="Build the trainer's image.")
@click.argument("images", nargs=-1)
@with_paths
@_on("Build")
@click.option("--base", metavar="IMAGE", help="Build on this image instead of PyTorch's.")
@click.option("--push", "pushed", is_flag=True, help="Push it too, as `kit image push` does.")
@click.option(
    "--platform",
    "platforms",
    metavar="LIST",
    help="Build for these platforms, as linux/amd64,linux/arm64; default: that of the engine.",
)
def build(
    paths: Paths,
    images: tuple[str, ...],
    on: str | None,
    base: str | None,
    platforms: str | None,
    *,
    pushed: bool,
) -> None:
    """Build the trainer's image under the names IMAGES.

    By default, the images of servers and of jobs with `train:` in the inventory's registry. For
    several platforms, a host of the inventory builds each that the engine does not have.
    """
    wanted = _platforms(platforms)
    if len(wanted) > 1 and not pushed:
        what = f"--platform {platforms}: an engine holds an image of one platform under a name"
        raise InputError(what, "add --push: the registry holds all of them")
    engine, names = _targets(paths, images, on)
    made = trainer.Build(names, base, wanted)
    with closing(engine):
        if made.several:
            trainer.require(engine)
            _build_for_several(engine, made, paths)
        else:
            trainer.build(engine, made, launcher_path().parent, click.echo)
        if pushed and not made.several:
            trainer.push(engine, names, click.echo)
    step = "lock" if pushed else f"push{f' --on {on}' if on else ''}"
    click.echo(f"built {', '.join(names)}; next: kit image {step}")


def _platforms(listed: str | None) -> tuple[str, ...]:
    """Return the platforms of the option, each of which a host may have."""
    known = [platform(architecture) for architecture in ARCHITECTURES]
    words = tuple(dict.fromkeys(listed.split(","))) if listed else ()
    for word in words:
        if word not in known:
            what = f"--platform {listed}: {word!r} is not a platform that PyTorch has builds for"
            raise InputError(what, f"write {','.join(known)}, or one of them")
    return words


def _build_for_several(engine: Docker, wanted: trainer.Build, paths: Paths) -> None:
    """Build with the engines of the inventory's hosts, if there is an inventory."""
    inventory = load_project(paths).inventory if paths.inventory.exists() else None
    own = platform(engine.get("/version")["Arch"])
    nodes = nodes_of(engine, own, inventory.hosts if inventory else (), wanted.platforms)
    registry = inventory.registry if inventory else None
    http = registry.address if registry and registry.host else ""
    trainer.build(engine, wanted, launcher_path().parent, click.echo, nodes, http)


@command.command("push", short_help="Push the image to the registry.")
@click.argument("images", nargs=-1)
@with_paths
@_on("Push")
def push(paths: Paths, images: tuple[str, ...], on: str | None) -> None:
    """Push IMAGES to their registry, with this machine's `docker login`.

    By default, the images of servers and of jobs with `train:` in the inventory's registry.
    """
    engine, names = _targets(paths, images, on)
    with closing(engine):
        trainer.push(engine, names, click.echo)
    click.echo(f"pushed {', '.join(names)}; next: kit image lock")


@command.command("lock", short_help="Pin all images to their digests.")
@click.argument("images", nargs=-1)
@with_paths
@_on("Ask the registries")
@click.option(
    "--check", is_flag=True, help="Write nothing; exit 1 if a registry has another digest."
)
@click.option("--json", "as_json", is_flag=True, help="Print the digests as JSON.")
def lock(paths: Paths, images: tuple[str, ...], on: str | None, check: bool, as_json: bool) -> int:
    """Write the digests of all images into images.lock, beside the inventory.

    With IMAGES, only these change. If one digest cannot be read, nothing is written. The Docker of
    the first manager asks the registries; with engine compose, the Docker of this machine.
    """
    project = load_project(paths)
    # Only the names matter here: the old lock may lack platforms.
    lowered = lowered_of(replace(project, lock=None), project.inventory)
    known = _lockable(lowered)
    for image in images:
        if image not in known:
            raise InputError(
                f"{image}: the rendered files have no such image", nearest(image, known)
            )
    path = lock_path(paths.inventory)
    before = read_lock(path) or {}
    say: Say = (lambda _: None) if as_json else click.echo
    with closing(_registry_engine(lowered, on)) as engine:
        digests = _digests(engine, images or known, lowered.optional_images, say)
    after = {name: value for name in known if (value := digests.get(name) or before.get(name))}
    for line in _differences(before, after):
        say(line)
    if as_json:
        document = {"file": str(path), "before": _digests_of(before), "after": _digests_of(after)}
        platforms = {name: entry.platforms for name, entry in after.items() if entry.platforms}
        click.echo(json.dumps({**document, "platforms": platforms}, indent=2))
    if check:
        return _checked(path, before, after)
    _write(path, after)
    say(f"{path}: {count(len(after), 'image')}; next: kit render")
    return 0


def _targets(
    paths: Paths, images: tuple[str, ...], on: str | None
) -> tuple[Docker, tuple[str, ...]]:
    """Return the engine to use and the images' names. Read files only if needed."""
    for image in images:
        _check_name(image)
    if images and on is None:
        return Docker(HERE, None), images
    project = load_project(paths)
    return _engine(project.inventory.hosts, on), images or _trainers(project)


def _check_name(image: str) -> None:
    try:
        addresses.image(image)
    except WrongValueError as error:
        raise InputError(error.what, error.fix) from None
    if "@" in image:
        raise InputError(f"{image}: the build determines the digest", "leave it out")


def _trainers(project: Project) -> tuple[str, ...]:
    """Return the trainer's images in the inventory's registry.

    They are the images of the jobs with `train:` and of the servers.
    """
    registry = project.inventory.registry
    fix = "name the image, as in: kit image build registry.lab:5000/trainer:0.2.0"
    if registry is None:
        raise InputError(
            f"{project.inventory.file} names no registry",
            f"write `registry: {{address: registry.lab:5000}}` into it, or {fix}",
        )
    every = {job.image for job in project.jobs if job.train is not None}
    every |= {server.image for server in project.servers}
    own = sorted(name for name in every if name.startswith(f"{registry.address}/"))
    names = tuple(name for name in own if "@" not in name)
    if not names:
        others = f": they use {', '.join(sorted(every))}" if every else ""
        what = (
            f"no server or job with `train:` has an image with a tag in {registry.address}{others}"
        )
        raise InputError(what, fix)
    return names


def _engine(hosts: Sequence[Host], on: str | None) -> Docker:
    if on is None:
        return Docker(HERE, None)
    chosen = next((host for host in hosts if host.name == on), None)
    if chosen is None:
        names = [host.name for host in hosts]
        raise InputError(f"--on {on}: there is no such host in the inventory", nearest(on, names))
    return Docker.of(chosen)


def _registry_engine(lowered: Lowered, on: str | None) -> Docker:
    """Return the engine that asks the registries: with Swarm the manager's, which also pulls."""
    if on is None and lowered.managers:
        return Docker.of(lowered.managers[0])
    return _engine(lowered.plan.hosts, on)


def _lockable(lowered: Lowered) -> tuple[str, ...]:
    known = (*lowered.images, *lowered.optional_images)
    if not known:
        raise InputError(
            f"with engine {lowered.engine} and these jobs there is no image to lock",
            "only images of jobs with engine compose or swarm are locked",
        )
    return known


def _digests(
    engine: Docker, names: Iterable[str], optional: Collection[str], say: Say
) -> dict[str, Locked]:
    """Return the digests and platforms of images.

    Raises:
        KitError: Some digests cannot be read; the message names each one and its reason.
    """
    trainer.require(engine)
    digests, failures = {}, []
    for name in names:
        say(f"asking for {name} from {engine.name}")
        try:
            digests[name] = locked(engine, name)
        except KitError as error:
            if name in optional:  # Many clusters cannot reach Docker Hub.
                say(f"skipped, because no host runs it: {error.message}")
                continue
            failures.append(str(error))
    if failures:  # Somebody would commit half a lock.
        raise KitError("\n".join(failures), "images.lock was not changed")
    return digests


def _differences(before: Lock, after: Lock) -> Iterable[str]:
    for name in sorted({*before, *after}):
        old, new = before.get(name), after.get(name)
        if new is None:
            yield f"- {name}: no longer used"
            continue
        found = f"{new.digest} ({', '.join(new.platforms)})" if new.platforms else new.digest
        if old is None:
            yield f"+ {name}: {found}"
        elif old.digest != new.digest:
            yield f"~ {name}: {found}, was {old.digest}"


def _digests_of(lock: Lock) -> dict[str, str]:
    return {name: entry.digest for name, entry in lock.items()}


def _checked(path: Path, before: Lock, after: Lock) -> int:
    if _digests_of(before) == _digests_of(after):  # A lock of an older version has no platforms.
        return 0
    click.echo(
        f"kit: {path} differs from the registries\nrun `kit image lock`, then `kit render`",
        err=True,
    )
    return 1


def _write(path: Path, lock: Lock) -> None:
    try:
        files.replace_alone(path, lock_text(lock))
    except OSError as error:
        raise KitError(f"{path}: cannot be written: {error.strerror}") from None
