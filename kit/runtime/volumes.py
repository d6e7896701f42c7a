"""The content of volumes and folders on the hosts, read through Docker."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from kit.errors import KitError
from kit.hosts.connection import EngineError
from kit.hosts.docker import Docker

NOT_FOUND = 404
FOLDER = "/content"


def read_mount(docker: Docker, kind: str, source: str, below: str = "") -> bytes | None:
    """Return a folder of a volume or a bind mount as tar; None if it does not exist.

    It creates a container of any image, which never runs.

    Raises:
        KitError: The host cannot be reached, or has no image.
    """
    try:
        if kind == "volume":
            docker.get(f"/volumes/{source}")
        return _packed(docker, kind, source, below)
    except EngineError as error:
        if error.status == NOT_FOUND:
            return None
        raise


def _packed(docker: Docker, kind: str, source: str, below: str) -> bytes:
    mount = {"Type": kind, "Source": source, "Target": FOLDER, "ReadOnly": True}
    with _container(docker, _any_image(docker, kind, source), mount) as container:
        return docker.read(f"/containers/{container}/archive", path=f"{FOLDER}/{below}.")


def _any_image(docker: Docker, kind: str, source: str) -> str:
    images = docker.get("/images/json")
    if not images:
        what = f"{docker.name}: it has no image, which kit needs to read the {kind} {source}"
        raise KitError(what)
    return str(images[0]["Id"])


@contextmanager
def _container(docker: Docker, image: str, mount: Mapping[str, object]) -> Iterator[str]:
    """Yield the ID of a container that never runs."""
    body = {"Image": image, "Cmd": ["none"], "HostConfig": {"Mounts": [mount]}}
    container = docker.post("/containers/create", body)["Id"]
    try:
        yield container
    finally:
        docker.request("DELETE", f"/containers/{container}", None, None, force="1")


def has_volume(docker: Docker, name: str) -> bool:
    """Return whether a host has a volume.

    Raises:
        KitError: The host cannot be reached.
    """
    return _there(docker, f"/volumes/{name}")


def has_image(docker: Docker, name: str) -> bool:
    """Return whether a host has an image.

    Raises:
        KitError: The host cannot be reached.
    """
    return _there(docker, f"/images/{name}/json")


def _there(docker: Docker, path: str) -> bool:
    try:
        docker.get(path)
    except EngineError as error:
        if error.status != NOT_FOUND:
            raise
        return False
    return True


def copy_volume(source: Docker, target: Docker, name: str, image: str, folder: str) -> None:
    """Copy the files of a volume to the volume of that name on another host, through this machine.

    Owners and modes are kept. Docker gives a new volume the owner and the mode of `folder` in the
    first image that mounts it. This `image` is therefore the job's; it is pulled if missing.

    Raises:
        KitError: A host cannot be reached, or the files cannot be written.
    """
    if not has_image(target, image):
        with target.acting(f"pull {image}") as client:
            client.image.pull(image, quiet=True)
    read = {"Type": "volume", "Source": name, "Target": FOLDER, "ReadOnly": True}
    write = {"Type": "volume", "Source": name, "Target": folder}
    with (
        _container(source, _any_image(source, "volume", name), read) as one,
        _container(target, image, write) as other,
    ):
        source.pipe(
            f"copy the volume {name}",
            ("cp", "--archive", f"{one}:{FOLDER}/.", "-"),
            target,
            ("cp", "--archive", "-", f"{other}:{folder}"),
        )
