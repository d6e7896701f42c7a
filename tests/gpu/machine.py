"""The machine: what it is, and whether its real output is what kit's parsers expect."""

from __future__ import annotations

import functools
import json
import platform
import shutil
import subprocess
import sys

from tests.gpu.check import Figure, Figures, LackingError, Place, check


@functools.cache
def has_gpu() -> bool:
    """Whether torch can use a GPU."""
    import torch

    return torch.cuda.is_available()


def facts() -> dict[str, str]:
    """Describe the machine and its software; without torch in this process, which others need."""
    found = {"processor": platform.machine(), "python": platform.python_version()}
    script = (
        "import torch, json; c = torch.cuda; g = c.is_available(); print(json.dumps({"
        "'torch': torch.__version__, 'cuda': torch.version.cuda or '', "
        "'gpu': c.get_device_name() if g else 'none', "
        "'memory': f'{c.get_device_properties(0).total_memory / 2**30:.0f} GiB' if g else '', "
        "'nccl': '.'.join(map(str, c.nccl.version())) if g else ''}))"
    )
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    found |= json.loads(said.stdout)
    return found | {"driver": smi("--query-gpu=driver_version", "--format=csv,noheader").strip()}


def smi(*words: str) -> str:
    """The output of nvidia-smi; "" where there is none."""
    if not shutil.which("nvidia-smi"):
        return ""
    return subprocess.run(["nvidia-smi", *words], capture_output=True, check=False).stdout.decode()


@check("machine", needs=("click", "pydantic", "jinja2", "python_on_whales", "yaml"))
def parsers_of_nvidia_smi(_: Place) -> Figures:
    """kit's own queries, by its own parsers."""
    from kit.hosts.gpus import listed_gpus
    from kit.top.smi import parse, query

    if not (listed := smi("-L")):
        raise LackingError("no nvidia-smi")
    uuids = list(listed_gpus(listed))
    line = smi(*query(None).split()[1:]).splitlines()[0]
    gpu = parse(line)
    assert gpu is not None, line
    assert gpu.uuid in uuids, (gpu, listed)
    unknown = [name for name in ("used", "memory", "power") if getattr(gpu, name) is None]
    assert not unknown, line
    return {"GPUs": Figure(len(uuids)), "model": Figure(gpu.model)}
