"""The Compose target: a project on each host, without a Swarm."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import ClassVar

from kit.errors import KitError
from kit.hosts import ssh
from kit.hosts.docker import Docker
from kit.runtime.access import Access, no_container
from kit.runtime.endings import as_failed, as_stopped, mistake_error
from kit.runtime.event_log import EventLog
from kit.runtime.history import Deployment, deployment
from kit.runtime.loop import StepsError, execute_steps
from kit.runtime.moves import with_moves
from kit.runtime.record_files import FoundRecords, from_hosts
from kit.runtime.seen import visible_gpus, with_seen
from kit.runtime.source import current_source
from kit.runtime.status import JobStatus, LogLine, in_queue, without_lines
from kit.runtime.steps import Step, started_message, unchanged_message
from kit.runtime.target import Agree, Known
from kit.secrets import read_secrets
from kit.targets.compose.containers import HostState
from kit.targets.compose.data import steps_of_data
from kit.targets.compose.decide import Pull, Start, decide
from kit.targets.compose.drift import drift
from kit.targets.compose.execute import Executor, require_compose
from kit.targets.compose.hosts import Hosts, ObservedContainers, rendered_text, require_all
from kit.targets.compose.logs import follow_logs, new_lines, read_logs
from kit.targets.compose.observe import observe_host
from kit.targets.compose.queue import ComposeQueue
from kit.targets.compose.status import job_status, silent_hosts, silent_statuses
from kit.targets.compose.wait import wait_until_launched
from kit.targets.lowered import service_versions
from kit.values import Say
from kit.workload.names import DATA, project_of
from kit.workload.types import Workload

UNCHANGED = "nothing was changed on any host"


class ComposeTarget:
    """Runs workloads on the hosts of the rendered tree, through their Docker engines."""

    tied_to_terminal: ClassVar[bool] = False
    on_hosts: ClassVar[bool] = True

    def __init__(self, cluster: str, tree: Path) -> None:
        self._hosts = Hosts(cluster, tree)
        self._event_logs: dict[str, EventLog] = {}
        self._stopped: dict[str, JobStatus] = {}
        self._recorded: dict[str, JobStatus] = {}
        self._asked: frozenset[str] | None = None

    def _ended(self, observed: ObservedContainers) -> dict[str, JobStatus]:
        """Return the final status of jobs without containers; read again if the jobs change."""
        jobs = frozenset(observed.jobs)
        central = self._hosts.central
        if self._asked != jobs and central.host.name not in observed.lost:
            # The first connection to the host already delivered it.
            prelude_output = (
                self._hosts.dockers[central.host.name].prelude_output
                if self._asked is None
                else None
            )
            with suppress(KitError):
                ended = central.recorded_statuses(prelude_output)
                self._asked, self._recorded = jobs, {status.job: status for status in ended}
        return self._recorded | self._stopped

    def preview(self, workloads: Sequence[Workload], *, fresh: bool) -> tuple[Step, ...]:
        """Query the hosts and return the steps; see `Target.preview`."""
        hosts = self._hosts
        require_compose()
        images = {each.image for each in workloads}
        volumes = {each.store.volume for each in workloads if each.store and each.store.volume}
        needed = [(each, name) for each in workloads for name in each.hosts]
        texts = {(each.name, name): rendered_text(hosts.file(each, name)) for each, name in needed}
        versions = {place: service_versions(text) for place, text in texts.items()}
        data = self._hosts.data_versions([name for each, name in needed if each.data])
        if data and hosts.rendered.data:
            images.add(hosts.rendered.data.image)
        answers = self._observe(images, volumes)
        require_all(
            {name: answers[name] for name in (*(name for _, name in needed), *data)}, UNCHANGED
        )
        observed = {name: one for name, one in answers.items() if isinstance(one, HostState)}
        changed = {
            (name, host): drift(text, [one for one in observed[host].containers if one.job == name])
            for (name, host), text in texts.items()
        }
        there = hosts.rendered.devices
        state = (versions, observed, changed)
        steps = decide(hosts.cluster, workloads, *state, fresh=fresh, rendered=there)
        if not fresh:
            stacks = {each.name: each.stack for each in workloads}
            steps = with_moves(
                steps,
                workloads,
                self.history(),
                hosts.all.values(),
                lambda step: stacks[step.name] if isinstance(step, Start) else "",
            )
        # All images are pulled before anything changes; the sort keeps the order otherwise.
        every = (*self._data_steps(data, observed), *steps)
        return tuple(sorted(every, key=lambda step: not isinstance(step, Pull)))

    def _observe(self, images: set[str], volumes: set[str]) -> dict[str, HostState | KitError]:
        hosts = self._hosts
        project = project_of(hosts.cluster, DATA)
        return hosts.on(
            hosts.all,
            lambda host: observe_host(host, hosts.dockers[host.name], images, volumes, project),
        )

    def _data_steps(
        self, versions: Mapping[str, str], observed: Mapping[str, HostState]
    ) -> tuple[Step, ...]:
        data = self._hosts.rendered.data
        return steps_of_data(data, versions, observed) if data is not None else ()

    def start_data(self, names: Sequence[str], say: Say) -> None:
        """Bring the data services of hosts up; see `Target.start_data`."""
        require_compose()
        data = self._hosts.rendered.data
        versions = self._hosts.data_versions(names)
        answers = self._observe({data.image} if data else set(), set())
        require_all({name: answers[name] for name in versions}, UNCHANGED)
        observed = {name: one for name, one in answers.items() if isinstance(one, HostState)}
        with self._hosts.central.locked(say):
            executor = Executor(self._hosts, (), {})
            for _ in execute_steps(self._data_steps(versions, observed), executor.execute, say):
                pass

    def commands(self, script: str) -> Mapping[str, list[str]]:
        """Return the commands on the hosts, over SSH; see `Target.commands`."""
        return ssh.commands(self._hosts.all.values(), script)

    def data_folder(self) -> None:
        """Return None: the data sets are in volumes; see `Target.data_folder`."""

    def stop_data(self) -> bool:
        """End the data services of all hosts; see `Target.stop_data`."""
        hosts, project = self._hosts, project_of(self._hosts.cluster, DATA)
        ended = hosts.on(hosts.all, lambda host: hosts.remove_project(project, host.name))
        return any(require_all(ended).values())

    def deploy(self, workloads: Sequence[Workload], *, fresh: bool, say: Say, agree: Agree) -> None:
        """Start a project on each host; see `Target.deploy`."""
        secrets = {each.name: read_secrets(each) for each in workloads if each.parts}
        with self._hosts.central.locked(say):
            steps = self.preview(workloads, fresh=fresh)
            agree(self.history())
            starting = {step.name for step in steps if isinstance(step, Start)}
            for each in workloads:
                if each.name not in starting:
                    say(unchanged_message(each))
            executor = Executor(self._hosts, workloads, secrets)
            self._execute(steps, executor, {each.name: each for each in workloads}, say)
        for each in workloads:
            if each.name in starting and each.begins:
                self._require_launched(each, executor)

    def _require_launched(self, work: Workload, executor: Executor) -> None:
        """Remove a workload again if its input has a mistake.

        Raises:
            KitError: It has one; the message names it.
        """
        failed = wait_until_launched(
            lambda: self._hosts.containers().training(work.name), work.needed
        )
        if not failed:
            return
        reasons = [f"{one.host}: {one.message()}" for one in failed]
        status = self._status(work.name, self._hosts.containers())
        status = as_failed(status, "; ".join(reasons), time.time())
        self._stopped[work.name] = status
        with suppress(KitError):
            self._hosts.central.record_status(status)
        left = executor.take_down(work)
        what = [f"{work.name} does not come up; {left}", *(f"  {each}" for each in reasons)]
        raise mistake_error("\n".join(what), status)

    def _execute(
        self,
        steps: Sequence[Step],
        executor: Executor,
        workloads: Mapping[str, Workload],
        say: Say,
    ) -> None:
        """Execute the steps; remove a workload again if it cannot be started completely."""
        started: list[str] = []
        began, source = time.time(), current_source(self._hosts.tree)
        try:
            for batch in execute_steps(steps, executor.execute, say):
                if isinstance(first := batch[0], Start):
                    work = workloads[first.name]
                    self._stopped.pop(work.name, None)
                    self._hosts.central.delete_status(work.name)
                    self._hosts.central.add_to_history(deployment(work, began, source))
                    started.append(work.name)
                    say(started_message(work))
                began = time.time()
        except StepsError as error:
            if not isinstance(first := error.steps[0], Start):
                raise
            left = executor.take_down(workloads[first.name])
            runs = f"{', '.join(started)}: started before" if started else "no other was started"
            raise KitError(f"{error.message}\n{left}\n{runs}", error.hint) from None

    def break_lock(self) -> None:
        """Remove the lock of a dead deploy.

        Raises:
            KitError: The host with the lock cannot be reached.
        """
        self._hosts.central.break_lock()

    def records(self, job: str, kind: str, source: str) -> FoundRecords:  # noqa: ARG002
        """Return the records beside the checkpoints; see `Target.records`."""
        return from_hosts(self._hosts.rendered.hosts, kind, source)

    def queue(self) -> ComposeQueue:
        """Return the queue, whose notes are on the central host; see `Target.queue`."""
        hosts = self._hosts
        return ComposeQueue(hosts.central, hosts.dockers, hosts.all.values())

    def history(self) -> tuple[Deployment, ...]:
        """Return the recorded deployments; see `Target.history`."""
        return self._hosts.central.history()

    def status(self) -> tuple[JobStatus, ...]:
        """Return the status from the containers on all hosts; see `Target.status`."""
        observed, moment = self._hosts.containers(), time.time()
        present = {job: self._status(job, observed) for job in observed.jobs}
        # Jobs that this process stopped have ended, even if their containers still exist.
        rendered = self._hosts.rendered
        silent = silent_statuses(rendered.devices, rendered.spares, observed.lost, moment)
        known = silent | self._ended(observed) | present | self._stopped
        records = self.queue().records() if rendered.queued else {}
        return tuple(in_queue(known[job], records.get(job), moment) for job in sorted(known))

    def _status(self, job: str, observed: ObservedContainers) -> JobStatus:
        rendered = self._hosts.rendered
        devices, spares = rendered.devices.get(job, {}), rendered.spares.get(job, frozenset())
        dockers = self._hosts.dockers
        sources = {
            one.id: partial(new_lines, dockers[one.host], one) for one in observed.training(job)
        }
        reader = self._event_logs.setdefault(job, EventLog()).update(sources)
        silent = silent_hosts(devices, spares, observed.lost)
        status = job_status(job, observed.jobs[job], silent, reader)
        status = replace(status, urls=rendered.urls.get(job, ()))
        if job not in rendered.checks:
            return status
        running = [one for one in observed.training(job) if one.status == "running"]
        asks = {one.host: partial(visible_gpus, dockers[one.host], one.id) for one in running}
        return with_seen(status, asks)

    def missing(self) -> tuple[str, ...]:
        """Return nothing: a deploy brings all that workloads need; see `Target.missing`."""
        return ()

    def known(self) -> Mapping[str, Known]:
        """Return the workloads that have containers; see `Target.known`."""
        jobs = self._hosts.containers().jobs
        return {
            job: Known(own[0].kind, tuple(sorted({one.host for one in own})))
            for job, own in jobs.items()
        }

    def logs(
        self, names: Sequence[str], *, follow: bool, since: float | None = None
    ) -> Iterator[LogLine]:
        """Yield the lines of the containers that train or answer; see `Target.logs`."""
        # Use separate connections: they are closed at the end.
        dockers = {name: Docker.of(host) for name, host in self._hosts.all.items()}
        observed = self._hosts.containers(dockers)
        for name in names:
            self._require_known(name, observed)
            if not observed.training(name) and name in self._ended(observed):
                raise without_lines(self._ended(observed)[name])
        training = [one for name in names for one in observed.training(name)]
        if not follow:
            yield from read_logs(dockers, training, since or 0.0)
            return
        over = partial(self._hosts.over, names, dockers)
        yield from follow_logs(dockers, training, since or 0.0, over)

    def stop(self, name: str) -> JobStatus:
        """End a workload on all hosts concurrently and remove its containers; see `Target.stop`."""
        observed = self._hosts.containers()
        self._require_known(name, observed)
        if name not in observed.jobs:
            raise KitError(f"job {name} is not running", "see `kit status`")
        places = sorted({one.host for one in observed.jobs[name]})
        ended = self._hosts.on(places, lambda host: self._hosts.end(name, host.name))
        # Query only the hosts that answered, to avoid a second timeout.
        here = {place: self._hosts.dockers[place] for place in places}
        after = self._hosts.containers(here).jobs.get(name, observed.jobs[name])
        status = as_stopped(self._status(name, ObservedContainers({name: after}, {})), time.time())
        # From now on this status is reported, independent of the removal of the containers.
        self._stopped[name] = status
        with suppress(KitError):
            self._hosts.central.record_status(status)
        removed = self._hosts.on(places, lambda host: self._hosts.remove(name, host.name))
        left = {place for place, error in removed.items() if isinstance(error, KitError)}
        left |= self._hosts.rendered.devices.get(name, {}).keys() & observed.lost.keys()
        messages = [status.message] if status.message else []
        # Containers that did not end were killed by their removal.
        messages += [error.message for error in ended.values() if isinstance(error, KitError)]
        if left:
            what = f"{', '.join(sorted(left))} cannot be reached: containers there continue"
            messages.append(f"{what}; `kit stop {name}` again when it is back")
        return replace(status, message="; ".join(messages))

    def release(self, job: str, host: str) -> None:
        """Signal the host's container; see `Target.release`."""
        for one in self._hosts.containers().training(job):
            if one.host == host:
                self._hosts.dockers[host].request(
                    "POST", f"/containers/{one.id}/kill", signal="SIGUSR1"
                )

    def access(self, name: str, host: str) -> Access:
        """Return the access to the host's container; see `Target.access`."""
        for one in self._hosts.containers().training(name):
            if one.host == host and one.status == "running":
                return Access(("docker", *self._hosts.dockers[host].options), one.id)
        raise no_container(name, host)

    def _require_known(self, name: str, observed: ObservedContainers) -> None:
        known = {*observed.jobs, *self._ended(observed)}
        if name not in known:
            raise KitError(
                f"no job {name} was ever deployed on the hosts of cluster {self._hosts.cluster}",
                f"known: {', '.join(sorted(known)) or 'none'}",
            )
