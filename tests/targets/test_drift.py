"""What somebody has changed by hand in a stack or in containers is named, field by field."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from kit.hosts.docker import Docker
from kit.queue.moves import Begin
from kit.targets.compose.drift import drift as compose_drift
from kit.targets.compose.observe import container
from kit.targets.swarm.drift import differences
from kit.targets.swarm.file_fields import of_file
from kit.targets.swarm.observe import _service
from kit.targets.swarm.queue import SwarmQueue
from tests.queue.swarm import Swarm
from tests.sandbox import ROOT

STACK = """\
services:
  rendezvous:
    image: "registry.lab:5000/trainer:1.0"
    environment: {HOME: /tmp}
    networks: [training]
    deploy:
      endpoint_mode: dnsrr
  train:
    image: "registry.lab:5000/trainer:1.0"
    entrypoint: [python3, launch.py]
    init: true
    stop_grace_period: 1m30s
    user: "65534:65534"
    cap_drop: [ALL]
    cap_add: [DAC_OVERRIDE]
    read_only: true
    ulimits:
      memlock: -1
      nofile: {soft: 65536, hard: 65536}
    healthcheck:
      test: [CMD, "true"]
      interval: 30s
      retries: 3
      start_interval: 2s
    configs:
      - {source: job, target: /kit/job.json}
    secrets: [TOKEN]
    volumes:
      - {type: tmpfs, target: /dev/shm, tmpfs: {size: 1024}}
      - {type: volume, source: data, target: /data, read_only: true}
    ports:
      - {target: 8080, published: 80, protocol: tcp, mode: host}
    networks: {training: {aliases: [metrics]}}
    logging:
      driver: json-file
      options: {max-file: "3"}
    environment:
      PRICE: "5$$"
      GPUS: "GPU-1"
    deploy:
      labels:
        kit.job: "digits"
      endpoint_mode: dnsrr
      restart_policy: {condition: on-failure, delay: 2s, max_attempts: 10, window: 1h}
      update_config: {order: stop-first}
      replicas: 2
      placement:
        max_replicas_per_node: 1
        constraints: [node.role == worker]
      resources:
        limits: {memory: 2g, cpus: "0.5"}
        reservations:
          generic_resources: [{discrete_resource_spec: {kind: kit_gpu, value: 1}}]
configs:
  job: {name: train-digits-job-01, file: jobs/digits.json}
secrets:
  TOKEN: {name: "train-digits-TOKEN-${KIT_SECRET_TOKEN:-by-hand}", external: true}
volumes:
  data: {name: kit-lab_data}
networks:
  training: {name: lab-training, external: true}
