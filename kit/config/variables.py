"""The variables of a job or a server that users may set, and the sources of their secrets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, Tag

from kit.config.fields import (
    SecretPath,
    Section,
    VariableValue,
    known_variable,
    only_key,
    tagged,
    validator_of,
    wrong,
)
from kit.model import Secret
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


class SecretFile(Section):
    """A secret from a file on the machine that runs `kit deploy`."""

    file: SecretPath


def _secret_kind(value: object) -> str | None:
    if value == "env":  # Any other value may be the secret itself, so no message shows it.
        return "<env>"
    return "<file>" if isinstance(value, dict) and "file" in value else None


def _unshown(secrets: object) -> object:
    if not isinstance(secrets, dict):  # Pydantic's own message would show the value.
        raise wrong("is not a mapping", "write for example `secrets: {WANDB_API_KEY: env}`")
    return secrets


Secrets = Annotated[
    dict[
        Annotated[str, BeforeValidator(validator_of(own_variable))],
        Annotated[
            Annotated[Literal["env"], Tag("<env>")] | Annotated[SecretFile, Tag("<file>")],
            tagged(
                _secret_kind,
                "names the source of a secret, not the secret itself",
                "write `env` (the variable of that name where kit runs) or `{file: ~/key}`",
            ),
        ],
    ],
    BeforeValidator(_unshown),
    Field(
        description="Variables of the training. No file of the repository contains their values: "
        "`env` reads them from the environment of `kit deploy`, `{file: PATH}` from a file "
        "on that machine",
        examples=[{"WANDB_API_KEY": "env", "HF_TOKEN": {"file": "~/.huggingface"}}],
    ),
]


def to_secrets(sections: Mapping[str, Literal["env"] | SecretFile]) -> tuple[Secret, ...]:
    """Convert the secrets of a job or a server."""
    return tuple(
        Secret(name, None if where == "env" else where.file) for name, where in sections.items()
    )


TOKEN = "SERVE_TOKEN"  # The name of the secret, not the secret.
"""The name of a file's token inside the container."""


class EnvToken(Section):
    """A token from an environment variable of `kit deploy`."""

    env: Annotated[str, BeforeValidator(validator_of(own_variable))]


class FileToken(Section):
    """A token from a file on the machine that runs `kit deploy`."""

    file: SecretPath


def _token_kind(value: object) -> str | None:
    return "<none>" if value is None else only_key(value, ("env", "file"))


Token = Annotated[
    Annotated[EnvToken, Tag("<env>")]
    | Annotated[FileToken, Tag("<file>")]
    | Annotated[None, Tag("<none>")],
    tagged(
        _token_kind,
        "names the source of the token, not the token itself",
        "write `{env: NAME}` (a variable where kit runs) or `{file: ~/token}`",
    ),
    Field(description="What clients must send as `Authorization: Bearer …`; default: nothing"),
]


def to_token(section: EnvToken | FileToken | None) -> Secret | None:
    """Convert the token of a server."""
    if section is None:
        return None
    if isinstance(section, FileToken):
        return Secret(TOKEN, section.file)
    return Secret(section.env, None)
