"""kit image in the lab: a real build, real registries, and stacks that run the built image."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from kit.lock import read_lock
from tests.conftest import Docker
from tests.lab.conftest import Lab, wait_for
from tests.lab.settings import BASE
from tests.sandbox import JOB, Project, Result, kit_process

pytestmark = pytest.mark.lab

PYTORCH = "registry.lab:5000/pytorch:lab"
IMAGE = "registry.lab:5000/trainer:own"
REGISTRY = "registry.lab:5000/registry:lab"
TRAINING = JOB.replace("registry.lab:5000/trainer:0.2.0", IMAGE) + "hosts: {names: [n2]}\n"
# As pytorch/pytorch: Python finds PyTorch, pip, and what the trainer needs beside.
PYTORCH_FILE = f"""\
FROM {BASE}
ENV KIT_LAB_TORCH=/opt/torch PYTHONPATH=/opt/torch PIP_BREAK_SYSTEM_PACKAGES=1
"""
# As registry:2: it listens on 5000 and keeps everything in /var/lib/registry.
REGISTRY_FILES = f"""\
cp /usr/bin/docker-registry .
echo '{{version: 0.1, http: {{addr: ":5000"}}, log: {{level: warn}},
  storage: {{filesystem: {{rootdirectory: /var/lib/registry}}}}}}' >config.yml
echo 'FROM {BASE}
COPY docker-registry config.yml /
ENTRYPOINT ["/docker-registry", "serve", "/config.yml"]' >Dockerfile
"""
PRIVATE = "127.0.0.1:5002"
PASSWORDS = "user:$2b$04$ia7r47yhHkrp/qUc2hss4OxaboNDLR86TiJwCjvgz8vEhNzK5Xd5m"  # "secret"


def on(lab: Lab, node: str, script: str) -> str:
    ended = lab.ssh(node, script)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip()


@pytest.fixture(scope="module")
def base(lab: Lab) -> str:
    """A base image on n1, on which the trainer's image needs no package index."""
    on(lab, "n1", f"echo '{PYTORCH_FILE}' | DOCKER_BUILDKIT=0 docker build -q -t {PYTORCH} -")
    return PYTORCH


@pytest.fixture(scope="module")
def registry_image(lab: Lab) -> str:
    """A stand-in for registry:2, in the lab's own registry."""
    build = f"DOCKER_BUILDKIT=0 docker build -q -t {REGISTRY} . && docker push -q {REGISTRY}"
    on(lab, "n1", f"set -e; mkdir -p /tmp/registry; cd /tmp/registry; {REGISTRY_FILES} {build}")
    return REGISTRY


@pytest.fixture
def reach(lab: Lab, monkeypatch: pytest.MonkeyPatch, docker: Docker, tmp_path: Path) -> None:
    """Let kit's docker and ssh reach the nodes, with separate logins."""
    # This docker goes before the machine's, which may be older.
    monkeypatch.setenv("PATH", f"{Path(docker.program).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PATH", lab.environment("n1")["PATH"])
    config = tmp_path / "docker"
    config.mkdir()
    monkeypatch.setenv("DOCKER_CONFIG", str(config))


def image(project: Project, *arguments: str) -> Result:
    """Run kit image in a separate process, as python-on-whales leaves files open."""
    return kit_process(project.folder, "image", *arguments)


def done(project: Project, *arguments: str) -> str:
    """Run kit image, which must succeed; return its output."""
    result = image(project, *arguments)
    assert result.status == 0, result.err + result.out
    return result.out


def label(lab: Lab, tree: Path) -> None:
    env = lab.environment("n1")
    subprocess.run(["sh", "label-nodes.sh"], cwd=tree, check=True, capture_output=True, env=env)


def stack(lab: Lab, tree: Path, file: str, name: str) -> None:
    deploy = ("docker", "stack", "deploy", "--detach=true", "-c", file, name)
    subprocess.run(deploy, cwd=tree, check=True, capture_output=True, env=lab.environment("n1"))