"""
NETWORKS = {"net1": "lab-training", "net2": "other"}
SPEC: dict[str, Any] = {
    "Name": "train-digits_train",
    "Labels": {"com.docker.stack.namespace": "train-digits", "kit.job": "digits"},
    "TaskTemplate": {
        "ContainerSpec": {
            "Image": "registry.lab:5000/trainer:1.0@sha256:00",
            "Labels": {"com.docker.stack.namespace": "train-digits"},
            "Command": ["python3", "launch.py"],
            "Env": ["GPUS=GPU-1", "PRICE=5$"],
            "User": "65534:65534",
            "Privileges": {"CredentialSpec": None, "SELinuxContext": None},
            "Init": True,
            "ReadOnly": True,
            "Mounts": [
                {"Type": "tmpfs", "Target": "/dev/shm", "TmpfsOptions": {"SizeBytes": 1024}},
                {
                    "Type": "volume",
                    "Source": "kit-lab_data",
                    "Target": "/data",
                    "ReadOnly": True,
                    "VolumeOptions": {"Labels": {"com.docker.stack.namespace": "train-digits"}},
                },
            ],
            "StopGracePeriod": 90_000_000_000,
            "Healthcheck": {"Test": ["CMD", "true"], "Interval": 30_000_000_000, "Retries": 3},
            "Configs": [
                {
                    "File": {"Name": "/kit/job.json", "UID": "0", "GID": "0", "Mode": 0o444},
                    "ConfigID": "c1",
                    "ConfigName": "train-digits-job-01",
                }
            ],
            "Secrets": [
                {
                    "File": {"Name": "TOKEN", "UID": "0", "GID": "0", "Mode": 0o444},
                    "SecretID": "s1",
                    "SecretName": "train-digits-TOKEN-ab",
                }
            ],
            "Isolation": "default",
            "CapabilityAdd": ["CAP_DAC_OVERRIDE"],
            "CapabilityDrop": ["ALL"],
            "Ulimits": [
                {"Name": "memlock", "Hard": -1, "Soft": -1},
                {"Name": "nofile", "Hard": 65536, "Soft": 65536},
            ],
        },
        "Resources": {
            "Limits": {"MemoryBytes": 2 << 30, "NanoCPUs": 500_000_000},
            "Reservations": {
                "GenericResources": [{"DiscreteResourceSpec": {"Kind": "kit_gpu", "Value": 1}}]
            },
        },
        "RestartPolicy": {
            "Condition": "on-failure",
            "Delay": 2_000_000_000,
            "MaxAttempts": 10,
            "Window": 3_600_000_000_000,
        },
        "Placement": {"Constraints": ["node.role == worker"], "MaxReplicas": 1},
        "Networks": [{"Target": "net1", "Aliases": ["metrics", "train"]}],
        "LogDriver": {"Name": "json-file", "Options": {"max-file": "3"}},
        "ForceUpdate": 3,
        "Runtime": "container",
    },
    "Mode": {"Replicated": {"Replicas": 2}},
    "UpdateConfig": {
        "Parallelism": 1,
        "FailureAction": "pause",
        "MaxFailureRatio": 0,
        "Order": "stop-first",
    },
    "EndpointSpec": {
        "Mode": "dnsrr",
        "Ports": [
            {"Protocol": "tcp", "TargetPort": 8080, "PublishedPort": 80, "PublishMode": "host"}
        ],
    },
}
"""What Docker 26 and 28 answer to GET /services after `docker stack deploy` of this file."""
RENDEZVOUS: dict[str, Any] = {
    "Name": "train-digits_rendezvous",
    "Labels": {"com.docker.stack.namespace": "train-digits"},
    "TaskTemplate": {
        "ContainerSpec": {"Image": "registry.lab:5000/trainer:1.0", "Env": ["HOME=/tmp"]},
        "Networks": [{"Target": "net1", "Aliases": ["rendezvous"]}],
    },
    "Mode": {"Replicated": {"Replicas": 1}},
    "EndpointSpec": {"Mode": "dnsrr"},
}


def told(*specs: Mapping[str, Any], text: str = STACK) -> list[str]:
    services = [
        _service({"ID": spec["Name"], "UpdatedAt": "2026-11-01T00:00:00Z", "Spec": spec})
        for spec in specs
    ]
    return differences(text, {"KIT_SECRET_TOKEN": "ab"}, services, NETWORKS)


def changed(change: Callable[[dict[str, Any], dict[str, Any]], object]) -> dict[str, Any]:
    """The service after a change of its specification or its container's."""
    spec = copy.deepcopy(SPEC)
    change(spec, spec["TaskTemplate"]["ContainerSpec"])
    return spec


