"""The playbooks of docs/how-to/git.md: Ansible deploys the rendered files without kit.

Only Ansible's own modules can show what they read from the files and change on the engines.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Docker
from tests.lab.conftest import CLUSTER, Lab, wait_for
from tests.lab.operator import Operator, make_operator
from tests.lab.settings import BASE
from tests.lab.test_compose import JOB
from tests.lab.test_swarm import on
from tests.sandbox import ROOT, Project

pytestmark = [pytest.mark.lab, pytest.mark.long]
PROGRAM = ROOT / ".tools" / "ansible" / "bin" / "ansible-playbook"
PAGE = (ROOT / "docs/how-to/git.md").read_text(encoding="utf-8")
HOSTS = ("n1", "n2")
# A node has python3-minimal; Ansible's modules need more of it, which the trainings' image has.
PYTHON = "/opt/whole/bin/python3"
WHOLE_PYTHON = f"""\
set -e -o pipefail
mkdir -p /opt/whole
docker run --rm --entrypoint tar {BASE} -c -C /usr bin lib | tar -x -C /opt/whole
{PYTHON} -c 'import json, zipfile'
"""


def playbook(name: str) -> str:
    """Return a playbook of the page, with the lab's names."""
    found = re.search(rf"```yaml\n# {re.escape(name)}\n(.*?)```", PAGE, re.DOTALL)
    assert found, name
    text = found[1].replace("user1@", "root@").replace("pool", CLUSTER)
    for here, there in zip(HOSTS, ("pc1", "pc2"), strict=True):
        text = text.replace(there, here)
    return text


def plays(operator: Operator, name: str) -> dict[str, int]:
    """Run a playbook of the page; return the numbers of its recap, summed over all hosts."""
    folder = operator.project.folder
    (folder / name).write_text(playbook(name), encoding="utf-8")
    own = (
        f"ansible_user=root ansible_ssh_common_args='-F {operator.lab.settings.ssh_config}' "
        f"ansible_python_interpreter={PYTHON}"
    )
    (folder / "hosts.ini").write_text("".join(f"{host} {own}\n" for host in HOSTS))
    done = subprocess.run(
        [PROGRAM, "-i", "hosts.ini", name],
        cwd=folder,
        env={**operator.env, "ANSIBLE_LOCALHOST_WARNING": "false", "LC_ALL": "C.UTF-8"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    recap: dict[str, int] = {}
    for word, number in re.findall(r"(\w+)=(\d+)", done.stdout.partition("PLAY RECAP")[2]):
        recap[word] = recap.get(word, 0) + int(number)
    return recap


@pytest.fixture(params=["swarm", "compose"])
def operator(
    request: pytest.FixtureRequest, lab: Lab, project: Project, docker: Docker
) -> Iterator[Operator]:
    """A project whose job nobody has deployed."""
    if not PROGRAM.exists() and not os.environ.get("CI"):
        pytest.skip("Ansible is not installed for tests: make .tools/.ansible")
    made = make_operator(lab, project, docker, request.param)
    made.write({"digits": JOB + "hosts: {min: 1}\n"})
    if request.param == "compose":
        for host in HOSTS:
            on(lab, host, f"bash <<'END'\n{WHOLE_PYTHON}\nEND")
        plugin = Path(docker.env["DOCKER_CONFIG"]) / "cli-plugins" / "docker-compose"
        for host in HOSTS:
            place = "/usr/local/lib/docker/cli-plugins"
            copy = f"mkdir -p {place} && cat >{place}/docker-compose && chmod +x {place}/*"
            ssh = ("ssh", "-F", str(lab.settings.ssh_config), host, copy)
            with plugin.open("rb") as program:
                subprocess.run(ssh, stdin=program, check=True, timeout=120)
    try:
        yield made
    finally:
        with contextlib.suppress(AssertionError):
            made.kit("stop", "--all")
            if request.param == "swarm":
                lab.docker("n1", "stack", "rm", f"{CLUSTER}-platform")
        for host in HOSTS:
            lab.ssh(host, f"rm -rf /srv/{CLUSTER} /usr/local/lib/docker /opt/whole")


def test_ansible_deploys_the_rendered_files_and_kit_knows_them(operator: Operator) -> None:
    name = f"{operator.engine}.yml"
    assert plays(operator, name)["changed"] > 0
    wait_for(operator.trains, "a checkpoint")
    assert plays(operator, name)["changed"] == 0
    assert operator.status()["state"] == "running"
    assert "nothing to do: everything is up to date" in operator.kit("deploy", "--dry-run")
