"""The decision on the steps of a deploy on this machine: a pure function."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kit.errors import KitError
from kit.plan.data import DataPlan
from kit.plan.storage import CHECKPOINTS
from kit.runtime.steps import Step, size
from kit.targets.local.addressing import HERE
from kit.targets.local.gpus import serving_devices, visible_devices
from kit.targets.local.lower import (
    Places,
    Process,
    data_processes,
    on_this_machine,
    processes,
    server_process,
)
from kit.values import count
from kit.workload.types import Kind, Workload

WHERE = "here"


@dataclass(frozen=True, slots=True)
class WorkloadState:
    """The state of a workload: whether it was ever started, has a supervisor, and its version.

    `left` are the processes of a dead supervisor.
    """

    begun: bool = False
    supervised: bool = False
    version: str | None = None
    left: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Machine:
    """This machine: the UUIDs of its GPUs, its cores, and its folders."""

    gpus: tuple[str, ...]
    cores: int
    places: Places


@dataclass(frozen=True, slots=True)
class End(Step):
    """End a workload's processes."""

    name: str


@dataclass(frozen=True, slots=True)
class DeleteCheckpoints(Step):
    """Delete the folders of a job's checkpoints."""

    folders: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Start(Step):
    """Start a supervisor for a workload's processes; `checkpoints` are the job's folders."""

    workload: Workload
    version: str
    checkpoints: tuple[str, ...]
    processes: tuple[Process, ...]


@dataclass(frozen=True, slots=True)
class StartData(Step):
    """Start a supervisor for the data services, after the end of older ones."""

    version: str
    processes: tuple[Process, ...]


def steps_of_data(data: DataPlan, observed: WorkloadState, machine: Machine) -> tuple[Step, ...]:
    """Return the step that brings the data services up, or none if they run."""
    wanted = f"{data.port} {data.peer_port}"
    if observed.supervised and observed.version == wanted:
        return ()
    cause = "their ports have changed" if observed.supervised else "they do not run"
    started = data_processes(data, machine.places)
    return (StartData(WHERE, "start the data services", cause, wanted, started),)


def decide(
    wanted: Sequence[Workload],
    jobs: Mapping[str, Workload],
    observed: Mapping[str, WorkloadState],
    machine: Machine,
    *,
    fresh: bool,
) -> tuple[Step, ...]:
    """Return the steps to the wanted state; none for unchanged or idle workloads.

    `jobs` are all jobs by name, because a server reads the checkpoints of a job.

    Raises:
        KitError: A job runs that should start from the beginning, or it has lost its supervisor.
    """
    for each in wanted:
        _refuse(each, observed[each.name], fresh=fresh)
    kept = [each for each in wanted if _keeps_running(each, observed[each.name])]
    starting = [each for each in wanted if each.parts and each not in kept]
    steps: list[Step] = []
    for each in wanted:
        if observed[each.name].supervised and (each in starting or not each.parts):
            cause = "it has changed" if each.parts else "no GPU is given to it"
            steps.append(End(WHERE, f"end {each.name}", cause, each.name))
    begins = _starts(starting, kept, jobs, observed, machine)
    if fresh:
        steps += [_delete_checkpoints(each) for each in begins if each.checkpoints]
    return (*steps, *begins)


def version(work: Workload) -> str:
    """Return the version of a workload, independent of the rest of the inventory."""
    gpus = [(each.host.name, tuple(gpu.id for gpu in each.gpus)) for each in work.placements]
    return f"{work.job_hash} {gpus}"


def started_as(work: Workload) -> str:
    """Return the size of a workload as text, with a server's address on this machine."""
    if work.kind is Kind.JOB:
        return size(work)
    urls = [f"http://{HERE}:{port.number}" for port in work.working[0].ports]
    return f"{count(work.processes, 'replica')}: {', '.join(urls)}"


def _keeps_running(work: Workload, observed: WorkloadState) -> bool:
    return bool(work.parts) and observed.supervised and observed.version == version(work)


def _refuse(work: Workload, observed: WorkloadState, *, fresh: bool) -> None:
    if work.kind is not Kind.JOB:
        return
    if observed.supervised and fresh:
        raise KitError(f"job {work.name} runs", f"end it first: `kit stop {work.name}`")
    if observed.left and not observed.supervised:
        raise KitError(
            f"job {work.name} has processes of a supervisor that has ended: "
            f"{' '.join(map(str, observed.left))}",
            f"end them with `kit stop {work.name}`",
        )


def _starts(
    starting: Sequence[Workload],
    kept: Sequence[Workload],
    jobs: Mapping[str, Workload],
    observed: Mapping[str, WorkloadState],
    machine: Machine,
) -> list[Start]:
    """Return the steps that start workloads; servers get the GPUs that no job uses."""
    devices = {
        each.name: visible_devices(each, machine.gpus)
        for each in (*kept, *starting)
        if each.kind is Kind.JOB
    }
    taken = {
        gpu for own in devices.values() for visible in own.values() for gpu in visible.split(",")
    }
    places, steps = machine.places, []
    for each in starting:
        folders: list[str] = []
        if each.kind is Kind.JOB:
            started = processes(each, places, devices[each.name], machine.cores)
            hosts = [placement.host.name for placement in each.placements]
            folders = [str(on_this_machine(CHECKPOINTS, each, host, places)) for host in hosts]
        else:
            chosen = serving_devices(each, machine.gpus, taken)
            taken |= set(chosen.split(","))
            started = (server_process(each, jobs.get(each.reads), places, chosen),)
        begun = observed[each.name].begun
        cause = "it has ended or changed" if begun else "it was not deployed before"
        what = f"start {each.name} as {started_as(each)}"
        steps.append(Start(WHERE, what, cause, each, version(each), tuple(folders), started))
    return steps


def _delete_checkpoints(start: Start) -> DeleteCheckpoints:
    """Return the step that deletes the checkpoints of earlier runs.

    Raises:
        KitError: They are in a place that the user named.
    """
    name, store = start.workload.name, start.workload.store
    if store is None or not store.volume:
        kept = store.place if store else "a folder of yours"
        what = f"job {name} keeps its checkpoints in {kept}"
        raise KitError(what, "move them away to start from the beginning")
    return DeleteCheckpoints(
        WHERE, f"delete the checkpoints of {name}", "--fresh", start.checkpoints
    )
