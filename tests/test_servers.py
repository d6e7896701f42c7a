"""Inference services in the plan and in the rendered files."""

from __future__ import annotations

import json
from collections.abc import Iterable

import pytest
import yaml

from kit.plan.types import Placement
from kit.workload.types import Part, Role, Workload
from tests.conftest import Docker
from tests.sandbox import COMMAND, INVENTORY, JOB, SERVER, Project

JOBS = {"digits": JOB}


def ids(placements: Iterable[Placement]) -> list[str]:
    return [gpu.id for placement in placements for gpu in placement.gpus]


COMPOSE = INVENTORY.replace("engine: swarm", "engine: compose")
NO_INFERENCE = INVENTORY.replace(", use: inference", "")


def test_a_server_takes_the_gpus_that_are_for_inference(project: Project) -> None:
    job, server = project.write(servers={"digits": SERVER}).lowered().workloads
    assert (server.name, server.stack, server.processes) == ("serve-digits", "serve-digits", 1)
    assert [part.host.name for part in server.placements] == ["pc2"]
    assert ids(server.placements) == ["GPU-c"]
    assert ids(job.placements) == ["GPU-a", "GPU-b"]
    assert server.urls == ("http://192.168.8.114:8080",)


def test_a_server_without_a_gpu_is_idle(project: Project) -> None:
    project.write(NO_INFERENCE, servers={"digits": SERVER})
    plan = project.plan()
    assert plan.servers[0].placements == ()
    assert any("serve-digits is idle: no GPU is for inference" in note for note in plan.notes)
    project.kit("render")
    assert not list(project.folder.rglob("serve-digits*"))


def test_two_servers_share_by_number(project: Project) -> None:
    two = INVENTORY.replace("{uuid: GPU-b}", "{uuid: GPU-b, use: inference}")
    one_each = SERVER + "hosts: {gpus_per_host: 1}\n"
    servers = {"a": one_each, "b": one_each + "port: 8090\ntransfer_port: 8091\n"}
    plan = project.write(two, servers=servers).plan()
    assert [ids(server.placements) for server in plan.servers] == [["GPU-b"], ["GPU-c"]]