def test_a_stack_as_docker_deploys_it_has_no_difference() -> None:
    assert told(SPEC, RENDEZVOUS) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda _, box: box["Env"].append("TOKEN=geheim"), "environment.TOKEN is set"),
        (lambda _, box: box.update(Env=["GPUS=GPU-2", "PRICE=5$"]), "environment.GPUS is changed"),
        (lambda _, box: box.update(Env=["GPUS=GPU-1"]), "environment.PRICE is missing"),
        (
            lambda _, box: box.update(Image="registry.lab:5000/trainer:2.0@sha256:00"),
            "image is registry.lab:5000/trainer:2.0@sha256:00, not registry.lab:5000/trainer:1.0",
        ),
        (lambda _, box: box.update(Args=["-v"]), "command is -v, which its file lacks"),
        (lambda _, box: box.update(User="root"), "user is root, not 65534:65534"),
        (lambda _, box: box.pop("ReadOnly"), "read_only is missing"),
        (lambda _, box: box["CapabilityDrop"].clear(), "cap_drop is missing"),
        (
            lambda _, box: box["Mounts"].append({"Type": "bind", "Source": "/", "Target": "/host"}),
            "volumes./host is bind /, which its file lacks",
        ),
        (
            lambda _, box: box["Mounts"][1].pop("ReadOnly"),
            "volumes./data is volume kit-lab_data, not volume kit-lab_data read-only",
        ),
        (
            lambda _, box: box["Configs"][0].update(ConfigName="mine"),
            "configs./kit/job.json is mine, not train-digits-job-01",
        ),
        (lambda _, box: box.update(Secrets=[]), "secrets.TOKEN is missing"),
        (
            lambda _, box: box.update(Hosts=["10.0.0.1 registry"]),
            "TaskTemplate.ContainerSpec.Hosts is ['10.0.0.1 registry'], which its file lacks",
        ),
        (
            lambda spec, _: spec["Mode"]["Replicated"].update(Replicas=0),
            "deploy.replicas is 0, not 2",
        ),
        (
            lambda spec, _: spec.update(Mode={"Global": {}}),
            "deploy.mode is global, not replicated; train: deploy.replicas is missing",
        ),
        (lambda spec, _: spec["Labels"].update(owner="me"), "deploy.labels.owner is me, which"),
        (
            lambda spec, _: spec["TaskTemplate"]["Networks"].append({"Target": "net2"}),
            "networks.other is True, which its file lacks",
        ),
        (
            lambda spec, _: spec["TaskTemplate"]["Placement"].update(Constraints=["node.id == x"]),
            "deploy.placement.constraints is node.id == x, not node.role == worker",
        ),
        (
            lambda spec, _: spec["TaskTemplate"]["Resources"]["Limits"].update(NanoCPUs=10**9),
            "deploy.resources.limits.cpus is 1.0, not 0.5",
        ),
        (
            lambda spec, _: spec["TaskTemplate"]["Resources"]["Limits"].update(Pids=500),
            "TaskTemplate.Resources.Limits.Pids is 500, which its file lacks",
        ),
        (
            lambda spec, _: spec["TaskTemplate"]["Resources"].pop("Reservations"),
            "deploy.resources.kit_gpu is missing",
        ),
        (lambda spec, _: spec["EndpointSpec"].update(Ports=[]), "ports.8080/tcp is missing"),
        (
            lambda spec, _: spec["TaskTemplate"]["RestartPolicy"].update(Condition="none"),
            "deploy.restart_policy.condition is none, not on-failure",
        ),
        (
            lambda spec, _: spec["TaskTemplate"]["LogDriver"].update(Name="none"),
            "logging.driver is none, not json-file",
        ),
    ],
)
def test_what_docker_service_update_changes_is_named(
    change: Callable[[dict[str, Any], dict[str, Any]], object], said: str
) -> None:
    found = "; ".join(told(changed(change), RENDEZVOUS))
    assert found.startswith(f"train: {said}")
    assert "geheim" not in found


def test_what_the_queue_does_to_a_service_is_no_difference() -> None:
    text = STACK.replace('kit.job: "digits"', 'kit.job: "digits"\n        kit.queue.owner: anna', 1)
    off = changed(lambda spec, _: spec["Labels"].update({"kit.queue.owner": "anna"}))
    off["Mode"]["Replicated"]["Replicas"] = 0
    swarm, name = Swarm({"pc1": 1}), "train-digits_train-on-pc1"
    swarm.services[name] = {"ID": name, "Version": {"Index": 1}, "Spec": off}
    SwarmQueue(cast(Docker, swarm)).begin(Begin("digits", "pc1", ("GPU-7",)), 1.8e9, 12.0)
    on = swarm.services[name]["Spec"]
    assert {"KIT_NPROC=1", "KIT_WAITED=12.0"} < set(on["TaskTemplate"]["ContainerSpec"]["Env"])
    assert told(on, RENDEZVOUS, text=text) == []


