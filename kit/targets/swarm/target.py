"""The Swarm target: stacks, through the managers, which hold all state."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import ClassVar

from kit.errors import InputError, KitError
from kit.hosts import ssh
from kit.hosts.docker import Docker
from kit.model import Host
from kit.runtime.access import Access
from kit.runtime.endings import as_failed, by_limit, mistake_error
from kit.runtime.event_log import EventLog
from kit.runtime.history import Deployment, deployment
from kit.runtime.moves import with_moves
from kit.runtime.record_files import FoundRecords, from_hosts
from kit.runtime.rendered import rendered
from kit.runtime.reported import with_reports
from kit.runtime.seen import with_seen
from kit.runtime.source import current_source
from kit.runtime.status import ENDED, JobStatus, LogLine, State, in_queue, without_lines
from kit.runtime.steps import Step, unchanged_message
from kit.runtime.target import Agree, Known
from kit.secrets import fingerprint, new_key, read_secrets
from kit.targets.lowered import file_version
from kit.targets.swarm import registers
from kit.targets.swarm.containers import access_on, release_on, seen_on
from kit.targets.swarm.decide import decide
from kit.targets.swarm.drift import drift
from kit.targets.swarm.execute import Executor
from kit.targets.swarm.labels import data_labels
from kit.targets.swarm.logs import Logs, sources
from kit.targets.swarm.monitoring import MONITORING
from kit.targets.swarm.names import key_name, monitoring_stack, secret_name, variable
from kit.targets.swarm.observe import first_answer, observe_cluster
from kit.targets.swarm.platform import PLATFORM
from kit.targets.swarm.queue import SwarmQueue
from kit.targets.swarm.state import Cluster, Service
from kit.targets.swarm.status import (
    fewest_of,
    host_statuses,
    job_state,
    lacking,
    names_of,
    state_of,
    working,
)
from kit.targets.swarm.steps import DeployStack
from kit.targets.swarm.wait import NotUpError, end_training, wait_until_up
from kit.values import Say
from kit.workload.types import Kind, Workload
from trainer.contract.words import nearest


def _begins(step: Step) -> str:
    return step.stack if isinstance(step, DeployStack) else ""


class SwarmTarget:
    """Runs workloads as stacks from the rendered files."""

    tied_to_terminal: ClassVar[bool] = False
    on_hosts: ClassVar[bool] = True

    def __init__(self, cluster: str, tree: Path) -> None:
        self._cluster = cluster
        self._tree = tree
        self._rendered = rendered(tree)
        hosts = self._rendered.hosts
        self._managers = [host for host in hosts if "manager" in host.roles] or hosts
        self._answering: tuple[Host, Docker] | None = None
        self._event_logs: dict[str, EventLog] = {}

    def _manager(self) -> tuple[Host, Docker]:
        """Return the first manager that answers, and the only connection to it."""
        if self._answering is None:
            self._answering = first_answer(self._managers)
        return self._answering

    def _docker(self) -> Docker:
        return self._manager()[1]

    def _see(self) -> Cluster:
        return observe_cluster(self._docker())

    def _executor(self, secrets: Mapping[str, str] | None = None) -> Executor:
        return Executor(self._cluster, *self._manager(), self._tree, secrets, self._rendered.hosts)

    def preview(self, workloads: Sequence[Workload], *, fresh: bool) -> tuple[Step, ...]:
        """Return the steps from the current state; see `Target.preview`."""
        secrets = {each.name: read_secrets(each) for each in workloads if each.parts}
        return self._steps(workloads, secrets, fresh=fresh)

    def _steps(
        self,
        workloads: Sequence[Workload],
        secrets: Mapping[str, Mapping[str, str]],
        *,
        fresh: bool,
    ) -> tuple[Step, ...]:
        self._require_stacks(workloads)
        stacks = self._tree.glob("*.stack.yaml")
        texts = {path.name: path.read_text(encoding="utf-8") for path in stacks}
        versions = {name: file_version(text) for name, text in texts.items()}
        hashed = {
            name: {secret: fingerprint(name, secret, value) for secret, value in values.items()}
            for name, values in secrets.items()
        }
        hosts = frozenset(host.name for host in self._rendered.hosts)
        observed = self._see()
        data = self._rendered.data
        labels = data_labels(data, hosts) if data else {}
        changed = dict(self._by_hand(workloads, texts, hashed, observed))
        state = (observed, versions, hashed, hosts, labels, changed)
        steps = decide(self._cluster, workloads, *state, fresh=fresh)
        if fresh:
            return tuple(steps)
        return with_moves(steps, workloads, self.history(), self._rendered.hosts, _begins)

    def _by_hand(
        self,
        workloads: Sequence[Workload],
        texts: Mapping[str, str],
        secrets: Mapping[str, Mapping[str, str]],
        cluster: Cluster,
    ) -> Iterator[tuple[str, str]]:
        """Yield the stacks with the changes by hand since their deploy."""
        files = {f"{each.stack}.stack.yaml": each for each in workloads}
        stacks = {
            PLATFORM: f"{self._cluster}-platform",
            MONITORING: monitoring_stack(self._cluster),
            **{name: each.stack for name, each in files.items()},
        }
        for name, stack in stacks.items():
            if text := texts.get(name):
                own = secrets.get(files[name].name, {}) if name in files else {}
                variables = {variable(secret): hashed for secret, hashed in own.items()}
                yield stack, drift(stack, text, variables, file_version(text), cluster)

    def _require_stacks(self, workloads: Sequence[Workload]) -> None:
        for each in workloads:
            path = self._tree / f"{each.stack}.stack.yaml"
            if each.parts and not path.is_file():
                what = f"{path} is not there: the files are for another engine"
                raise InputError(what, "write `engine: swarm` in the inventory, run `kit render`")

    def deploy(self, workloads: Sequence[Workload], *, fresh: bool, say: Say, agree: Agree) -> None:
        """Execute the steps, and return when the tasks run; see `Target.deploy`."""
        self._require_stacks(workloads)
        secrets = {each.name: read_secrets(each) for each in workloads if each.parts}
        named = {
            secret_name(each, name, fingerprint(each.name, name, value)): value
            for each in workloads
            for name, value in secrets.get(each.name, {}).items()
        }
        named[key_name(self._cluster)] = new_key()
        executor = self._executor(named)
        manager = executor.manager
        with registers.locked(manager):
            steps = self._steps(workloads, secrets, fresh=fresh)
            agree(self.history())
            began, source = time.time(), current_source(self._tree)
            executor.execute_all(steps, say)
            deployed = {step.stack for step in steps if isinstance(step, DeployStack)}
            for each in workloads:
                if each.stack in deployed:
                    registers.delete_status(manager, each.name)
                    registers.record_deployment(manager, deployment(each, began, source))
                else:
                    say(unchanged_message(each))
        try:
            wait_until_up(manager, [each.name for each in workloads if each.begins], say)
        except NotUpError as error:
            if error.mistake:
                raise self._given_up(executor, error) from None
            raise
        for each in workloads:
            executor.drop_secrets(each.name)

    def _given_up(self, executor: Executor, error: NotUpError) -> KitError:
        """Remove a workload for which a restart is useless; return its error."""
        cluster = observe_cluster(executor.manager)
        status = as_failed(self._status(cluster, error.job), error.reason, time.time())
        registers.record_status(executor.manager, status)
        executor.remove(cluster.of(error.job)[0].stack)
        executor.drop_secrets(error.job)
        return mistake_error(error.message, status)

    def break_lock(self) -> None:
        """Remove the lock of any holder."""
        registers.break_lock(self._docker())

    def status(self) -> tuple[JobStatus, ...]:
        """Return the status from tasks and logs; see `Target.status`."""
        cluster = self._see()
        statuses = {status.job: status for status in registers.recorded_statuses(self._docker())}
        records = self.queue().records()
        statuses |= {
            name: in_queue(self._status(cluster, name), records.get(name), time.time())
            for name in names_of(cluster)
        }
        return tuple(statuses[name] for name in sorted(statuses))

    def _status(self, cluster: Cluster, name: str) -> JobStatus:
        event_log = self._event_logs.setdefault(name, EventLog())
        reader = event_log.update(sources(self._docker(), cluster, name))
        services = working(cluster, name)
        places = {task.id: task.node for task in cluster.tasks_of(services)}
        names = {node.id: node.name for node in cluster.nodes}
        reader.unread = {
            names.get(places.get(source, ""), ""): f"its log cannot be read now: {error.message}"
            for source, error in event_log.refused.items()
        }
        hosts = host_statuses(cluster, name)
        state, message = job_state(hosts, fewest_of(cluster, name))
        state, limit = by_limit(state, reader)
        ended = max((task.at for task in cluster.tasks_of(services)), default=None)
        status = JobStatus(
            job=name,
            kind=services[0].kind or Kind.JOB,
            state=state,
            message="; ".join(filter(None, (limit, message))),
            started=min(service.changed for service in services),
            ended=ended if state in ENDED else None,
            hosts=tuple(map(reader.of_host, hosts)),
            progress=None,
            checkpoint=None,
            urls=self._rendered.urls.get(name, ()),
            queue=reader.queue,
        )
        status = with_reports(status, reader)
        return self._with_seen(status, services) if name in self._rendered.checks else status

    def _with_seen(self, status: JobStatus, services: Sequence[Service]) -> JobStatus:
        """Ask the containers of a custom server for their GPUs, on their hosts' engines."""
        running = {host.host for host in status.hosts if host.state is State.RUNNING}
        hosts = [host for host in self._rendered.hosts if host.name in running]
        names = [service.name for service in services]
        return with_seen(status, {host.name: partial(seen_on, host, names) for host in hosts})

    def missing(self) -> tuple[str, ...]:
        """Return hosts that are not nodes, and missing stacks of kit; see `Target.missing`."""
        files = {f"{self._cluster}-platform": PLATFORM, monitoring_stack(self._cluster): MONITORING}
        stacks = [stack for stack, file in files.items() if (self._tree / file).is_file()]
        return lacking(self._see(), [host.name for host in self._rendered.hosts], stacks)

    def known(self) -> Mapping[str, Known]:
        """Return the workloads that have stacks; see `Target.known`."""
        cluster = self._see()
        return {
            name: Known(
                cluster.of(name)[0].kind or Kind.JOB,
                tuple(host.host for host in host_statuses(cluster, name)),
            )
            for name in names_of(cluster)
        }

    def logs(
        self, names: Sequence[str], *, follow: bool, since: float | None = None
    ) -> Iterator[LogLine]:
        """Yield the lines of all tasks, sorted by time; see `Target.logs`."""
        cluster = self._see()
        ended = registers.recorded_statuses(self._docker())
        for name in names:
            _require(cluster, name, ended)
        logs = Logs(self._docker(), cluster)
        if not follow:
            return logs.read(names, since)
        return logs.follow(names, since, lambda: self._ended(names))

    def _ended(self, names: Sequence[str]) -> bool:
        cluster = self._see()
        return all(state_of(cluster, name) in {None, *ENDED} for name in names)

    def stop(self, name: str) -> JobStatus:
        """End the training, which saves, and remove the stack; see `Target.stop`."""
        executor = self._executor()
        docker = executor.manager
        cluster = observe_cluster(docker)
        _require(cluster, name)
        status = self._status(cluster, name)
        if status.state not in ENDED:
            status = end_training(docker, cluster, status, self._event_logs[name].reader)
        with suppress(KitError):
            registers.record_status(docker, status)
        executor.remove(cluster.of(name)[0].stack)
        executor.drop_secrets(name)
        return status

    def release(self, job: str, host: str) -> None:
        """Signal the host's container, by its own engine; see `Target.release`."""
        release_on(*self._on(job, host))

    def access(self, name: str, host: str) -> Access:
        """Return the access to the host's container, by its own engine; see `Target.access`."""
        return access_on(*self._on(name, host), name)

    def _on(self, name: str, host: str) -> tuple[Host, list[str]]:
        """Return a host, and the services of a workload whose containers may be there."""
        (place,) = [each for each in self._rendered.hosts if each.name == host]
        return place, [each.name for each in working(self._see(), name)]

    def start_data(self, names: Sequence[str], say: Say) -> None:  # noqa: ARG002
        """Deploy the platform's stack, which has the data services; see `Target.start_data`."""
        executor = self._executor()
        with registers.locked(executor.manager):
            executor.execute_all(self._steps((), {}, fresh=False), say)

    def commands(self, script: str) -> Mapping[str, list[str]]:
        """Return the commands on the hosts, over SSH; see `Target.commands`."""
        return ssh.commands(self._rendered.hosts, script)

    def data_folder(self) -> None:
        """Return None: the data sets are in volumes; see `Target.data_folder`."""

    def stop_data(self) -> bool:
        """Do nothing: the data services belong to the platform; see `Target.stop_data`."""
        return False

    def records(self, job: str, kind: str, source: str) -> FoundRecords:  # noqa: ARG002
        """Return the records beside the checkpoints; see `Target.records`."""
        return from_hosts(self._rendered.hosts, kind, source)

    def queue(self) -> SwarmQueue:
        """Return the queue, as the manager shows it; see `Target.queue`."""
        return SwarmQueue(self._docker(), self._rendered.hosts)

    def history(self) -> tuple[Deployment, ...]:
        """Return the recorded deployments; see `Target.history`."""
        return registers.history(self._docker())


def _require(cluster: Cluster, name: str, ended: Sequence[JobStatus] = ()) -> None:
    """Refuse a workload that has no stack; `ended` are those that once had one."""
    known = names_of(cluster)
    if name not in known:
        for status in ended:
            if status.job == name:
                raise without_lines(status)
        raise InputError(
            f"{name} is not deployed on this swarm",
            nearest(name, known) if known else "nothing is: kit deploy",
        )