MISTAKES = {
    "no such job": (
        {"digits": SERVER.replace("job: digits", "job: digit")},
        "serve/digits.yaml:2: job: there is no job digit; did you mean digits?",
    ),
    "a script's checkpoints": (
        {"ddp": SERVER.replace("job: digits", "job: ddp")},
        "serve/ddp.yaml:2: job: ddp runs a script, whose checkpoints kit cannot read; "
        "name a job with `train:`",
    ),
    "two at once": (
        {"a": SERVER.replace("job: digits", "job: digit") + "hosts: {names: [pc3]}\n"},
        "serve/a.yaml:2: job: there is no job digit; did you mean digits?\n"
        "serve/a.yaml:3: hosts.names[0]: pc3 is not in the inventory; did you mean pc2?",
    ),
    "two on one GPU": (
        {"a": SERVER, "b": SERVER + "port: 8090\n"},
        "serve/b.yaml:1: hosts: wants all GPUs for inference of pc2, but GPU-c is already assigned "
        "to serve-a (serve/a.yaml:1); give each its own hosts (`hosts: {names: …}`) or a share "
        "(`hosts: {gpus_per_host: 1}`)",
    ),
    "an unknown host": (
        {"a": SERVER + "hosts: {names: [pc3]}\n"},
        "serve/a.yaml:3: hosts.names[0]: pc3 is not in the inventory; did you mean pc2?",
    ),
    "a GPU that is too small": (
        {"a": SERVER + "gpu_memory: 32GiB\n"},
        "serve/a.yaml:3: gpu_memory: GPU-c of pc2 has 24GiB; write less, or give it a larger GPU",
    ),
    "the token itself": (
        {"a": SERVER + "token: hush-hush\n"},
        "serve/a.yaml:3: token: names the source of the token, not the token itself; "
        "write `{env: NAME}` (a variable where kit runs) or `{file: ~/token}`",
    ),
    "a URL for a name": (
        {"a": SERVER + "allowed_hosts: ['http://a.example']\n"},
        "serve/a.yaml:3: allowed_hosts[0]: 'http://a.example' is not an address; write a name "
        'without scheme and port, such as digits.example.com, or "*" for all',
    ),
    "a checkpoint that is none": (
        {"a": SERVER + "checkpoint: last\n"},
        "serve/a.yaml:3: checkpoint: 'last' is not a checkpoint; write newest, best, or a name as "
        "step-00000300",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_answered_at_its_line(project: Project, mistake: str) -> None:
    servers, said = MISTAKES[mistake]
    sized = INVENTORY.replace("{uuid: GPU-c,", "{uuid: GPU-c, memory: 24GiB,")
    # Of the two jobs one is at home on pc1 alone, the other on pc2.
    jobs = {
        "digits": JOB + "hosts: {names: [pc1]}\n",
        "ddp": COMMAND + "hosts: {names: [pc2]}\n",
    }
    project.write(sized, jobs, servers)
    result = project.kit("render")
    assert result.status == 2
    assert result.err == f"{said}\n"
    assert not (project.folder / "compose").exists()


def test_a_port_has_one_owner(project: Project) -> None:
    metrics = JOB + "metrics: {port: 8080}\n"
    project.write(COMPOSE, {"digits": metrics}, {"digits": SERVER})
    said = project.kit("plan")
    assert said.status == 2
    assert "port 8080 of pc2 is already used by job digits" in said.err
    assert "write `port: 8081`" in said.err


def test_a_job_is_not_called_like_a_server(project: Project) -> None:
    said = project.write(jobs={"serve-digits": JOB}).kit("plan")
    assert said.status == 2
    assert "the names of servers begin with serve-, not those of jobs; rename the file" in said.err


def offering(server: Workload) -> list[Part]:
    return [part for part in server.parts if part.role is Role.CHECKPOINTS]


def test_checkpoints_come_from_the_hosts_of_the_job(project: Project) -> None:
    server = project.write(servers={"digits": SERVER}).lowered().workloads[1]
    assert server.sources == ("http://serve-digits-checkpoints:8081",)
    assert [part.name for part in offering(server)] == ["checkpoints-on-pc1", "checkpoints-on-pc2"]
    server = project.write(COMPOSE, servers={"digits": SERVER}).lowered().workloads[1]
    assert server.sources == ("http://192.168.8.151:8081", "http://192.168.8.114:8081")


@pytest.mark.parametrize("engine", ["swarm", "compose"])
def test_a_server_does_not_change_with_the_jobs_hosts(project: Project, engine: str) -> None:
    def serve() -> list[str]:
        file = project.rendered() / "serve-digits.stack.yaml"
        if engine == "compose":
            file = project.rendered() / "hosts" / "pc2" / "serve-digits.compose.yaml"
        services = yaml.safe_load(file.read_text())["services"]
        own = services["serve-on-pc2" if engine == "swarm" else "serve"]
        return sorted(f"{name}={value}" for name, value in own["environment"].items())

    inventory = INVENTORY.replace("engine: swarm", f"engine: {engine}")
    project.write(inventory, servers={"digits": SERVER})
    before = serve()
    # pc1 gives its only GPU away: the job is on pc2 alone.
    project.write(inventory.replace("memory: 24GiB", "use: inference"), servers={"digits": SERVER})
    assert serve() == before


def test_on_one_host_checkpoints_need_no_way(project: Project) -> None:
    job = JOB + "hosts: {names: [pc2]}\n"
    project.write(jobs={"digits": job}, servers={"digits": SERVER})
    server = project.lowered().workloads[1]
    assert (server.sources, offering(server)) == ((), [])
    (mount,) = server.working[0].mounts
    assert (mount.source, mount.read_only) == ("kit-lab_digits-checkpoints", True)


def test_shared_checkpoints_are_mounted_not_fetched(project: Project) -> None:
    job = JOB + "mounts: [{nfs: '10.0.0.9:/export', to: /checkpoints}]\n"
    project.write(jobs={"digits": job}, servers={"digits": SERVER})
    server = project.lowered().workloads[1]
    assert server.sources == ()
    assert [volume.nfs_address for volume in server.volumes] == ["10.0.0.9"]


def test_four_hosts_of_many_offer_checkpoints(project: Project) -> None:
    many = """\
cluster: lab
engine: swarm
hosts:
  "gpu[001-100]": {address: "10.0.0.[1-100]", gpus: 8}
  inf: {address: 10.0.1.1, roles: [manager], gpus: [{uuid: GPU-i, use: inference}]}
"""
    server = project.write(many, servers={"digits": SERVER}).lowered().workloads[1]
    assert [(part.name, part.replicas) for part in offering(server)] == [("checkpoints-8gpu", 4)]


def test_a_stack_keeps_gpus_apart(project: Project, docker: Docker) -> None:
    tree = project.write(servers={"digits": SERVER + "token: {env: TOKEN}\n"}).rendered()
    file = tree / "serve-digits.stack.yaml"
    accepted = docker.run("stack", "config", "-c", str(file))
    assert accepted.returncode == 0, accepted.stderr
    services = yaml.safe_load(accepted.stdout)["services"]
    serve = services.pop("serve-on-pc2")
    assert serve["environment"]["NVIDIA_VISIBLE_DEVICES"] == "GPU-c"
    assert serve["deploy"]["update_config"]["order"] == "stop-first"
    constraint = "node.labels.kit.job.serve-digits == serve-on-pc2"
    assert serve["deploy"]["placement"]["constraints"] == [constraint]
    assert all(
        each["environment"]["NVIDIA_VISIBLE_DEVICES"] == "void" for each in services.values()
    )
    labels = (tree / "label-nodes.sh").read_text().splitlines()
    (pc1,) = [line for line in labels if " pc1 " in line]
    (pc2,) = [line for line in labels if " pc2 " in line]
    assert "kit.job.serve-digits=none" in pc1
    assert "kit.job.serve-digits=serve-on-pc2" in pc2
    served = json.loads((tree / "serve" / "digits.json").read_text())
    assert (served["name"], served["job"], served["token"]) == ("serve-digits", "digits", "TOKEN")


def test_compose_accepts_each_hosts_part(project: Project, docker: Docker) -> None:
    tree = project.write(COMPOSE, servers={"digits": SERVER}).rendered()
    found = {}
    for host in ("pc1", "pc2"):
        file = tree / "hosts" / host / "serve-digits.compose.yaml"
        accepted = docker.run("compose", "-f", str(file), "config", "--format", "json")
        assert accepted.returncode == 0, accepted.stderr
        found[host] = json.loads(accepted.stdout)["services"]
    assert sorted(found["pc1"]) == ["checkpoints"]
    assert sorted(found["pc2"]) == ["checkpoints", "serve"]
    (device,) = found["pc2"]["serve"]["deploy"]["resources"]["reservations"]["devices"]
    assert device["device_ids"] == ["GPU-c"]


def test_checkpoints_of_a_server_with_a_token_need_it(project: Project, docker: Docker) -> None:
    token = SERVER + "token: {env: TOKEN}\n"
    stack = project.write(servers={"digits": token}).rendered() / "serve-digits.stack.yaml"
    contents = [yaml.safe_load(stack.read_text())]
    composed = project.write(COMPOSE, servers={"digits": token}).rendered() / "hosts"
    files = list(composed.rglob("serve-digits.compose.yaml"))
    assert len(files) == 2
    contents += [yaml.safe_load(file.read_text()) for file in files]
    for content in contents:
        for name, service in content["services"].items():
            assert service["secrets"] == ["TOKEN"]
            if name.startswith("checkpoints"):
                assert service["environment"]["KIT_CHECKPOINT_TOKEN"] == "TOKEN"
        assert list(content["secrets"]) == ["TOKEN"]
    for file in files:
        accepted = docker.run("compose", "-f", str(file), "config")
        assert accepted.returncode == 0, accepted.stderr


def test_a_server_has_a_limit_of_memory_unless_it_is_lifted(project: Project) -> None:
    def limit(server: str) -> int | None:
        workload = project.write(servers={"digits": server}).lowered().workloads[1]
        (part,) = (part for part in workload.parts if part.role is Role.SERVE)
        return part.limits.memory if part.limits else None

    assert limit(SERVER) == 8 * 2**30
    assert limit(SERVER + "limits: {memory: 2GiB}\n") == 2 * 2**30
    assert limit(SERVER + "limits: {memory: null}\n") is None


def test_a_server_is_told_the_names_that_clients_may_use(project: Project) -> None:
    def names(inventory: str, server: str) -> object:
        tree = project.write(inventory, servers={"digits": server}).rendered()
        return json.loads((tree / "serve" / "digits.json").read_text()).get("allowed_hosts")

    assert names(INVENTORY, SERVER) is None  # Nobody has the name that is an address.
    named = INVENTORY.replace("192.168.8.151", "pc1.lab.example.com")
    assert names(named, SERVER) == ["pc1.lab.example.com"]
    own = SERVER + "allowed_hosts: [Digits.example.com, pc9]\n"
    assert names(named, own) == ["digits.example.com", "pc1.lab.example.com", "pc9"]
    assert names(INVENTORY, SERVER + 'allowed_hosts: ["*"]\n') == ["*"]


def test_a_changed_job_file_is_another_version_of_its_compose_files(project: Project) -> None:
    def versions() -> set[str]:
        files = (project.rendered() / "hosts").rglob("*.compose.yaml")
        lines = (line for file in files for line in file.read_text().splitlines())
        return {line.partition("kit.file: ")[2] for line in lines if "kit.file" in line}

    before = project.write(COMPOSE) and versions()
    assert versions() == before
    project.write(COMPOSE, {"digits": JOB.replace("epochs: 10", "epochs: 11")})
    assert not versions() & before
