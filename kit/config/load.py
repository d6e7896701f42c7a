"""Loading of inventory.yaml, jobs/*.yaml and serve/*.yaml, with a line for each mistake."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from kit import values
from kit.config import explain
from kit.config.code import code_files, named_files
from kit.config.folder import to_package
from kit.config.inventory import (
    HostSection,
    InventorySection,
    NetworkSection,
    expand_hosts,
    to_inventory,
)
from kit.config.job import JobSection, to_job
from kit.config.server import ServerSection, to_server
from kit.config.train import rule_faults
from kit.errors import INVENTORY, Fault, FaultsError, InputError, Problem, ProblemsError, dotted
from kit.jobs import Job
from kit.lock import lock_path, read_lock
from kit.model import Inventory, Lock
from kit.paths import NO_INVENTORY
from kit.servers import SERVER_PREFIX, Server
from kit.yamlfile import Document, parse, read_text

SectionT = TypeVar("SectionT", bound=BaseModel)
ValueT = TypeVar("ValueT")
MOST_ALIKE = 5
"""A mistake in more places than this was made by a script or an editor, and is reported once."""
NO_JOBS = "describe a job in jobs/<name>.yaml, or name the folder with --jobs DIR"
Rules = Callable[[Any, list[Fault], str], Iterator[Fault]]


@dataclass
class Sources:
    """The documents of an inventory, its jobs and servers, with the lines of all values."""

    documents: dict[str, Document] = field(default_factory=dict)

    def problems(self, faults: list[Fault]) -> ProblemsError:
        """Add files and lines to faults. A mistake that many hosts share is reported once."""
        alike: dict[tuple[object, ...], list[Fault]] = {}
        for fault in faults:
            alike.setdefault(_kind(fault), []).append(fault)
        listing = [
            problem
            for each in alike.values()
            for problem in (
                [self._problem(each[0], len(each) - 1)]
                if len(each) > MOST_ALIKE
                else map(self._problem, each)
            )
        ]
        return ProblemsError(listing)

    def _problem(self, fault: Fault, more: int = 0) -> Problem:
        document = self.documents[fault.source]
        what = fault.what
        if fault.other is not None:
            other = self.documents[fault.other_source or fault.source]
            line = other.line(fault.other)
            what = what.format(line=f"{other.file}:{line}" if fault.other_source else line)
        line = document.line(fault.loc)
        fix = f"{fault.fix} ({more:,} more like it)" if more else fault.fix
        return Problem(document.file, line, dotted(fault.loc), what, fix)


def _kind(fault: Fault) -> tuple[object, ...]:
    """Return a key that equal mistakes of several hosts share."""
    if fault.source != INVENTORY or fault.loc[:1] != ("hosts",) or len(fault.loc) < 3:
        return (id(fault),)
    place = ["" if isinstance(part, int) else part for part in fault.loc[2:]]
    return (*place, fault.what, fault.fix)


@dataclass(frozen=True)
class Project:
    """The input of a plan."""

    inventory: Inventory
    jobs: tuple[Job, ...]
    servers: tuple[Server, ...]
    lock: Lock | None
    sources: Sources


@dataclass(frozen=True, slots=True)
class Place:
    """The folders of a project: `root` with the inventory, and `jobs`.

    `own` are kit's own files, which are not code of a job. `rendered` returns the version of the
    code of a job and a folder in the rendered files.
    """

    root: Path
    jobs: Path
    own: Collection[Path]
    rendered: Callable[[str, str], str]


def load(
    inventory: Path,
    jobs: Path,
    servers: Path,
    own: Collection[Path] = (),
    rendered: Callable[[str, str, str], str] = lambda _cluster, _job, _folder: "",
) -> Project:
    """Read the inventory, the folders of jobs and servers, and the lock beside the inventory.

    The folder of servers is optional. `own` are kit's own files, which are not code of a job.
    `rendered` returns the version of the code of a cluster, a job and a folder in the rendered
    files.

    Raises:
        ProblemsError: All mistakes in the files.
        InputError: A file cannot be read.
    """
    sources = Sources()
    problems: list[Problem] = []
    machines: Inventory | None = None
    try:
        machines = _inventory(inventory, sources)
    except ProblemsError as error:
        problems += error.problems
    lock: Lock | None = None
    try:
        lock = read_lock(lock_path(inventory))
    except ProblemsError as error:
        problems += error.problems
    try:
        cluster = machines.cluster if machines else ""
        place = Place(inventory.parent, jobs, own, partial(rendered, cluster))
        work = _each(_files(jobs, "job"), lambda path: _job(path, place, sources), problems)
        serving = _each(
            _files(servers, "server"),
            lambda path: _server(path, servers, sources),
            problems,
        )
    except InputError:
        if problems:
            raise ProblemsError(problems) from None
        raise
    if problems or machines is None:
        raise ProblemsError(problems)
    return Project(machines, tuple(work), tuple(serving), lock, sources)


def _each(
    files: list[Path], read: Callable[[Path], ValueT], problems: list[Problem]
) -> list[ValueT]:
    """Read files, and add their mistakes to `problems`."""
    values: list[ValueT] = []
    for path in files:
        try:
            values.append(read(path))
        except ProblemsError as error:
            problems += error.problems
    return values


def _files(folder: Path, what: str) -> list[Path]:
    """Return the files that define jobs or servers.

    The folder of servers is optional. The folder of jobs is optional if there is one of servers.
    """
    try:
        # Editors create lock files and backups whose names begin with a dot.
        visible = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except FileNotFoundError:
        if what == "server" or (folder.name == "jobs" and folder.with_name("serve").is_dir()):
            return []
        raise InputError(f"{folder}: there is no such folder", NO_JOBS) from None
    except OSError as error:
        raise InputError(f"{folder}: cannot be read: {error.strerror}") from None
    files = [path for path in visible if path.suffix.strip().lower() in {".yaml", ".yml"}]
    by_name: dict[str, Path] = {}
    for path in files:
        if path.suffix not in {".yaml", ".yml"}:
            fix = f"rename it to {path.stem}.yaml"
            raise InputError(f"{path}: a {what}'s file ends in .yaml or .yml", fix)
        if path.stem in by_name:
            raise InputError(f"{by_name[path.stem]} and {path} are the same {what}", "rename one")
        by_name[path.stem] = path
    return files


def _inventory(path: Path, sources: Sources) -> Inventory:
    return read_inventory(read_text(path, str(path), NO_INVENTORY), path, sources)


def read_inventory(text: str, path: Path, sources: Sources) -> Inventory:
    """Parse the current or future text of the inventory at `path`.

    Raises:
        ProblemsError: All mistakes in the text.
    """
    document = parse(text, str(path))
    sources.documents[INVENTORY] = document
    try:
        section = _validated(InventorySection, document, INVENTORY)
    except FaultsError as error:
        sound = _sound_hosts(document, error.faults)
        raise sources.problems(error.faults + expand_hosts(sound, NetworkSection())[1]) from None
    try:
        return to_inventory(section, path.name)
    except FaultsError as error:
        raise sources.problems(error.faults) from None


def _sound_hosts(document: Document, faults: list[Fault]) -> dict[str, HostSection]:
    """Return the hosts without faults, so that they are still compared with each other."""
    hosts = document.value.get("hosts") if isinstance(document.value, dict) else None
    broken = {fault.loc[1] for fault in faults if fault.loc[:1] == ("hosts",) and fault.loc[1:]}
    if not isinstance(hosts, dict) or any(fault.loc == ("hosts",) for fault in faults):
        return {}
    return {
        name: HostSection.model_validate(host) for name, host in hosts.items() if name not in broken
    }


def _job(path: Path, place: Place, sources: Sources) -> Job:
    name = _name(path, "job")
    if name.startswith(SERVER_PREFIX):
        what = f"a job's name cannot begin with {SERVER_PREFIX}: those are servers"
        raise ProblemsError([Problem(str(path), 1, "", what, "rename the file")])
    section = _section(JobSection, path, name, sources, rule_faults)
    job = to_job(section, name, f"{place.jobs.resolve().name}/{path.name}")
    try:
        package = to_package(
            section.code, name, place.root, place.own, partial(place.rendered, name)
        )
        if package is None:
            return replace(job, code=code_files(job, path.parent))
        job = replace(job, package=package, data=(*job.data, package.data_set))
        if not package.here:
            return job
        return replace(job, code=code_files(job, place.root / package.folder))
    except FaultsError as error:
        raise sources.problems(error.faults) from None


def _server(path: Path, folder: Path, sources: Sources) -> Server:
    name = f"{SERVER_PREFIX}{_name(path, 'server')}"
    section = _section(ServerSection, path, name, sources)
    server = to_server(section, name, f"{folder.resolve().name}/{path.name}")
    if server.handler is None:
        return server
    try:
        code = named_files(name, {("handler",): server.handler}, path.parent)
    except FaultsError as error:
        raise sources.problems(error.faults) from None
    return replace(server, code=code)


def _name(path: Path, whose: str) -> str:
    try:
        return values.dns_label(path.stem)
    except values.WrongValueError as error:
        what = f"the file's name is the {whose}'s: {error.what}"
        raise ProblemsError([Problem(str(path), 1, "", what, error.fix)]) from None


def _section(
    model: type[SectionT], path: Path, source: str, sources: Sources, rules: Rules | None = None
) -> SectionT:
    """Read a file, and check its valid keys with `rules`."""
    document = parse(read_text(path, str(path), ""), str(path))
    sources.documents[source] = document
    faults: list[Fault] = []
    section = None
    try:
        section = _validated(model, document, source)
    except FaultsError as error:
        faults = error.faults
    faults += rules(document.value, faults, source) if rules else ()
    if faults or section is None:
        raise sources.problems(faults)
    return section


def _validated(model: type[SectionT], document: Document, source: str) -> SectionT:
    if not isinstance(document.value, dict):
        what = "the file is empty" if document.value is None else "the file is not a mapping"
        first = next(iter(model.model_fields))
        raise FaultsError([Fault(source, (), what, f"begin with `{first}: …`")])
    try:
        return model.model_validate(document.value)
    except ValidationError as error:
        raise FaultsError(explain.faults(error, model, source, document.value)) from None
