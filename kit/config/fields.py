"""The types of the fields in the user's files."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from kit import addresses, values
from kit.values import WrongValueError
from trainer.contract.words import shown


class Section(BaseModel):
    """One section of a file: strict types, no unknown keys."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


def validator_of(parse: Callable[[object], Any]) -> Callable[[object], Any]:
    """Return a validator that reports a parser's `WrongValueError` without changing its text."""
    # Many hosts repeat the same few values.
    cached = functools.lru_cache(parse)

    def validate(value: object) -> Any:
        try:
            return cached(value) if isinstance(value, str) else parse(value)
        except WrongValueError as error:
            raise wrong(error.what, error.fix) from None

    return validate


def wrong(what: str, fix: str, *at: str | int) -> PydanticCustomError:
    """Return an error that `kit.config.explain` reports without changing its text.

    `at` is the path from the validated place to the wrong one.
    """
    return PydanticCustomError("kit", "{what}; {fix}", {"what": what, "fix": fix, "at": at})


def tagged(choose: Callable[[object], str | None], what: str, fix: str) -> Discriminator:
    """Choose a type of a union by a tag, which `kit.config.explain` removes from paths.

    `choose` returns None if no type matches.
    """
    return Discriminator(
        choose,
        custom_error_type="kit",
        custom_error_message="{what}; {fix}",
        custom_error_context={"what": what, "fix": fix},
    )


def text_field(parse: Callable[[object], Any], pattern: str, example: str, description: str) -> Any:
    """Return the annotations of a text that `parse` checks; an editor knows its `pattern`."""
    schema = {"type": "string", "pattern": pattern, "examples": [example]}
    return BeforeValidator(validator_of(parse)), WithJsonSchema(
        {**schema, "description": description}
    )


def only_key(value: object, names: Iterable[str]) -> str | None:
    """Return the tag of the only one of these keys in a mapping, or None if it is not one."""
    kinds = [name for name in names if isinstance(value, dict) and name in value]
    return f"<{kinds[0]}>" if len(kinds) == 1 else None


