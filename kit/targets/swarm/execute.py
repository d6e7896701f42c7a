"""Execution of steps through a manager's engine and the engines of named hosts."""

from __future__ import annotations

import base64
import contextlib
import socket
import tempfile
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import singledispatchmethod
from pathlib import Path

import yaml

from kit.errors import KitError
from kit.hosts.connection import EngineError
from kit.hosts.docker import Docker
from kit.hosts.nodes import Spec, promote, update_node
from kit.model import Host
from kit.runtime.loop import execute_steps
from kit.runtime.moves import Move
from kit.runtime.steps import Step
from kit.targets.swarm import registers, release
from kit.targets.swarm.labels import CLAIMED
from kit.targets.swarm.names import monitoring_stack
from kit.targets.swarm.steps import (
    JOINED_LABEL,
    AwaitEnd,
    AwaitGpus,
    Claim,
    DeleteCheckpoints,
    DeleteHistory,
    DeployStack,
    Init,
    Join,
    Label,
    Labels,
    Leave,
    MakeSecret,
    Promote,
    RemoveNode,
    RemoveStack,
    RestartTasks,
    SetHeartbeat,
    UpdateService,
)
from kit.values import Say

PORT = 2377
"""Docker's default port of managers."""
PORTS = f"{PORT}/tcp, 7946/tcp, 7946/udp, 4789/udp"
"""The ports between hosts for Swarm and its overlay networks."""
LISTENING = 5.0
"""Seconds until a new manager listens."""
JOB_OF_SECRET = "kit.job"
"""The label with a secret's workload."""