def remove(lab: Lab, name: str) -> None:
    lab.docker("n1", "stack", "rm", name)
    for what in (("ps", "-aq"), ("network", "ls", "-q")):
        label = f"label=com.docker.stack.namespace={name}"
        for node in ("n1", "n2", "n3"):
            wait_for(lambda: not lab.docker(node, *what, "--filter", label), f"the end of {name}")  # noqa: B023


def running(lab: Lab, node: str, service: str) -> list[str]:
    """Return the images of a service's running containers, as their node has them."""
    label = f"label=com.docker.swarm.service.name={service}"
    found = lab.docker(node, "ps", "-q", "--filter", label).split()
    form = ("inspect", "--format", "{{.Config.Image}} {{.Image}}")
    return lab.docker(node, *form, *found).splitlines() if found else []


def first(lab: Lab, node: str, service: str) -> str:
    """Return the image of the first container of a service that is seen; it may start again."""
    seen = list[str]()

    def look() -> bool:
        seen.extend(running(lab, node, service))
        return bool(seen)

    wait_for(look, f"{service} to run")
    return seen[0]


@pytest.mark.usefixtures("reach")
def test_all_hosts_run_the_bytes_that_were_locked(lab: Lab, base: str, project: Project) -> None:
    inventory = lab.inventory() + "\nregistry: {address: registry.lab:5000}\n"
    # It runs until the test has seen it.
    project.write(inventory, {"digits": TRAINING.replace("epochs: 10", "epochs: 9999")})
    missing = image(project, "lock")
    assert missing.status == 1
    assert f"kit: {IMAGE}: n1: Docker: manifest unknown" in missing.err
    assert "and that it was pushed (`kit image build`, `kit image push`)" in missing.err
    assert not (project.folder / "images.lock").exists()

    built = done(project, "build", "--on", "n1", "--base", base)
    assert built.endswith(f"built {IMAGE}; next: kit image push --on n1\n")
    done(project, "push", "--on", "n1")
    said = done(project, "lock")
    digest = (read_lock(project.folder / "images.lock") or {})[IMAGE]
    assert f"+ {IMAGE}: {digest}" in said
    # The tag gets a new image; the locked image still runs.
    again = f"echo 'FROM {IMAGE}\nLABEL newer=yes' | DOCKER_BUILDKIT=0 docker build -q -t {IMAGE} -"
    on(lab, "n1", f"{again} && docker push -q {IMAGE}")
    assert image(project, "lock", "--check").status == 1

    tree = project.rendered(cluster="test")
    label(lab, tree)
    try:
        stack(lab, tree, "platform.stack.yaml", "test-platform")
        stack(lab, tree, "train-digits.stack.yaml", "train-digits")
        runs = first(lab, "n2", "train-digits_train-on-n2")
        moved = lab.docker("n1", "image", "inspect", "--format", "{{.Id}}", IMAGE)
        assert runs.split()[0] == f"{IMAGE}@{digest}"
        assert runs.split()[1] != moved
        assert first(lab, "n1", "train-digits_rendezvous") == runs
    finally:
        remove(lab, "train-digits")
        remove(lab, "test-platform")


@pytest.fixture
def told(lab: Lab) -> Iterator[list[str]]:
    """Nodes whose daemon.json a test has replaced; it is restored afterwards."""
    nodes: list[str] = []
    before = {node: on(lab, node, "cat /etc/docker/daemon.json") for node in ("n2", "n3")}
    yield nodes
    for node in nodes:
        configure(lab, node, before[node])


def configure(lab: Lab, node: str, daemon: str) -> None:
    """Write daemon.json and let the engine read it: registries need no restart."""
    on(lab, node, f"echo '{daemon}' >/etc/docker/daemon.json; kill -HUP $(pidof dockerd)")
    wanted = json.loads(daemon).get("insecure-registries", [])
    form = ("info", "--format", "{{json .RegistryConfig.IndexConfigs}}")
    wait_for(lambda: all(one in lab.docker(node, *form) for one in wanted), f"{node} to know")


