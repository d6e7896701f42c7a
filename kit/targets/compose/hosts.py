"""The hosts of a rendered tree, for the Compose target."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from kit.errors import InputError, KitError, joined
from kit.hosts.connection import EngineError
from kit.hosts.docker import Docker, on_each
from kit.model import Host
from kit.plan.work import manager_of
from kit.runtime.rendered import Rendered, rendered
from kit.runtime.status import ENDED
from kit.targets.compose.containers import PROJECT, Container
from kit.targets.compose.folder import HostFolder
from kit.targets.compose.observe import containers, containers_of
from kit.targets.compose.status import state_of
from kit.targets.lowered import file_version
from kit.workload.names import DATA, owner_of, project_of
from kit.workload.types import Workload

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ObservedContainers:
    """The containers of each job, and the errors of unreachable hosts."""

    jobs: dict[str, list[Container]]
    lost: dict[str, KitError]

    def training(self, job: str) -> list[Container]:
        """Return the containers of a job that train."""
        return [one for one in self.jobs.get(job, []) if one.trains]


class Hosts:
    """The hosts of one cluster, with their Docker engines and kit's folders."""

    def __init__(self, cluster: str, tree: Path) -> None:
        self.cluster = cluster
        self.tree = tree

    @cached_property
    def rendered(self) -> Rendered:
        """The rendered data of the hosts."""
        return rendered(self.tree)

    @cached_property
    def all(self) -> dict[str, Host]:
        """Every host by its name."""
        return {host.name: host for host in self.rendered.hosts}

    @cached_property
    def dockers(self) -> dict[str, Docker]:
        """The engine of each host."""
        central = self.central
        return {
            name: Docker.of(host, central.prelude if name == central.host.name else "")
            for name, host in self.all.items()
        }

    @cached_property
    def central(self) -> HostFolder:
        """The folder of the central data: the lock, the history, the final status of jobs."""
        return HostFolder(manager_of(self.rendered.hosts), self.cluster)

    def file(self, work: Workload, host: str) -> Path:
        """Return the rendered project of a workload on a host."""
        return self.tree / "hosts" / host / f"{work.stack}.compose.yaml"

    def data_versions(self, names: Collection[str]) -> dict[str, str]:
        """Return the hash of the data services' file of each of these hosts, and of the storage."""
        data = self.rendered.data
        if data is None or not names:
            return {}
        wanted = [host.name for host in data.agents if host.name in names or host == data.storage]
        return {
            name: file_version(rendered_text(self.tree / "hosts" / name / f"{DATA}.compose.yaml"))
            for name in wanted
        }

    def on(self, names: Iterable[str], work: Callable[[Host], T]) -> dict[str, T | KitError]:
        """Run a function on hosts concurrently; see `on_each`."""
        return on_each([self.all[name] for name in names], work)

    def containers(self, dockers: Mapping[str, Docker] | None = None) -> ObservedContainers:
        """Return the containers of all hosts, or of the hosts whose engines are given.

        Raises:
            KitError: No host can be reached.
        """
        engines = dockers or self.dockers
        answers = self.on(engines, lambda host: containers(engines[host.name], self.cluster))
        observed = ObservedContainers({}, {})
        for name, answer in answers.items():
            if isinstance(answer, KitError):
                observed.lost[name] = answer
                continue
            for one in answer:
                observed.jobs.setdefault(one.job, []).append(one)
        if len(observed.lost) == len(answers):
            require_all(observed.lost)
        return observed

    def end(self, name: str, host: str) -> None:
        """End a host's part of a workload and wait; Docker kills it after its grace period."""
        docker = self.dockers[host]
        present = containers(docker, self.cluster)
        running = [one.id for one in present if one.job == name and one.trains and one.runs]
        if running:
            with docker.acting(f"stop {name}") as client:
                client.container.stop(running)

    def remove(self, name: str, host: str) -> None:
        """Remove a workload's containers and networks from a host, but not its volumes.

        They are found by labels: `docker compose down` reads a compose.yaml in the user's folder,
        and leaves what is not in it.
        """
        docker = self.dockers[host]
        for one in containers(docker, self.cluster):
            if one.job == name:
                _delete(docker, f"/containers/{one.id}", force="1", v="1")
        for network in docker.get("/networks", filters={"label": [PROJECT]}):
            project = network["Labels"][PROJECT]
            owned = owner_of(project)
            # Older projects were not named after the cluster.
            ours = project.startswith(project_of(self.cluster, "")) or "_" not in project
            if ours and owned is not None and owned[1] == name:
                _delete(docker, f"/networks/{network['Id']}")

    def remove_project(self, project: str, host: str) -> bool:
        """Remove a project that belongs to no job from a host; return whether it existed."""
        docker = self.dockers[host]
        present = containers_of(docker, project)
        running = [one.id for one in present if one.runs]
        if running:
            with docker.acting(f"stop {project}") as client:
                client.container.stop(running)
        for one in present:
            _delete(docker, f"/containers/{one.id}", force="1", v="1")
        for network in docker.get("/networks", filters={"label": [f"{PROJECT}={project}"]}):
            _delete(docker, f"/networks/{network['Id']}")
        return bool(present)

    def over(self, names: Sequence[str], dockers: Mapping[str, Docker]) -> bool:
        """Return whether all workloads have ended or have no containers."""
        observed = self.containers(dockers)
        for name in observed.lost:
            dockers[name].close()
        return all(
            not observed.training(name) or state_of(observed.jobs[name]) in ENDED for name in names
        )


def require_all(results: Mapping[str, T | KitError], otherwise: str = "") -> dict[str, T]:
    """Return the results of all hosts.

    Raises:
        KitError: A host failed; it contains all messages and hints, and `otherwise` as a hint.
    """
    failed = [result for result in results.values() if isinstance(result, KitError)]
    if failed:
        raise joined(failed, otherwise)
    return {name: result for name, result in results.items() if not isinstance(result, KitError)}


def _delete(docker: Docker, path: str, **query: str | dict[str, Any]) -> None:
    """Delete an object, unless it is already deleted."""
    with suppress(EngineError):
        docker.request("DELETE", path, None, None, **query)


def rendered_text(file: Path) -> str:
    """Read a rendered file; raises InputError if it is not there."""
    if not file.is_file():
        what = f"{file} is not there: the files are for another engine"
        raise InputError(what, "write `engine: compose` in the inventory, run `kit render`")
    return file.read_text(encoding="utf-8")
