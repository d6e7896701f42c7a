"""How a job is doing, by its containers on all hosts: a pure function."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from kit.engine import ENDED, HostStatus, JobStatus, State
from kit.engine.containers import Container
from kit.engine.printed import Printed


def job_status(
    job: str, containers: Sequence[Container], silent: Mapping[str, int], printed: Printed
) -> JobStatus:
    """Return the status of a job of which there is a container at least.

    `silent` are the hosts that should have a part and cannot be asked, and their processes.
    """
    training = sorted((one for one in containers if one.trains), key=lambda one: one.host)
    hosts = [
        one.part(printed.ranks.get(one.host, ()), printed.seen.get(one.host, ()))
        for one in training
    ]
    missing = "cannot be reached"
    hosts += [
        HostStatus(host, n, State.WAITING, None, message=missing) for host, n in silent.items()
    ]
    state = state_of(training)
    ended = max((one.ended for one in training), default=0.0) if state in ENDED else None
    return JobStatus(
        job=job,
        state=state,
        message=_message(state, hosts, containers),
        started=min(one.created for one in containers),
        ended=ended,
        hosts=tuple(hosts),
        progress=printed.progress,
        checkpoint=_checkpoint(training, printed),
    )


def state_of(training: Sequence[Container]) -> State:
    """Return how a job is doing by the containers that train."""
    states = Counter(one.state() for one in training)
    spare = max((one.most - one.fewest for one in training), default=0)
    if states[State.FAILED] > spare or not training:
        return State.FAILED
    alive = (State.RUNNING, State.WAITING, State.STOPPED)
    return next((state for state in alive if states[state]), State.COMPLETED)


def _message(state: State, hosts: Sequence[HostStatus], containers: Sequence[Container]) -> str:
    told = [f"{host.host} {host.message}" for host in hosts if host.message]
    if not hosts:
        told.append("no container of its training is left")
    told += [
        f"the rendezvous on {one.host} {one.message()}"
        for one in containers
        if one.service == "rendezvous" and one.exit_status != 0 and one.message()
    ]
    left = sorted({one.host for one in containers if one.trains and one.runs})
    if state in ENDED and left:
        told.append(f"it still runs on {', '.join(left)}: `kit stop {containers[0].job}`")
    return "; ".join(told)


def _checkpoint(training: Sequence[Container], printed: Printed) -> str | None:
    if printed.checkpoint is None or not training or training[0].service == "serve":
        return printed.checkpoint
    places = {one.checkpoints for one in training}
    hosts = ", ".join(one.host for one in training)
    return f"{printed.checkpoint} in {' and '.join(sorted(places))} on {hosts}"
