"""The lab is a cluster: its nodes, GPUs, power, cables and links behave like real ones."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.conftest import Docker
from tests.lab.conftest import Lab, wait_for
from tests.lab.files import daemon_json
from tests.lab.host import remove_bridge
from tests.lab.settings import BASE, IMAGE, gpu
from tests.sandbox import JOB, ROOT, Project

# A fault of the lab fails the other tests, too. These say where it is: for whoever changes it.
pytestmark = [pytest.mark.lab, pytest.mark.long]
NODES = ["n1", "n2", "n3"]
TRAINING = JOB.replace("registry.lab:5000/trainer:0.2.0", IMAGE).replace("epochs: 10", "epochs: 1")
UNKNOWN = "GPU-00000000-0000-0000-0000-000000000000"


def ready(lab: Lab) -> set[str]:
    listed = lab.docker("n1", "node", "ls", "--format", "{{.Hostname}} {{.Status}}")
    return {line.split()[0] for line in listed.splitlines() if line.endswith(" Ready")}


def tasks(lab: Lab, service: str) -> list[str]:
    form = "{{.CurrentState}} {{.Error}}"
    return lab.docker("n1", "service", "ps", "--no-trunc", "--format", form, service).splitlines()


def complete(lab: Lab, service: str) -> bool:
    return any(line.startswith("Complete") for line in tasks(lab, service))


@pytest.fixture
def service(lab: Lab) -> Iterator[str]:
    yield "probe"
    lab.docker("n1", "service", "rm", "probe")


def create(lab: Lab, name: str, node: str, devices: str, *command: str) -> None:
    """Start a service as kit renders it: Swarm counts the GPUs, a variable names them."""
    lab.docker(
        *("n1", "service", "create", "--detach", "--name", name, "--restart-condition", "none"),
        *("--generic-resource", "kit_gpu=1", "--env", f"NVIDIA_VISIBLE_DEVICES={devices}"),
        *("--constraint", f"node.hostname=={node}", BASE, *command),
    )


def seen(lab: Lab, node: str, *options: str) -> list[str]:
    """Return the UUIDs that a container sees; a name for each device file must be there too."""
    script = "ls /dev | grep -c '^nvidia[0-9]'; nvidia-smi -L || true"
    printed = lab.docker(node, "run", "--rm", *options, BASE, "sh", "-c", script)
    files, *listed = printed.splitlines()
    found = [line.rpartition("UUID: ")[2].rstrip(")") for line in listed if "UUID" in line]
    assert len(found) == int(files)
    return found


def test_the_nodes_are_ready_and_offer_their_gpus(lab: Lab) -> None:
    assert ready(lab) == set(NODES)
    for node in NODES:
        described = json.loads(lab.docker("n1", "node", "inspect", node))[0]["Description"]
        offered = described["Resources"].get("GenericResources", [])
        named = [one["NamedResourceSpec"] for one in offered]
        assert {one["Kind"] for one in named} <= {"kit_gpu"}
        assert sorted(one["Value"] for one in named) == sorted(lab.uuids(node))


def test_to_come_up_again_changes_nothing(lab: Lab) -> None:
    form = ("inspect", "--format", "{{.State.StartedAt}}", lab.settings.container("n1"))
    engine = ["docker", "-H", f"unix://{lab.settings.engine / 'docker.sock'}", *form]
    before = subprocess.check_output(engine)
    lab.do("up")
    lab.do("swarm")
    assert subprocess.check_output(engine) == before


def test_ssh_and_docker_over_it(lab: Lab, docker: Docker) -> None:
    assert lab.ssh("n2", "hostname").stdout == "n2\n"
    listed = lab.ssh("n2", "nvidia-smi -L").stdout.splitlines()
    assert [line.rpartition("UUID: ")[2].rstrip(")") for line in listed] == lab.uuids("n2")
    assert lab.ssh("n3", "nvidia-smi").returncode == 127
    assert lab.settings.address("n1") in lab.ssh("n2", "getent hosts n1").stdout
    assert lab.ssh("n2", "getent hosts nowhere.example").returncode == 2
    remote = Docker(docker.program, {**docker.env, **lab.environment("n2")})
    assert remote.run("info", "--format", "{{.Name}}").stdout == "n2\n"


def test_nvidia_smi_answers_queries(lab: Lab) -> None:
    first, second = lab.uuids("n2")
    query = "nvidia-smi --query-gpu=index,uuid,name,memory.total,utilization.gpu --format=csv"
    assert lab.ssh("n2", query).stdout.splitlines() == [
        "index, uuid, name, memory.total [MiB], utilization.gpu [%]",
        f"0, {first}, TITAN RTX, 24576 MiB, 0 %",
        f"1, {second}, Quadro GV100, 32768 MiB, 0 %",
    ]
    last = lab.ssh("n2", f"{query},noheader,nounits -i {second}").stdout
    assert last == f"1, {second}, Quadro GV100, 32768, 0\n"
    assert lab.ssh("n2", "nvidia-smi --query-gpu=soul").returncode == 2


def test_a_service_sees_the_gpu_that_it_is_pinned_to(lab: Lab, service: str) -> None:
    second = lab.uuids("n2")[1]
    create(lab, service, "n2", second, "nvidia-smi", "-L")
    wait_for(partial(complete, lab, service), "the service to end")
    printed = lab.docker("n1", "service", "logs", "--raw", service)
    assert printed == f"GPU 0: Quadro GV100 (UUID: {second})"


def test_a_service_with_an_unknown_gpu_is_refused(lab: Lab, service: str) -> None:
    create(lab, service, "n2", UNKNOWN, "true")
    said = f"nvidia-container-cli: device error: {UNKNOWN}: unknown device"
    wait_for(lambda: said in tasks(lab, service)[0], f"the refusal, not {tasks(lab, service)}")


def test_containers_see_what_they_ask_for(lab: Lab) -> None:
    both = lab.uuids("n2")
    expected = {
        "all": both,
        "void": [],
        "none": [],
        "": [],
        "1": both[1:],
        "1,0": both,
        f"{both[0]},1,1": both,
    }
    for wanted, uuids in expected.items():
        assert seen(lab, "n2", "--env", f"NVIDIA_VISIBLE_DEVICES={wanted}") == uuids, wanted
    # On a host whose NVIDIA runtime is only used for reservations, as Compose makes them.
    reserved = ("--runtime", "runc", "--gpus", f'"device={both[1]}"')
    assert seen(lab, "n2", *reserved) == both[1:]
    assert seen(lab, "n2", "--runtime", "runc") == []
    assert seen(lab, "n3", "--env", "NVIDIA_VISIBLE_DEVICES=all") == []


def test_limits_beyond_the_machine_are_cut(lab: Lab) -> None:
    for node in ("n1", "n3"):
        limit = ("--ulimit", "memlock=-1", "--ulimit", "stack=67108864")
        assert lab.docker(node, "run", "--rm", *limit, BASE, "echo", "runs") == "runs"


def test_every_node_pulls_the_trainer(lab: Lab) -> None:
    for node in NODES:
        lab.docker(node, "pull", "--quiet", IMAGE)
    launcher = ("--entrypoint", "python3", IMAGE, "/opt/kit/trainer/launch.py", "health")
    lab.docker("n2", "run", "--rm", "--env", "NVIDIA_VISIBLE_DEVICES=0", *launcher)


def test_kit_takes_the_inventory_and_renders_what_the_nodes_have(
    lab: Lab, project: Project
) -> None:
    project.write(lab.inventory(), {"digits": TRAINING})
    plan = project.kit("plan")
    assert (plan.status, plan.err) == (0, "")
    tree = project.rendered(cluster="test")
    for node in NODES:
        rendered = json.loads((tree / "hosts" / node / "daemon.json").read_text())
        assert rendered == daemon_json(lab.settings.gpus(node))


def test_daemon_json_configures_the_engine(lab: Lab) -> None:
    card = gpu("n3", 0, "TITAN RTX")
    lab.do("gpus", "n3", "TITAN RTX")
    assert f"uuid: {card.uuid}" in lab.inventory()
    assert seen(lab, "n3", "--env", "NVIDIA_VISIBLE_DEVICES=all") == [card.uuid]
    text = json.dumps({**daemon_json([card]), "labels": ["rack=7"]})
    restart = "systemctl restart docker"
    assert lab.ssh("n3", f"echo '{text}' >/etc/docker/daemon.json && {restart}").returncode == 0
    assert lab.docker("n3", "info", "--format", "{{.Labels}}") == "[rack=7]"
    broken = lab.ssh("n3", f"echo '{{' >/etc/docker/daemon.json && {restart}")
    assert broken.returncode == 1
    assert "Job for docker.service failed" in broken.stderr
    lab.do("gpus", "n3")
    wait_for(lambda: ready(lab) == set(NODES), "n3 to be ready again")


def test_a_killed_node_is_missed_and_comes_back(lab: Lab) -> None:
    lab.do("kill", "n3")
    wait_for(lambda: "n3" not in ready(lab), "the swarm to miss n3")
    lab.do("start", "n3")
    wait_for(lambda: ready(lab) == set(NODES), "n3 to be ready again")


def test_a_pulled_cable_cuts_a_node_off(lab: Lab) -> None:
    lab.do("disconnect", "n3")
    assert lab.ssh("n3", "true").returncode == 255
    lab.do("connect", "n3")
    assert lab.ssh("n3", "true").returncode == 0
    assert lab.ssh("n3", "nproc").returncode == 0
    wait_for(lambda: ready(lab) == set(NODES), "n3 to be ready again")


def test_a_shaped_link_is_slower(lab: Lab) -> None:
    def seconds() -> float:
        began = time.monotonic()
        assert lab.ssh("n2", "head -c 2000000 /dev/zero").returncode == 0
        return time.monotonic() - began

    def best() -> float:
        """The best of several measurements, as other tests slow this machine."""
        return min(seconds() for _ in range(3))

    free = best()
    # Eight seconds for a transfer of a fraction of one, so that other work has no effect.
    lab.do("shape", "n2", "2mbit")
    try:
        shaped = seconds()
    finally:
        lab.do("shape", "n2", "off")
    assert shaped > 2 * free
    assert best() < shaped / 2


def test_mistakes_are_answered(lab: Lab) -> None:
    for arguments, said in {
        ("restart", "n9"): "'n9' is not a node; there are n1, n2, n3",
        ("gpus", "n3", "Voodoo"): "'Voodoo' is not a known model",
        ("shape", "n2"): "missing a required argument: 'rate'",
        ("fly",): "'fly' is not a verb",
    }.items():
        done = lab.call(*arguments)
        assert done.returncode == 2
        assert said in done.stderr


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.lab", "up"],
        cwd=ROOT,
        env={**os.environ, "PATH": str(tmp_path), "KIT_LAB": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert ("apt-get install" if os.geteuid() == 0 else "as root") in done.stderr


def test_nodes_of_a_killed_engine_do_not_answer_for_new_ones() -> None:
    bridge, host = "kit-stale", "kit-stale-n1"
    for words in (
        f"netns add {host}",
        f"link add {bridge} up type bridge",
        f"link add kit-stale0 master {bridge} up type veth peer eth0 netns {host}",
    ):
        subprocess.run(["ip", *words.split()], check=True)
    try:
        remove_bridge(bridge)
        shown = subprocess.run(["ip", "-brief", "link"], capture_output=True, text=True, check=True)
        assert bridge not in shown.stdout
        inside = ["ip", "-n", host, "-brief", "link"]
        assert "eth0" not in subprocess.run(inside, capture_output=True, text=True).stdout
        remove_bridge(bridge)  # Nothing is left: nothing to do.
    finally:
        subprocess.run(["ip", "netns", "delete", host], check=True)
