"""Commands in the container of a workload on a host, or beside its processes on this machine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from kit.errors import InputError, KitError
from kit.runtime.status import ENDED, HostStatus, JobStatus, State
from trainer.contract.words import nearest


@dataclass(frozen=True, slots=True)
class Access:
    """A container, and the `engine`'s command that runs others in it; "" is this machine.

    `before` are words between the container and a command.
    `environment` are variables of the command here, `folder` its working directory (None: the
    present one).
    """

    engine: tuple[str, ...] = ()
    container: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    folder: str | None = None
    before: tuple[str, ...] = ()

    def command(self, words: Sequence[str], *, terminal: bool) -> list[str]:
        """Return the command line; `terminal` requests a terminal, with its size and its keys."""
        if not self.container:
            return list(words)
        options = ("-i", *(("-t",) if terminal else ()))  # docker and kubectl have these in common.
        return [*self.engine, "exec", *options, self.container, *self.before, *words]


def no_container(name: str, host: str) -> KitError:
    """Return the error for a host on which a workload has no container."""
    return KitError(f"{host}: no container of {name} runs", "see `kit status`")


def chosen_host(
    statuses: Iterable[JobStatus], job: str, host: str | None, rank: int | None
) -> HostStatus:
    """Return the running host of a workload by its name or a rank; by default that of rank 0.

    Raises:
        InputError: There is no such workload, host or rank.
        KitError: It has ended, or does not run there.
    """
    known = {status.job: status for status in statuses}
    if job not in known:
        fix = nearest(job, known) if known else "nothing is deployed: `kit deploy`"
        raise InputError(f"{job} is not deployed", fix)
    status = known[job]
    if status.state in ENDED:
        what = f"{job} has ended ({status.state}): nothing of it runs"
        raise KitError(what, f"`kit deploy {job}` starts it again")
    if rank is not None:
        return _of_rank(status, rank)
    hosts = {each.host: each for each in status.hosts}
    if host is not None and host not in hosts:
        raise InputError(f"{job} is not on {host}", nearest(host, hosts))
    running = [each for each in status.hosts if each.state is State.RUNNING]
    found = hosts[host] if host else min(running, key=_first_rank, default=None)
    if found is None or found.state is not State.RUNNING:
        where = f" on {host}" if host else ""
        raise KitError(f"{job} does not run{where} now", "see `kit status`")
    return found


def _first_rank(host: HostStatus) -> int:
    return min(host.ranks, default=len(host.ranks) + 10**9)


def _of_rank(status: JobStatus, rank: int) -> HostStatus:
    for host in status.hosts:
        if rank in host.ranks:
            return host
    ranks = sorted(rank for host in status.hosts for rank in host.ranks)
    there = f"its ranks are {ranks[0]} to {ranks[-1]}" if ranks else "no rank has reported itself"
    raise InputError(f"{status.job} has no rank {rank} now: {there}", "name its host with --host")