SIZE = r"^[0-9]+(\.[0-9]+)?\s*(B|KiB|MiB|GiB|TiB)$"
Size = Annotated[int, *text_field(values.size, SIZE, "24GiB", "Size with a binary unit")]
Speed = Annotated[
    int, *text_field(values.speed, r"^[0-9]+(\.[0-9]+)?\s*(Mbit|Gbit)$", "1Gbit", "Bits per second")
]
Duration = Annotated[
    int,
    *text_field(
        values.duration, r"^[0-9]+(\.[0-9]+)?\s*[smh]$", "60s", "Seconds, minutes or hours"
    ),
]
Patience = Annotated[
    int,
    BeforeValidator(validator_of(values.patience)),
    WithJsonSchema(
        {
            "anyOf": [
                {"const": 0},
                {"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)?\s*[smh]$", "examples": ["10m"]},
            ],
        }
    ),
]
Label = Annotated[
    str,
    *text_field(values.dns_label, r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$", "lab", "A DNS label"),
]
User = Annotated[
    str,
    *text_field(
        values.user,
        r"^[A-Za-z0-9_][-A-Za-z0-9_.]*(:[A-Za-z0-9_][-A-Za-z0-9_.]*)?$",
        "1000:1000",
        "A user and optionally a group, as numbers or as names of the image",
    ),
]
Subnet = Annotated[
    str,
    *text_field(
        addresses.subnet, r"^[0-9.]+/[0-9]+$", "10.200.0.0/16", "IPv4 network in CIDR notation"
    ),
]
GpuUuid = Annotated[
    str,
    *text_field(
        values.gpu_uuid,
        r"^((GPU|MIG)-.+|[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12})$",
        "GPU-5f3a…",
        "As `nvidia-smi -L` prints it, MIG too",
    ),
]


LEAST_MEMORY = 6 * 2**20
"""Docker rejects a smaller limit."""


def _memory(value: object) -> int:
    size = values.size(value)
    if size < LEAST_MEMORY:
        least = values.show_size(LEAST_MEMORY)
        raise WrongValueError(f"Docker starts no container with {value}", f"write at least {least}")
    return size


Memory = Annotated[int, *text_field(_memory, SIZE, "24GiB", "Size with a binary unit")]
Cpus = Annotated[
    float, Field(ge=0.01, le=4096, allow_inf_nan=False, description="Number of CPUs, at least 0.01")
]


def _unlimited_or_size(value: object) -> int:
    if value == -1:
        raise WrongValueError("-1 is Docker's syntax", "write unlimited")
    return -1 if value == "unlimited" else values.size(value)


Ulimit = Annotated[
    int,
    BeforeValidator(validator_of(_unlimited_or_size)),
    WithJsonSchema({"type": "string", "examples": ["unlimited", "64MiB"]}),
]


def known_variable(name: object) -> str:
    """Check the name of an environment variable."""
    if isinstance(name, str) and re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        return name
    raise WrongValueError("is not the name of a variable", "use letters, digits and _")


def _variable_value(value: object) -> str:
    if isinstance(value, bool):
        text = str(value).lower()
        raise WrongValueError(
            f"{text} is a YAML boolean", f'write "{text}", or "1" or "0", in quotes'
        )
    if isinstance(value, float):
        what = f"{value} is a number, and YAML does not keep its digits"
        raise WrongValueError(what, "write it in quotes")
    if isinstance(value, (str, int)):
        return str(value)
    raise WrongValueError(f"{shown(value)} is not a text", "write one value, in quotes")


def _nccl_name(name: object) -> str:
    text = known_variable(name)
    if not text.startswith("NCCL_"):
        raise WrongValueError(
            "is not a variable of NCCL", f"write NCCL_{text.upper()}, or move it to environment"
        )
    return text


VariableValue = Annotated[
    str,
    BeforeValidator(validator_of(_variable_value)),
    WithJsonSchema({"type": ["string", "number"]}),
]
NcclVariables = Annotated[
    dict[Annotated[str, BeforeValidator(validator_of(_nccl_name))], VariableValue],
    Field(examples=[{"NCCL_DEBUG": "INFO"}]),
]


def _absolute(path: object) -> str:
    if isinstance(path, str) and path.startswith("/") and ".." not in path.split("/"):
        return "/" + "/".join(part for part in path.split("/") if part not in {"", "."})
    raise WrongValueError(
        f"{shown(path)} is not an absolute path without ..", "write for example /data"
    )


def _secret_path(path: object) -> str:
    if isinstance(path, str) and path.startswith(("/", "~/")):
        return path
    # The value may be the secret itself, so no message shows it.
    raise WrongValueError(
        "is the path of a file, which begins with / or ~/",
        "keep the secret outside the repository, for example ~/.wandb-key",
    )


def _target(path: object) -> str:
    target = _absolute(path)
    if target == "/dev/shm":
        raise WrongValueError("kit mounts /dev/shm itself", "set `limits: {shared_memory: 16GiB}`")
    if target in {"/", "/kit"} or target.startswith("/kit/"):
        what = "nothing can be mounted over the whole container" if target == "/" else ""
        raise WrongValueError(what or "/kit is reserved for kit", "write for example /data")
    return target


_HOST = r"([A-Za-z0-9][-.A-Za-z0-9]*|\[[A-Fa-f0-9:]+\])"
Image = Annotated[
    str,
    *text_field(
        addresses.image,
        r"^[A-Za-z0-9[]",
        "registry.lab:5000/trainer:0.2.0",
        "Registry, path and tag",
    ),
]
RegistryAddress = Annotated[
    str,
    *text_field(addresses.registry, rf"^{_HOST}(:[0-9]+)?$", "registry.lab:5000", "host:port"),
]
AlertmanagerAddress = Annotated[
    str,
    *text_field(addresses.alertmanager, rf"^{_HOST}:[0-9]+$", "alerts.lab:9093", "host:port"),
]
NfsExport = Annotated[
    str,
    *text_field(
        addresses.nfs_export,
        r"^([^:\s,]+|\[[^\s,]+\]):/[^\s,]*$",
        "192.168.8.151:/export/data",
        "server:/path",
    ),
]
_INTERFACE = {"type": "string", "pattern": r"^[A-Za-z0-9]", "examples": ["eth0"]}
Interface = Annotated[
    str,
    BeforeValidator(validator_of(addresses.interfaces)),
    WithJsonSchema(
        {
            "anyOf": [
                _INTERFACE,
                {
                    "type": "array",
                    "items": _INTERFACE,
                    "minItems": 1,
                    "uniqueItems": True,
                    "examples": [["enp1s0f0np0", "enp1s0f1np1"]],
                },
            ],
            "description": "One interface of the host, or a list of them, which NCCL uses together",
        }
    ),
]
MountTarget = Annotated[
    str, *text_field(_target, r"^/.", "/data", "Absolute path in the container")
]
AbsolutePath = Annotated[str, *text_field(_absolute, r"^/", "/data", "Absolute path")]
SecretPath = Annotated[
    str, *text_field(_secret_path, r"^(/|~/)", "~/.wandb-key", "A file where kit deploy runs")
]
