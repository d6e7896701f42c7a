"""Notes on a plan: hints for the user that do not stop the plan."""

from __future__ import annotations

import re
from collections.abc import Sequence

from kit.jobs import Package
from kit.model import Inventory, Use
from kit.plan.gpus import chosen, shares_memory, without_bf16
from kit.plan.work import JobPlan, ServerPlan
from kit.values import SHARERS, count, cut_short, show_seconds, show_size
from trainer.contract.own import references
from trainer.contract.words import some

MOST_IDLE = 0.25
"""Share of a pipeline's time from which on there is a note."""
MOST_NAMED = 5
"""Longer lists of hosts are shortened."""


def job_notes(plans: Sequence[JobPlan]) -> list[str]:
    """Return the notes on each job's batch, precision, exchange and environment."""
    notes = []
    for plan in plans:
        notes += _batch_notes(plan) + _precision_notes(plan) + _exchange_notes(plan)
        notes += _secret_notes(plan) + _memory_notes(plan) + _code_notes(plan)
        notes += _idle_notes(plan) + _division_notes(plan) + _shared_notes(plan)
    return notes + resume_notes(plans)


def resume_notes(plans: Sequence[JobPlan]) -> list[str]:
    """Name the scripts that may save on each host separately and resume ranks at different steps.

    kit copies the newest checkpoint to all hosts only for its own training.
    """
    return [
        f"{plan.name}: {mount.source} is a different folder on each of "
        f"{_names([host.name for host in plan.hosts])}: a script that saves there resumes each "
        "host from its own files, possibly at different steps; name them, as in `checkpoint: "
        "{files: [snapshot.pt]}`, save to an NFS volume, or mount the folder with "
        "`read_only: true` if it saves elsewhere"
        for plan in plans
        if plan.job.command and not plan.job.checkpoint.files and len(plan.placements) > 1
        for mount in plan.job.mounts
        if mount.kind == "bind" and not mount.read_only
    ]


def spare_notes(inventory: Inventory, plans: Sequence[JobPlan]) -> list[str]:
    """Name the spares that stand in for no host."""
    used = {spare.host.name for plan in plans for spare in plan.spares}
    spares = [host for host in inventory.hosts if any(gpu.use is Use.SPARE for gpu in host.gpus)]
    idle = [host.name for host in spares if host.name not in used]
    if not plans or not idle:
        return []
    return [
        f"{_names(idle)}: no job uses this spare: a job that names its hosts uses only spares that "
        "it names, a divided model and TensorFlow use none"
    ]


def uuid_notes(inventory: Inventory) -> list[str]:
    """Name the UUIDs that are cut short: kit deploys only to GPUs that are named in full."""
    shortened = [
        (host.name, [gpu.id for gpu in host.gpus if gpu.known and cut_short(gpu.id)])
        for host in inventory.hosts
    ]
    return [
        f"{name}: cut short: {', '.join(cut)}; `kit discover {name}` writes UUIDs in full"
        for name, cut in shortened
        if cut
    ]


def server_notes(servers: Sequence[ServerPlan]) -> list[str]:
    """Name the servers that have no GPU."""
    return [
        f"{server.name} is idle: no GPU is for inference"
        + (f" on {_names(server.server.hosts.names)}" if server.server.hosts.names else "")
        + "; `kit split --infer 1` gives it one"
        for server in servers
        if not server.placements
    ]


def lock_notes(unlocked: Sequence[str]) -> list[str]:
    """Name the images that an existing lock lacks: each host resolves their tags separately."""
    if not unlocked:
        return []
    return [f"images.lock has no digest for {', '.join(unlocked)}: run `kit image lock`"]


def package_notes(name: str, package: Package) -> list[str]:
    """Name the files that are not sent with a job, although no pattern leaves them out.

    They are not part of the plan: another machine has other such files beside the same code.
    """
    notes = []
    if not package.here:
        what = f"{name}: code: there is no {package.folder} here"
        notes.append(f"{what}: the version is that of the rendered files")
    if secrets := package.secrets:
        what = f"{name}: code: {some(secrets)} may hold secrets, and stays here"
        notes.append(
            f"{what}; `secrets:` gives a job its secrets, `include: [{secrets[0]}]` sends it"
        )
    if package.left_out:
        notes.append(f"{name}: code: {some(package.left_out)} stays here")
    return notes


def _code_notes(plan: JobPlan) -> list[str]:
    """Name the custom modules that do not come with the job."""
    if plan.job.train is None or plan.job.package:
        return []
    here = {each.name for each in plan.job.code}
    wanted = {each.module for each in references((plan.job.train.dataset, plan.job.train.model))}
    return [
        f"{plan.name}: there is no {name}.py beside {plan.job.file}: Python must find {name} in "
        f"{plan.image}"
        for name in sorted(wanted)
        if f"{name}.py" not in here
    ]


