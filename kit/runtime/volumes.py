"""The content of volumes and folders on the hosts, read through Docker."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kit.errors import KitError
from kit.hosts.docker import Docker, EngineError

NOT_FOUND = 404
FOLDER = "/content"


def read_mount(docker: Docker, kind: str, source: str, below: str = "") -> bytes | None:
    """Return a folder of a volume or a bind mount as tar; None if it is not there.

    It creates a container of any image that never runs.

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
    with _mounted(docker, kind, source, read_only=True) as made:
        return docker.read(f"/containers/{made}/archive", path=f"{FOLDER}/{below}.")


@contextmanager
def _mounted(docker: Docker, kind: str, source: str, *, read_only: bool) -> Iterator[str]:
    """Yield the ID of a container that never runs and has the mount at FOLDER."""
    images = docker.get("/images/json")
    if not images:
        what = f"{docker.name}: it has no image, which kit needs to read the {kind} {source}"
        raise KitError(what)
    mount = {"Type": kind, "Source": source, "Target": FOLDER, "ReadOnly": read_only}
    body = {"Image": images[0]["Id"], "Cmd": ["none"], "HostConfig": {"Mounts": [mount]}}
    made = docker.post("/containers/create", body)["Id"]
    try:
        yield made
    finally:
        docker.request("DELETE", f"/containers/{made}", None, None, force="1")


def has_volume(docker: Docker, name: str) -> bool:
    """Return whether a host has a volume.

    Raises:
        KitError: The host cannot be reached.
    """
    try:
        docker.get(f"/volumes/{name}")
    except EngineError as error:
        if error.status != NOT_FOUND:
            raise
        return False
    return True


def copy_volume(source: Docker, target: Docker, name: str, image: str) -> None:
    """Copy the files of a volume to the volume of that name on another host, through this machine.

    Owners and modes stay. `image` is pulled if the other host has none.

    Raises:
        KitError: A host cannot be reached, or the files cannot be written.
    """
    if not target.get("/images/json"):
        with target.acting(f"pull {image}") as client:
            client.image.pull(image, quiet=True)
    with (
        _mounted(source, "volume", name, read_only=True) as one,
        _mounted(target, "volume", name, read_only=False) as other,
    ):
        source.pipe(
            f"copy the volume {name}",
            ("cp", "--archive", f"{one}:{FOLDER}/.", "-"),
            target,
            ("cp", "--archive", "-", f"{other}:{FOLDER}"),
        )
