"""The content of volumes and folders on the hosts, read through Docker."""

from __future__ import annotations

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
    images = docker.get("/images/json")
    if not images:
        what = f"{docker.name}: it has no image, which kit needs to read the {kind} {source}"
        raise KitError(what)
    mount = {"Type": kind, "Source": source, "Target": FOLDER, "ReadOnly": True}
    body = {"Image": images[0]["Id"], "Cmd": ["none"], "HostConfig": {"Mounts": [mount]}}
    made = docker.post("/containers/create", body)["Id"]
    try:
        return docker.read(f"/containers/{made}/archive", path=f"{FOLDER}/{below}.")
    finally:
        docker.request("DELETE", f"/containers/{made}", None, None, force="1")
