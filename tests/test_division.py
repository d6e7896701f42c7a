"""The plan of a divided model: its grid, the estimate of memory, refusals and what would fit."""

import json
import re
from dataclasses import replace
from typing import Any

import pytest
import torch
import yaml
from torch.nn import functional

from kit.plan.division import memory
from kit.plan.types import Memory
from tests.sandbox import Project
from trainer.contract.gpt import Gpt, gpt_of
from trainer.contract.job import Parallel, Train
from trainer.core.gpt import GPT, initialise

GPUS = """\
    gpus:
      - {uuid: GPU-%s0, model: H100, memory: 80GiB}
      - {uuid: GPU-%s1, model: H100, memory: 80GiB}
      - {uuid: GPU-%s2, model: H100, memory: 80GiB}
      - {uuid: GPU-%s3, model: H100, memory: 80GiB}
"""
INVENTORY = (
    "cluster: lab\nengine: swarm\nhosts:\n"
    "  a1:\n    address: 10.0.0.1\n    roles: [manager]\n" + GPUS.replace("%s", "a") +
    "  a2:\n    address: 10.0.0.2\n" + GPUS.replace("%s", "b")
)  # fmt: skip
JOB = """\
image: t:1
train:
  {dataset: text, path: a.txt, model: gpt, options: {preset: gpt3-6.7b}, context: 2048, epochs: 1,
   batch_size: 4, accumulation: 8, optimizer: adamw}
"""


def lines(project: Project, job: str) -> dict[str, str]:
    """The lines of `kit plan` below a job, by their first word."""
    result = project.write(INVENTORY, {"llm": job}).kit("plan")
    assert result.status == 0, result.err
    rows = [line for line in result.out.splitlines() if line.startswith("  ")]
    return {line.split()[0]: line.split(maxsplit=1)[1] for line in rows if len(line.split()) > 1}


def refusal(project: Project, job: str) -> str:
    result = project.write(INVENTORY, {"llm": job}).kit("plan")
    assert result.status == 2
    return result.err.strip()


def test_the_plan_says_where_each_dimension_is_and_what_a_gpu_holds(project: Project) -> None:
    found = lines(project, JOB + "parallel: {tensor: 2, pipeline: 2}\n")
    assert found["parallel"] == (
        "data 2 x pipeline 2 x tensor 2: tensor on one host, pipeline on one host, "
        "data across hosts"
    )
    assert found["memory"].startswith("about ")
    assert (
        " of 85.9 GB a GPU: parameters 6.44 GB, gradients 6.44 GB, optimizer 12.9 GB"
        in (found["memory"])
    )
    assert found["batch"] == "4 per GPU × 2 parts of the data × 8 accumulation steps = 64 global"
    found = lines(project, JOB + "parallel: {shard: 8}\n")
    assert found["parallel"] == "shard 8: shard across hosts"
    assert "gathered layers" in found["memory"]


def test_the_json_and_the_containers_have_the_grid(project: Project) -> None:
    result = project.write(INVENTORY, {"llm": JOB + "parallel: {shard: 8}\n"}).kit("plan", "--json")
    (job,) = json.loads(result.out)["jobs"]
    assert job["parallel"]["sizes"] == {"data": 1, "pipeline": 1, "shard": 8, "tensor": 1}
    assert job["parallel"]["within_hosts"] == ["tensor"]
    assert job["exchange"] is None
    (file,) = project.rendered().rglob("llm.json")
    assert json.loads(file.read_text())["parallel"] == {"shard": 8}


