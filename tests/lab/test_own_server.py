"""A server of one's own on real engines: health, faults, secrets, GPUs, updates."""

from __future__ import annotations

import contextlib
import json
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from tests.conftest import Docker
from tests.lab.conftest import Lab, wait_for
from tests.lab.operator import Operator, make_operator
from tests.lab.web import web_image
from tests.sandbox import Project

pytestmark = pytest.mark.lab
PORT = 9000
SECRET = "hush-7"
COMMAND = "mkdir -p /tmp/www && cd /tmp/www && {before} exec busybox httpd -f -p {port} -h /tmp/www"


def server(image: str, before: str, port: int = PORT, timeout: str = "40s") -> str:
    command = ["sh", "-c", COMMAND.format(before=before, port=port)]
    return (
        f"image: {image}\ncommand: {json.dumps(command)}\nport: {PORT}\nstart_timeout: {timeout}\n"
    )


BOTH = pytest.mark.parametrize("operator", ["compose", "swarm"], indirect=True)
"""On both engines."""


@pytest.fixture
def operator(
    lab: Lab, project: Project, docker: Docker, request: pytest.FixtureRequest
) -> Iterator[Operator]:
    made = make_operator(lab, project, docker, request.param)
    made.write({}, servers={})
    made.split("--infer", "n1:0", "--infer", "n2:0")
    if made.engine == "swarm":
        made.kit("swarm", "up", "--yes")
    try:
        yield made
    finally:
        with contextlib.suppress(AssertionError):
            print(made.kit("status"), *made.kit("logs").splitlines()[-30:], sep="\n")
            made.kit("stop", "--all")


def describe(operator: Operator, text: str) -> None:
    operator.project.write(None, {}, {"web": text})
    operator.kit("render")


def fetch(operator: Operator, node: str, path: str) -> str:
    url = f"http://{operator.lab.settings.address(node)}:{PORT}{path}"
    return str(urllib.request.urlopen(url, timeout=5).read().decode()).strip()


@BOTH
def test_it_serves_from_its_gpus(operator: Operator, lab: Lab) -> None:
    image = web_image(lab)
    waits = "until [ -e go ]; do sleep 0.2; done"
    slow = f"cp /run/secrets/KEY key && echo $KIT_GPUS >gpus && {waits} && touch health &&"
    keyed = server(image, slow) + "secrets: {KEY: env}\n"
    describe(operator, keyed)
    missing = operator.kit("deploy", status=2)
    assert "serve-web: secret KEY: the variable is not set here" in missing

    deploy = operator.start("deploy", KEY=SECRET)
    assert deploy.stdout is not None
    assert any(f"not healthy: nothing listens on port {PORT}" in line for line in deploy.stdout)
    for node in ("n1", "n2"):
        go = "docker exec $(docker ps --quiet --filter name=serve-web) touch /tmp/www/go"
        wait_for(lambda: lab.ssh(node, go).returncode == 0, f"the server on {node}")  # noqa: B023
    output, _ = deploy.communicate(timeout=120)
    assert "serve-web: healthy" in output
    assert fetch(operator, "n2", "/key") == fetch(operator, "n1", "/key") == SECRET
    assert fetch(operator, "n2", "/gpus") == "1"
    hosts = {host["host"]: host for host in operator.status("serve-web")["hosts"]}
    assert {name: host["healthy"] for name, host in hosts.items()} == {"n2": True, "n1": True}
    # nvidia-smi in each container lists the GPUs that it was given.
    assert {name: host["seen"] for name, host in hosts.items()} == {
        "n2": lab.uuids("n2")[:1],
        "n1": lab.uuids("n1")[:1],
    }
    assert SECRET not in "".join(
        path.read_text() for path in (operator.project.folder / "compose").rglob("*.yaml")
    )

    # A GPU back to training: its host serves no longer, the other still does.
    operator.split("--train", "n1:0")
    operator.kit("deploy", KEY=SECRET)
    assert [host["host"] for host in operator.status("serve-web")["hosts"]] == ["n2"]
    with pytest.raises(OSError, match=r"refused|reset"):
        fetch(operator, "n1", "/key")
    assert fetch(operator, "n2", "/key") == SECRET
    operator.kit("stop", "serve-web")
    with pytest.raises(OSError, match=r"refused|reset"):
        fetch(operator, "n2", "/key")


FAULTS: dict[str, tuple[dict[str, Any], str, str]] = {
    "never healthy": (
        {"before": ""},
        "serve-web was not healthy within 15 s",
        "it answers 404 at /health: correct `health:`",
    ),
    "the wrong port": (
        {"before": "touch health &&", "port": 9001},
        "serve-web was not healthy within 15 s",
        "not healthy: nothing listens on port 9000",
    ),
    "it ends again and again": (
        {"before": "echo has no model; sleep 1; exit 3;"},
        "serve-web",
        "has no model",
    ),
}


# What a server answers is looked at by the same code; how it ends is told by the engine.
@pytest.mark.parametrize(
    ("operator", "fault"),
    [
        ("compose", "never healthy"),
        ("swarm", "the wrong port"),
        ("compose", "it ends again and again"),
        ("swarm", "it ends again and again"),
    ],
    indirect=["operator"],
)
def test_a_fault_ends_the_deploy(operator: Operator, lab: Lab, fault: str) -> None:
    values, *said = FAULTS[fault]
    describe(operator, server(web_image(lab), timeout="15s", **values))
    output = operator.kit("deploy", status=1)
    if "no model" in values["before"]:
        # While it runs for its second, nobody knows with what it has ended before.
        assert "exit status 3" in output or "ends again and again" in output
        output += operator.kit("logs", "serve-web")
    for text in said:
        assert text in output
    assert "kit logs serve-web" in output or "kit stop serve-web" in output
    reasons = ("healthy", "exit status 3", "restarting")
    # A container that is started again is without a fault until it has one.
    wait_for(lambda: any(each in operator.kit("status") for each in reasons), "the fault in status")
