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

IMAGE = "registry.lab:5000/trainer:0.2.0"

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


OWN = "image: vllm/vllm-openai:v0.10.0\ncommand: [vllm, serve, /model]\nport: 8000\n"
MISTAKES = {
    "no such job": (
        {"digits": SERVER.replace("job: digits", "job: digit")},
        "serve/digits.yaml:2: job: there is no job digit; did you mean digits?",
    ),
    "a script's checkpoints": (
        {"ddp": SERVER.replace("job: digits", "job: ddp")},
        "serve/ddp.yaml:2: job: ddp runs a script, whose checkpoints kit cannot read; "
        "name a job with `train:`, or write `handler:`, a class of yours that reads them",
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
    "another image than the trainer's": (
        {"a": SERVER.replace(IMAGE, "nvcr.io/nvidia/tritonserver:25.01-py3")},
        "serve/a.yaml:1: image: the server of job digits needs the trainer, which "
        f"{IMAGE} has; write the image of jobs/digits.yaml or another tag of it; for a server of "
        "your own, write `command:` in place of `job:`",
    ),
    "nothing to run": (
        {"a": "image: nginx\n"},
        "serve/a.yaml:1: there is nothing to run; write exactly one of `job:` (the built-in "
        "server) and `command:` (any other)",
    ),
    "a key of the built-in server": (
        {"a": OWN + "batch: {size: 8}\n"},
        "serve/a.yaml:4: batch: is for the built-in server, with `job:`; leave it out",
    ),
    "a limit of the built-in server": (
        {"a": OWN + "limits: {body: 8MiB}\n"},
        "serve/a.yaml:4: limits.body: is for the built-in server, with `job:`; leave it out",
    ),
    "a key of one's own server": (
        {"a": SERVER + "health: /health\n"},
        "serve/a.yaml:3: health: is for a server with `command:`; leave it out",
    ),
    "no port": (
        {"a": OWN.replace("port: 8000\n", "")},
        "serve/a.yaml:1: there is no port; write `port:`, the one on which `command` listens",
    ),
    "a command in one text": (
        {"a": OWN.replace("[vllm, serve, /model]", "vllm serve /model")},
        "serve/a.yaml:2: command: is a list of words; write `command: [vllm, serve, /model]`",
    ),
    "no path": (
        {"a": OWN + "health: health\n"},
        "serve/a.yaml:4: health: 'health' is not the path of a URL; write for example /health",
    ),
    "a secret's value": (
        {"a": OWN + "secrets: {HF_TOKEN: hf_abc}\n"},
        "serve/a.yaml:4: secrets.HF_TOKEN: names the source of a secret, not the secret itself; "
        "write `env` (the variable of that name where kit runs) or `{file: ~/key}`",
    ),
    "a handler for a model that the trainer knows": (
        {"a": SERVER + "handler: mine:Handler\n"},
        "serve/a.yaml:3: handler: digits has `train:`, whose model the server itself knows; "
        "leave it out",
    ),
    "a handler's file": (
        {"a": SERVER.replace("job: digits", "job: ddp") + "handler: mine.py:Handler\n"},
        "serve/a.yaml:3: handler: 'mine.py:Handler' is not a function of a module; leave out the "
        ".py, as in `mymodel:Handler`",
    ),
    "a URL for a name": (
        {"a": SERVER + "allowed_hosts: ['http://a.example']\n"},
        "serve/a.yaml:3: allowed_hosts[0]: 'http://a.example' is not an address; write a name "
        'without scheme and port, such as digits.example.com, or "*" for all',
    ),
    "a proxy's host": (
        {"a": SERVER + "proxy: {port: 80, host: pc3}\n"},
        "serve/a.yaml:3: proxy.host: pc3 is not in the inventory; did you mean pc2?",
    ),
    "a proxy without a port": (
        {"a": SERVER + "proxy: {}\n"},
        "serve/a.yaml:3: proxy.port: is missing; add for example `port: 80`",
    ),
    "a proxy on the port of its server": (
        {"a": SERVER + "proxy: {port: 8080, host: pc2}\n"},
        "serve/a.yaml:3: proxy.port: port 8080 of pc2 is already used by serve-a "
        "(serve/a.yaml:1); write `proxy: {port: 8081}`",
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
    assert "a job's name cannot begin with serve-: those are servers; rename the file" in said.err


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


@pytest.mark.parametrize("network", ["driver: overlay", "driver: host", "compose"])
def test_a_server_does_not_change_with_hosts_that_have_no_part(
    project: Project, network: str
) -> None:
    """Neither it nor its job may run on pc4, whose address is a name, nor on pc5."""
    inventory = INVENTORY.replace(
        "engine: swarm", "engine: compose" if network == "compose" else "engine: swarm"
    )
    if network != "compose":
        inventory = inventory.replace("{speed: 1Gbit}", f"{{speed: 1Gbit, {network}}}")
    others = "  pc4: {address: pc4.example.com, gpus: 1}\n  pc5: {address: 10.0.0.5, gpus: 2}\n"
    jobs = {"digits": JOB + "hosts: {names: [pc1]}\n"}
    servers = {"digits": SERVER + "hosts: {names: [pc2]}\n"}

    def rendered() -> dict[str, str]:
        tree = project.rendered()
        return {
            path.relative_to(tree).as_posix(): path.read_text()
            for path in tree.rglob("*")
            if path.is_file() and "serve" in path.relative_to(tree).as_posix()
        }

    project.write(inventory.replace("network:", f"{others}network:"), jobs, servers)
    before = rendered()
    project.write(inventory, jobs, servers)
    assert rendered() == before


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


HANDLED = SERVER.replace("job: digits", "job: ddp") + "handler: mine:Handler\n"
HANDLER = "class Handler:\n    def load(self, folder): ...\n    def predict(self, batch): ...\n"


def test_a_handler_comes_with_its_server(project: Project) -> None:
    alone = {"ddp": COMMAND + "hosts: {names: [pc1]}\n"}
    project.write(INVENTORY, alone, {"own": HANDLED})
    (project.folder / "serve" / "mine.py").write_text(HANDLER)
    said = project.kit("render")
    assert said.status == 2
    assert said.err == (
        "serve/own.yaml:1: hosts: job ddp writes no files on pc2; write `hosts: {names: [pc1]}`, "
        "or mount an NFS export at /checkpoints\n"
    )
    project.write(None, {"ddp": COMMAND}, {"own": HANDLED})
    (project.folder / "serve" / "mine.py").write_text(HANDLER)
    (server,) = [each for each in project.lowered().workloads if each.name == "serve-own"]
    (part,) = server.parts
    environment = {each.name: each.value for each in part.environment}
    assert environment["KIT_CODE"] == "/kit/code/mine.py"
    assert [each.target for each in part.configs] == ["/kit/server.json", "/kit/code/mine.py"]
    assert project.kit("render").status == 0
    tree = project.folder / "compose" / "lab"
    assert (tree / "serve" / "own" / "mine.py").read_text() == HANDLER
    assert json.loads((tree / "serve" / "own.json").read_text())["handler"] == "mine:Handler"
    before = server.job_hash
    for text, wrong in (
        (HANDLER.replace("Handler", "Handlers"), "has no function Handler; did you mean Handlers?"),
        ("class Handler\n", "serve/mine.py:1: expected ':'"),
    ):
        (project.folder / "serve" / "mine.py").write_text(text)
        assert wrong in project.kit("plan").err
    (project.folder / "serve" / "mine.py").write_text(HANDLER + "# changed\n")
    (server,) = [each for each in project.lowered().workloads if each.name == "serve-own"]
    assert server.job_hash != before


SPLIT = INVENTORY.replace("24GiB}", "24GiB, use: inference}")
WHOLE = (
    OWN
    + """\
health: /v1/models
mounts: [{bind: /srv/models, to: /model, read_only: true}, {volume: cache, to: /root/.cache}]
secrets: {HF_TOKEN: {file: ~/token}}
environment: {PRICE: "5$"}
working_dir: /model
limits: {shared_memory: 4GiB, cpus: 2}
user: "1000"
"""
)


@pytest.mark.parametrize("inventory", [SPLIT, SPLIT.replace("engine: swarm", "engine: compose")])
def test_a_server_of_ones_own_is_rendered(project: Project, docker: Docker, inventory: str) -> None:
    project.write(inventory, {}, {"llm": WHOLE})
    (server,) = project.lowered().workloads
    assert server.urls == ("http://192.168.8.151:8000", "http://192.168.8.114:8000")
    assert (server.health, server.reads, server.document) == ("/v1/models", "", None)
    assert project.kit("render").status == 0
    tree = project.folder / "compose" / "lab"
    plan = json.loads((tree / "plan.json").read_text())["servers"][0]
    assert (plan["job"], plan["health"]) == (None, "/v1/models")
    (file,) = tree.rglob("serve-llm.stack.yaml" if "swarm" in inventory else "pc2/serve-llm.*")
    content = yaml.safe_load(file.read_text())
    service = next(
        each for name, each in content["services"].items() if name in {"serve-on-pc2", "serve"}
    )
    assert service["entrypoint"] == ["vllm", "serve", "/model"]
    assert (service["user"], service["working_dir"]) == ("1000", "/model")
    assert service["cap_drop"] == ["ALL"]
    assert service["environment"]["KIT_GPUS"] == 1
    assert service["environment"]["KIT_PORT"] == "8000"
    assert service["environment"]["PRICE"] == "5$$"
    assert service["secrets"] == ["HF_TOKEN"]
    assert "healthcheck" not in service
    assert "read_only" not in service
    sources = {each["target"]: each for each in service["volumes"]}
    assert sources["/model"]["read_only"] is True
    assert "read_only" not in sources["/root/.cache"]
    assert content["volumes"] == {"cache": {"name": "cache"}}


RANGE = """\
cluster: lab
engine: swarm
hosts:
  pc1: {address: 192.168.8.151, roles: [manager], gpus: 1}
  "gpu[1-3]": {address: "10.0.0.[1-3]", gpus: [{index: 0, use: inference}]}
"""


def proxied(project: Project, file: str) -> list[str]:
    """The hosts that the proxy of a server asks."""
    tree = project.rendered()
    lines = (tree / "serve" / file).read_text().splitlines()
    return [line.split()[1] for line in lines if line.startswith("  server ")]


def test_a_split_does_not_change_the_proxy(project: Project) -> None:
    project.write(INVENTORY, servers={"a": SERVER + "proxy: {port: 80, host: pc2}\n"})
    server = project.lowered().workloads[-1]
    assert [part.host.name for part in server.placements] == ["pc2"]
    assert server.urls == ("http://192.168.8.114:8080", "http://192.168.8.114")
    assert proxied(project, "a.haproxy.cfg") == ["pc1", "pc2"]
    before = (project.folder / "compose" / "lab" / "serve" / "a.haproxy.cfg").read_text()
    assert project.kit("split", "--infer", "pc1:0", "--yes").status == 0
    project.kit("render")
    after = (project.folder / "compose" / "lab" / "serve" / "a.haproxy.cfg").read_text()
    assert after == before


def test_a_proxy_never_asks_another_server(project: Project) -> None:
    """Two servers with one port are on different hosts, where either may be after a split."""
    two = INVENTORY.replace("{uuid: GPU-a", "{uuid: GPU-a, use: inference")
    named = {
        name: SERVER + f"hosts: {{names: [{host}]}}\nproxy: {{port: {port}}}\n"
        for name, host, port in (("a", "pc1", 81), ("b", "pc2", 82))
    }
    project.write(two, servers=named)
    assert proxied(project, "a.haproxy.cfg") == ["pc1"]
    assert proxied(project, "b.haproxy.cfg") == ["pc2"]


def test_a_proxy_needs_swarm(project: Project) -> None:
    project.write(COMPOSE, servers={"a": SERVER + "proxy: {port: 80}\n"})
    result = project.kit("render")
    assert (result.status, result.err) == (
        2,
        "serve/a.yaml:3: proxy: the proxy needs Swarm; leave it out, or use engine: swarm\n",
    )


def test_a_project_may_have_servers_alone(project: Project) -> None:
    project.write(SPLIT, {}, {"llm": WHOLE})
    (project.folder / "jobs").rmdir()
    assert project.kit("render").status == 0
    refused = project.kit("render", "--jobs", "work")
    assert (refused.status, refused.err.splitlines()[0]) == (
        2,
        "kit: work: there is no such folder",
    )


def test_a_proxy_asks_the_hosts_of_a_range(project: Project) -> None:
    project.write(RANGE, {}, {"chat": OWN + 'hosts: {names: ["gpu[1-2]"]}\nproxy: {port: 80}\n'})
    assert proxied(project, "chat.haproxy.cfg") == ["gpu1", "gpu2"]
    plan = project.kit("plan").out
    assert "http://192.168.8.151, the proxy of http://10.0.0.1:8000, http://10.0.0.2:8000" in plan


def test_a_proxy_does_not_ask_itself(project: Project) -> None:
    """On its host, another service answers at the server's port: the proxy, or the registry."""
    project.write(RANGE, {}, {"chat": OWN + "proxy: {port: 8000, host: pc1}\n"})
    assert proxied(project, "chat.haproxy.cfg") == ["gpu1", "gpu2", "gpu3"]
    taken = RANGE + 'registry: {address: "192.168.8.151:8000", host: pc1}\n'
    project.write(taken, {}, {"chat": OWN + "proxy: {port: 80, host: pc1}\n"})
    assert proxied(project, "chat.haproxy.cfg") == ["gpu1", "gpu2", "gpu3"]
    project.write(RANGE, {}, {"chat": OWN + "proxy: {port: 80, host: pc1}\n"})
    assert proxied(project, "chat.haproxy.cfg") == ["pc1", "gpu1", "gpu2", "gpu3"]


@pytest.mark.parametrize(("driver", "port"), [("host", 80), ("host", 8080), ("overlay", 80)])
def test_a_proxy_may_listen_on_its_port(
    project: Project, docker: Docker, driver: str, port: int
) -> None:
    """On a host's own network only root may use the ports below 1024."""
    inventory = RANGE + f"network: {{driver: {driver}}}\n"
    tree = project.write(inventory, {}, {"chat": OWN + f"proxy: {{port: {port}}}\n"}).rendered()
    result = docker.run("stack", "config", "-c", "serve-chat.stack.yaml", folder=tree)
    assert (result.returncode, result.stderr) == (0, "")
    proxy = yaml.safe_load(result.stdout)["services"]["proxy"]
    as_root = (driver, port) == ("host", 80)
    assert proxy["user"] == ("0:0" if as_root else "65534:65534")
    assert proxy.get("cap_add", []) == (["NET_BIND_SERVICE"] if as_root else [])
    assert proxy["cap_drop"] == ["ALL"]


def test_a_server_may_listen_on_its_port(project: Project) -> None:
    inventory = INVENTORY.replace("{speed: 1Gbit}", "{driver: host}")
    project.write(inventory, servers={"a": SERVER + "port: 80\n"})
    result = project.kit("plan")
    assert (result.status, result.err.splitlines()[0]) == (
        2,
        "serve/a.yaml:3: port: only root may listen on port 80 of a host's own network; "
        "write `port: 8080`, or `user: root`",
    )
    for server in (SERVER + "port: 80\nuser: root\n", OWN.replace("8000", "80")):
        project.write(inventory, servers={"a": server})
        assert project.kit("plan").status == 0
    project.write(servers={"a": SERVER + "port: 80\n"})
    assert project.kit("plan").status == 0


@pytest.mark.parametrize("engine", ["swarm", "compose"])
def test_words_of_a_command_stay_texts(project: Project, docker: Docker, engine: str) -> None:
    words = ["serve", "-1", "true", "No", "null", "-", "-ngl", "--", "~", "0x1F", "-.5", "a/b", "y"]
    server = f"image: llama.cpp:server\ncommand: {json.dumps(words)}\nport: 8000\n"
    inventory = INVENTORY.replace("engine: swarm", f"engine: {engine}")
    tree = project.write(inventory, {}, {"llm": server}).rendered()
    if engine == "swarm":
        result = docker.run("stack", "config", "-c", "serve-llm.stack.yaml", folder=tree)
    else:
        file = "hosts/pc2/serve-llm.compose.yaml"
        result = docker.run("compose", "-f", file, "config", folder=tree)
    assert (result.returncode, result.stderr) == (0, "")
    services = yaml.safe_load(result.stdout)["services"]
    (entrypoint,) = {tuple(each["entrypoint"]) for each in services.values()}
    assert list(entrypoint) == words
