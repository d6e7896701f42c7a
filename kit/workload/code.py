"""The Python files that come with a job, as configs of its containers. Pure."""

from __future__ import annotations

from kit.model import Job, Server
from kit.workload.types import Config, Document, Variable, Word

FOLDER = "/kit/code"


def code_documents(owner: Job | Server) -> tuple[Document, ...]:
    """Return the files of a job or a server in the rendered tree."""
    folder = f"serve/{owner.short_name}" if isinstance(owner, Server) else f"jobs/{owner.name}"
    return tuple(Document(f"{folder}/{each.name}", each.text) for each in owner.code)


def code_configs(owner: Job | Server) -> tuple[Config, ...]:
    """Return the mounts of the files. Their keys are short: Swarm limits names of configs."""
    keys = ("code", *(f"code-{number}" for number in range(2, len(owner.code) + 1)))
    documents = zip(keys, owner.code, code_documents(owner), strict=False)
    return tuple(Config(key, each.path, f"{FOLDER}/{file.name}") for key, file, each in documents)


def code_variables(owner: Job | Server) -> tuple[Variable, ...]:
    """Return the variable from which the trainer knows the folder of the files."""
    if not owner.code:
        return ()
    why = "The job's own Python: modules in the folder of this file."
    return (Variable("KIT_CODE", Word(f"{FOLDER}/{owner.code[0].name}"), why),)
