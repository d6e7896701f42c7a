"""Hosts and GPUs as lines of YAML. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from kit.discover.facts import GpuFacts
from kit.model import Use
from kit.platforms import AMD64
from kit.values import show_size, show_speed

INDENT = "  "
_PLAIN = re.compile(r"(?!(?i:true|false|null)$)[A-Za-z]([\w.+/@:-]*[\w.+/@-])?( [\w.+/()-]+)*")


def scalar(text: str) -> str:
    """Return a text as a YAML scalar, in quotes if necessary."""
    return text if _PLAIN.fullmatch(text) else json.dumps(text, ensure_ascii=False)


def gpu_entry(gpu: GpuFacts, use: Use = Use.TRAINING) -> str:
    """Return one GPU as an item of the list `gpus`; one without a UUID by its index."""
    name = f"uuid: {gpu.uuid}" if gpu.uuid else f"index: {gpu.index}"
    fields = [name, f"model: {scalar(gpu.model)}"]
    if gpu.memory:
        fields.append(f"memory: {show_size(gpu.memory)}")
    if use is not Use.TRAINING:
        fields.append(f"use: {use}")
    return f"{{{', '.join(fields)}}}"


def gpu_list(entries: Sequence[str], column: int | None, newline: str = "\n") -> str:
    """Return the value of `gpus`: one line for each GPU below the key, which is at `column`.

    If `column` is None, all GPUs are on one line.
    """
    if not entries:
        return "0"
    if column is None:
        return f"[{', '.join(entries)}]"
    lead = f"{newline}{' ' * column}{INDENT}- "
    return "".join(f"{lead}{entry}" for entry in entries)


def host_entry(
    name: str,
    address: str,
    ssh: str,
    gpus: Sequence[GpuFacts],
    *,
    manager: bool,
    speed: int | None,
    architecture: str,
    column: int,
) -> list[str]:
    """Return the lines of a host in the mapping `hosts`, whose keys are at `column`.

    The architecture is written unless it is the usual one.
    """
    lead, inner = " " * column, " " * column + INDENT
    # Digits and colons may be a number of YAML 1.1.
    shown = scalar(address) if ":" in address else address
    lines = [f"{lead}{scalar(name)}:", f"{inner}address: {shown}"]
    if ssh not in {address, f"[{address}]"}:
        lines.append(f"{inner}ssh: {scalar(ssh)}")
    if manager:
        lines.append(f"{inner}roles: [manager]")
    if speed:
        lines.append(f"{inner}speed: {show_speed(speed)}")
    if architecture not in {AMD64, ""}:
        lines.append(f"{inner}architecture: {architecture}")
    listed = gpu_list([gpu_entry(gpu) for gpu in gpus], len(inner))
    first, *rest = f"{inner}gpus:{listed if gpus else ' 0'}".split("\n")
    return [*lines, first, *rest]