def test_a_job_that_is_not_divided_keeps_its_version(project: Project) -> None:
    small = JOB.replace("preset: gpt3-6.7b", "preset: gpt2")
    plain = project.write(INVENTORY, {"llm": small}).plan().jobs[0].job_hash
    same = project.write(INVENTORY, {"llm": small + "parallel: {}\n"}).plan().jobs[0].job_hash
    other = project.write(INVENTORY, {"llm": small + "parallel: {shard: 2}\n"}).plan()
    assert plain == same != other.jobs[0].job_hash


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("parallel: {shard: 3}", "parallel.shard: a replica of the model takes 3 ranks; 8 is not "
         "a multiple of it"),
        ("parallel: {shard: 2, data: 2}", "parallel.data: 2 replicas of 2 ranks are 4, not 8; "
         "write `data: 4`"),
        ("parallel: {tensor: 3}", "parallel.tensor: 3 ranks cannot share the model's 32 heads "
         "evenly; use a divisor: 1, 2, 4, 8, 16, 32"),
        ("parallel: {pipeline: 64}", "parallel.pipeline: 64 stages need as many blocks, the model "
         "has 32; write `pipeline: 32` or less"),
        ("parallel: {shard: 8}\nhosts: {min: 1}", "hosts.min: with fewer hosts, the rest of the "
         "ranks may be no multiple of 8"),
        ("parallel: {shard: 8}\nexchange: {mode: diloco}", "exchange.mode: needs the whole model "
         "on each rank, unlike `parallel:`"),
        ("parallel: {pipeline: 8}\nhosts: {names: [a1]}", "parallel.pipeline: a replica "
         "of the model takes 8 ranks; 4 is not a multiple of it"),
    ],
)  # fmt: skip
def test_grids_that_can_not_be_are_refused(more: str, message: str, project: Project) -> None:
    assert message in refusal(project, f"{JOB}{more}\n")


def test_pipelines_need_micro_steps_and_weights_of_their_own(project: Project) -> None:
    job = JOB.replace("accumulation: 8, ", "") + "parallel: {pipeline: 2}\n"
    assert "parallel.pipeline: 2 stages need as many micro-steps or more, not 1" in refusal(
        project, job
    )
    job = JOB.replace("gpt3-6.7b", "gpt2") + "parallel: {pipeline: 2}\n"
    assert (
        "parallel.pipeline: the first stage and the last have the same weights; "
        "write `options: {tied: false}` in `train:`"
    ) in refusal(project, job)


def test_scripts_and_other_models_are_not_divided_inside(project: Project) -> None:
    script = "image: t:1\ncommand: [a.py]\nparallel: {shard: 2}\n"
    assert "parallel: is for `train`; leave it out: a script divides" in refusal(project, script)
    images = "image: t:1\ntrain: {dataset: cifar10, model: resnet18, epochs: 1, batch_size: 8}\n"
    message = refusal(project, images + "parallel: {tensor: 2}\n")
    assert (
        "parallel.tensor: is for `model: gpt`; leave it out; `shard` divides any model" in message
    )
    assert lines(project, images + "parallel: {shard: 2}\n")["memory"].endswith(
        "and activations, which kit does not know"
    )


def test_what_does_not_fit_is_refused_with_what_would(project: Project) -> None:
    message = refusal(project, JOB)
    assert message.startswith("jobs/llm.yaml:4: train.batch_size: a rank needs 1")
    assert "optimizer 51.5 GB" in message
    change = message.rpartition("; write ")[2]
    assert change.startswith("`parallel: {shard: 2}` with `activation_checkpointing: true`")
    fixed = JOB.replace("optimizer:", "activation_checkpointing: true, optimizer:")
    assert "memory" in lines(project, fixed + "parallel: {shard: 2}\n")


def test_a_model_that_no_division_makes_fit_is_told(project: Project) -> None:
    small = INVENTORY.replace("80GiB", "4GiB")
    result = project.write(small, {"llm": JOB}).kit("plan")
    assert result.status == 2
    assert "no division among these GPUs fits: use more of them, or a smaller model" in result.err


DEMANDING = {
    "half a batch": ("batch_size: 4", "batch_size: 32", "", "`batch_size: 4`, `accumulation: 64`"),
    "with a fixed batch": (
        "batch_size: 4, accumulation: 8",
        "batch_size: 32, global_batch: 256",
        "",
        "`batch_size: 4` (",
    ),
    "replicas by number": ("", "", "parallel: {data: 8}\n", "`parallel: {shard: 2}`"),
    "another exchange": ("", "", "exchange: {mode: diloco}\n", "leave out `exchange.mode` and "),
    "fewer hosts": ("", "", "hosts: {min: 1}\n", "`parallel: {shard: 2}`"),
    "float16": (
        "optimizer:",
        "precision: fp16, ema_decay: 0.99, optimizer:",
        "",
        "leave out `train.ema_decay`, `train.precision` and ",
    ),
}


