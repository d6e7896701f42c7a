"""The trainer's image: built from the installed package `trainer`, and pushed to a registry."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import cast

from kit.builders import Node, make_builder
from kit.errors import InputError, KitError
from kit.hosts.connection import EngineError
from kit.hosts.docker import Docker
from kit.registry import explained
from kit.values import Say

BUILDX = "install the plugin docker-buildx-plugin (docker-buildx of Debian) here"
# Patterns in the output of a build, each with its hint.
_FAILURES = (
    (
        r"pip install",
        "see the error of pip above. It needs access to PyPI, or settings for a mirror in the\n"
        "base image; neither if the base image contains these packages: --base IMAGE",
    ),
    (
        r"pull access denied|manifest unknown|not found|no such host|connection refused|timeout",
        "check the name of the base image, and that {engine} reaches its registry;\n"
        "for another image with PyTorch: --base IMAGE",
    ),
    (
        r"exec format error",
        "{engine} does not run programs of that platform: build on a host that has it (--on), or\n"
        "install the emulation: docker run --privileged --rm tonistiigi/binfmt --install all",
    ),
    (r"buildx|BuildKit", BUILDX),
)


@dataclass(frozen=True, slots=True)
class Build:
    """A build of the trainer's image under all names of `images`.

    `base` is the base image (None: the Dockerfile's). With several `platforms` the result is
    pushed: an engine cannot store two images under one name.
    """

    images: tuple[str, ...]
    base: str | None = None
    platforms: tuple[str, ...] = ()

    @property
    def several(self) -> bool:
        """Whether it builds for several platforms."""
        return len(self.platforms) > 1


def build(
    engine: Docker,
    wanted: Build,
    trainer: Path,
    say: Say,
    nodes: Sequence[Node] = (),
    http: str = "",
) -> None:
    """Build the trainer's image; `trainer` is the package's folder.

    For several platforms, each of the `nodes` builds its own, and the result is pushed to the
    registry. `http` is a registry without TLS.

    Raises:
        KitError: There is no engine, or the build failed and its output was printed.
    """
    require(engine)
    say(f"building {', '.join(wanted.images)} on {engine.name}")
    with _context(trainer) as folder:
        try:
            _build(engine, folder, wanted, say, nodes, http)
        except KitError as error:
            raise _build_failure(error, engine.name) from None


def _build(
    engine: Docker, folder: Path, wanted: Build, say: Say, nodes: Sequence[Node], http: str
) -> None:
    arguments = {"BASE_IMAGE": wanted.base} if wanted.base else {}
    labels = labels_of(wanted.base or default_base((folder / "Dockerfile").read_text()))
    with engine.acting("the build failed") as docker:
        if not docker.buildx.is_installed():
            if wanted.platforms:
                raise KitError("the build for named platforms needs buildx", BUILDX)
            tags = list(wanted.images)
            docker.legacy_build(folder, build_args=arguments, labels=labels, tags=tags, quiet=False)
            return
        # The default builder stores the image in this engine; another builder may be selected here.
        # Without provenance equal files give equal digests.
        lines = docker.buildx.build(
            folder,
            build_args=arguments,
            builder=make_builder(engine, nodes, http, say) if wanted.several else "default",
            labels=labels,
            platforms=list(wanted.platforms) or None,
            progress="plain",
            provenance=False,
            push=wanted.several,
            stream_logs=True,
            tags=list(wanted.images),
        )
        for line in cast(Iterator[str], lines):
            say(line.rstrip())


def labels_of(base: str) -> dict[str, str]:
    """Return the labels of an image that only its build knows (OCI image-spec, annotations)."""
    name = "org.opencontainers.image"
    return {f"{name}.version": version("kit"), f"{name}.base.name": base}


def default_base(dockerfile: str) -> str:
    """Return the base image that a Dockerfile's text names."""
    (found,) = re.findall(r"^ARG BASE_IMAGE=(\S+)$", dockerfile, re.MULTILINE)
    return str(found)


def _build_failure(error: KitError, engine: str) -> KitError:
    for words, hint in _FAILURES:
        if re.search(words, error.message):
            return KitError(error.message, hint.format(engine=engine))
    return error


@contextmanager
def _context(trainer: Path) -> Iterator[Path]:
    """Yield a folder with the Dockerfile and `trainer/`, without compiled Python files.

    Modes and times are fixed, so that equal files give equal layers on every machine.
    """
    with TemporaryDirectory(prefix="kit-image-") as name:
        folder = Path(name)
        compiled = shutil.ignore_patterns("__pycache__", "Dockerfile*")
        shutil.copytree(trainer, folder / "trainer", ignore=compiled)
        for copy in (folder / "trainer", *(folder / "trainer").rglob("*")):
            copy.chmod(0o755 if copy.is_dir() else 0o644)
            os.utime(copy, (0, 0))
        shutil.copyfile(trainer / "Dockerfile", folder / "Dockerfile")
        yield folder


def push(engine: Docker, images: Iterable[str], say: Say) -> None:
    """Push images from an engine to their registries.

    Raises:
        KitError: The image does not exist, or its registry rejects it.
    """
    require(engine)
    for image in images:
        _require_image(engine, image)
        say(f"pushing {image} from {engine.name}")
        try:
            with engine.acting("the push failed") as docker:
                for _, line in docker.push(image, stream_logs=True) or ():
                    say(line.decode(errors="replace").rstrip())
        except KitError as error:
            raise explained(error, image, engine) from None


def _require_image(engine: Docker, image: str) -> None:
    try:
        engine.get(f"/images/{image}/json")
    except EngineError as error:
        if error.status != HTTPStatus.NOT_FOUND:
            raise
        what = f"{image}: {engine.name} has no such image"
        raise KitError(what, "run `kit image build` first") from None


def require(engine: Docker) -> None:
    """Check that an engine is reachable.

    Raises:
        KitError: It is not. For the local engine the hint names `--on`.
    """
    try:
        engine.get("/version")
    except InputError:
        raise
    except KitError as error:
        hint = error.hint if engine.url else "use a host's engine instead: --on HOST"
        raise KitError(error.message, hint) from None
