"""`kit host prepare` on nodes that begin without any of it, over real SSH, with real packages."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.conftest import Docker
from tests.lab import toolkit
from tests.lab.conftest import Lab
from tests.lab.operator import Operator, make_operator
from tests.lab.settings import LabError
from tests.lab.test_lab import seen
from tests.sandbox import Project

pytestmark = pytest.mark.lab
USER1 = ("ssh: root@n2", "ssh: user1@n2")
USER2 = ("ssh: root@n2", "ssh: user2@n2")
CONFIG = "/etc/docker/daemon.json"


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def mirror(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A mirror of NVIDIA's repository that the nodes reach."""
    folder = tmp_path_factory.mktemp("mirror")
    try:
        toolkit.repository(folder)
    except LabError as error:
        if os.environ.get("CI"):
            pytest.fail(str(error))
        pytest.skip(str(error))
    address = f"{lab.settings.network}.1"
    with ThreadingHTTPServer((address, 0), partial(Quiet, directory=folder)) as server:
        threading.Thread(target=server.serve_forever).start()
        yield f"http://{address}:{server.server_port}"
        server.shutdown()


@pytest.fixture
def operator(lab: Lab, project: Project, docker: Docker) -> Operator:
    return make_operator(lab, project, docker, "swarm")


@pytest.fixture(scope="module")
def whole_again(lab: Lab) -> Iterator[None]:
    """After all of these tests, n2 has what the lab's nodes have, and is in the swarm."""
    yield
    lab.do("bare", "n2")
    lab.do("gpus", "n2", "TITAN RTX", "Quadro GV100")
    lab.do("swarm")


@pytest.fixture
def bare(lab: Lab, whole_again: None) -> None:
    """n2 has its driver and Docker alone, and is in no swarm."""
    lab.do("bare", "n2")


def on(lab: Lab, node: str, command: str) -> str:
    done = lab.ssh(node, command)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.usefixtures("bare")
def test_a_bare_host_runs_gpu_containers_after_one_command(
    operator: Operator, lab: Lab, mirror: str
) -> None:
    operator.write({}, USER1)
    own = ("host", "prepare", "n2", "--toolkit", mirror)
    told = operator.kit(*own, "--check", status=1)
    for change in (
        "add user1 to the group docker",
        f"install NVIDIA's container toolkit from {mirror}",
        f"{CONFIG}: add what kit needs",
        "restart Docker: containers=0 swarm=inactive",
    ):
        assert f"  change   {change}" in told
    assert lab.ssh("n2", f"test -e {CONFIG} || command -v nvidia-ctk").returncode != 0
    assert "without a terminal kit cannot ask" in operator.kit(*own, "--run", status=2)

    done = operator.kit(*own, "--run", "--yes")
    assert "1 host prepared in " in done
    first, second = lab.uuids("n2")
    assert seen(lab, "n2", "--env", f"NVIDIA_VISIBLE_DEVICES={second}") == [second]
    # The engine finds the hook of the package, which it looks for when it starts.
    assert seen(lab, "n2", "--gpus", f"device={first}") == [first]
    # A new login is in the group.
    assert "Swarm: inactive" in on(lab, "user1@n2", "docker info")

    before = on(lab, "n2", f"cat /run/docker.pid; stat -c %Y {CONFIG}")
    assert operator.kit(*own, "--run", "--yes").endswith("nothing to change\n")
    assert operator.kit(*own, "--check").endswith("nothing to change\n")
    assert on(lab, "n2", f"cat /run/docker.pid; stat -c %Y {CONFIG}") == before
    # The same by hand, in the tree.
    tree = operator.project.folder / "compose" / "test"
    assert json.loads((tree / "hosts/n2/daemon.json").read_text()) == json.loads(
        on(lab, "n2", f"cat {CONFIG}")
    )


@pytest.mark.usefixtures("bare")
def test_an_operators_own_settings_stay_and_conflicts_are_told(
    operator: Operator, lab: Lab, tmp_path: Path
) -> None:
    operator.write({}, USER1)
    lab.do("toolkit", str(tmp_path))
    own = ("host", "prepare", "n2", "--toolkit", str(tmp_path))
    on(lab, "n2", f"""echo '{{"default-runtime": "crun"}}' >{CONFIG}""")
    told = operator.kit(*own, "--run", "--yes", status=2)
    assert f'problem  {CONFIG}: "default-runtime" is "crun"; kit needs "nvidia"' in told
    assert "n2: cannot be prepared as it is; no host was changed" in told
    assert on(lab, "n2", f"cat {CONFIG}") == '{"default-runtime": "crun"}\n'
    assert lab.ssh("n2", "command -v nvidia-ctk").returncode != 0

    # As NVIDIA's playbook leaves a host, and the toolkit's own file of configuration.
    uuid = lab.uuids("n2")[0]
    text = json.dumps({"labels": ["rack=7"], "node-generic-resources": [f"NVIDIA_GPU={uuid}"]})
    on(lab, "n2", f"echo '{text}' >{CONFIG}; mkdir -p /etc/nvidia-container-runtime")
    toml = "/etc/nvidia-container-runtime/config.toml"
    on(lab, "n2", f"""echo 'swarm-resource = "DOCKER_RESOURCE_GPU"' >{toml}""")
    operator.kit(*own, "--run", "--yes")
    told = operator.kit("host", "prepare", "n2", "--check")
    assert "swarm-resource names DOCKER_RESOURCE_GPU, as after NVIDIA's Swarm playbook" in told
    merged = json.loads(on(lab, "n2", f"cat {CONFIG}"))
    assert merged["labels"] == ["rack=7"]
    kinds = [each.partition("=")[0] for each in merged["node-generic-resources"]]
    assert kinds == ["NVIDIA_GPU", "kit_gpu", "kit_gpu"]
    assert json.loads(on(lab, "n2", f"cat {CONFIG}.before-kit-*")) == json.loads(text)
    assert lab.docker("n2", "info", "--format", "{{.Labels}}") == "[rack=7]"

    # A registry alone needs no restart.
    pid = on(lab, "n2", "cat /run/docker.pid")
    address = f"{lab.settings.address('n1')}:5000"
    own_registry = f"registry: {{address: '{address}', host: n1}}"
    registry = ("network: {speed: 1Gbit}", f"network: {{speed: 1Gbit}}\n{own_registry}")
    operator.write({}, USER1, registry)
    assert "restart Docker" not in operator.kit("host", "prepare", "n2", "--run", "--yes")
    assert address in lab.docker("n2", "info", "--format", "{{json .RegistryConfig}}")
    assert on(lab, "n2", "cat /run/docker.pid") == pid


def test_a_password_for_sudo_needs_a_terminal(operator: Operator, lab: Lab) -> None:
    operator.write({}, USER2)
    told = operator.kit("host", "prepare", "n2", "--check", status=1)
    assert "kit: n2: sudo asks for a password" in told
