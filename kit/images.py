"""The trainer's image: built from the installed package `trainer`, and pushed to a registry."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import cast

from kit.errors import InputError, KitError
from kit.hosts.connection import EngineError
from kit.hosts.docker import Docker
from kit.registry import explained
from kit.values import Say

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
    (r"buildx|BuildKit", "install the plugin docker-buildx-plugin (docker-buildx of Debian) here"),
)


def build(engine: Docker, images: Iterable[str], base: str | None, trainer: Path, say: Say) -> None:
    """Build the trainer's image with all names of `images`; `trainer` is the package's folder.

    Raises:
        KitError: There is no engine, or the build failed and its output was printed.
    """
    images = list(images)
    require(engine)
    say(f"building {', '.join(images)} on {engine.name}")
    arguments = {"BASE_IMAGE": base} if base else {}
    with _context(trainer) as folder:
        try:
            _build(engine, folder, images, arguments, say)
        except KitError as error:
            raise _build_failure(error, engine.name) from None


def _build(
    engine: Docker, folder: Path, images: list[str], arguments: dict[str, str], say: Say
) -> None:
    with engine.acting("the build failed") as docker:
        if not docker.buildx.is_installed():
            docker.legacy_build(folder, build_args=arguments, tags=images, quiet=False)
            return
        # The default builder puts the image into this engine, whichever builder is selected here.
        # Without provenance equal files give equal digests.
        lines = docker.buildx.build(
            folder,
            build_args=arguments,
            builder="default",
            progress="plain",
            provenance=False,
            stream_logs=True,
            tags=images,
        )
        for line in cast(Iterator[str], lines):
            say(line.rstrip())


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
