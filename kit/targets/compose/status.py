"""The status of a job from its containers on all hosts: a pure function."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from kit.runtime.endings import by_limit
from kit.runtime.events import Reader
from kit.runtime.reported import with_reports
from kit.runtime.status import ENDED, UNREACHED, HostStatus, JobStatus, State
from kit.targets.compose.containers import Container
from kit.workload.names import kind_of
from kit.workload.types import Kind, Role


def job_status(
    job: str, containers: Sequence[Container], silent: Sequence[HostStatus], reader: Reader
) -> JobStatus:
    """Return the status of a job with at least one container; `silent` hosts cannot be reached."""
    training = sorted((one for one in containers if one.trains), key=lambda one: one.host)
    hosts = [reader.of_host(one.part()) for one in training]
    hosts += silent
    # A server's endpoints of checkpoints are on other hosts than the server.
    waits = not training and any(one.waits for one in containers)
    state = State.WAITING if waits or not (training or not silent) else state_of(containers)
    state, limit = by_limit(state, reader)
    message = _message(state, hosts, containers, lost=bool(silent))
    ended = max((one.ended for one in training), default=0.0) if state in ENDED else None
    status = JobStatus(
        job=job,
        kind=containers[0].kind,
        state=state,
        message="" if waits else "; ".join(filter(None, (limit, message))),
        started=min(one.created for one in containers),
        ended=ended,
        hosts=tuple(hosts),
        progress=None,
        checkpoint=_checkpoint(training, reader),
    )
    return with_reports(status, reader)


def silent_statuses(
    devices: Mapping[str, Mapping[str, Sequence[str]]],
    spares: Mapping[str, Collection[str]],
    lost: Collection[str],
    now: float,
) -> dict[str, JobStatus]:
    """Return the status of the planned workloads all of whose hosts are `lost`.

    `devices` are the planned GPUs by workload and host, `spares` the hosts that stand by.
    """
    return {
        job: JobStatus(
            job=job,
            kind=kind_of(job),
            state=State.WAITING,
            message=f"{', '.join(hosts)} cannot be reached: it may run there, kit does not know",
            started=now,
            ended=None,
            hosts=silent_hosts(hosts, spares.get(job, ()), lost),
            progress=None,
            checkpoint=None,
        )
        for job, hosts in devices.items()
        if hosts and set(hosts) <= set(lost)
    }


def silent_hosts(
    devices: Mapping[str, Sequence[str]], spares: Collection[str], lost: Collection[str]
) -> tuple[HostStatus, ...]:
    """Return the status of a workload's hosts that are `lost`; `devices` are its planned GPUs."""
    return tuple(
        silent_host(name, len(gpus), spare=name in spares)
        for name, gpus in devices.items()
        if name in lost
    )


def silent_host(name: str, processes: int, *, spare: bool = False) -> HostStatus:
    """Return the status of a host that cannot be reached."""
    return HostStatus(name, processes, State.WAITING, None, message=UNREACHED, spare=spare)


def state_of(containers: Sequence[Container]) -> State:
    """Return the state of a job from its containers."""
    states = Counter(one.state() for one in containers if one.trains)
    fewer = max((one.dispensable for one in containers), default=0)
    fewer += sum(one.spare for one in containers)
    if states[State.FAILED] > fewer or not states:
        return State.FAILED
    alive = (State.RUNNING, State.WAITING, State.STOPPED)
    return next((state for state in alive if states[state]), State.COMPLETED)


def _message(
    state: State, hosts: Sequence[HostStatus], containers: Sequence[Container], *, lost: bool
) -> str:
    reasons = [f"{host.host} {host.message}" for host in hosts if host.message]
    if not hosts:
        name, kind = containers[0].job, containers[0].kind
        what = "answers" if kind is Kind.SERVER else "trains"
        reasons.append(f"none of its containers {what}: `kit deploy {name}`, or `kit stop {name}`")
    reasons += [_coordinator(containers, lost=lost)] if state not in ENDED else []
    left = sorted({one.host for one in containers if one.trains and one.runs and not one.hopeless})
    if state in ENDED and left:
        reasons.append(f"it still runs on {', '.join(left)}: `kit stop {containers[0].job}`")
    return "; ".join(filter(None, reasons))


def _coordinator(containers: Sequence[Container], *, lost: bool) -> str:
    """Return the fault of a job's coordinator; without it no host is replaced or comes back.

    If hosts are `lost`, the coordinator's host may be one of them.
    """
    own = [one for one in containers if one.service == Role.RENDEZVOUS]
    works = any(one.runs and (one.status == "running" or not one.exit_status) for one in own)
    if works or not any(one.coordinated for one in containers if one.trains):
        return ""
    job = containers[0].job
    if lost and not own:
        return "its coordinator is on a host that cannot be reached: no step until it is back"
    state = f" on {own[0].host} {own[0].message() or 'was stopped'}" if own else " is not there"
    return f"its coordinator{state}: `kit deploy {job}` starts it"


def _checkpoint(training: Sequence[Container], reader: Reader) -> str | None:
    if reader.checkpoint is None or not training or training[0].kind is Kind.SERVER:
        return reader.checkpoint
    places = {one.checkpoints for one in training}
    hosts = ", ".join(one.host for one in training)
    return f"{reader.checkpoint} in {' and '.join(sorted(places))} on {hosts}"
