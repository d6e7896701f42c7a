"""The folders of the jobs that were deployed on this machine, which outlive the terminal.

$XDG_STATE_HOME/kit/<cluster>/history.jsonl: the deployments
$XDG_STATE_HOME/kit/<cluster>/.key: the key of the data services
$XDG_STATE_HOME/kit/<cluster>/.datasets/: the data sets of `kit data`
        services/       the data services, with the files of a job
$XDG_STATE_HOME/kit/<cluster>/<job>/
        run.json        the run, written once by `kit deploy`
        state.json      its state, replaced by the supervisor
        lock            held by the supervisor while it lives
        <host>/log      the output of the host's processes
        <host>/<volume> the host's volumes, for example its checkpoints
"""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from kit.errors import KitError
from kit.runtime.history import Deployment, read_deployment
from kit.targets.local.lower import DATA_SETS, Process
from kit.workload.types import Kind


def state_home() -> Path:
    """Return kit's folder below the user's state directory (XDG Base Directory Specification)."""
    base = os.environ.get("XDG_STATE_HOME", "")
    home = Path(base) if base.startswith("/") else Path.home() / ".local" / "state"
    return home / "kit"


SERVICES = f"{DATA_SETS}/services"
"""The folder of the data services, in place of a job's."""


def data_folder(cluster: str) -> Path:
    """Return the folder of a cluster's data sets on this machine."""
    return state_home() / cluster / DATA_SETS


def key_file(cluster: str) -> Path:
    """Return the file with a cluster's key on this machine."""
    return state_home() / cluster / ".key"


@dataclass(frozen=True, slots=True)
class Run:
    """One deploy of a workload in a `version`.

    At least `nodes_min` hosts must stay alive; `stop_grace` is in seconds.
    """

    id: str
    job: str
    kind: Kind
    version: str
    started: float
    nodes_min: int
    stop_grace: int
    checkpoints: tuple[str, ...]
    processes: tuple[Process, ...]


class JobFolder:
    """The folder of one job."""

    def __init__(self, cluster: str, job: str) -> None:
        self.path = state_home() / cluster / job

    @property
    def state_file(self) -> Path:
        """The file with the job's state."""
        return self.path / "state.json"

    def create(self) -> None:
        """Create the folder, readable by its owner only.

        Raises:
            KitError: It cannot be created.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise KitError(f"{error.filename}: cannot be made: {error.strerror}") from None

    def write_run(self, run: Run) -> None:
        """Record a run."""
        _write_json(self.path / "run.json", asdict(run))

    def read_run(self) -> Run | None:
        """Return the last run."""
        data = _read_json(self.path / "run.json")
        if data is None:
            return None
        processes = tuple(
            Process(
                **{
                    **process,
                    "argv": tuple(process["argv"]),
                    "variables": tuple((name, value) for name, value in process["variables"]),
                }
            )
            for process in data["processes"]
        )
        return Run(
            **{
                "version": "",
                **data,
                "kind": Kind(data.get("kind", Kind.JOB)),
                "processes": processes,
                "checkpoints": tuple(data["checkpoints"]),
            }
        )

    def write_state(self, state: dict[str, Any]) -> None:
        """Replace the state."""
        _write_json(self.state_file, state)

    def read_state(self) -> dict[str, Any]:
        """Return the state, or an empty one."""
        return _read_json(self.state_file) or {}

    def take_lock(self) -> IO[str] | None:
        """Take the lock, which the kernel releases at death; return None if it is held."""
        file = (self.path / "lock").open("a")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return None
        return file

    def supervised(self) -> bool:
        """Return whether a supervisor is alive."""
        if not (self.path / "lock").exists():
            return False
        lock = self.take_lock()
        if lock is None:
            return True
        lock.close()
        return False


def jobs_of(cluster: str) -> list[str]:
    """Return the workloads of a cluster that were deployed on this machine."""
    folder = state_home() / cluster
    return sorted(path.parent.name for path in folder.glob("*/run.json"))


def add_to_history(cluster: str, deployment: Deployment) -> None:
    """Record the start of a job."""
    with (state_home() / cluster / "history.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(deployment)) + "\n")


def read_history(cluster: str) -> list[Deployment]:
    """Return the recorded starts, the oldest first."""
    try:
        lines = (state_home() / cluster / "history.jsonl").read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
    return [read_deployment(json.loads(line)) for line in lines]


def _write_json(path: Path, value: object) -> None:
    temporary = path.with_name(f".{path.name}.new")
    temporary.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
    temporary.replace(path)


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise KitError(f"{path}: cannot be read: {error}", f"remove it: rm {path}") from None
    return value if isinstance(value, dict) else None
