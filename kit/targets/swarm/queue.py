"""The queue on a Swarm: its records, which are configs, and the services that it turns on and off.

The content of a config cannot change, its labels can: the label `state` has the changing data. A
service that is on has the GPUs of its host that the queue has given to its job, and their time.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from kit.errors import InputError, KitError
from kit.hosts.connection import EngineError
from kit.hosts.docker import Docker
from kit.hosts.nodes import update_node
from kit.model import Host
from kit.plan.work import managers_of
from kit.queue.carrier import Seen
from kit.queue.document import Rules, rules_of
from kit.queue.moves import Begin, Release
from kit.queue.record import Record, Spent, record_of
from kit.queue.service import Service
from kit.queue.words import variables_of
from kit.targets.swarm.containers import end_on
from kit.targets.swarm.observe import GPU_KIND, observe_cluster
from kit.targets.swarm.pool import AVOIDED, ON, RECLAIMED, SINCE, pool_of
from kit.targets.swarm.state import VISIBLE
from kit.workload.names import stack_of_job
from kit.workload.types import Role

JOB, POOL = "kit-queued", "kit-pool"
"""The labels, and the beginnings of the names, of the configs of jobs and of the pool."""
STATE = "state"
OUTDATED = "out of sequence"
"""In an engine's answer to a change of what another has changed since it was read."""

Spec = dict[str, Any]
"""The specification of a service in Docker's API."""


class SwarmQueue:
    """The queue of a Swarm, through one of its managers; `hosts` are those of the inventory.

    `controls`: the controller uses it, not a person.
    """

    def __init__(
        self, manager: Docker, hosts: Iterable[Host] = (), *, controls: bool = False
    ) -> None:
        self._manager, self._controls = manager, controls
        self._known: dict[str, str] = {}  # The states of the records that were read last.
        self._hosts = {host.name: host for host in hosts}
        self._node = ""

    def service(self) -> Service:
        """Return the managers, and the call of the controller there."""
        program = "kit.targets.swarm.queue_program"
        return Service(managers_of(self._hosts.values()), program, "main()")

    def leads(self) -> bool:
        """Return whether the manager leads the others.

        Raises:
            KitError: It does not answer, or is not a manager.
        """
        self._node = self._node or str(self._manager.get("/info")["Swarm"]["NodeID"])
        status = self._manager.get(f"/nodes/{self._node}").get("ManagerStatus") or {}
        return bool(status.get("Leader"))

    def look(
        self, rules: Rules, records: Sequence[Record], used: Mapping[str, float], now: float
    ) -> Seen:
        """Return the pool at the time `now`, and the changes of its jobs."""
        return pool_of(observe_cluster(self._manager), rules, records, used, now)

    # ---- Records

    def rules(self) -> Rules | None:
        """Return the stored rules of the pool; None if there are none."""
        pool = self._pool()
        return rules_of(_content(pool)) if pool else None

    def set_rules(self, document: Mapping[str, Any]) -> bool:
        """Store the rules of the pool; return whether they changed. The use of people stays."""
        before = self._pool()
        if before and _content(before) == document:
            return False
        state = (before or {"Spec": {"Labels": {}}})["Spec"]["Labels"].get(STATE, "{}")
        if before:
            self._manager.request("DELETE", f"/configs/{before['ID']}")
        self._create(POOL, POOL, document, state)
        return True

    def spent(self) -> Spent:
        """Return the GPU-hours that people have used."""
        pool = self._pool()
        state = json.loads(pool["Spec"]["Labels"].get(STATE, "{}")) if pool else {}
        return Spent(**state) if state else Spent(0.0)

    def set_spent(self, spent: Spent) -> None:
        """Store the GPU-hours that people have used."""
        if pool := self._pool():
            self._label(pool, asdict(spent))

    def records(self) -> dict[str, Record]:
        """Return the records of all jobs of the queue, by name."""
        found = {_record(each): each for each in self._configs(JOB)}
        self._known = {record.job: _state(each) for record, each in found.items()}
        return {record.job: record for record in found}

    def add(self, record: Record) -> None:
        """Add a job; it replaces an earlier one with its name."""
        self._remove(record.job)
        state = json.dumps(record.document())
        self._create(JOB, f"{JOB}-{record.job}"[:64], {"job": record.job}, state)

    def update(self, record: Record) -> None:
        """Store the new record of a job, unless a person has changed it since it was read.

        A person's change is repeated if the controller has changed the record at the same time.
        """
        while True:
            try:
                self._update(record)
            except EngineError as error:
                if self._controls or OUTDATED not in error.message:
                    raise
            else:
                return

    def _update(self, record: Record) -> None:
        for config in self._configs(JOB):
            if _record(config).job == record.job and self._may_change(record.job, config):
                self._known[record.job] = self._label(config, record.document())

    def _may_change(self, job: str, config: Mapping[str, Any]) -> bool:
        return not self._controls or self._known.get(job) == _state(config)

    def _remove(self, job: str) -> None:
        for config in self._configs(JOB):
            if _record(config).job == job:
                self._manager.request("DELETE", f"/configs/{config['ID']}")

    def _pool(self) -> dict[str, Any] | None:
        return next(iter(self._configs(POOL)), None)

    def _configs(self, label: str) -> list[dict[str, Any]]:
        return list(self._manager.get("/configs", filters={"label": [label]}))

    def _create(self, label: str, name: str, content: Mapping[str, Any], state: str) -> None:
        data = base64.b64encode(json.dumps(content).encode()).decode()
        labels = {label: "", STATE: state}
        self._manager.post("/configs/create", {"Name": name, "Labels": labels, "Data": data})

    def _label(self, config: dict[str, Any], state: Mapping[str, Any]) -> str:
        """Replace the state of a config; return its text."""
        spec, text = config["Spec"], json.dumps(state)
        version = str(config["Version"]["Index"])
        body = spec | {"Labels": spec["Labels"] | {STATE: text}}
        self._manager.post(f"/configs/{config['ID']}/update", body, version=version)
        return text

    # ---- Hosts

    def reclaim(self, host: str, who: str) -> None:
        """Record that `who` reclaims a host, or gives it back to the pool; see `Queue.reclaim`."""
        self._label_node(host, {RECLAIMED: who} if who else {})

    def avoid(self, host: str, now: float) -> None:
        """Record that somebody on a host has ended a job there; see `Queue.avoid`."""
        self._label_node(host, {AVOIDED: f"{now:.0f}"})

    def _label_node(self, host: str, own: Mapping[str, str]) -> None:
        """Replace the labels of reclaimed and avoided hosts on a host's node."""
        node = observe_cluster(self._manager).node_of(host)
        if node is None:
            raise InputError(f"{host} is not a node of the swarm", "see `kit queue`")

        def labelled(spec: Spec) -> Spec:
            others = {k: v for k, v in spec["Labels"].items() if k not in {RECLAIMED, AVOIDED}}
            return spec | {"Labels": {**others, **own}}

        update_node(self._manager, node.id, labelled)

    # ---- Services

    def release(self, move: Release) -> None:
        """Make a job leave a host, at the end of its step."""
        self._change(f"{stack_of_job(move.job)}_{ON}{move.host}", _off)

    def leave(self, move: Release, seconds: float) -> bool:
        """Make a job leave a host now; see `Queue.leave`."""
        self.release(move)
        service = f"{stack_of_job(move.job)}_{ON}{move.host}"
        return end_on(self._hosts[move.host], [service], seconds)

    def begin(self, move: Begin, now: float, waited: float) -> None:
        """Start a job on GPUs of a host; see `Queue.begin`."""

        def on(spec: Spec) -> Spec | None:
            return None if _replicas(spec) else _bound(spec, move.gpus, now, waited)

        self._change(f"{stack_of_job(move.job)}_{ON}{move.host}", on)

    def coordinate(self, job: str, *, on: bool) -> None:
        """Turn the coordinator of a job on or off."""

        def turned(spec: Spec) -> Spec | None:
            return None if bool(_replicas(spec)) == on else _scaled(spec, int(on))

        self._change(f"{stack_of_job(job)}_{Role.RENDEZVOUS}", turned)

    def _change(self, service: str, change: Callable[[Spec], Spec | None]) -> None:
        """Change a service, unless it has the wanted state; a concurrent change wins."""
        found = self._manager.get(f"/services/{service}")
        spec = change(found["Spec"])
        if spec is None:
            return
        version = str(found["Version"]["Index"])
        try:
            self._manager.post(f"/services/{found['ID']}/update", spec, version=version)
        except EngineError as error:
            if OUTDATED not in error.message:
                raise


