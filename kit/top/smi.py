"""The output of nvidia-smi in its loop mode. Pure."""

from __future__ import annotations

from dataclasses import dataclass

FIELDS = (
    "index",
    "uuid",
    "name",
    "utilization.gpu",
    "memory.used",
    "memory.total",
    "temperature.gpu",
    "power.draw",
    "power.limit",
)
"""Fields of `nvidia-smi --help-query-gpu`. A model without a sensor has `[N/A]`."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU at one moment. Memory is in bytes, temperature in °C, power in watts.

    `utilization` is the share of the time in which a kernel ran. Unknown values are None.
    """

    index: int
    uuid: str
    model: str
    utilization: float | None
    used: int | None
    memory: int | None
    temperature: float | None
    power: float | None
    limit: float | None


def query(seconds: int | None) -> str:
    """Return the command that prints all GPUs, once or at an interval in seconds."""
    every = f" --loop={seconds}" if seconds else ""
    return f"nvidia-smi --query-gpu={','.join(FIELDS)} --format=csv,noheader,nounits{every}"


def parse(line: str) -> Gpu | None:
    """Parse a line of the output; None for other lines, such as error messages."""
    words = [word.strip() for word in line.split(",")]
    if len(words) != len(FIELDS) or not words[0].isdigit():
        return None
    utilization, used, memory, temperature, power, limit = map(_number, words[3:])
    return Gpu(
        index=int(words[0]),
        uuid=words[1],
        model=words[2],
        utilization=None if utilization is None else utilization / 100,
        used=_bytes(used),
        memory=_bytes(memory),
        temperature=temperature,
        power=power,
        limit=limit,
    )


def _bytes(mebibytes: float | None) -> int | None:
    return None if mebibytes is None else int(mebibytes * 2**20)


def _number(word: str) -> float | None:
    try:
        return float(word)
    except ValueError:
        return None
