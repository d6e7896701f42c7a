"""A Swarm's API as far as the queue uses it: its services make tasks, one turn of theirs at a time.

It stands in for the engine in tests of what the controller does; tests/lab/test_queue.py has a real
one.
"""

from __future__ import annotations

import base64
import copy
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from kit.errors import KitError
from kit.hosts.connection import EngineError
from kit.queue.pool import Had
from kit.queue.words import labels_of
from kit.sharing import Queued

STAMP = "2026-11-27T12:00:00.{:09d}Z"
LIVING = {"new", "running"}
ONE_GPU = {"DiscreteResourceSpec": {"Kind": "kit_gpu", "Value": 1}}


def stamp(now: float) -> str:
    """A time as the API writes it."""
    return f"{datetime.fromtimestamp(now, UTC):%Y-%m-%dT%H:%M:%S.%f}Z"


class KilledError(KitError):
    """The controller died before this request."""

    def __init__(self) -> None:
        super().__init__("killed")


class Swarm:
    """Hosts with GPUs `g0`, `g1`…; `dies_after` so many changes the controller is killed."""

    def __init__(self, hosts: Mapping[str, int]) -> None:
        self.gpus = {name: [f"GPU-{name}-{each}" for each in range(n)] for name, n in hosts.items()}
        self.nodes = {name: self._node(name) for name in hosts}
        self.services: dict[str, dict[str, Any]] = {}
        self.tasks: list[dict[str, Any]] = []
        self.configs: dict[str, dict[str, Any]] = {}
        self.leader, self.now = True, 0.0
        self.dies_after: int | None = None
        self._count = 0

    def _node(self, name: str) -> dict[str, Any]:
        gpus = [{"NamedResourceSpec": {"Kind": "kit_gpu", "Value": g}} for g in self.gpus[name]]
        return {
            "ID": name,
            "Version": {"Index": 1},
            "Spec": {"Labels": {"kit.host": name}, "Role": "worker", "Availability": "active"},
            "Description": {"Hostname": name, "Resources": {"GenericResources": gpus}},
            "Status": {"State": "ready"},
        }

    def submit(self, job: str, queued: Queued, each: int | None = None) -> None:
        """Deploy a job's stack, as `kit submit` does: with all services off."""
        self._service(job, "rendezvous", [], queued, each)
        for host, gpus in self.gpus.items():
            self._service(job, f"train-on-{host}", gpus[:each], queued, each)

    def _service(
        self, job: str, part: str, gpus: list[str], queued: Queued, each: int | None
    ) -> None:
        stack = f"train-{job}"
        stack_label = {"com.docker.stack.namespace": stack}
        env = [f"NVIDIA_VISIBLE_DEVICES={','.join(gpus) or 'void'}", f"KIT_NPROC={len(gpus)}"]
        spec = {
            "Name": f"{stack}_{part}",
            "Labels": {**stack_label, "kit.job": job, **dict(labels_of(queued, each))},
            "Mode": {"Replicated": {"Replicas": 0}},
            "TaskTemplate": {
                "ContainerSpec": {"Image": "trainer", "Env": env, "Labels": stack_label}
            },
        }
        self.services[spec["Name"]] = {  # type: ignore[index]
            "ID": spec["Name"],
            "Version": {"Index": 1},
            "Spec": spec,
            "UpdatedAt": STAMP.format(0),
        }

    # ---- The API

    def get(self, path: str, filters: Mapping[str, list[str]] | None = None) -> Any:
        kind, _, name = path.removeprefix("/").partition("/")
        if kind == "info":
            return {"Swarm": {"NodeID": next(iter(self.nodes))}}
        if kind == "swarm":
            return {"ID": "swarm", "Spec": {"Dispatcher": {"HeartbeatPeriod": 2e9}}}
        if kind == "nodes" and name:
            return {**copy.deepcopy(self.nodes[name]), "ManagerStatus": {"Leader": self.leader}}
        found: dict[str, Any] = {
            "nodes": list(self.nodes.values()),
            "services": list(self.services.values()),
            "tasks": self.tasks,
            "configs": list(self.configs.values()),
        }
        if name:
            return copy.deepcopy(self.services[name])
        (wanted,) = (filters or {"label": [""]})["label"]
        items = found.get(kind, [])
        return copy.deepcopy(
            [each for each in items if not wanted or wanted in each["Spec"]["Labels"]]
        )

    def post(self, path: str, body: dict[str, Any], version: str = "") -> Any:
        self._may_die()
        kind, name, *_ = path.removeprefix("/").split("/")
        if kind == "configs" and name == "create":
            self._count += 1
            made = {"ID": f"c{self._count}", "Version": {"Index": 1}, "Spec": body}
            assert body["Name"] not in {each["Spec"]["Name"] for each in self.configs.values()}
            json.loads(base64.b64decode(body["Data"]))
            self.configs[str(made["ID"])] = made
            return made
        kinds = {"configs": self.configs, "services": self.services, "nodes": self.nodes}
        entry = kinds[kind][name]
        if version != str(entry["Version"]["Index"]):
            raise EngineError("the manager", 500, "update out of sequence")
        entry["Version"] = {"Index": int(version) + 1}
        entry["Spec"] = copy.deepcopy(body)
        return None

    def request(self, method: str, path: str) -> None:
        self._may_die()
        assert method == "DELETE"
        del self.configs[path.rpartition("/")[2]]

    def _may_die(self) -> None:
        if self.dies_after is not None:
            if not self.dies_after:
                raise KilledError
            self.dies_after -= 1

    # ---- What the engines do

    def advance(self) -> None:
        """End the tasks that were asked to end; start those of services that are on."""
        for task in self.tasks:
            if task["DesiredState"] == "shutdown" and task["Status"]["State"] in LIVING:
                task["Status"]["State"] = "shutdown"
        for service in self.services.values():
            replicas = service["Spec"]["Mode"]["Replicated"]["Replicas"]
            mine = [task for task in self.tasks if task["ServiceID"] == service["ID"]]
            last = mine[-1]["Status"] if mine else {}
            used_up = last.get("State") == "failed" and "ContainerStatus" not in last
            going = any(task["DesiredState"] == "running" for task in mine)
            if replicas and not (going or used_up):
                self._start(service)
            for task in mine:
                if not replicas:
                    task["DesiredState"] = "shutdown"

    def _start(self, service: dict[str, Any]) -> None:
        self._count += 1
        part = service["Spec"]["Name"].partition("_")[2]
        self.tasks.append(
            {
                "ID": f"t{self._count}",
                "ServiceID": service["ID"],
                "Slot": 1,
                "NodeID": part.removeprefix("train-on-") if "-on-" in part else "",
                "Status": {"State": "running", "Timestamp": STAMP.format(self._count)},
                "DesiredState": "running",
                "Spec": copy.deepcopy(service["Spec"]["TaskTemplate"]),
                "CreatedAt": stamp(self.now + self._count / 1e6),
            }
        )

    def end(self, job: str, state: str = "complete") -> None:
        """Let the tasks of a job end by themselves."""
        for task in self.tasks:
            if task["ServiceID"].startswith(f"train-{job}_train") and self.lives(task):
                task["Status"]["State"] = state
                task["DesiredState"] = "shutdown" if state == "failed" else "running"

    def session(self, name: str, host: str, gpu: str) -> None:
        """Deploy a session on a GPU of a host; it waits until nobody has that GPU."""
        part = f"train-on-{host}"
        spec = {
            "Name": f"train-{name}_{part}",
            "Labels": {"com.docker.stack.namespace": f"train-{name}", "kit.job": name},
            "Mode": {"Replicated": {"Replicas": 1}},
            "TaskTemplate": {
                "ContainerSpec": {"Image": "x", "Env": [f"NVIDIA_VISIBLE_DEVICES={gpu}"]},
                "Resources": {"Reservations": {"GenericResources": [ONE_GPU]}},
            },
        }
        self.services[spec["Name"]] = {  # type: ignore[index]
            "ID": spec["Name"],
            "Version": {"Index": 1},
            "Spec": spec,
            "UpdatedAt": STAMP.format(0),
        }
        self.nodes[host]["Spec"]["Labels"][f"kit.job.{name}"] = part
        self._start(self.services[str(spec["Name"])])
        self.tasks[-1]["NodeID"] = ""
        self.tasks[-1]["Status"]["State"] = "pending"

    def complete(self, session: str) -> None:
        """End a session by itself."""
        for task in self.tasks:
            if task["ServiceID"].startswith(f"train-{session}_"):
                task["Status"]["State"] = "complete"

    def interrupt(self, host: str, now: float) -> None:
        """Let somebody on a host end what runs there; the engine starts it again."""
        for task in filter(self.lives, self.tasks):
            if task["NodeID"] == host:
                ended = {"State": "failed", "Timestamp": stamp(now + 0.5)}
                task["Status"] = ended | {"ContainerStatus": {"ExitCode": 143}}
                task["DesiredState"] = "shutdown"

    def end_late(self, host: str, created: float) -> None:
        """Let a task of before, which was asked to end then, end on a host now."""
        (there,) = [task for task in filter(self.lives, self.tasks) if task["NodeID"] == host]
        ended = {"State": "failed", "Timestamp": stamp(self.now + 0.5)}
        old = {"ID": "old", "CreatedAt": stamp(created), "DesiredState": "shutdown"}
        status = {"Status": ended | {"ContainerStatus": {"ExitCode": 143}}}
        self.tasks.insert(0, {**copy.deepcopy(there), **old, **status})

    @staticmethod
    def lives(task: Mapping[str, Any]) -> bool:
        return task["Status"]["State"] in LIVING

    def runs(self) -> dict[str, dict[str, Had]]:
        """Return the GPUs of the tasks that run, by job and host."""
        found: dict[str, dict[str, Had]] = {}
        for task in filter(self.lives, self.tasks):
            name, _, part = task["ServiceID"].removeprefix("train-").partition("_")
            env = dict(each.split("=", 1) for each in task["Spec"]["ContainerSpec"]["Env"])
            if "-on-" in part:
                gpus = tuple(env["NVIDIA_VISIBLE_DEVICES"].split(","))
                assert env["KIT_NPROC"] == str(len(gpus))
                reserved = task["Spec"]["Resources"]["Reservations"]["GenericResources"]
                assert reserved[0]["DiscreteResourceSpec"]["Value"] == len(gpus)
                found.setdefault(name, {})[part.removeprefix("train-on-")] = Had(gpus, 0.0)
        return found

    def coordinated(self) -> set[str]:
        """Return the jobs whose coordinator is on."""
        return {
            name.removeprefix("train-").partition("_")[0]
            for name, service in self.services.items()
            if name.endswith("_rendezvous") and service["Spec"]["Mode"]["Replicated"]["Replicas"]
        }
