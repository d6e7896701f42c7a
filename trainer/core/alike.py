"""Checks that all hosts have the same trainer, torch, job and data."""

from __future__ import annotations

import hashlib
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from trainer.contract.events import FailureClass
from trainer.contract.job import TrainJob
from trainer.contract.own import references
from trainer.custom.code import file_of, load_module
from trainer.data.files import needs_torchvision
from trainer.data.identity import identity
from trainer.data.samples import DataSet
from trainer.parallel.halt import HaltError
from trainer.parallel.world import World

IMAGE = "all hosts must run one image: kit deploy, or docker pull on the host that differs"
ADVICE = {
    "trainer": IMAGE,
    "torch": IMAGE,
    "job": "all hosts must have one job file: kit render and kit deploy",
    "data": "copy one host's to the other",
}
"""Possible differences between hosts, in the order of the message, and what to do."""


def require_alike(world: World, own: dict[str, Any]) -> None:
    """Raise HaltError on all ranks if hosts differ; `own` is this host's, from `describe`."""
    found = world.gather(own if world.local_rank == 0 else None)
    # An older trainer sends another type.
    unknown = {"host": "a host with another trainer"}
    hosts = [each if isinstance(each, dict) else unknown for each in found if each is not None]
    for topic, advice in ADVICE.items():
        about = [each.get(topic, {}) for each in hosts]
        keys = [key for key in about[0] if any(each.get(key) != about[0][key] for each in about)]
        if not keys:
            continue
        values: dict[str, list[str]] = {}
        for each, host in zip(about, hosts, strict=True):
            told = ", ".join(f"{key} {each.get(key, 'unknown')}" for key in keys)
            values.setdefault(told, []).append(host["host"])
        differ = "; ".join(f"{value} on {name(each)}" for value, each in values.items())
        kind: FailureClass = "data" if topic == "data" else "input"
        raise HaltError(kind, f"the hosts differ: {differ}; {advice}")


def name(hosts: list[str]) -> str:
    """Join the names of hosts for a message."""
    return ", ".join(hosts[:3]) + (f" and {len(hosts) - 3} more" if len(hosts) > 3 else "")


def describe(job: TrainJob, host: str, data: DataSet, kept: Path) -> dict[str, Any]:
    """Describe this host by topic; `data` are on the CPU, `kept` is a cache of their digests."""
    sections = asdict(job).items()
    settings = {
        f"{section}.{key}": value
        for section, content in sections
        if isinstance(content, dict)
        for key, value in content.items()
    }
    where = f"{job.train.dataset} {job.train.path}".strip()
    return {
        "host": host,
        "trainer": {"trainer": sources_of_trainer()},
        "torch": {"torch": torch.__version__} | torchvision_version(job),
        "job": {"name": job.name, **settings, **sources_of_own(job)},
        "data": {where: identity(data, kept)},
    }


def sources_of_own(job: TrainJob) -> dict[str, str]:
    """Hash the modules of custom functions; raises JobError if one cannot be imported."""
    modules = {each.module for each in references((job.train.dataset, job.train.model))}
    files = {name: file_of(load_module(name)) for name in sorted(modules)}
    return {
        f"module {name}": hashlib.blake2b(file.read_bytes(), digest_size=6).hexdigest()
        for name, file in files.items()
    }


def torchvision_version(job: TrainJob) -> dict[str, str]:
    """Return torchvision's version, if the job needs it."""
    if not needs_torchvision(job.train):
        return {}
    from trainer.vision.classifiers import version

    return {"torchvision": version()}


def sources_of_trainer() -> str:
    """Hash the modules of this trainer."""
    return sources(Path(__file__).parents[1])


def sources(folder: Path) -> str:
    """Hash the modules of a package: two builds of one version can differ."""
    files = sorted(folder.rglob("*.py"))
    content = b"\0".join(file.read_bytes() for file in files)
    return hashlib.blake2b(content, digest_size=6).hexdigest()
