"""Takes the steps, one kind after the other."""

from __future__ import annotations

import base64
import contextlib
import itertools
import socket
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from kit.docker import Docker, EngineError, at_once
from kit.engine import Say, Step
from kit.errors import KitError
from kit.model import Host
from kit.swarm import registers, release
from kit.swarm.steps import (
    JOINED_LABEL,
    AwaitEnd,
    AwaitGpus,
    DeployStack,
    Forget,
    ForgetCheckpoints,
    ForgetHistory,
    Init,
    Join,
    Label,
    Labels,
    Leave,
    MakeSecret,
    Promote,
    RemoveStack,
    SetHeartbeat,
)

PORT = 2377
"""The managers' port, Docker's own."""
PORTS = f"{PORT}/tcp, 7946/tcp, 7946/udp, 4789/udp"
"""What Swarm and its overlay networks need between hosts."""
JOB_OF_SECRET = "kit.job"
"""The label of a secret that says whose it is."""


class Carrier:
    """Takes steps by a manager's engine, and by those of the hosts that are named in them."""

    def __init__(
        self,
        cluster: str,
        host: Host,
        manager: Docker,
        tree: Path,
        say: Say,
        secrets: Mapping[str, str] | None = None,
        hosts: Sequence[Host] = (),
    ) -> None:
        self.manager = manager
        self._cluster = cluster
        self._address = host.address
        self._tree = tree
        self._say = say
        self._secrets = secrets or {}
        self._hosts = {each.name: each for each in hosts}
        self._nodes: dict[str, str] = {}

    def take(self, steps: Sequence[Step]) -> None:
        """Take the steps in their order; workers join and leave at the same time.

        Raises:
            KitError: One of them failed; those before it are done, and a second run goes on.
        """
        for alike, batch in itertools.groupby(steps, _at_once):
            if alike is None:
                for step in batch:
                    self._take_and_tell(step)
            else:
                self._take_at_once(list(batch))

    def _take_and_tell(self, step: Step) -> None:
        self._take(step)
        self._say(f"{step.where}: {step.what}")

    def _take_at_once(self, steps: Sequence[Step]) -> None:
        failed = [
            str(result)
            for result in at_once(self._take_and_tell, steps)
            if isinstance(result, KitError)
        ]
        if failed:
            raise KitError("\n".join(failed))

    def _take(self, step: Step) -> None:
        takers: dict[type[Step], Callable[[Any], None]] = {
            Init: self._init,
            SetHeartbeat: self._set_heartbeat,
            Join: self._join,
            Promote: self._promote,
            Forget: self._forget,
            Label: lambda step: self._label(step.node or self._nodes[step.host], step.labels),
            DeployStack: self._deploy,
            RemoveStack: lambda step: self.remove(step.stack),
            AwaitEnd: self._await_end,
            AwaitGpus: lambda step: release.gpus_free(self.manager, step.gpus, step.stack),
            MakeSecret: self._make_secret,
            ForgetCheckpoints: lambda step: release.delete_volumes(step.host, step.volumes),
            ForgetHistory: lambda _: registers.forget_all(self.manager),
            Leave: self._leave,
        }
        takers[type(step)](step)

    def _set_heartbeat(self, step: SetHeartbeat) -> None:
        with self.manager.acting(step.what) as client:
            client.swarm.update(dispatcher_heartbeat=timedelta(seconds=step.seconds))

    def _promote(self, step: Promote) -> None:
        with self.manager.acting(step.what) as client:
            client.node.promote(step.node)

    def _forget(self, step: Forget) -> None:
        with self.manager.acting(step.what) as client:
            client.node.remove(step.node, force=True)

    def _init(self, step: Init) -> None:
        docker = Docker.of(step.host)
        with docker.acting(step.what) as client:
            client.swarm.init(advertise_address=_numeric(step.host))
        self._joined(docker)

    def _join(self, step: Join) -> None:
        tokens = self.manager.get("/swarm")["JoinTokens"]
        # Not by the command line: there the token would show in the list of processes.
        body = {
            "ListenAddr": f"0.0.0.0:{PORT}",
            "AdvertiseAddr": _numeric(step.host),
            "RemoteAddrs": [f"{self._address}:{PORT}"],
            "JoinToken": tokens["Manager" if step.manager else "Worker"],
        }
        docker = Docker.of(step.host)
        try:
            docker.post("/swarm/join", body)
        except EngineError as error:
            raise KitError(str(error), f"between the hosts these must be open: {PORTS}") from None
        self._joined(docker)

    def _joined(self, docker: Docker) -> None:
        """Mark a host that has come in as one that kit may take out again."""
        node = docker.get("/info")["Swarm"]["NodeID"]
        docker.close()
        self._nodes[docker.name] = node
        self._label(node, ((JOINED_LABEL, self._cluster),))

    def _label(self, node: str, labels: Labels) -> None:
        """Set labels, by the API: `docker node update` is a call over SSH for each of the hosts."""
        while True:
            seen = self.manager.get(f"/nodes/{node}")
            spec = seen["Spec"]
            changed = (spec.get("Labels") or {}) | dict(labels)
            kept = {name: value for name, value in changed.items() if value is not None}
            body = spec | {"Labels": kept}
            try:
                version = str(seen["Version"]["Index"])
                self.manager.post(f"/nodes/{node}/update", body, version=version)
            except EngineError as error:
                if "out of sequence" not in error.message:
                    raise
            else:
                return

    def _make_secret(self, step: MakeSecret) -> None:
        value = base64.b64encode(self._secrets[step.name].encode()).decode()
        body = {"Name": step.name, "Labels": {JOB_OF_SECRET: step.job}, "Data": value}
        self.manager.post("/secrets/create", body)

    def drop_secrets(self, job: str) -> None:
        """Delete the secrets of a job that no service uses."""
        for secret in self.manager.get("/secrets", filters={"label": [f"{JOB_OF_SECRET}={job}"]}):
            with contextlib.suppress(EngineError):  # Swarm keeps those that are in use.
                self.manager.request("DELETE", f"/secrets/{secret['ID']}")

    def _deploy(self, step: DeployStack) -> None:
        file = str(self._tree / step.file)
        deploy = ["stack", "deploy", "--prune", "--with-registry-auth", "--compose-file", file]
        env = dict(step.variables)
        try:
            self.manager.command(step.what, *deploy, "--detach=true", step.stack, env=env)
        except KitError as error:
            if "unknown flag: --detach" not in error.message:  # Docker's CLI before 26 never waits.
                raise
            self.manager.command(step.what, *deploy, step.stack, env=env)

    def remove(self, stack: str) -> None:
        """Remove a stack, and return when nothing of it is left.

        Raises:
            KitError: Something is.
        """
        with self.manager.acting(f"remove {stack}") as client:
            client.stack.remove(stack)
        release.stack_gone(self.manager, stack)

    def _await_end(self, step: AwaitEnd) -> None:
        release.service_ended(self._hosts[step.host], step.service)

    def _leave(self, step: Leave) -> None:
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


def _at_once(step: Step) -> type[Step] | None:
    """Return what steps must have in common to be taken at the same time; None: one by one."""
    many = isinstance(step, ForgetCheckpoints)
    many = many or (isinstance(step, (Join, Leave)) and not step.manager)
    return type(step) if many else None


def _numeric(host: Host) -> str:
    """Return a host's address in numbers: Swarm advertises nothing else.

    Raises:
        KitError: The name is not known here.
    """
    try:
        return socket.gethostbyname(host.address)
    except OSError as error:
        raise KitError(
            f"{host.name}: {host.address}: {error}", "write its address in numbers"
        ) from None
