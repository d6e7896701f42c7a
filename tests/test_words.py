# ruff: noqa: E501 - a command is one line
"""Words from other programs, as people's scripts and files have them: kit names its own instead.

The lines are those of reports and manuals of torchrun, Accelerate, DeepSpeed, MPI and Slurm.
"""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from kit.config import explain
from kit.config.job import JobSection
from kit.config.server import ServerSection
from kit.errors import Fault
from trainer import launch
from trainer.contract import script

IMAGE = {"image": "pytorch/pytorch:2.2.2-cuda12.1-cudnn8-devel"}
GENERIC = 'command: [ddp.py, "50"]'


def faults(document: dict[str, Any], model: type[BaseModel] = JobSection) -> list[Fault]:
    """The mistakes in a job, or in another file."""
    try:
        model.model_validate(document)
    except ValidationError as error:
        return explain.faults(error, model, "file")
    return []


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


def test_the_launcher_refuses_by_the_same_rule() -> None:
    mine, theirs = (inspect.getsource(each.foreign_start) for each in (script, launch))
    assert mine == theirs
    assert (launch.SCRIPTS, launch.LAUNCHERS) == (script.SCRIPTS, script.LAUNCHERS)