class Executor:
    """Executes steps through a manager; `secrets` are values by their names in Swarm."""

    def __init__(
        self,
        cluster: str,
        host: Host,
        manager: Docker,
        tree: Path,
        secrets: Mapping[str, str] | None = None,
        hosts: Sequence[Host] = (),
    ) -> None:
        self.manager = manager
        self._cluster = cluster
        self._address = host.address
        self._tree = tree
        self._secrets = secrets or {}
        self._hosts = {each.name: each for each in hosts}
        self._nodes: dict[str, str] = {}

    def execute_all(self, steps: Sequence[Step], say: Say) -> None:
        """Execute steps in order.

        Raises:
            StepsError: Some steps failed; the steps before are done, and a second run continues.
        """
        for _ in execute_steps(steps, self.execute, say):
            pass

    @singledispatchmethod
    def execute(self, step: Step) -> None:
        """Execute a step.

        Raises:
            KitError: It failed.
        """
        raise AssertionError(step)

    @execute.register
    def _(self, step: SetHeartbeat) -> None:
        with self.manager.acting(step.what) as client:
            client.swarm.update(dispatcher_heartbeat=timedelta(seconds=step.seconds))

    @execute.register
    def _(self, step: Promote) -> None:
        promote(self.manager, step.node)

    @execute.register
    def _(self, step: RemoveNode) -> None:
        with self.manager.acting(step.what) as client:
            client.node.remove(step.node, force=True)

    @execute.register
    def _(self, step: Init) -> None:
        docker = Docker.of(step.host)
        with docker.acting(step.what) as client:
            client.swarm.init(advertise_address=_numeric(step.host))
        self._joined(docker)

    @execute.register
    def _(self, step: Join) -> None:
        tokens = self.manager.get("/swarm")["JoinTokens"]
        # The command line would show the token in the process list.
        body = {
            "ListenAddr": f"0.0.0.0:{PORT}",
            "AdvertiseAddr": _numeric(step.host),
            "RemoteAddrs": [f"{self._address}:{PORT}"],
            "JoinToken": tokens["Manager" if step.manager else "Worker"],
        }
        docker = Docker.of(step.host)
        try:
            join(docker, body)
        except EngineError as error:
            raise KitError(str(error), f"between the hosts these must be open: {PORTS}") from None
        self._joined(docker)

    def _joined(self, docker: Docker) -> None:
        """Label a host that kit added to the Swarm, so that kit may remove it again."""
        node = docker.get("/info")["Swarm"]["NodeID"]
        docker.close()
        self._nodes[docker.name] = node
        self._label(node, ((JOINED_LABEL, self._cluster),))

    @execute.register
    def _(self, step: Label) -> None:
        self._label(step.node or self._nodes[step.host], step.labels)

    @execute.register
    def _(self, step: Claim) -> None:
        self._label(step.node, ((CLAIMED, f"{time.time():.0f} {' '.join(step.gpus)}"),))

    def _label(self, node: str, labels: Labels) -> None:
        """Set labels through the API: `docker node update` needs one SSH call per host."""

        def change(spec: Spec) -> Spec:
            changed = (spec.get("Labels") or {}) | dict(labels)
            return spec | {
                "Labels": {n: value for n, value in changed.items() if value is not None}
            }

        update_node(self.manager, node, change)

    @execute.register
    def _(self, step: MakeSecret) -> None:
        value = base64.b64encode(self._secrets[step.name].encode()).decode()
        body = {"Name": step.name, "Labels": {JOB_OF_SECRET: step.job}, "Data": value}
        self.manager.post("/secrets/create", body)

    def drop_secrets(self, job: str) -> None:
        """Delete the unused secrets of a workload."""
        for secret in self.manager.get("/secrets", filters={"label": [f"{JOB_OF_SECRET}={job}"]}):
            with contextlib.suppress(EngineError):  # Swarm keeps secrets in use.
                self.manager.request("DELETE", f"/secrets/{secret['ID']}")

    @execute.register
    def _(self, step: DeployStack) -> None:
        self._deploy(step, self._tree / step.file, "--prune")

    @execute.register
    def _(self, step: UpdateService) -> None:
        before = release.tasks_of_service(self.manager, step)
        with tempfile.NamedTemporaryFile("w", suffix=".yaml", encoding="utf-8") as part:
            part.write(only_service(self._tree / step.file, step.part))
            part.flush()
            self._deploy(step, Path(part.name))
        release.service_ready(self.manager, step, before)

    def _deploy(self, step: DeployStack | UpdateService, file: Path, *options: str) -> None:
        deploy = ["stack", "deploy", *options, "--with-registry-auth", "--compose-file", str(file)]
        env = dict(step.variables)
        try:
            self.manager.command(step.what, *deploy, "--detach=true", step.stack, env=env)
        except KitError as error:
            if "unknown flag: --detach" not in error.message:  # Docker's CLI before 26 never waits.
                raise
            self.manager.command(step.what, *deploy, step.stack, env=env)

    @execute.register
    def _(self, step: RemoveStack) -> None:
        self.remove(step.stack)
        if step.stack in {monitoring_stack(self._cluster), f"{self._cluster}-platform"}:
            self.drop_secrets(step.stack)

    def remove(self, stack: str) -> None:
        """Remove a stack, and return when it is removed completely.

        Raises:
            KitError: Parts of it remain.
        """
        with self.manager.acting(f"remove {stack}") as client:
            client.stack.remove(stack)
        release.stack_gone(self.manager, stack)

    @execute.register
    def _(self, step: Move) -> None:
        step.execute()

    @execute.register
    def _(self, step: AwaitEnd) -> None:
        release.service_ended(self._hosts[step.host], step.service)

    @execute.register
    def _(self, step: RestartTasks) -> None:
        release.restart_tasks(self.manager, step.stack)

    @execute.register
    def _(self, step: AwaitGpus) -> None:
        release.gpus_free(self.manager, step.gpus, step.stack)

    @execute.register
    def _(self, step: DeleteCheckpoints) -> None:
        release.delete_volume(step.host, step.volume)

    @execute.register
    def _(self, step: DeleteHistory) -> None:  # noqa: ARG002
        registers.delete_records(self.manager)

    @execute.register
    def _(self, step: Leave) -> None:
        docker = Docker.of(step.host)
        node = docker.get("/info")["Swarm"]["NodeID"]
        docker.close()
        if step.manager and not step.last:
            with self.manager.acting(f"make {step.host.name} a worker") as client:
                client.node.demote(node)
        with docker.acting(step.what) as client:
            client.swarm.leave(force=step.manager)
        if not step.last:
            with self.manager.acting(f"strike {step.host.name} off") as client:
                client.node.remove(node, force=True)


def only_service(file: Path, name: str) -> str:
    """Return a stack's file with one of its services; paths are absolute."""
    content = yaml.safe_load(file.read_text(encoding="utf-8"))
    content["services"] = {name: content["services"][name]}
    used = {each["source"] for each in content["services"][name].get("configs", ())}
    configs = {key: one for key, one in content.pop("configs", {}).items() if key in used}
    for config in configs.values():
        config["file"] = str((file.parent / config["file"]).resolve())
    kept = {key: value for key, value in content.items() if not key.startswith("x-")}
    return str(yaml.safe_dump(kept | ({"configs": configs} if configs else {})))


def join(docker: Docker, body: Mapping[str, object]) -> None:
    """Join the Swarm; a new manager on a busy machine may refuse connections at first."""
    deadline = time.monotonic() + LISTENING
    while True:
        try:
            docker.post("/swarm/join", body)
        except EngineError as error:
            if "connection refused" not in error.message or time.monotonic() > deadline:
                raise
            time.sleep(0.5)
        else:
            return


def _numeric(host: Host) -> str:
    """Return a host's IP address: Swarm cannot advertise a name.

    Raises:
        KitError: The name cannot be resolved here.
    """
    try:
        return socket.gethostbyname(host.address)
    except OSError as error:
        raise KitError(
            f"{host.name}: {host.address}: {error}", "write its address in numbers"
        ) from None
