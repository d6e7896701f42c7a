"""The engines of Compose hosts as far as the queue uses them: their API, and what containers do.

They stand in for engines in tests of what the controller does; tests/lab/test_queue_compose.py has
real ones.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from kit.hosts.connection import EngineError
from kit.queue.words import labels_of
from kit.sharing import Queued
from tests.queue.swarm import KilledError

STAMP = "2026-11-27T12:00:00.000000000Z"
LIVES = {"running", "restarting"}


class Engines:
    """The engines of all hosts; `dies_after` so many changes the controller is killed."""

    def __init__(self, hosts: Mapping[str, int]) -> None:
        self.hosts = {name: Engine(self, name, number) for name, number in hosts.items()}
        self.dies_after: int | None = None
        self.made = 0

    def submit(self, job: str, queued: Queued) -> None:
        """Create a job's containers, as `kit submit` does."""
        for number, engine in enumerate(self.hosts.values()):
            if not number:
                engine.add(job, "rendezvous", {}, [])
            engine.add(job, "train", dict(labels_of(queued, None)), engine.gpus)

    def may_die(self) -> None:
        if self.dies_after is not None:
            if not self.dies_after:
                raise KilledError
            self.dies_after -= 1

    def advance(self) -> None:
        """Let those that were asked to end do so."""
        for engine in self.hosts.values():
            for one in engine.containers.values():
                if one.pop("asked", None):
                    one["State"].update(Status="exited", ExitCode=143)

    def trains(self) -> dict[str, dict[str, list[str]]]:
        """Return the GPUs of what trains now, by job and host."""
        found: dict[str, dict[str, list[str]]] = {}
        for name, engine in self.hosts.items():
            for one in engine.of("train"):
                if one["State"]["Status"] in LIVES:
                    job = one["Config"]["Labels"]["com.docker.compose.project"]
                    gpus = one["HostConfig"]["DeviceRequests"][0]["DeviceIDs"]
                    assert f"KIT_NPROC={len(gpus)}" in one["Config"]["Env"]
                    found.setdefault(job.removeprefix("lab_train-"), {})[name] = gpus
        return found

    def coordinated(self) -> set[str]:
        """Return the jobs whose coordinator is on."""
        return {
            one["Config"]["Labels"]["com.docker.compose.project"].removeprefix("lab_train-")
            for engine in self.hosts.values()
            for one in engine.of("rendezvous")
            if one["State"]["Status"] in LIVES
        }


class Engine:
    """One host's engine."""

    def __init__(self, all_: Engines, name: str, gpus: int) -> None:
        self.name, self._all = name, all_
        self.gpus = [f"GPU-{name}-{number}" for number in range(gpus)]
        self.containers: dict[str, dict[str, Any]] = {}

    def again(self) -> Engine:
        return self

    def close(self) -> None:
        pass

    def add(self, job: str, service: str, labels: dict[str, str], gpus: list[str]) -> None:
        own = {
            "com.docker.compose.project": f"lab_train-{job}",
            "com.docker.compose.service": service,
            "kit.cluster": "lab",
            "kit.file": "abc",
        }
        config = {"Image": "trainer", "Labels": {**own, **labels}, "Env": ["KIT_NNODES=1:1"]}
        devices = [{"Driver": "nvidia", "Count": 0, "DeviceIDs": gpus}] if gpus else []
        self._create(f"lab_train-{job}-{service}-1", {**config, "HostConfig": _host(devices)})

    def of(self, service: str) -> list[dict[str, Any]]:
        every = self.containers.values()
        label = "com.docker.compose.service"
        return [one for one in every if one["Config"]["Labels"][label] == service]

    def _create(self, name: str, body: Mapping[str, Any]) -> str:
        names = {one["Name"] for one in self.containers.values()}
        if f"/{name}" in names:
            raise EngineError(self.name, 409, f"the name {name} is in use")
        self._all.made += 1
        id_ = f"c{self._all.made}"
        config = {key: value for key, value in body.items() if key != "HostConfig"}
        self.containers[id_] = {
            "Id": id_,
            "Name": f"/{name}",
            "Config": copy.deepcopy(config),
            "HostConfig": copy.deepcopy(body["HostConfig"]),
            "State": {"Status": "created", "ExitCode": 0, "FinishedAt": STAMP},
            "Created": STAMP,
            "RestartCount": 0,
            "Mounts": [],
        }
        return id_

    # ---- The API

    def get(self, path: str, **_: object) -> Any:
        if path == "/containers/json":
            every = self.containers.values()
            return [{"Id": one["Id"], "Labels": one["Config"]["Labels"]} for one in every]
        return copy.deepcopy(self.containers[path.split("/")[2]])

    def read(self, source: str, **_: object) -> bytes:
        raise EngineError(self.name, 404, f"there is no {source}")

    def post(self, path: str, body: dict[str, Any], name: str = "") -> Any:
        self._all.may_die()
        if path == "/containers/create":
            return {"Id": self._create(name, body)}
        assert path.endswith("/update")
        self.containers[path.split("/")[2]]["HostConfig"].update(body)
        return None

    def request(self, method: str, path: str, *_: object, name: str = "", **__: object) -> None:
        id_, verb = [*path.removeprefix("/containers/").split("/"), ""][:2]
        if id_ not in self.containers:
            raise EngineError(self.name, 404, f"No such container: {id_}")
        one = self.containers[id_]
        if verb == "stop" and one["Config"]["Labels"]["com.docker.compose.service"] == "train":
            one["asked"] = True  # By a thread of the controller, which may have died meanwhile.
            return
        self._all.may_die()
        if method == "DELETE":
            del self.containers[id_]
        elif verb == "rename":
            if f"/{name}" in {each["Name"] for each in self.containers.values()}:
                raise EngineError(self.name, 409, f"the name {name} is in use, or its own")
            one["Name"] = f"/{name}"
        else:
            one["State"].update(Status="running" if verb == "start" else "exited")


def _host(devices: list[dict[str, Any]]) -> dict[str, Any]:
    restart = {"Name": "on-failure", "MaximumRetryCount": 10}
    return {"DeviceRequests": devices, "RestartPolicy": restart}
