"""The end of a group whose ranks exchange by NCCL, while their processes stay.

By itself torch waits a minute at the first error of NCCL, in which it writes its flight recorder,
and then ends the process. A training whose group changes does both itself, at once.
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
"""Variables of a process that ends its groups itself. At an error, torch's watchdog sleeps for four
times the last one, by default 15 s, and leaving a group waits for the watchdog (2.11,
torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp)."""
DUMP_FILES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
"""Variables with the beginning of a dump's name, before the rank: since torch 2.9, and before."""


def handle_errors(environ: MutableMapping[str, str]) -> None:
    """Let this process end its groups itself, before it forms the first one."""
    environ.update(OWN_HANDLING)


def abort() -> None:
    """End the GPU's part of all exchanges, which wait for a lost peer otherwise.

    Together: the abort of one group could wait for another one's kernel
    (https://github.com/pytorch/pytorch/issues/119797).
    """
    backends = _backends()
    if backends:
        backends[0]._group_start()
        for backend in backends:
            backend.abort()
        backends[0]._group_end()


def _backends() -> list[Any]:
    """NCCL's part of each group, the default one's and those of a divided model's dimensions."""
    found = []
    for group in tuple(distributed.distributed_c10d._world.pg_map):
        with suppress(RuntimeError):  # It has no part for GPUs.
            backend = group._get_backend(torch.device("cuda"))
            if isinstance(backend, distributed.ProcessGroupNCCL):
                found.append(backend)
    return found


def dump(rank: int, environ: Mapping[str, str] = os.environ) -> None:
    """Write NCCL's flight recorder, which shows what this rank waits for, if the job wants it."""
    place = next((environ[name] for name in DUMP_FILES if name in environ), "")
    if place:
        with suppress(OSError, AttributeError, RuntimeError):  # It explains; nothing depends on it.
            recorder: Any = torch._C._distributed_c10d
            content = recorder._dump_nccl_trace()
            Path(f"{place}{rank}").write_bytes(content)
