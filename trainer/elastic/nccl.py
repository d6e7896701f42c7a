"""Aborts NCCL communicators without ending their processes.

By default, torch waits a minute after the first NCCL error, in which it writes its flight recorder,
and then ends the process. An elastic training writes the recorder and aborts at once.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import distributed

OWN_HANDLING = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
    "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "0",
}
"""Variables of a process that aborts its groups itself. After an error, torch's watchdog sleeps for
four times the last one, by default 15 s, and leaving a group waits for the watchdog (2.11,
torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp)."""
DUMP_FILES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
"""Variables with the prefix of a dump's name, before the rank: since torch 2.9, and before."""


def handle_errors(environ: MutableMapping[str, str]) -> None:
    """Let this process abort its groups itself; call this before it forms the first one."""
    environ.update(OWN_HANDLING)


def abort() -> None:
    """Abort the NCCL communicators of all groups: their collectives wait for a lost peer.

    All at once: the abort of one group could wait for another one's kernel
    (https://github.com/pytorch/pytorch/issues/119797).
    """
    backends = _backends()
    if backends:
        backends[0]._group_start()
        for backend in backends:
            backend.abort()
        backends[0]._group_end()


def _backends() -> list[Any]:
    """The NCCL backend of each group: of the default one and of the device mesh's dimensions."""
    found = []
    for group in tuple(distributed.distributed_c10d._world.pg_map):
        with suppress(RuntimeError):  # It has no backend for GPUs.
            backend = group._get_backend(torch.device("cuda"))
            if isinstance(backend, distributed.ProcessGroupNCCL):
                found.append(backend)
    return found


def dump(rank: int, environ: Mapping[str, str] = os.environ) -> None:
    """Write NCCL's flight recorder, which has this rank's pending collective, if it is enabled."""
    place = next((environ[name] for name in DUMP_FILES if name in environ), "")
    if place:
        with suppress(OSError, AttributeError, RuntimeError):  # It is for debugging only.
            recorder: Any = torch._C._distributed_c10d
            content = recorder._dump_nccl_trace()
            Path(f"{place}{rank}").write_bytes(content)
