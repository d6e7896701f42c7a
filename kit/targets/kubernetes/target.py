"""The Kubernetes target: manifests in one namespace, which holds all state."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from kit.errors import InputError, KitError
from kit.runtime.access import Access, no_container
from kit.runtime.endings import as_failed, by_limit, mistake_error
from kit.runtime.event_log import EventLog
from kit.runtime.history import Deployment, deployment
from kit.runtime.loop import execute_steps
from kit.runtime.record_files import FoundRecords
from kit.runtime.rendered import rendered
from kit.runtime.reported import with_reports
from kit.runtime.source import current_source
from kit.runtime.status import ENDED, HostStatus, JobStatus, LogLine, State, without_lines
from kit.runtime.steps import Step, started_message, unchanged_message
from kit.runtime.target import Agree, Known
from kit.secrets import read_secrets
from kit.targets.kubernetes.decide import Apply, EndJobs, Prune
from kit.targets.kubernetes.execute import APPLIED, Executor
from kit.targets.kubernetes.logs import Logs, sources
from kit.targets.kubernetes.observe import (
    APPLY,
    Objects,
    connect,
    listed,
    observe,
    rendered_objects,
)
from kit.targets.kubernetes.planned import checkable, planned
from kit.targets.kubernetes.records import from_claim, from_pod
from kit.targets.kubernetes.registers import Registers
from kit.targets.kubernetes.state import Namespace, Pod
from kit.targets.kubernetes.status import host_statuses, job_state, pool_statuses
from kit.targets.kubernetes.wait import NotReplacedError, NotUpError, Seen, wait_until_up
from kit.values import Say
from kit.workload.names import kind_of, stack_of_job
from kit.workload.types import Kind, Workload
from trainer.contract.words import nearest

RELEASE = "import os, signal; os.kill(1, signal.SIGUSR1)"
"""The program that lets a host take part again: the image may lack `kill`."""


def _stack_of(name: str) -> str:
    return name if kind_of(name) is Kind.SERVER else stack_of_job(name)


class KubernetesTarget:
    """Runs workloads as objects of a namespace, from the rendered files."""

    tied_to_terminal: ClassVar[bool] = False
    on_hosts: ClassVar[bool] = False

    def __init__(self, cluster: str, tree: Path) -> None:
        self._cluster = cluster
        self._tree = tree
        self._rendered = rendered(tree)
        self._kubectl = connect(tree)
        self._registers = Registers(self._kubectl, cluster)
        self._event_logs: dict[str, EventLog] = {}

    def _see(self) -> Namespace:
        return observe(self._kubectl, self._cluster)

    def _executor(
        self, objects: Objects, secrets: Mapping[str, Mapping[str, str]] | None = None
    ) -> Executor:
        return Executor(self._kubectl, self._cluster, objects, secrets or {})

    def preview(self, workloads: Sequence[Workload], *, fresh: bool) -> tuple[Step, ...]:
        """Return the steps; the API server has checked their objects, see `Target.preview`."""
        objects = rendered_objects(self._kubectl, self._tree)
        steps = self._planned(workloads, objects, fresh=fresh)
        for found in checkable(steps, objects):
            words = (*APPLY, "--dry-run=server", "--filename=-")
            self._kubectl.run(*words, stdin=listed(found), seconds=APPLIED)
        return steps

    def _planned(
        self, workloads: Sequence[Workload], objects: Objects, *, fresh: bool
    ) -> tuple[Step, ...]:
        return planned(self._kubectl, self._cluster, workloads, objects, fresh=fresh)

    def deploy(self, workloads: Sequence[Workload], *, fresh: bool, say: Say, agree: Agree) -> None:
        """Execute the steps, and return when the pods run; see `Target.deploy`."""
        secrets = {each.name: read_secrets(each) for each in workloads if each.parts}
        objects = rendered_objects(self._kubectl, self._tree)
        executor = self._executor(objects, secrets)
        with self._registers.locked():
            steps = self._planned(workloads, objects, fresh=fresh)
            agree(self.history())
            began, source = time.time(), current_source(self._tree)
            first = [step for step in steps if not (isinstance(step, Prune) and step.late)]
            for _ in execute_steps(first, executor.execute, say):
                pass
            applied = {step.stack for step in steps if isinstance(step, Apply)}
            for each in workloads:
                if each.stack in applied:
                    self._registers.record_deployment(deployment(each, began, source))
                else:
                    say(unchanged_message(each))
        starting = [each for each in workloads if each.stack in applied]
        try:
            wait_until_up(starting, self._look, say)
        except NotReplacedError:
            raise
        except NotUpError as error:
            if error.mistake:
                raise self._given_up(executor, error) from None
            raise
        for each in starting:
            say(started_message(each))
        if len(first) < len(steps):
            self._tidy(starting, objects, executor, say)

    def _tidy(
        self, work: Sequence[Workload], objects: Objects, executor: Executor, say: Say
    ) -> None:
        """Delete what only former pods needed, unless another deploy has changed things since."""
        try:
            with self._registers.locked():
                steps = self._planned(work, objects, fresh=False)
                if all(isinstance(step, Prune) for step in steps):
                    for _ in execute_steps(steps, executor.execute, say):
                        pass
        except KitError as error:
            say(f"the next `kit deploy` deletes the objects of the former files: {error.message}")

    def _look(self, work: Workload) -> Seen:
        found = self._see()
        hosts, objects = self._hosts(found, work.name), found.working(work.stack)
        state = job_state(work.kind, objects, hosts, work.needed)[0]
        return Seen(state, hosts, any(each.rolls for each in objects))

    def _hosts(self, found: Namespace, name: str) -> tuple[HostStatus, ...]:
        planned = self._rendered.devices.get(name, {})
        if self._kubectl.settings.pool:
            return pool_statuses(found, _stack_of(name), len(planned))
        return host_statuses(found, _stack_of(name), planned)

    def _given_up(self, executor: Executor, error: NotUpError) -> KitError:
        """Remove a workload for which a restart is useless; return its error."""
        status = as_failed(self._status(self._see(), error.job), error.reason, time.time())
        self._registers.record_status(status)
        executor.remove(_stack_of(error.job), 0)
        return mistake_error(error.message, status)

    def break_lock(self) -> None:
        """Remove the lock of any holder."""
        self._registers.break_lock()

    def status(self) -> tuple[JobStatus, ...]:
        """Return the status from pods and their logs; see `Target.status`."""
        found, statuses = self._see(), self._registers.statuses()
        statuses |= {name: self._status(found, name) for _, name in found.stacks.values()}
        return tuple(statuses[name] for name in sorted(statuses))

    def _status(self, found: Namespace, name: str) -> JobStatus:
        stack = _stack_of(name)
        event_log = self._event_logs.setdefault(name, EventLog())
        reader = event_log.update(sources(self._kubectl, found, stack, name))
        nodes = {pod.name: pod.node for pod in found.pods_of(stack)}
        reader.unread = {
            nodes.get(pod, ""): f"its log cannot be read now: {error.message}"
            for pod, error in event_log.refused.items()
        }
        work, hosts = found.working(stack), self._hosts(found, name)
        needed = max(1, len(hosts) - max((each.most_failed for each in work), default=0))
        state, message = job_state(kind_of(name), work, hosts, needed)
        state, limit = by_limit(state, reader)
        ended = [each.ended_at for each in work if each.ended_at is not None]
        status = JobStatus(
            job=name,
            kind=kind_of(name),
            state=state,
            message="; ".join(filter(None, (limit, message))),
            started=min(each.created for each in work),
            ended=max(ended) if ended and state in ENDED else None,
            hosts=tuple(map(reader.of_host, hosts)),
            progress=None,
            checkpoint=None,
            urls=self._rendered.urls.get(name, ()),
        )
        return with_reports(status, reader)

    def missing(self) -> tuple[str, ...]:
        """Return nothing: kit has no own services there; see `Target.missing`."""
        return ()

    def known(self) -> Mapping[str, Known]:
        """Return the workloads that have objects; see `Target.known`."""
        found = self._see()
        return {
            name: Known(kind, tuple(host.host for host in self._hosts(found, name)))
            for kind, name in found.stacks.values()
        }

    def logs(
        self, names: Sequence[str], *, follow: bool, since: float | None = None
    ) -> Iterator[LogLine]:
        """Yield the lines of all pods, sorted by time; see `Target.logs`."""
        found = self._see()
        for name in names:
            self._require(found, name)
        logs = Logs(self._kubectl, {name: _stack_of(name) for name in names}, self._see)
        return logs.follow(since, lambda: self._ended(names)) if follow else logs.read(since)

    def _ended(self, names: Sequence[str]) -> bool:
        found = self._see()
        works = [found.working(_stack_of(name)) for name in names]
        return all(all(each.ended for each in work) for work in works)

    def _require(self, found: Namespace, name: str) -> None:
        """Refuse a workload that has no objects."""
        known = sorted(name for _, name in found.stacks.values())
        if name in known:
            return
        if status := self._registers.statuses().get(name):
            raise without_lines(status)
        what = f"{name} is not deployed in this namespace"
        raise InputError(what, nearest(name, known) if known else "nothing is: kit deploy")

    def stop(self, name: str) -> JobStatus:
        """End the training, which saves, and remove all except checkpoints; see `Target.stop`."""
        found = self._see()
        self._require(found, name)
        status = self._status(found, name)
        executor = self._executor({})
        stack = _stack_of(name)
        owners = found.owners(stack)
        grace = max((pod.grace for pod in found.pods_of(stack)), default=0)
        if status.state not in ENDED and owners:
            status = self._end_training(executor, name, EndJobs("", "", "", stack, owners, grace))
        elif status.state not in ENDED:
            status = replace(status, state=State.STOPPED, ended=time.time())
        with suppress(KitError):
            self._registers.record_status(status)
        executor.remove(stack, grace)
        return status

    def _end_training(self, executor: Executor, name: str, step: EndJobs) -> JobStatus:
        """End the pods that train but not the coordinator, which they need for a last checkpoint.

        Read their logs meanwhile: they are deleted with the pods.
        """
        before = self._status(self._see(), name)
        reader = self._event_logs[name].reader
        logs = Logs(self._kubectl, {name: step.stack}, self._see)
        asked = False

        def ended() -> bool:
            nonlocal asked
            if not asked:
                asked = True
                executor.end_jobs(step)
            pods = self._see().pods_of(step.stack)
            return not any(pod.answers and not pod.over for pod in pods)

        for line in logs.follow(time.time(), ended):
            reader.read(line)
        hosts = (replace(each, state=State.STOPPED, message="") for each in before.hosts)
        return replace(
            before,
            state=State.STOPPED,
            message="",
            ended=time.time(),
            hosts=tuple(hosts),
            progress=reader.progress,
            checkpoint=reader.checkpoint,
        )

    def release(self, job: str, host: str) -> None:
        """Signal the launcher in the host's pod; see `Target.release`."""
        pod = self._pod(job, host)
        self._kubectl.run("exec", pod.name, "--", "python3", "-c", RELEASE)

    def access(self, name: str, host: str) -> Access:
        """Return the access to the pod of a host, by `kubectl exec`; see `Target.access`."""
        pod = self._pod(name, host)
        # Log-ins of kubectl may need any variable; none of them reaches the pod.
        return Access(
            ("kubectl", *self._kubectl.options), pod.name, dict(os.environ), None, ("--",)
        )

    def _pod(self, name: str, host: str) -> Pod:
        pods = reversed(self._see().pods_of(_stack_of(name)))
        for pod in pods:
            if pod.node == host and pod.phase == "Running" and not pod.ends:
                return pod
        raise no_container(name, host)

    def start_data(self, names: Sequence[str], say: Say) -> None:
        """Do nothing: the target refuses jobs that need data services; see `Target.start_data`."""

    def commands(self, script: str) -> Mapping[str, list[str]]:
        """Return the commands in the pods, which see their own GPUs; see `Target.commands`."""
        found = self._see()
        pods = [pod for stack in found.stacks for pod in found.pods_of(stack)]
        places = Counter(pod.node for pod in pods if pod.phase == "Running")
        return {
            pod.node if places[pod.node] == 1 else f"{pod.node} {pod.stack}": [
                *("kubectl", *self._kubectl.options, "exec", pod.name, "--", "sh", "-c", script)
            ]
            for pod in pods
            if pod.phase == "Running"
        }

    def data_folder(self) -> None:
        """Return None: data sets are in volume claims of the user; see `Target.data_folder`."""

    def stop_data(self) -> bool:
        """Return False: there are no data services; see `Target.stop_data`."""
        return False

    def records(self, job: str, kind: str, source: str) -> FoundRecords:  # noqa: ARG002
        """Read the records in the job's volume claim, through a pod; see `Target.records`."""
        stack = _stack_of(job)
        running = [pod.name for pod in self._see().pods_of(stack) if pod.answers and not pod.ends]
        try:
            if running:
                return FoundRecords(from_pod(self._kubectl, running[0]))
            objects = rendered_objects(self._kubectl, self._tree).get(stack, ())
            return FoundRecords(from_claim(self._kubectl, self._cluster, objects))
        except KitError as error:
            return FoundRecords((), (error,))

    def queue(self) -> None:
        """Return None; see `Target.queue`."""

    def history(self) -> tuple[Deployment, ...]:
        """Return the recorded deployments; see `Target.history`."""
        return self._registers.history()
