# ruff: noqa: E501 - a command is one line
"""Words from other programs, as people's scripts and files have them: kit names its own instead.

The lines are those of reports and manuals of torchrun, Accelerate, DeepSpeed, MPI and Slurm.
"""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from kit.config import explain, names
from kit.config.gpus import GpuSection
from kit.config.inventory import HostSection, InventorySection
from kit.config.job import JobSection
from kit.config.server import ServerSection
from kit.errors import Fault
from tests import sandbox

IMAGE = {"image": "pytorch/pytorch:2.2.2-cuda12.1-cudnn8-devel"}
GENERIC = 'command: [ddp.py, "50"]'


def faults(document: dict[str, Any], model: type[BaseModel] = JobSection) -> list[Fault]:
    """The mistakes in a job, or in another file."""
    try:
        model.model_validate(document)
    except ValidationError as error:
        return explain.faults(error, model, "file")
    return []


def key_fault(model: type[BaseModel], document: dict[str, Any]) -> Fault:
    """The only mistake in a file, which is read with its document."""
    with pytest.raises(ValidationError) as caught:
        model.model_validate(document)
    [fault] = explain.faults(caught.value, model, "file", document)
    return fault


def proposed(fix: str) -> dict[str, Any]:
    """The keys that a hint proposes."""
    found: dict[str, Any] = {}
    for snippet in re.findall(r"`(\w+: [^`]+)`", fix):
        found |= yaml.safe_load(snippet)
    return found