def _content(config: Mapping[str, Any]) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(base64.b64decode(config["Spec"]["Data"]))
    return content


def _state(config: Mapping[str, Any]) -> str:
    return str(config["Spec"]["Labels"].get(STATE))


def _record(config: Mapping[str, Any]) -> Record:
    try:
        return record_of(json.loads(config["Spec"]["Labels"][STATE]))
    except (ValueError, TypeError, LookupError):
        name = config["Spec"]["Name"]
        what = f"the config {name} of the Swarm is not a record of a job of the queue"
        raise KitError(what, f"remove it: docker config rm {name}") from None


def _replicas(spec: Spec) -> int:
    return int(spec["Mode"]["Replicated"].get("Replicas", 0))


def _scaled(spec: Spec, replicas: int) -> Spec:
    return spec | {"Mode": {"Replicated": {"Replicas": replicas}}}


def _off(spec: Spec) -> Spec | None:
    return _scaled(spec, 0) if _replicas(spec) else None


def _bound(spec: Spec, gpus: tuple[str, ...], now: float, waited: float) -> Spec:
    """Return the specification of a service that is on and has these GPUs of its host."""
    template = spec["TaskTemplate"]
    container, number = template["ContainerSpec"], len(gpus)
    variables = dict(each.partition("=")[::2] for each in container.get("Env") or ())
    variables |= {VISIBLE: ",".join(gpus), **variables_of(number, now, waited)}
    reserved = [{"DiscreteResourceSpec": {"Kind": GPU_KIND, "Value": number}}]
    resources = template.get("Resources") or {}
    reservations = (resources.get("Reservations") or {}) | {"GenericResources": reserved}
    env = [f"{name}={value}" for name, value in variables.items()]
    bound = template | {
        "ContainerSpec": container | {"Env": env},
        "Resources": resources | {"Reservations": reservations},
    }
    labels = (spec.get("Labels") or {}) | {SINCE: f"{now:.3f}"}
    return _scaled(spec | {"TaskTemplate": bound, "Labels": labels}, 1)