@pytest.mark.usefixtures("reach")
def test_kit_serves_a_registry(
    lab: Lab, registry_image: str, project: Project, told: list[str]
) -> None:
    inventory = lab.inventory()
    inventory += f"\nregistry: {{address: 'n3:5001', host: n3, image: '{registry_image}'}}\n"
    own = IMAGE.replace("registry.lab:5000", "n3:5001")
    project.write(inventory, {"digits": TRAINING.replace(IMAGE, own)})
    done(project, "lock", registry_image)
    tree = project.rendered(cluster="test")
    assert f"{registry_image}@sha256:" in (tree / "platform.stack.yaml").read_text()
    label(lab, tree)
    try:
        stack(lab, tree, "platform.stack.yaml", "test-platform")
        wait_for(partial(running, lab, "n3", "test-platform_registry"), "the registry")
        lab.docker("n2", "pull", "-q", BASE)
        lab.docker("n2", "tag", BASE, own)
        refused = image(project, "push", "--on", "n2")
        assert refused.status == 1
        assert "n3:5001 has no certificate" in refused.err
        assert '"insecure-registries": ["n3:5001"]' in refused.err
        for node in ("n2", "n3"):
            told.append(node)
            configure(lab, node, (tree / "hosts" / node / "daemon.json").read_text())
        done(project, "push", "--on", "n2")
        done(project, "lock", "--on", "n3")
        digest = (read_lock(project.folder / "images.lock") or {})[own]
        lab.docker("n3", "pull", "-q", f"{own}@{digest}")
        # Its images remain.
        remove(lab, "test-platform")
        stack(lab, tree, "platform.stack.yaml", "test-platform")
        wait_for(partial(running, lab, "n3", "test-platform_registry"), "the registry")
        wait_for(lambda: image(project, "lock", "--on", "n3", "--check").status == 0, "it")
    finally:
        remove(lab, "test-platform")


@pytest.mark.usefixtures("reach")
def test_a_registry_with_passwords(lab: Lab, registry_image: str, project: Project) -> None:
    own = f"{PRIVATE}/trainer:own"
    project.write(lab.inventory(), {"digits": TRAINING.replace(IMAGE, own)})
    setting = "-e REGISTRY_AUTH=htpasswd -e REGISTRY_AUTH_HTPASSWD_REALM=lab"
    setting += " -e REGISTRY_AUTH_HTPASSWD_PATH=/passwords -v /tmp/passwords:/passwords:ro"
    on(lab, "n1", f"echo '{PASSWORDS}' >/tmp/passwords; docker tag {BASE} {own}")
    on(lab, "n1", f"docker run -d --name private -p 5002:5000 {setting} {registry_image}")
    try:
        for arguments in (["push", own, "--on", "n1"], ["lock"]):
            refused = image(project, *arguments)
            assert refused.status == 1
            assert (
                f"log in here as a user with access: docker -H ssh://root@n1 login {PRIVATE}"
                in (refused.err)
            )
        login = ["docker", "-H", "ssh://root@n1", "login", PRIVATE, "-u", "user", "-p", "secret"]
        subprocess.run(login, check=True, capture_output=True)
        done(project, "push", own, "--on", "n1")
        done(project, "lock")
        assert own in (read_lock(project.folder / "images.lock") or {})
    finally:
        lab.docker("n1", "rm", "--force", "--volumes", "private")


@pytest.mark.usefixtures("reach")
def test_what_stops_a_build_is_told(lab: Lab, project: Project) -> None:
    project.write(lab.inventory(), {"digits": TRAINING})
    for base, said in {
        "registry.lab:5000/nothing:1": "check the name of the base image, and that n1 reaches its",
        BASE: "see the error of pip above. It needs access to PyPI",
    }.items():
        result = image(project, "build", IMAGE, "--on", "n1", "--base", base)
        assert result.status == 1
        assert "kit: n1: the build failed: " in result.err
        assert said in result.err
    unbuilt = image(project, "push", "registry.lab:5000/other:1", "--on", "n1")
    assert unbuilt.err == (
        "kit: registry.lab:5000/other:1: n1 has no such image\nrun `kit image build` first\n"
    )
