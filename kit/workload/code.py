"""The Python files that come with a job, as configs of its containers. Pure."""

from __future__ import annotations

from kit.model import Job
from kit.workload.types import Config, Document, Variable, Word

FOLDER = "/kit/code"


def code_documents(job: Job) -> tuple[Document, ...]:
    """Return the files of a job in the rendered tree."""
    return tuple(Document(f"jobs/{job.name}/{each.name}", each.text) for each in job.code)


def code_configs(job: Job) -> tuple[Config, ...]:
    """Return the mounts of a job's files. Their keys are short: Swarm limits names of configs."""
    keys = ("code", *(f"code-{number}" for number in range(2, len(job.code) + 1)))
    documents = zip(keys, job.code, code_documents(job), strict=False)
    return tuple(Config(key, each.path, f"{FOLDER}/{file.name}") for key, file, each in documents)


def code_variables(job: Job) -> tuple[Variable, ...]:
    """Return the variable from which the trainer knows the folder of the files."""
    if not job.code:
        return ()
    why = "The job's own Python: modules in the folder of this file."
    return (Variable("KIT_CODE", Word(f"{FOLDER}/{job.code[0].name}"), why),)