# What is written for `command`, and the keys that the hint has instead.
FOREIGN: list[tuple[str, str]] = [
    ("[-m, torch.distributed.run, train.py]", "command: [train.py]"),
    (
        "[-m, torch.distributed.launch, --use_env, --nproc_per_node=2, train.py]",
        "command: [train.py]",
    ),
    ("[-m, accelerate.commands.launch, --num_processes, '2', train.py]", "command: [train.py]"),
    ("[-m, train.py]", "command: [train.py]"),
    ("[python, -m, pkg/train.py, --x]", "command: [pkg/train.py, --x]"),
    ("[/usr/bin/python3, train.py]", "command: [train.py]"),
    ("[/opt/conda/bin/accelerate, launch, train.py, --fp16]", "command: [train.py, --fp16]"),
    ("[.venv/bin/torchrun, --standalone, train.py]", "command: [train.py]"),
    (
        "[/opt/conda/lib/python3.10/site-packages/torch/distributed/run.py, train.py]",
        "command: [train.py]",
    ),
    ("[python3.11, train.py]", "command: [train.py]"),
    ("[python, -W, ignore, -u, train.py]", "command: [train.py]"),
    ("[python, train]", "command: [./train]"),
    (
        "[python, -mtorch.distributed.run, --nproc_per_node=2, -m, pkg.train]",
        "command: [-m, pkg.train]",
    ),
    ("[python3, -c, 'import train; train.main()']", GENERIC),
    ("[python3.11]", GENERIC),
    ("[torchrun, --nproc_per_node=2, train.py, --lr, '0.1']", "command: [train.py, --lr, '0.1']"),
    ("[torchrun, -m, pkg.train, --out, a.py]", "command: [-m, pkg.train, --out, a.py]"),
    (
        "[accelerate, launch, --config_file, two.yaml, -m, lm_eval, --tasks, mmlu]",
        "command: [-m, lm_eval, --tasks, mmlu]",
    ),
    (
        "[deepspeed, --hostfile=hosts, --num_gpus, '2', train.py, --deepspeed, ds.json]",
        "command: [train.py, --deepspeed, ds.json]",
    ),
    ("[deepspeed, --module, pkg.train]", "command: [-m, pkg.train]"),
    ("[colossalai, run, --nproc_per_node, '4', --hostfile, h, train.py]", "command: [train.py]"),
    ("[mpirun, -np, '4', -x, PATH, -mca, btl, ^openib, python, train.py]", "command: [train.py]"),
    ("[mpiexec.hydra, -n, '2', train.py]", "command: [train.py]"),
    ("[horovodrun, -np, '4', -H, 'a:2,b:2', python, train.py]", "command: [train.py]"),
    ("[srun, -m, cyclic, --gres=gpu:2, python, -u, train.py]", "command: [train.py]"),
    (
        "[srun, --container-image=x, bash, -c, 'cd /work && python train.py --a 1']",
        "{command: [train.py, --a, '1'], working_dir: /work}",
    ),
    ("[numactl, -m, '0', python, train.py]", "command: [train.py]"),
    (
        "[env, FOO=1, NCCL_DEBUG=INFO, RANK=0, python, train.py]",
        "{command: [train.py], environment: {FOO: '1'}, nccl: {NCCL_DEBUG: INFO}}",
    ),
    ("[FOO=1, python, train.py]", "{command: [train.py], environment: {FOO: '1'}}"),
    ("[uv, run, --with, tqdm, python, -m, pkg.train]", "command: [-m, pkg.train]"),
    ("[uv, run, train.py]", "command: [train.py]"),
    ("[poetry, run, python, train.py]", "command: [train.py]"),
    ("[poetry, run, train]", GENERIC),
    ("[conda, run, -n, dl, --no-capture-output, python, train.py]", "command: [train.py]"),
    ("[docker, run, --gpus, all, --ipc=host, image, python, train.py]", "command: [train.py]"),
    ("[nohup, python, train.py]", "command: [train.py]"),
    ("['$PYTHON', train.py]", "command: [train.py]"),
    ("[llamafactory-cli, train, sft.yaml]", GENERIC),
    ("[train]", GENERIC),
    ("[bash, run.sh]", GENERIC),
    ("[./train.sh]", GENERIC),
    ("[/workspace/scripts/train.sh, '8']", GENERIC),
    ("[train.ipynb]", "command: [train.py]"),
    ("[-u, train.py]", "command: [train.py]"),
    ("[--nproc_per_node, '2', train.py, --lr, '0.1']", "command: [train.py, --lr, '0.1']"),
    ("['train.py --epochs 3']", "command: [train.py, --epochs, '3']"),
    ("['python -m pkg.train', --lr, '0.1']", "command: [-m, pkg.train, --lr, '0.1']"),
    ("['-m pkg.train']", "command: [-m, pkg.train]"),
    ("[train.py, '--lr 0.1']", "command: [train.py, --lr, '0.1']"),
    ("[train.py, --lr, '0.1', 2>&1, '|', tee, log]", "command: [train.py, --lr, '0.1']"),
    ("train.py --epochs 3", "command: [train.py, --epochs, '3']"),
    ("python train.py", "command: [train.py]"),
    ("bash run.sh", GENERIC),
    ("sh -c 'python train.py'", "command: [train.py]"),
    (
        "OMP_NUM_THREADS=4 CUDA_VISIBLE_DEVICES=0,1 torchrun --nproc_per_node=2 train.py",
        "{command: [train.py], environment: {OMP_NUM_THREADS: '4'}}",
    ),
    ("nohup python -u train.py --on yes > out.log 2>&1 &", "command: [train.py, '--on', 'yes']"),
    (
        "pip install -r requirements.txt; python train.py",
        "{command: [train.py], setup: [pip install -r requirements.txt]}",
    ),
    (
        "|\n  set -e\n  source /opt/venv/bin/activate\n  export OMP_NUM_THREADS=4\n  cd /workspace/project\n  python prepare.py --out /data\n  torchrun --nnodes=2 \\\n    --nproc_per_node=4 train.py --lr 0.1\n  python eval.py\n",
        "{command: [train.py, --lr, '0.1'], environment: {OMP_NUM_THREADS: '4'}, setup: [python prepare.py --out /data], working_dir: /workspace/project}",
    ),
]


@pytest.mark.parametrize(("command", "right"), FOREIGN)
def test_a_command_of_another_launcher_is_refused_with_the_line_that_is_right(
    command: str, right: str
) -> None:
    written = yaml.safe_load(f"command: {command}")
    [fault] = faults(IMAGE | written)
    hint = proposed(fault.fix)
    expected = yaml.safe_load(right)
    setup = {"setup"} - expected.keys() if right == GENERIC else set()
    assert {name: value for name, value in hint.items() if name not in setup} == expected
    assert not faults(IMAGE | hint)


