"""The image of a server that is not the trainer's: no Python, no curl; also with HAProxy."""

from __future__ import annotations

from tests.lab.conftest import Lab
from tests.lab.host import Engine, locked, run
from tests.lab.images import root_file_system
from tests.lab.settings import REGISTRY

WEB = f"{REGISTRY}/web:lab"
PACKAGES = ["busybox-static", "haproxy"]


def web_image(lab: Lab) -> str:
    """Make the image of Debian's packages in a node, push it, and return its name."""
    with locked(lab.settings):  # The tests of other labs want the same tree.
        tar = root_file_system(lab.settings, "web", lab.settings.suite, PACKAGES)
    inside = Engine(lab.settings).command("exec", "-i", lab.settings.container("n1"))
    run(*inside, "docker", "import", "-", WEB, stdin=tar.read_bytes())
    run(*inside, "docker", "push", "-q", WEB)
    return WEB
