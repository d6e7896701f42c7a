"""Execution of steps: docker compose runs here and uses each host's engine over SSH.

The hosts therefore need no Compose plugin. The project and its mounted files are first copied to
the host, where the project can also be started by hand.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import cached_property, singledispatchmethod

from kit.errors import InputError, KitError
from kit.hosts.docker import Docker
from kit.runtime.moves import Move
from kit.runtime.pulling import pull
from kit.runtime.steps import Step
from kit.secrets import new_key
from kit.targets.compose.data import StartData
from kit.targets.compose.decide import (
    Claim,
    DeleteCheckpoints,
    End,
    HostStep,
    Pull,
    Remove,
    Start,
    Unclaim,
)
from kit.targets.compose.folder import HostFolder
from kit.targets.compose.hosts import Hosts
from kit.targets.compose.queue import ComposeQueue
from kit.workload.names import DATA, project_of
from kit.workload.training import KEEPER_FILE, LAUNCHER_FILE
from kit.workload.types import Workload


class Executor:
    """Executes steps; `secrets` are the values by workload and name."""

    def __init__(
        self,
        hosts: Hosts,
        workloads: Sequence[Workload],
        secrets: Mapping[str, Mapping[str, str]],
    ) -> None:
        self._hosts = hosts
        self._workloads = {each.name: each for each in workloads}
        self._secrets = secrets
        self._queue = ComposeQueue(hosts.central, hosts.dockers)

    @singledispatchmethod
    def execute(self, step: Step) -> None:
        """Execute a step.

        Raises:
            KitError: It failed.
        """
        raise AssertionError(step)

    @execute.register
    def _(self, step: Pull) -> None:
        def attempt() -> None:
            with self._hosts.dockers[step.host].acting(f"pull {step.image}") as client:
                client.image.pull(step.image, quiet=True)

        try:
            pull(attempt)
        except KitError as error:
            advice = "push the image, or correct its name; nothing was changed on any host"
            raise KitError(error.message, advice) from None

    @execute.register
    def _(self, step: End) -> None:
        self._hosts.end(step.name, step.host)

    @execute.register
    def _(self, step: Remove) -> None:
        self._hosts.remove(step.name, step.host)

    @execute.register
    def _(self, step: Claim) -> None:
        self._queue.claim(step.host, step.gpus, time.time())

    @execute.register
    def _(self, step: Unclaim) -> None:
        self._queue.unclaim(step.host)

    @execute.register
    def _(self, step: DeleteCheckpoints) -> None:
        self._hosts.dockers[step.host].request("DELETE", f"/volumes/{step.volume}")

    @execute.register
    def _(self, step: Move) -> None:
        step.execute()

    @execute.register
    def _(self, step: Start) -> None:
        """Pass secrets in the environment: arguments would be visible in the process list."""
        work = self._workloads[step.name]
        folder = self._send(work, step.host)
        # The queue starts copies of these containers.
        how = ("--no-start",) if work.queue else ("--detach",)
        self._up(step, work.stack, folder, self._secrets[step.name], how)

    @execute.register
    def _(self, step: StartData) -> None:
        file = self._hosts.tree / "hosts" / step.host / f"{DATA}.compose.yaml"
        name = file.relative_to(self._hosts.tree).as_posix()
        folder = HostFolder(self._hosts.all[step.host], self._hosts.cluster)
        folder.put_key(self._key)
        self._up(step, DATA, folder.put({name: file.read_bytes()}), {}, ("--detach",))

    def _up(
        self, step: HostStep, stack: str, folder: str, env: Mapping[str, str], how: Sequence[str]
    ) -> None:
        file = self._hosts.tree / "hosts" / step.host / f"{stack}.compose.yaml"
        name = project_of(self._hosts.cluster, stack)
        project = ("--file", str(file), "--project-name", name)
        # Mounted files are on the host, so relative paths start there.
        place = ("--project-directory", f"{folder}/hosts/{step.host}")
        up = ("up", *how, "--quiet-pull", "--pull", "never")
        docker = self._hosts.dockers[step.host]
        docker.command(f"start {step.name}", "compose", *project, *place, *up, env=env)

    def _send(self, work: Workload, host: str) -> str:
        """Copy the project and its mounted files; return the folder on the host."""
        tree = self._hosts.tree
        own = [each.path for each in (work.document, *work.code) if each]
        names = (LAUNCHER_FILE, KEEPER_FILE, *own)
        paths = [self._hosts.file(work, host), *(tree / name for name in names)]
        files = {
            path.relative_to(tree).as_posix(): path.read_bytes() for path in paths if path.exists()
        }
        folder = HostFolder(self._hosts.all[host], self._hosts.cluster)
        if work.keyed:
            folder.put_key(self._key)
        return folder.put(files)

    @cached_property
    def _key(self) -> str:
        """The cluster's key; the host with the lock keeps it for all later deploys."""
        central = self._hosts.central
        if not (key := central.key()):
            central.put_key(key := new_key())
        return key

    def take_down(self, work: Workload) -> str:
        """Remove the containers of a failed deploy; return a message with what remains."""
        removed = self._hosts.on(work.hosts, lambda host: self._hosts.remove(work.name, host.name))
        left = [name for name, error in removed.items() if isinstance(error, KitError)]
        down = ", ".join(sorted(set(work.hosts) - set(left)))
        message = f"{work.name} was removed again from {down}"
        if left:
            again = f"`kit stop {work.name}` when that is back"
            message += f"; a part may still run on {', '.join(left)}: {again}"
        return message


def require_compose() -> None:
    """Raise InputError if this machine has no docker compose."""
    try:
        with Docker("this machine", None).acting("docker compose version") as client:
            client.compose.version()
    except InputError:
        raise
    except KitError:
        raise InputError(
            "docker compose is not installed here, and kit starts the projects with it",
            "install docker-compose-plugin of Docker, or docker-compose of Debian 13",
        ) from None
