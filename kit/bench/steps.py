"""The time of a job's step: measured on one GPU of each model, or taken from its last run."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from kit.bench.container import command
from kit.errors import InputError, KitError
from kit.measurements import StepTime
from kit.model import Gpu, Host
from kit.plan.types import MountPoint
from kit.plan.work import JobPlan
from kit.runtime.lines import is_event
from kit.runtime.status import LogLine
from kit.values import Say
from kit.workload.types import Workload
from trainer.contract import event_lines, events

PATIENCE = 900.0
"""Seconds besides the measurement, for pulling the image and loading the data."""
MODULE = "trainer.bench.steps"


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a step is measured: one GPU of a host, or its CPU. The job has `processes` there."""

    host: Host
    gpu: Gpu | None
    processes: int

    @property
    def model(self) -> str:
        return (self.gpu.model or self.gpu.title) if self.gpu else "cpu"


def measure_steps(
    job: JobPlan,
    work: Workload,
    seconds: float,
    say: Say,
    *,
    on_hosts: bool,
) -> list[StepTime]:
    """Measure a step of the job on one GPU of each model, all at once.

    `on_hosts`: in containers on the hosts; otherwise in a process on this machine.

    Raises:
        InputError: The job runs a custom script.
        KitError: A measurement failed.
    """
    if job.job.train is None:
        raise InputError(
            f"job {job.name} runs a command, whose steps kit does not know",
            "write `step_seconds` and `parameters` into its file, or measure a job with `train`",
        )
    if job.job.code and on_hosts:
        raise InputError(
            f"job {job.name} has {job.job.code[0].name}, which only a deploy brings to hosts",
            "write the `step_seconds` and `parameters` that its first run prints into its file",
        )
    places = _places(job, on_hosts=on_hosts)
    say(f"a step on {', '.join(f'{each.model} of {each.host.name}' for each in places)}")
    with ThreadPoolExecutor(len(places)) as pool:
        results = list(
            pool.map(lambda place: _measure(place, job, work, seconds, on_hosts=on_hosts), places)
        )
    for place, (device, _) in zip(places, results, strict=True):
        if place.gpu and device == "cpu":
            say(f"note: {place.host.name}: PyTorch found no GPU; this is the time of the CPU")
    return [step for _, step in results]


def _places(job: JobPlan, *, on_hosts: bool) -> list[_Place]:
    """Return one place for each model of GPU; the first host's CPU if kit knows no GPU."""
    by_model: dict[str, _Place] = {}
    for placement in job.placements:
        for gpu in placement.gpus if on_hosts else ():
            place = _Place(placement.host, gpu, placement.processes)
            by_model.setdefault(place.model, place)
    return list(by_model.values()) or [_Place(job.hosts[0], None, 1)]


def _measure(
    place: _Place, job: JobPlan, work: Workload, seconds: float, *, on_hosts: bool
) -> tuple[str, StepTime]:
    """Return the device that computed, and the time."""
    name = place.host.name
    program = ("-u", "-m", MODULE, str(seconds))
    assert work.document
    text = work.document.text
    with tempfile.TemporaryDirectory() as folder:
        if not on_hosts:
            file = Path(folder) / "job.json"
            file.write_text(text, encoding="utf-8")
            variables = [f"KIT_JOB={file}"]
            for code in job.job.code:
                Path(folder, code.name).write_text(code.text, encoding="utf-8")
                variables = [f"KIT_JOB={file}", f"KIT_CODE={Path(folder, code.name)}"]
            words = ["env", *variables, sys.executable, *program]
        else:
            words = command(
                place.host,
                job.image,
                program,
                gpus=[place.gpu] if place.gpu else [],
                mounts=data_mounts(job),
                environment={
                    **dict(job.job.environment),
                    "KIT_JOB": "/dev/stdin",
                    "KIT_NPROC": str(place.processes),
                },
                shared_memory=job.job.limits.shared_memory or 2**30,
            )
        try:
            done = subprocess.run(
                words,
                input=text.encode(),
                capture_output=True,
                timeout=PATIENCE + 3 * seconds,
                start_new_session=True,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise KitError(f"{name}: no result within {PATIENCE:.0f} s") from None
    if done.returncode:
        errors = done.stderr.decode(errors="replace").strip().splitlines()
        raise KitError(f"{name}: {errors[-1] if errors else f'exit status {done.returncode}'}")
    answer: dict[str, Any] = json.loads(done.stdout.decode().strip().splitlines()[-1])
    return answer["device"], StepTime(
        job=job.name,
        host=name,
        gpu=place.model if place.gpu else answer["device"],
        seconds=answer["step_seconds"],
        batch_size=answer["batch_size"],
        parameters=answer["parameters"],
        model=answer["model"],
        dataset=answer["dataset"],
    )


def from_run(job: JobPlan, lines: Iterable[LogLine]) -> StepTime:
    """Return the time of a step from the epochs that a job has printed, without the exchange.

    Raises:
        InputError: The GPUs differ, the batch is unknown, or no epoch was printed.
    """
    gpus = [gpu for each in job.placements for gpu in each.gpus]
    models = {gpu.model or gpu.title for gpu in gpus}
    if len(models) > 1 and not any(gpu.model for gpu in gpus):
        what = f"the inventory does not say of which model the GPUs of job {job.name} are"
        fix = "write it: `gpus: [{index: 0, model: TITAN RTX}, {index: 1, model: TITAN RTX}]`"
        raise InputError(what, f"{fix}, or measure: kit bench step {job.name}")
    if len(models) > 1:
        what = f"job {job.name} runs on {', '.join(sorted(models))}: their steps differ"
        raise InputError(what, f"measure each: kit bench step {job.name}")
    batch = round((job.batch.total or 0) / job.world_size)
    epochs = [_epoch_seconds(event, batch) for event in _epochs(lines)]
    times = [each for each in epochs if each]
    if not times:
        what = f"the log of job {job.name} has no epoch with its speed"
        raise InputError(what, f"let one end, or measure: kit bench step {job.name}")
    train = job.job.train
    return StepTime(
        job=job.name,
        host=job.hosts[0].name,
        gpu=next(iter(models)),
        seconds=median(times[1:] or times),
        batch_size=batch,
        parameters=job.traffic.parameters or 0,
        model=train.model if train else "",
        dataset=train.dataset if train else "",
    )


def _epochs(lines: Iterable[LogLine]) -> Iterator[events.Epoch]:
    for line in lines:
        event = event_lines.parse(line.text) if is_event(line.text) else None
        if isinstance(event, events.Epoch):
            yield event


def _epoch_seconds(event: events.Epoch, batch: int) -> float | None:
    """Return the seconds of a step without its exchange, if the event has them."""
    if not event.images_per_second or event.exchange_share is None:
        return None
    whole = batch * event.world_size / event.images_per_second
    return whole * (1 - event.exchange_share)


def data_mounts(job: JobPlan) -> tuple[MountPoint, ...]:
    """Return the mounts of the job that the user wrote, read-only, volumes by Docker's names."""
    names = {volume.key: volume.name for volume in job.volumes if not volume.owned}
    return tuple(
        replace(mount, source=names.get(mount.source, mount.source), read_only=True)
        for mount in job.mounts
        if mount.kind == "bind" or mount.source in names
    )