@pytest.mark.parametrize("kind", DEMANDING)
def test_the_change_that_fits_is_accepted(kind: str, project: Project) -> None:
    """A model that does not fit is refused with a change of the job; nothing refuses that."""
    old, new, more, words = DEMANDING[kind]
    job = JOB.replace(old, new) + more
    if "batch" in kind:
        job = job.replace("gpt3-6.7b", "gpt2-xl")
    fix = refusal(project, job).rpartition("); ")[2]
    assert words in fix, fix
    changed = yaml.safe_load(job)
    for name in re.findall(r"`(\w+)\.(\w+)`", fix):
        del changed[name[0]][name[1]]
    for piece in re.findall(r"`(\w+: [^`]+)`", fix):
        ((key, value),) = yaml.safe_load(piece).items()
        (changed if key == "parallel" else changed["train"])[key] = value
    result = project.write(INVENTORY, {"llm": yaml.safe_dump(changed)}).kit("plan")
    assert (result.status, result.err) == (0, ""), fix


def test_slow_links_and_idle_stages_are_noted(project: Project) -> None:
    notes = project.write(INVENTORY, {"llm": JOB + "parallel: {tensor: 8}\n"}).plan().notes
    assert any("llm: tensor 8 crosses hosts" in note for note in notes)
    job = JOB.replace("batch_size: 4, accumulation: 8", "batch_size: 1, accumulation: 2")
    job += "parallel: {pipeline: 2}\n"
    notes = project.write(INVENTORY, {"llm": job}).plan().notes
    assert any("33% of the time of 2 stages is idle with 2 micro-steps" in note for note in notes)


@pytest.mark.parametrize(
    ("keys", "tokens"),
    [
        ({}, 100),
        ({"tokenizer": "bpe"}, 8192),
        ({"tokenizer": "bpe", "vocabulary": 10_001}, 10_048),
        ({"tokenizer": "gpt2/tokenizer.json"}, 50_304),
    ],
)
def test_the_tokens_of_a_text_are_in_the_estimate(
    keys: dict[str, Any], tokens: int, project: Project
) -> None:
    options = {"layers": 2, "heads": 4, "width": 128, "positions": "learned"}
    train = Train(dataset="text", model="gpt", options=options, epochs=1, batch_size=4, **keys)
    job = project.write(INVENTORY, {"llm": JOB.replace("gpt3-6.7b", "gpt2")}).plan().jobs[0]
    found = memory(job.job, train, job.placements, Parallel())
    assert isinstance(found, Memory)
    assert found.parameters == 4 * gpt_of(options).parameters(tokens, train.context)


def saved_bytes(size: Gpt, rows: int, context: int, train: Train) -> int:
    """The bytes that torch keeps for a backward pass, without the parameters."""
    recompute = bool(train.activation_checkpointing)
    model = GPT(size, 100, context, recompute=recompute)
    initialise(model, 0)
    own = {each.untyped_storage().data_ptr() for each in model.parameters()}
    kept: dict[int, torch.Tensor] = {}

    def keep(values: torch.Tensor) -> torch.Tensor:
        if values.untyped_storage().data_ptr() not in own:
            kept[values.untyped_storage().data_ptr()] = values
        return values

    tokens = torch.zeros(rows, context, dtype=torch.int64)
    half = train.precision == "bf16"
    with (
        torch.autograd.graph.saved_tensors_hooks(keep, lambda values: values),
        torch.autocast("cpu", torch.bfloat16, enabled=half),
    ):
        scores = model(tokens)
        functional.cross_entropy(scores.float(), tokens)
    return sum(each.untyped_storage().nbytes() for each in kept.values())


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("positions", ["learned", "rotary"])
@pytest.mark.parametrize("saving", [None, True])
def test_the_estimate_of_activations_is_what_torch_keeps(
    precision: str, positions: str, saving: bool | None, project: Project
) -> None:
    options = {"layers": 6, "heads": 4, "width": 128, "positions": positions}
    train = Train(
        dataset="text", model="gpt", options=options, context=64, epochs=1, batch_size=4,
        precision=precision, activation_checkpointing=saving,  # type: ignore[arg-type]
    )  # fmt: skip
    job = project.write(INVENTORY, {"llm": JOB.replace("gpt3-6.7b", "gpt2")}).plan().jobs[0]
    found = memory(replace(job.job, train=train), train, job.placements, Parallel())
    assert isinstance(found, Memory)
    kept = saved_bytes(gpt_of(options), 4, 64, train)
    if saving:  # The hooks do not see the one block that is computed again.
        assert kept < (found.activations or 0) < 4 * kept
    else:
        assert found.activations == pytest.approx(kept, rel=0.15)