def test_services_that_are_missing_and_others_are_named() -> None:
    other = RENDEZVOUS | {"Name": "train-digits_debug"}
    assert told(SPEC, other) == ["rendezvous is not there", "debug is not in its file"]


TEMPLATES = {
    "    init: true\n": "    init: true\n    extra_hosts: [registry:10.0.0.1]\n",
    '    environment:\n      PRICE: "5$$"\n      GPUS: "GPU-1"\n': "    environment: [A=1]\n",
    "  job: {name: train-digits-job-01, file": "  job: {file",
    "    secrets: [TOKEN]\n": "    secrets: [{source: TOKEN, mode: 0400}]\n",
    "order: stop-first}": "order: stop-first, delay: 10s}",
    "replicas: 2": 'replicas: "2"',
}
"""What people write into templates of their own, in the place of kit's lines."""


@pytest.mark.parametrize("line", TEMPLATES)
def test_what_a_template_of_ones_own_writes_is_never_undone(line: str) -> None:
    """It would be a difference for ever, and each deploy would restart the service."""
    assert line in STACK
    text = STACK.replace(line, TEMPLATES[line])
    assert differing(text, changed(lambda _, box: box.update(Hosts=["10.0.0.1 registry"]))) == []
    other = changed(lambda _, box: box.update(Image="other:1"))
    assert differing(text, other) == ["train: image is other:1, not registry.lab:5000/trainer:1.0"]


@pytest.mark.parametrize("own", ["$REGISTRY/trainer:1.0", "${REGISTRY:-here}/trainer:1.0"])
def test_a_file_with_variables_of_ones_own_is_not_compared(own: str) -> None:
    text = STACK.replace("registry.lab:5000/trainer:1.0", own)
    assert told(changed(lambda _, box: box.update(User="root")), RENDEZVOUS, text=text) == []


def differing(text: str, spec: Mapping[str, Any]) -> list[str]:
    return [each for each in told(spec, RENDEZVOUS, text=text) if each.startswith("train")]


@pytest.mark.parametrize("file", sorted((ROOT / "compose").glob("*/*.stack.yaml")), ids=str)
def test_all_that_kits_own_templates_write_is_compared(file: Path) -> None:
    services = of_file(file.read_text(encoding="utf-8"), {})
    assert services
    assert all(each.whole for each in services.values())


PROJECT = """\
name: lab_train-j
services:
  train:
    labels: {kit.file: "0000"}
    image: "trainer:1"
    entrypoint: [python3, launch.py]
    user: "65534:65534"
    cap_drop: [ALL]
    read_only: true
    restart: on-failure:10
    stop_grace_period: 60s
    environment:
      KIT_NPROC: "2"
    deploy:
      resources:
        reservations:
          devices:
            - {driver: nvidia, device_ids: [GPU-a, GPU-b], capabilities: [gpu]}
    shm_size: 16g
    volumes:
      - {type: volume, source: "kit-lab_j-checkpoints", target: "/checkpoints"}
      - {type: volume, source: own, target: "/own"}
      - {type: bind, source: /srv/data, target: /data, read_only: true}
    ports: ["9530:9530"]
volumes:
  "kit-lab_j-checkpoints": {name: "kit-lab_j-checkpoints"}
  own: {}
"""
BOX: dict[str, Any] = {
    "Id": "1",
    "Created": "2026-11-01T00:00:00Z",
    "RestartCount": 0,
    "State": {"Status": "running", "ExitCode": 0, "FinishedAt": "0001-01-01T00:00:00Z"},
    "Mounts": [],
    "Config": {
        "Labels": {
            "com.docker.compose.project": "lab_train-j",
            "com.docker.compose.service": "train",
        },
        "Image": "trainer:1",
        "Entrypoint": ["python3", "launch.py"],
        "Cmd": ["of the image"],
        "Env": ["KIT_NPROC=2", "PATH=/bin"],
        "User": "65534:65534",
        "WorkingDir": "/of/the/image",
        "StopTimeout": 60,
    },
    "HostConfig": {
        "NetworkMode": "lab_train-j_default",
        "RestartPolicy": {"Name": "on-failure", "MaximumRetryCount": 10},
        "CapAdd": None,
        "CapDrop": ["ALL"],
        "PidMode": "",
        "Privileged": False,
        "ReadonlyRootfs": True,
        "ShmSize": 16 << 30,
        "Memory": 0,
        "Ulimits": [],
        "DeviceRequests": [{"Driver": "nvidia", "Count": 0, "DeviceIDs": ["GPU-a", "GPU-b"]}],
        "Binds": ["lab_train-j_own:/own:rw"],
        "Mounts": [
            {"Type": "volume", "Source": "kit-lab_j-checkpoints", "Target": "/checkpoints"},
            {"Type": "bind", "Source": "/srv/data", "Target": "/data", "ReadOnly": True},
            {"Type": "bind", "Source": "/root/job.json", "Target": "/kit/job.json"},
        ],
    },
}
"""What Docker 26 answers to GET /containers/<id>/json after `docker compose up` of this file."""