@pytest.mark.parametrize(
    "command",
    [
        ["ddp.py", "50"],
        ["./train", "--lr", "0.1"],
        ["/workspace/src/train"],
        ["my ddp.py"],
        ["train.PY"],
        ["app.pyz"],
        ["accelerate/train.py"],
        ["-m", "pkg.train"],
        ["-m", "coverage", "run", "train.py"],
        ["train.py", "python", "torchrun", "-m", "torch.distributed.run"],
        ["train.py", "--delimiter", "|", "--pad", "<pad>", "--say=hello you", "a text"],
    ],
)
def test_a_script_may_have_any_name_and_any_arguments(command: list[str]) -> None:
    assert not faults({**IMAGE, "command": command})


@pytest.mark.parametrize(
    ("command", "right"),
    [
        ("vllm serve /model --port 8000", ["vllm", "serve", "/model", "--port", "8000"]),
        ("HF_HOME=/m vllm serve /model", ["sh", "-c", "HF_HOME=/m vllm serve /model"]),
        ("pip install vllm && vllm serve /m", ["sh", "-c", "pip install vllm && vllm serve /m"]),
    ],
)
def test_a_server_gets_the_words_or_a_shell(command: str, right: list[str]) -> None:
    server = {**IMAGE, "port": 8000}
    [fault] = faults({**server, "command": command}, ServerSection)
    assert proposed(fault.fix) == {"command": right}
    assert not faults({**server, "command": right}, ServerSection)


WORDS = """
python python3.11 /usr/bin/python3 torchrun accelerate launch deepspeed bash -c -m --module env srun uv run train.py
./train train.sh pkg.train torch.distributed.run FOO=1 --lr 0.1 -u && ; | > cd /a export on 1e3 - -- '' ~ #x [a] {b}
a:b 'a b.py' $X x.ipynb
"""


@given(st.lists(st.sampled_from(WORDS.split()), min_size=1, max_size=6))
@settings(max_examples=400, deadline=None)
def test_a_proposed_line_is_never_refused(words: list[str]) -> None:
    for command in (words, " ".join(words)):
        for fault in faults({**IMAGE, "command": command}):
            hint = proposed(fault.fix)
            assert "command" in hint
            assert not faults(IMAGE | hint)


# ---- Keys of other programs

JOB = yaml.safe_load(sandbox.JOB)
SCRIPT = IMAGE | {"command": ["train.py"]}
SERVER = yaml.safe_load(sandbox.SERVER)
OWN = IMAGE | {"command": ["vllm", "serve", "/model"], "port": 8000}
INVENTORY = {"cluster": "lab", "hosts": {"pc1": {"address": "192.168.8.151", "roles": ["manager"]}}}
FILES: dict[str, tuple[type[BaseModel], dict[str, Any]]] = {
    "job": (JobSection, JOB),
    "script": (JobSection, SCRIPT),
    "server": (ServerSection, SERVER),
    "own": (ServerSection, OWN),
    "inventory": (InventorySection, INVENTORY),
}
LEFT = "leave it out: "
DECIDED = """
ipc runtime privileged network_mode hostname master_addr world_size node_rank backend num_workers depends_on
container_name services logging imagePullPolicy cap_add
"""