def _batch_notes(plan: JobPlan) -> list[str]:
    batch_, rate = plan.batch, plan.batch.suggested_learning_rate
    if not batch_.total or not batch_.reference or batch_.total == batch_.reference:
        return []
    note = (
        f"{plan.name}: the global batch is {batch_.total}, the reference batch {batch_.reference}"
    )
    if rate is not None:
        note += (
            f"; scaled linearly, the learning rate {batch_.learning_rate:g} becomes {rate:g} "
            "(Goyal et al. 2017, arXiv 1706.02677)"
        )
    return [note]


def _idle_notes(plan: JobPlan) -> list[str]:
    """Warn of a step with fewer samples than processes: some processes compute nothing."""
    total, size = plan.batch.total, plan.world_size
    if plan.job.train is None or plan.division is not None or not total or total >= size:
        return []
    return [
        f"{plan.name}: a step has {count(total, 'sample')}, so {size - total} of {size} GPUs have "
        f"none; `global_batch: {size}` gives each one"
    ]


def _division_notes(plan: JobPlan) -> list[str]:
    """Warn of tensor groups across hosts, and of pipelines that are mostly idle."""
    if plan.division is None or plan.job.train is None:
        return []
    notes, sizes = [], plan.division.sizes
    if sizes["tensor"] > 1 and "tensor" not in plan.division.within_hosts:
        notes.append(
            f"{plan.name}: tensor {sizes['tensor']} crosses hosts, which exchange the features of "
            "all tokens four times in each block; a number that divides the GPUs of each host "
            "keeps it on fast links"
        )
    stages, pieces = sizes["pipeline"], plan.batch.accumulation
    if stages > 1 and (idle := (stages - 1) / (pieces + stages - 1)) > MOST_IDLE:
        notes.append(
            f"{plan.name}: {idle:.0%} of the time of {stages} stages is idle with "
            f"{count(pieces, 'micro-step')}; `accumulation: {4 * stages}` with a smaller "
            "batch_size leaves a fifth"
        )
    return notes


def _precision_notes(plan: JobPlan) -> list[str]:
    if plan.job.train is None or plan.job.train.precision != "bf16":
        return []
    models = [
        f"{model} on {_names(hosts)}" for model, hosts in without_bf16(plan.placements).items()
    ]
    if not models:
        return []
    what = f"{', '.join(models)}: Volta and Turing have no bf16 arithmetic"
    return [f"{plan.name}: precision bf16, but {what}; use fp16"]


def _names(hosts: Sequence[str]) -> str:
    more = len(hosts) - MOST_NAMED
    return ", ".join(hosts[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def _exchange_notes(plan: JobPlan) -> list[str]:
    """Warn if one host alone is faster than all hosts together."""
    exchange = plan.exchange
    if exchange is None or exchange.chosen is None or exchange.chosen.speed_up >= 1:
        return []
    together = exchange.compute_seconds + exchange.chosen.step_seconds
    assumed = ", assumed" if exchange.assumed else ""
    return [
        f"{plan.name}: one host alone is faster: a step takes {show_seconds(together)} on "
        f"{count(len(plan.placements), 'host')} ({show_seconds(exchange.compute_seconds)} of it "
        f"computing{assumed}, the rest exchange), and {exchange.largest_host} alone processes the "
        f"same samples in {show_seconds(exchange.alone_seconds)}"
    ]


def _memory_notes(plan: JobPlan) -> list[str]:
    limits = plan.job.limits
    if limits.memory is None or limits.shared_memory <= limits.memory:
        return []
    return [
        f"{plan.name}: limits.shared_memory is {show_size(limits.shared_memory)}, limits.memory "
        f"{show_size(limits.memory)}: files in /dev/shm count as memory, so the kernel kills "
        "the training before /dev/shm is full"
    ]


def _shared_notes(plan: JobPlan) -> list[str]:
    """Name the GPUs that use the memory of their host, which other parts of the job need, too."""
    by_kind: dict[tuple[str, int | None], list[str]] = {}
    for placement, gpu in chosen(plan.placements):
        if gpu.model and shares_memory(gpu.model):
            hosts = by_kind.setdefault((gpu.model, gpu.memory), [])
            hosts += [placement.host.name] if placement.host.name not in hosts else []
    shm = f"limits.shared_memory is {show_size(plan.job.limits.shared_memory)}"
    notes = []
    for (model, memory), hosts in by_kind.items():
        size = show_size(memory) if memory else "that of the host"
        note = f"{plan.name}: {model} on {_names(hosts)} has no memory of its own: {SHARERS}"
        note += f" share {size}; {shm}"
        if memory is None:
            note += "; with `memory:` of the GPU in the inventory kit checks that models fit"
        notes.append(note)
    return notes


def _secret_notes(plan: JobPlan) -> list[str]:
    secret = re.compile(r"(^|_)(TOKEN|PASSWORD|PASSWD|SECRET|(API|ACCESS|PRIVATE)_KEY)$")
    return [
        f"{plan.name}: {name} looks like a secret, and the rendered files hold it in plain text"
        for name, _ in plan.job.environment
        if secret.search(name.upper())
    ]
