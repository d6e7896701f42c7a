"""The engine that needs Docker on the hosts and no Swarm: a Compose project on each."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import ClassVar

from kit.docker import Docker
from kit.engine import ENDED, Deployment, JobStatus, LogLine, Say, Step
from kit.engine.compose_deploy import decided, deploy
from kit.engine.compose_hosts import Found, Hosts
from kit.engine.compose_logs import Told, followed, told
from kit.engine.compose_status import job_status, state_of
from kit.errors import KitError
from kit.plan.work import Work


class ComposeEngine:
    """Carries jobs out on the hosts of the rendered tree, by their own Docker engines."""

    tied_to_terminal: ClassVar[bool] = False

    def __init__(self, cluster: str, tree: Path) -> None:
        self._hosts = Hosts(cluster, tree)
        self._told: dict[str, Told] = {}
        self._reading = threading.Lock()
        self._stopped: dict[str, JobStatus] = {}
        self._remembered: dict[str, JobStatus] = {}
        self._asked: frozenset[str] | None = None

    def _ended(self, found: Found) -> dict[str, JobStatus]:
        """Return how the jobs ended of which no container is left; asked anew when more have."""
        jobs = frozenset(found.jobs)
        if self._asked != jobs:
            with suppress(KitError):
                ended = self._hosts.home.remembered()
                self._asked, self._remembered = jobs, {status.job: status for status in ended}
        return self._remembered | self._stopped

    def preview(self, jobs: Sequence[Work], *, fresh: bool) -> tuple[Step, ...]:
        """Return what would be done on which host; see `Engine.preview`."""
        return tuple(action.step for action in decided(self._hosts, jobs, fresh=fresh))

    def deploy(self, jobs: Sequence[Work], *, fresh: bool, say: Say) -> None:
        """Start a project on each host; see `Engine.deploy`."""
        with self._hosts.home.locked(say):
            deploy(self._hosts, jobs, fresh=fresh, say=say)
        for job in jobs:
            self._stopped.pop(job.name, None)

    def break_lock(self) -> None:
        """Take away the lock of a deploy that is dead.

        Raises:
            KitError: The host that has it cannot be reached.
        """
        self._hosts.home.break_lock()

    def history(self) -> tuple[Deployment, ...]:
        """Return what was written down at each start; see `Engine.history`."""
        return self._hosts.home.history()

    def status(self) -> tuple[JobStatus, ...]:
        """Return what the containers on all hosts tell; see `Engine.status`."""
        found = self._hosts.containers()
        now = {job: self._status(job, found) for job in found.jobs}
        # What this process has stopped has ended, though its containers be seen on their way.
        known = self._ended(found) | now | self._stopped
        return tuple(known[job] for job in sorted(known))

    def _status(self, job: str, found: Found) -> JobStatus:
        planned = self._hosts.rendered.devices.get(job, {})
        silent = {name: len(gpus) for name, gpus in planned.items() if name in found.lost}
        training = found.training(job)
        with self._reading:
            known = self._told.get(job)
            if known is None or not known.of(training):
                known = self._told[job] = Told(training)
            known.read(self._hosts.dockers, training)
        status = job_status(job, found.jobs[job], silent, known.printed)
        return replace(status, urls=self._hosts.rendered.urls.get(job, ()))

    def known(self) -> dict[str, tuple[str, ...]]:
        """Return the jobs that have containers; see `Engine.known`."""
        jobs = self._hosts.containers().jobs
        return {job: tuple(sorted({one.host for one in own})) for job, own in jobs.items()}

    def logs(
        self, jobs: Sequence[str], *, follow: bool, since: float | None = None
    ) -> Iterator[LogLine]:
        """Yield the lines of the containers that train; see `Engine.logs`."""
        # Connections of their own: they are cut at the end.
        dockers = {name: Docker.of(host) for name, host in self._hosts.all.items()}
        found = self._hosts.containers(dockers)
        for job in jobs:
            self._require_known(job, found)
        training = [one for job in jobs for one in found.training(job)]
        if not follow:
            yield from told(dockers, training, since or 0.0)
            return
        yield from followed(dockers, training, since or 0.0, partial(self._over, jobs, dockers))

    def _over(self, jobs: Sequence[str], dockers: Mapping[str, Docker]) -> bool:
        """Whether all jobs have ended, or no container of theirs is left."""
        found = self._hosts.containers(dockers)
        for name in found.lost:
            dockers[name].close()
        training = [found.training(job) for job in jobs]
        return all(not own or state_of(own) in ENDED for own in training)

    def stop(self, job: str) -> JobStatus:
        """End a job on all hosts at once and remove its containers; see `Engine.stop`."""
        found = self._hosts.containers()
        self._require_known(job, found)
        if job not in found.jobs:
            raise KitError(f"job {job} is not running", "see what is with `kit status`")
        places = sorted({one.host for one in found.jobs[job]})
        ended = self._hosts.on(places, partial(self._hosts.end, job))
        # Of those alone that have answered: one that is down would be waited for once more.
        here = {name: self._hosts.dockers[name] for name in places}
        after = self._hosts.containers(here).jobs.get(job, found.jobs[job])
        status = self._status(job, Found({job: after}, {}))
        # Told from now on, whether its containers are looked for before or after they are gone.
        self._stopped[job] = status
        with suppress(KitError):
            self._hosts.home.remember(status)
        removed = self._hosts.on(places, partial(self._hosts.remove, job))
        left = {name for name, error in removed.items() if isinstance(error, KitError)}
        left |= self._hosts.rendered.devices.get(job, {}).keys() & found.lost.keys()
        told = [status.message] if status.message else []
        # What did not end by itself was killed as it was removed.
        told += [error.message for error in ended.values() if isinstance(error, KitError)]
        if left:
            what = f"{', '.join(sorted(left))} cannot be reached: what runs there goes on"
            told.append(f"{what}; `kit stop {job}` again when it is back")
        return replace(status, message="; ".join(told))

    def _require_known(self, job: str, found: Found) -> None:
        known = {*found.jobs, *self._ended(found)}
        if job not in known:
            raise KitError(
                f"no job {job} was ever deployed on the hosts of cluster {self._hosts.cluster}",
                f"known are: {', '.join(sorted(known)) or 'none'}",
            )