# The file, the section in it, the key as people write it, and what the hint has.
KEYS: list[tuple[str, str, str, str]] = [
    ("script", "", "shm_size: 32g", "limits: {shared_memory: 32GiB}"),
    ("job", "train", "shm_size: 16gb", "limits: {shared_memory: 16GiB}"),
    ("server", "", "shm_size: 16gb", LEFT),
    ("inventory", "", "shm_size: 16gb", "limits: {shared_memory: 16GiB}"),
    ("job", "limits", "shm_size: 8Gi", "shared_memory: 8GiB"),
    ("script", "", "gpus: all", "hosts: {gpus_per_host: 1}"),
    ("job", "", "nproc_per_node: 4", "hosts: {gpus_per_host: 1}"),
    ("script", "", "gres: gpu:2", "hosts: {gpus_per_host: 1}"),
    ("script", "", "numGpus: 2", "hosts: {gpus_per_host: 1}"),
    ("script", "", "device_ids: ['0', '1']", "hosts: {gpus_per_host: 1}"),
    ("own", "", "nvidia.com/gpu: 1", "hosts: {gpus_per_host: 1}"),
    ("script", "", "nnodes: 2", "hosts: {names: [pc1, pc2]}"),
    ("script", "", "--ntasks: 2", "hosts: {names: [pc1, pc2]}"),
    ("own", "", "replicas: 2", "hosts: {names: [pc1, pc2]}"),
    ("script", "", "partition: gpu", "hosts: {names: [pc1, pc2]}"),
    ("script", "hosts", "nnodes: 2", "names: [pc1, pc2]"),
    ("job", "", "min: 1", "hosts: {min: 1}"),
    ("script", "", "cpus-per-task: 4", "limits: {cpus: 4}"),
    ("script", "", "mem: 64G", "limits: {memory: 64GiB}"),
    ("job", "", "memory: 64GiB", "limits: {memory: 64GiB}"),
    (
        "job",
        "",
        "deploy: {resources: {limits: {}}}",
        "{hosts: {gpus_per_host: 1}, limits: {memory: 24GiB, cpus: 8}}",
    ),
    (
        "script",
        "",
        "resources: {limits: {nvidia.com/gpu: 2}}",
        "{hosts: {gpus_per_host: 1}, limits: {memory: 24GiB, cpus: 8}}",
    ),
    ("script", "", "ulimits: {memlock: -1}", "limits: {memlock: unlimited}"),
    ("script", "", "volumes: ['/srv:/data']", "mounts: [{bind: /srv/data, to: /data}]"),
    ("own", "", "volumeMounts: [{mountPath: /m}]", "mounts: [{bind: /srv/data, to: /data}]"),
    ("server", "", "volumes: ['/srv:/data']", LEFT),
    ("script", "", "env: [{name: A, value: b}]", "environment: {NAME: value}"),
    ("job", "train", "environment: {A: b}", "environment: {PYTHONUNBUFFERED: '1'}"),
    ("script", "", "env_file: .env", "{environment: {NAME: value}, secrets: {TOKEN: env}}"),
    ("own", "", "ports: ['8000:8000']", "port: 8000"),
    ("script", "", "ports: ['8000:8000']", LEFT),
    ("script", "", "workingDir: /w", ""),
    ("script", "", "cwd: /w", "working_dir: /w"),
    ("job", "", "cwd: /w", LEFT),
    ("script", "", "args: [--lr, '0.1']", "command: [train.py, --lr, '0.1']"),
    ("script", "", "entrypoint: [python, other.py]", "command: [other.py]"),
    ("job", "", "entrypoint: python other.py", LEFT),
    (
        "own",
        "",
        "args: [--port, '8000']",
        "{command: [vllm, serve, /model, --port, '8000'], port: 8000}",
    ),
    ("job", "", "restart: unless-stopped", "faults: {max_restarts: 3}"),
    ("script", "", "restartPolicy: Never", LEFT),
    ("job", "", "time_limit: 12h", "max_duration: 12h"),
    ("script", "", "activeDeadlineSeconds: 3600", "max_duration: 12h"),
    ("own", "", "time_limit: 12h", LEFT),
    ("own", "", "healthcheck: {test: [x]}", "health: /health"),
    ("script", "", "master_port: 29500", "rendezvous: {port: 29500}"),
    ("job", "", "lr: 0.01", "train: {learning_rate: 0.01}"),
    ("job", "train", "lr: 0.01", "learning_rate: 0.01"),
    ("script", "", "lr: 0.01", "command: [train.py, --lr, '0.01']"),
    ("inventory", "", "lr: 0.01", "train: {learning_rate: 0.1}"),
    ("job", "", "bs: 32", "train: {batch_size: 32}"),
    ("script", "", "bs: 32", "batch_size: 32"),
    ("job", "train", "num_epochs: 5", "epochs: 5"),
    ("job", "", "epochs: 3", "train: {epochs: 3}"),
    ("job", "train", "fp16: true", "precision: auto"),
    ("inventory", "", "machines: {}", "hosts: {pc1: {address: 192.168.8.151, gpus: 1}}"),
    ("inventory", "", "name: lab", "cluster: lab"),
    ("inventory", "", "mtu: 9000", "network: {mtu: 1500}"),
    ("inventory", "hosts.pc1", "ip: 10.0.0.1", "address: 192.168.8.151"),
    ("inventory", "hosts.pc1", "user: me", "ssh: user1@pc1"),
    ("inventory", "hosts.pc1", "slots: 2", "gpus: 1"),
    ("inventory", "hosts.pc1", "nic: eth0", "interface: eth0"),
    ("inventory", "hosts.pc1", "cpus: 16", LEFT),
    ("inventory", "hosts.pc1", "labels: {a: b}", LEFT),
    *(
        (file, "", f"{key}: 2", LEFT)
        for file in ("job", "script", "own")
        for key in DECIDED.split()
    ),
]


