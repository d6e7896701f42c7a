"""The environment of a job or a server: variables that users may set."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field

from kit.config.fields import VariableValue, known_variable, validator_of
from kit.values import WrongValueError

RESERVED = frozenset(
    {
        "NVIDIA_VISIBLE_DEVICES",
        "CUDA_VISIBLE_DEVICES",
        "NVIDIA_MOFED",
        "RANK",
        "LOCAL_RANK",
        "WORLD_SIZE",
        "LOCAL_WORLD_SIZE",
        "MASTER_ADDR",
        "MASTER_PORT",
        "TF_CONFIG",
    }
)


def own_variable(name: object) -> str:
    """Check the name of a variable that users may set."""
    text = known_variable(name)
    if text in RESERVED or text.startswith("KIT_"):
        raise WrongValueError("is set by kit from the plan", "leave it out")
    if text.startswith("NCCL_"):
        raise WrongValueError("belongs in the job's nccl section", "move it to `nccl:`")
    return text


Environment = Annotated[
    dict[Annotated[str, BeforeValidator(validator_of(own_variable))], VariableValue],
    Field(examples=[{"PYTHONUNBUFFERED": "1"}]),
]
