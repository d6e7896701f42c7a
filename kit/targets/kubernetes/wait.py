"""Waiting until a workload's pods run, with reports of the reasons for delays."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kit.errors import KitError
from kit.runtime.endings import HOPELESS
from kit.runtime.status import HostStatus, State
from kit.targets.kubernetes.state import SUSPENDED
from kit.targets.kubernetes.status import PULLING
from kit.values import Say
from kit.workload.types import Kind, Workload

POLL = 1.0
"""Seconds between two queries of the pods."""
STUCK = 60.0
"""Seconds until a pod that no node takes, or that cannot get its image, counts as stuck."""
PATIENT = {PULLING, SUSPENDED}
"""Reasons to wait that are not faults."""
STEADY = 5.0
"""Seconds that a container must run: the launcher needs some to find a mistake in the job."""
LONGEST = 3600.0
"""Seconds for an image to come, and for a server to have a checkpoint."""


class NotUpError(KitError):
    """A workload does not start on the `stuck` hosts; `mistake`: a restart is useless."""

    def __init__(self, job: str, what: str, stuck: Sequence[HostStatus], hint: str) -> None:
        reasons = [f"{host.host}: {host.message or host.state}" for host in stuck]
        super().__init__("\n".join([f"{job} {what}", *(f"  {each}" for each in reasons)]), hint)
        self.job, self.reason = job, "; ".join(reasons)
        self.mistake = any(host.exit_status in HOPELESS for host in stuck)


class NotReplacedError(NotUpError):
    """The new pods of a server do not start. The former pods answer: the server stays."""


@dataclass(frozen=True, slots=True)
class Seen:
    """The state of a workload and of its hosts. `rolls`: it has pods of its former file."""

    state: State
    hosts: Sequence[HostStatus]
    rolls: bool = False


Look = Callable[[Workload], Seen]


class Watch:
    """Reports changes, and knows for how long a host has waited for the same reason."""

    def __init__(self, say: Say, clock: Callable[[], float] = time.monotonic) -> None:
        self._say, self._clock = say, clock
        self._reported: dict[str, str] = {}
        self._since: dict[str, float] = {}

    def steady(self, job: str, host: HostStatus) -> bool:
        """Return whether a host has run for a while, or has completed."""
        lasts = self._clock() - self._since[f"{job}/{host.host}"]
        return host.state is State.COMPLETED or (host.state is State.RUNNING and lasts >= STEADY)

    def look(self, job: str, hosts: Sequence[HostStatus]) -> list[HostStatus]:
        """Report changes, and return the hosts for which waiting is useless."""
        return [host for host in hosts if self._stuck(f"{job}/{host.host}", host)]

    def _stuck(self, who: str, host: HostStatus) -> bool:
        # The rest of a reason differs from one try to the next.
        kind = f"{host.state} {host.message.partition(':')[0]}"
        if self._reported.get(who) != kind:
            self._reported[who], self._since[who] = kind, self._clock()
            self._say(f"{who}: {host.state}, {host.message}".removesuffix(", "))
        if host.state is State.FAILED or host.exit_status in HOPELESS:
            return True
        if host.state is not State.WAITING:
            return False
        patience = STUCK if host.message and host.message not in PATIENT else LONGEST
        return self._clock() - self._since[who] > patience


def wait_until_up(work: Sequence[Workload], look: Look, say: Say) -> None:
    """Wait until the required number of hosts of each workload run or have completed.

    Raises:
        NotUpError: Too few hosts can run; the message has the reasons.
    """
    watch, waiting = Watch(say), list(work)
    while waiting := [each for each in waiting if not _is_up(each, watch, look(each))]:
        time.sleep(POLL)


def _is_up(work: Workload, watch: Watch, seen: Seen) -> bool:
    state, hosts = seen.state, seen.hosts
    stuck = watch.look(work.name, hosts)
    doing = [host for host in hosts if watch.steady(work.name, host)]
    undecided = [host for host in hosts if host not in doing and host not in stuck]
    if seen.rolls and stuck:
        hint = f"the others answer as before; correct it, `kit render`, `kit deploy {work.name}`"
        raise NotReplacedError(work.name, "is not replaced", stuck, hint)
    if seen.rolls:
        return False
    if state is State.COMPLETED or (not undecided and len(doing) >= work.needed):
        return work.kind is Kind.JOB or state is State.RUNNING
    if hosts and len(hosts) - len(stuck) < work.needed:
        hint = f"`kit stop {work.name}` removes it"
        raise NotUpError(work.name, "does not come up", stuck, hint)
    return False
