"""The environment of the containers that train."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

from kit.jobs import Framework, Job
from kit.plan.storage import DUMPS
from kit.plan.types import Placement
from kit.plan.work import JobPlan, Plan
from kit.workload.data import data_sets_json
from kit.workload.documents import code_variables
from kit.workload.privileges import NOBODY, default_variables, user_of_training
from kit.workload.settings import Environment, Symbol, Variable, Word
from kit.workload.types import Rendezvous
from trainer.contract.bearer import KEY
from trainer.contract.code import PREFIX

SECRETS = "KIT_SECRETS"
"""The variable with the names of the secrets that the launcher reads from files."""
JOB_FILE = "/kit/job.json"
FAULT_VARIABLES = {
    "NCCL_DEBUG": "WARN",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
    "TORCH_FR_BUFFER_SIZE": "2000",
    "TORCH_INCLUDE_STACK_TRACE": "False",
    "TORCH_FR_DUMP_TEMP_FILE": f"{DUMPS}/nccl_trace_rank_",
}
"""NCCL's flight recorder, to explain a hang: each rank writes its pending operation to a file,
which `kit logs --dumps` fetches and `torchfrtrace` reads. The launcher has the names of older
releases of torch."""
OLD_NAMES = {
    "TORCH_FR_BUFFER_SIZE": "TORCH_NCCL_TRACE_BUFFER_SIZE",
    "TORCH_FR_DUMP_TEMP_FILE": "TORCH_NCCL_DEBUG_INFO_TEMP_FILE",
}
"""The names of these variables before torch 2.9. Users may still write them."""


def job_variables(plan: Plan, job: JobPlan, defaults: Mapping[str, str]) -> dict[str, str]:
    """Return the defaults, and the variables of the inventory and the job, which override them."""
    user = dict(plan.network.nccl) | dict(job.job.nccl) | dict(job.job.environment)
    if job.job.framework is not Framework.PYTORCH:
        defaults = {k: v for k, v in defaults.items() if not k.startswith("TORCH_")}
    kept = {name: value for name, value in defaults.items() if OLD_NAMES.get(name) not in user}
    return {**kept, **user}


def hosts_variables(job: JobPlan) -> Environment:
    """Return the least and the most hosts that train together, and the number of spares.

    Only torchrun needs it on each host: a host of the built-in training does not restart when
    others come or leave.
    """
    spares = (Variable("KIT_SPARES", str(len(job.spares))),) if job.spares else ()
    return (Variable("KIT_NNODES", f"{job.nodes[0]}:{job.nodes[1]}"), *spares)


def environment_of(
    job: JobPlan,
    rendezvous: Rendezvous,
    members: Sequence[Placement],
    variables: Mapping[str, str],
    urls: Mapping[str, str],
    data_server: str,
    *,
    host_network: bool,
) -> Environment:
    """Return the variables of every container of a group, kit's own first."""
    set_by_kit = [
        Variable("KIT_JOB", Word(JOB_FILE)),
        *([Variable("KIT_RENDEZVOUS", rendezvous.endpoint)] if job.meets else []),
        *(hosts_variables(job) if job.job.command else ()),
        Variable("KIT_NPROC", str(len(members[0].gpus)), own=True),
        Variable("NVIDIA_VISIBLE_DEVICES", Symbol.GPUS, own=True),
        Variable("KIT_HOST", Symbol.HOST),
    ]
    if queued := job.job.queue:
        why = "Whose job it is. The queue adds KIT_SINCE and KIT_WAITED when it gives it the host."
        set_by_kit.append(Variable("KIT_OWNER", queued.owner, why))
        set_by_kit.append(Variable("KIT_PRIORITY", str(queued.priority)))
    if members[0].spare:
        why = "It stands by until a host of the job is lost, and takes its place."
        set_by_kit.append(Variable("KIT_SPARE", "1", why, own=True))
    interface = members[0].interface
    if host_network and interface:
        # NCCL treats a plain name as a prefix, Gloo does not. Gloo gets only the first of several:
        # it would spread its connections over all of them, also over those of another network.
        first = interface.partition(",")[0]
        named = {"NCCL_SOCKET_IFNAME": f"={interface}", "GLOO_SOCKET_IFNAME": first}
        set_by_kit += [
            Variable(name, value, own=True)
            for name, value in named.items()
            if name not in variables
        ]
    set_by_kit += () if job.job.package else code_variables(job.job)
    set_by_kit += _data_variables(job.job, urls, data_server)
    if job.job.secrets:
        names = ",".join(secret.name for secret in job.job.secrets)
        why = "The launcher sets these variables from files in /run/secrets."
        set_by_kit.append(Variable(SECRETS, names, why))
    # The built-in training has no other writable home.
    set_by_kit += default_variables(
        user_of_training(job.job) or (NOBODY if job.job.train else ""), variables
    )
    return (*set_by_kit, *(Variable(name, value) for name, value in variables.items()))


def _data_variables(job: Job, urls: Mapping[str, str], data_server: str) -> Iterator[Variable]:
    """Yield the variables of data sets, and of code that comes as one."""
    if job.fetched:
        why = "The launcher waits until the host's data agent has fetched these data sets."
        if job.package:
            why += f" {PREFIX}… is the code."
        yield Variable("KIT_DATA_SETS", data_sets_json(job.fetched), why)
    if job.session and job.package:
        folder = f"{job.session.home}/workspace/{job.package.version}"
        why = "The code is in the home, which stays: each version has its folder."
        yield Variable("KIT_WORKSPACE", folder, why)
    if urls and not job.train:
        why = "The addresses of the data sets that the script streams."
        yield Variable("KIT_DATA_URLS", json.dumps(urls), why)
    if data_server and job.streamed:
        why = "The server of these data sets, and the secret with the key that it wants."
        yield Variable("KIT_DATA_SERVER", data_server, why)
        yield Variable("KIT_KEY", Word(KEY))