def section_of(document: dict[str, Any], section: str) -> dict[str, Any]:
    found = document
    for part in section.split(".") if section else []:
        found = found.setdefault(part, {})
    return found


@pytest.mark.parametrize(("file", "section", "written", "hint"), KEYS)
def test_a_key_of_another_program_is_answered_with_kits(
    file: str, section: str, written: str, hint: str
) -> None:
    model, valid = FILES[file]
    document = copy.deepcopy(valid)
    section_of(document, section).update(yaml.safe_load(written))
    fault = key_fault(model, document)
    if hint == LEFT:
        assert fault.fix.startswith(LEFT)
        return
    keys = proposed(fault.fix)
    assert keys == (yaml.safe_load(hint) or {})
    if "jobs/NAME.yaml" in fault.fix:
        model, valid, section = JobSection, JOB, ""
    right = copy.deepcopy(valid)
    place = section_of(right, "" if "beside" in fault.fix else section)
    for name, value in keys.items():
        place[name] = {**place.get(name, {}), **value} if isinstance(value, dict) else value
    assert not faults(right, model)


def test_no_name_means_a_key_that_the_place_has() -> None:
    """A row for such a name would never be read."""
    for rows, model in ((names.OF_HOST, HostSection), (names.OF_GPU, GpuSection)):
        assert not {name for _, meant in rows for name in meant.split()} & {*model.model_fields}
    named = {name for _, meant in names.OF_INVENTORY for name in meant.split()}
    assert not named & {*InventorySection.model_fields}


def known_words() -> list[str]:
    """All words of other programs that kit knows as keys, and the keys of a job."""
    tables = [value for key, value in vars(names).items() if key.isupper()]
    rows = [row for table in tables if isinstance(table, (list, tuple)) for row in table]
    meant = [row[1] for row in rows if isinstance(row, tuple) and len(row) == 2]
    words = {word for text in meant if isinstance(text, str) for word in text.split()}
    return sorted(words | JobSection.model_fields.keys())


@pytest.mark.parametrize("value", ["x", [], {"a": 1}], ids=str)
@pytest.mark.parametrize("section", ["", "train"])
def test_each_known_word_has_an_answer_wherever_it_is(section: str, value: object) -> None:
    words, found = known_words(), list[Fault]()
    assert {"notify", "nproc_per_node"} <= {*words}
    for word in words:
        document = yaml.safe_load(sandbox.JOB)
        place = document.setdefault(section, {}) if section else document
        place.setdefault(word, value)
        try:
            JobSection.model_validate(document)
        except ValidationError as error:
            found += explain.faults(error, JobSection, "file", document)
    assert len(found) > len(words) / 2
    assert all(each.what for each in found)
