"""The settings of the server, from the file KIT_SERVER and the environment.

    KIT_SERVER               path of the server's file (JSON)
    KIT_CHECKPOINTS          the job's checkpoints on this host, if any; default: /checkpoints
    KIT_CHECKPOINT_SOURCES   http://host:port of other hosts' endpoints, separated by commas
    KIT_CHECKPOINT_TOKEN     name of the secret for these endpoints; default: that of token
    KIT_REPLICAS             number of copies of the model: one for each GPU, or on CPUs
    KIT_CODE                 a file in the folder with the Python of the job's own model, if any
    KIT_HOST                 this host's name in the log; default: its hostname
    KIT_ADDRESS              where it listens; default: at all addresses
    NVIDIA_VISIBLE_DEVICES   as in training: if it names GPUs, they must be usable
    /run/secrets/<token>     the bearer token, or the variable of that name

Standard library only; every mistake is a LaunchError, whose message says what to do.
"""

import json
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.contract.bearer import read_token
from trainer.contract.own import REFERENCE
from trainer.launcher.errors import LaunchError

# Key: type, least, most. 2^31 is more than any machine needs.
NUMBERS: dict[str, tuple[type, float, float]] = {
    "port": (int, 1, 65535),
    "size": (int, 1, 65536),
    "window": (float, 0, 60),
    "queue": (int, 1, 2**31),
    "timeout": (float, 0.001, 3600),
    "body": (int, 1, 2**31),
    "pixels": (int, 1, 2**31),
    "poll": (float, 0.01, 3600),
}
DEFAULTS: dict[str, Any] = {
    "checkpoint": "best",
    "port": 8080,
    "queue": 256,
    "timeout": 10.0,
    "body": 8 * 2**20,
    "pixels": 3 * 2**22,
    "token": None,
    "allowed_hosts": [],
    "poll": 2.0,
    "model": "",
    "access_log": "lines",
    "handler": "",
}
# Key: pattern, meaning.
FORMS = {
    "checkpoint": (r"newest|best|step-\d{8,}", "newest, best, or a name such as step-00000300"),
    "token": (r"[A-Za-z_][A-Za-z0-9_]*", "the name of a secret, or null"),
    "model": (rf"({REFERENCE})?", "a function such as mymodel:build"),
    "handler": (rf"({REFERENCE})?", "a class such as mymodel:Handler"),
    "access_log": ("lines|json|none", "lines, json or none"),
}
BATCH: dict[str, Any] = {"size": 64, "window": 0.005}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The values of the server's file and of the environment."""

    name: str  # Of the server.
    job: str  # The job that wrote the checkpoints.
    checkpoint: str  # newest, best (by its score), or a checkpoint's name.
    port: int
    size: int  # The most samples in a batch.
    window: float  # Seconds that the first sample of a batch waits for others.
    queue: int  # Samples that may wait.
    timeout: float  # Seconds that a sample may take, including its wait.
    body: int  # The most bytes in a request.
    pixels: int  # The most pixels in an uploaded picture.
    token: bytes | None  # The bearer token of clients.
    key: bytes | None  # The bearer token for other hosts' endpoints.
    allowed_hosts: frozenset[str]  # Allowed names besides addresses and plain names.
    poll: float  # Seconds between two checks for a newer checkpoint.
    access_log: str  # lines, json or none.
    model: str  # The only custom model that it imports, `module:function`; "": none.
    handler: str  # A custom class that answers, `module:class`; "": none.
    host: str
    address: str
    folder: Path  # Of the checkpoints on this host.
    sources: tuple[tuple[str, int], ...]  # Host and port of other hosts' endpoints.
    replicas: int

    @property
    def needs_token(self) -> bool:
        """Whether requests without the token are refused."""
        return self.token is not None


def read_settings(environ: Mapping[str, str]) -> Settings:
    """Read the server's file and the environment; raises LaunchError."""
    path = Path(environ.get("KIT_SERVER", ""))
    try:
        content = json.loads(path.read_text())
    except OSError as error:
        advice = "KIT_SERVER must name the server's file"
        raise LaunchError(f"{path}: {error.strerror}; {advice}") from error
    except ValueError as error:
        raise LaunchError(f"{path}: is not JSON: {error}") from error
    try:
        values = _values(content)
        values["token"] = read_token(values["token"], environ)
        key = read_token(environ.get("KIT_CHECKPOINT_TOKEN") or None, environ) or values["token"]
    except (LaunchError, ValueError) as error:
        raise LaunchError(f"{path}: {error}") from None
    replicas = environ.get("KIT_REPLICAS") or "1"
    if not replicas.isdecimal() or not 0 < int(replicas) < 1000:
        raise LaunchError(f'KIT_REPLICAS must be a whole number of at least 1, is "{replicas}"')
    return Settings(
        **values,
        key=key,
        host=environ.get("KIT_HOST") or socket.gethostname(),
        address=environ.get("KIT_ADDRESS", ""),
        folder=Path(environ.get("KIT_CHECKPOINTS") or "/checkpoints"),
        sources=tuple(parse_sources(environ.get("KIT_CHECKPOINT_SOURCES", ""))),
        replicas=int(replicas),
    )


def _values(content: Any) -> dict[str, Any]:
    if not isinstance(content, dict) or not isinstance(content.get("batch", {}), dict):
        raise LaunchError("must be an object with the keys name and job, and batch one in it")
    content.pop("generated", None)  # The name of the program that made the file.
    batch = content.get("batch", {})
    known = {"name", "job", "batch", *DEFAULTS}
    unknown = [key for key in content if key not in known]
    unknown += [f"batch.{key}" for key in batch if key not in BATCH]
    if unknown:
        raise LaunchError(f"{unknown[0]}: is not a key of the server's file")
    values: dict[str, Any] = DEFAULTS | BATCH | {"name": None, "job": None} | content | batch
    values.pop("batch", None)
    for key, value in values.items():
        values[key] = _checked(key, value)
    return values


def _checked(key: str, value: Any) -> Any:
    """Return a key's value; raises LaunchError if it is invalid."""
    if key in NUMBERS:
        kind, least, most = NUMBERS[key]
        # The exact type: in Python a bool is also an int. A float may be written as an integer.
        if type(value) in (int, kind) and least <= value <= most:
            return kind(value)
        meaning = f"a {'whole ' if kind is int else ''}number of {least:g} to {most:g}"
    elif key in FORMS:
        pattern, meaning = FORMS[key]
        if (value is None and key == "token") or re.fullmatch(pattern, str(value)):
            return value
    elif key == "allowed_hosts":
        if isinstance(value, list) and all(isinstance(each, str) and each for each in value):
            return frozenset(each.lower() for each in value)
        meaning = "a list of names"
    else:
        if isinstance(value, str) and value:
            return value
        meaning = "a text of at least one character"
    raise LaunchError(f"{key}: must be {meaning}, is {json.dumps(value)}")


def parse_sources(text: str) -> list[tuple[str, int]]:
    """Return host and port of addresses that are separated by commas; raises LaunchError."""
    found = []
    for each in filter(None, (part.strip() for part in text.split(","))):
        parts = re.fullmatch(r"http://(\[[0-9A-Fa-f:.]+\]|[\w.-]+):(\d{1,5})/?", each)
        if not parts or not 0 < int(parts[2]) < 65536:
            form = "http://host:port, with commas between several"
            raise LaunchError(f'KIT_CHECKPOINT_SOURCES must be {form}, has "{each}"')
        found.append((parts[1].strip("[]"), int(parts[2])))
    return found
