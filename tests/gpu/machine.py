"""The machine: what it is, and whether its real output is what kit's parsers expect."""

from __future__ import annotations

import functools
import json
import platform
import shutil
import subprocess
import sys
from pathlib import Path

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
    drivers = smi("--query-gpu=driver_version", "--format=csv,noheader").split()
    return found | {"driver": drivers[0] if drivers else ""}


def smi(*words: str) -> str:
    """The output of nvidia-smi; "" where there is none."""
    if not shutil.which("nvidia-smi"):
        return ""
    return subprocess.run(["nvidia-smi", *words], capture_output=True, check=False).stdout.decode()


KIT = ("click", "pydantic", "jinja2", "python_on_whales", "yaml")


@check("machine", needs=KIT)
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


@check("machine", needs=KIT)
def probes_of_this_host(_: Place) -> Figures:
    """What kit discover and kit doctor read of a host, by their own scripts and parsers."""
    from kit.discover.ask import extended
    from kit.discover.parse import read_facts
    from kit.doctor.parse import read_vitals
    from kit.doctor.probe import VITALS
    from kit.hosts.gpus import listed_gpus

    if not (listed := smi("-L")):
        raise LackingError("no nvidia-smi")
    script = extended(VITALS.read_text(encoding="utf-8"))
    printed = subprocess.run(
        ["sh"], input=script, capture_output=True, text=True, check=False, timeout=60
    ).stdout
    facts, vitals = read_facts(printed), read_vitals(printed)
    uuids = set(listed_gpus(listed))
    assert {gpu.card or gpu.uuid for gpu in facts.gpus} == uuids, (facts, listed)
    assert all(gpu.model and (gpu.memory or gpu.shared) for gpu in facts.gpus), facts.gpus
    assert {each.uuid for each in vitals.health} == uuids, (vitals.health, printed)
    fields = ("persistence", "power_limit", "ecc_errors", "throttled")
    unknown = {name for each in vitals.health for name in fields if getattr(each, name) is None}
    return {
        "memory": Figure((facts.gpus[0].memory or 0) / 2**30, "GiB"),
        "compute capability": Figure(facts.gpus[0].compute),
        "processes": Figure(len(vitals.processes)),
        "not reported": Figure(", ".join(sorted(unknown)) or "nothing"),
    }


@check("machine")
def metrics_of_gpus(_: Place) -> Figures:
    """The metrics of a training container for Prometheus, from the real nvidia-smi."""
    from trainer.launcher.metrics import GPUS, Metrics

    uuids = [line.strip() for line in smi("--query-gpu=uuid", "--format=csv,noheader").splitlines()]
    if not uuids:
        raise LackingError("no nvidia-smi")
    text = Metrics(Path("/nonexistent"), {"KIT_GPUS": ",".join(uuids)}).text()
    found = {family[0]: text.count(f"\n{family[0]}{{") for _, family in GPUS.values()}
    assert found["kit_gpu_memory_used_bytes"] == len(uuids), text
    absent = sorted(name for name, count in found.items() if not count)
    return {"GPUs": Figure(len(uuids)), "not reported": Figure(", ".join(absent) or "nothing")}