@pytest.mark.parametrize(
    ("config", "host", "said"),
    [
        ({}, {}, ""),
        ({"Env": ["KIT_NPROC=1"]}, {}, "environment.KIT_NPROC is changed"),
        ({"Image": "trainer:2"}, {}, "image is trainer:2, not trainer:1"),
        (
            {},
            {"DeviceRequests": [{"Driver": "nvidia", "Count": 0, "DeviceIDs": ["GPU-a"]}]},
            "gpus is GPU-a, not GPU-a GPU-b",
        ),
        ({}, {"DeviceRequests": [{"Count": -1, "DeviceIDs": None}]}, "gpus is all, not GPU-a"),
        ({}, {"Privileged": True}, "privileged is True, which its file lacks"),
        ({}, {"Memory": 1 << 30}, "deploy.resources.limits.memory is 1073741824, which its file"),
        (
            {},
            {"RestartPolicy": {"Name": "no", "MaximumRetryCount": 0}},
            "restart is no, not on-failure:10",
        ),
        ({}, {"Mounts": [], "Binds": []}, "volumes./checkpoints is missing"),
    ],
)
def test_a_container_that_differs_from_its_compose_file_is_named(
    config: Mapping[str, Any], host: Mapping[str, Any], said: str
) -> None:
    box = BOX | {"Config": BOX["Config"] | config, "HostConfig": BOX["HostConfig"] | host}
    found = compose_drift(PROJECT, [container("pc1", box)])
    assert found.startswith(f"changed by hand: train: {said}" if said else "")
    assert bool(found) is bool(said)


@pytest.mark.parametrize(
    ("line", "own"),
    [
        ("    shm_size: 16g\n", "    shm_size: 16g\n    mem_limit: 1g\n"),
        ('    environment:\n      KIT_NPROC: "2"\n', "    environment: [KIT_NPROC=2]\n"),
        ("    restart: on-failure:10\n", "    restart: on-failure:10\n    privileged: true\n"),
        ('target: "/checkpoints"}', 'target: "/checkpoints", volume: {nocopy: true}}'),
    ],
)
def test_what_a_compose_template_of_ones_own_writes_is_left(line: str, own: str) -> None:
    assert line in PROJECT
    host = BOX["HostConfig"] | {"Privileged": True, "Memory": 1 << 30}
    box = BOX | {"HostConfig": host}
    assert compose_drift(PROJECT.replace(line, own), [container("pc1", box)]) == ""
    other = box | {"Config": BOX["Config"] | {"Image": "other:1"}}
    said = compose_drift(PROJECT.replace(line, own), [container("pc1", other)])
    assert said == "changed by hand: train: image is other:1, not trainer:1"
