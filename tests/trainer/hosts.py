"""Stand-in hosts for the trainer's tests: real processes on 127.0.0.1, each with a deadline."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

from tests.ports import free_port
from tests.warm import warm_python
from trainer.contract import event_lines, events
from trainer.contract.job import SECTIONS
from trainer.contract.mark import MARK
from trainer.contract.programs import PROGRAMS, join

EventT = TypeVar("EventT", bound=events.Event)
ROOT = Path(__file__).resolve().parents[2]
LAUNCH = ROOT / "trainer" / "launch.py"


def program_text(name: str) -> str:
    """A program as kit mounts it into images without the trainer."""
    return join(name, lambda path: (ROOT / "trainer" / path).read_text())


def write_programs(folder: Path) -> Path:
    """Write these programs; return the path of the launcher."""
    folder.mkdir(exist_ok=True)
    for name in PROGRAMS:
        (folder / name).write_text(program_text(name))
    return folder / "launch.py"


DEADLINE = 300.0
"""Seconds that only failures need, even on a busy machine."""

TRAIN: dict[str, Any] = {
    "dataset": "digits",
    "model": "cnn",
    "epochs": 10,
    "batch_size": 32,
    "learning_rate": 0.1,
    "weight_decay": 0.0005,
    # What the recipe adds is under test in test_trainer_learning.py; here, steps are plain.
    "warm_up": 0.0,
    "clip_norm": 0.0,
}
PACE = {"LAB_PACE": "0.02"}
"""Seconds that a training rests after each step, where the test waits for something else."""
ENDLESS: dict[str, Any] = {"epochs": 9999, "learning_rate": 0.005}
"""A training that its test ends: it learns at this rate; one that learns nothing ends itself."""


def write_job(folder: Path, name: str = "digits", **changes: Any) -> Path:
    """Write a job file; `changes` go to the section that has their key."""
    content: dict[str, Any] = {"name": name}
    for kind in SECTIONS:
        section, known = kind.__name__.lower(), {each.name for each in fields(kind)}
        content[section] = {key: value for key, value in changes.items() if key in known}
    content["train"] = {**TRAIN, **content["train"]}
    path = folder / f"{name}.json"
    path.write_text(json.dumps(content))
    return path


def wait_until(condition: Callable[[], bool], what: str, seconds: float = DEADLINE) -> None:
    """Poll a condition, at most a third of the time: the log of a long training is long to read."""
    deadline = time.monotonic() + seconds
    began = time.monotonic()
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(max(0.02, 2 * (time.monotonic() - began)))
        began = time.monotonic()


def descendants(pid: int) -> list[int]:
    """The processes below one: torchrun's workers are in sessions of their own."""
    parents: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        child = int(stat.parent.name)
        parents.setdefault(int(fields[1]), []).append(child)
        if program := warm_python().program_of(child):
            parents.setdefault(child, []).append(program)
    found: list[int] = []
    todo = [pid]
    while todo:
        children = parents.get(todo.pop(), [])
        found += children
        todo += children
    return found


def stop(pids: list[int]) -> Callable[[], None]:
    """Stop processes; the result lets them go on."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)

    def undo() -> None:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)

    return undo


def send(pid: int, number: int) -> None:
    """Send a signal to a process itself, where a warm Python has forked it for a client.

    The end of a client is noticed a moment later: the group would end by another reason before.
    """
    os.kill(warm_python().program_of(pid) or pid, number)


def kill(pid: int) -> None:
    """Kill a process itself."""
    send(pid, signal.SIGKILL)


def kill_all(pids: Iterable[int]) -> None:
    """Kill processes, some of which end with others of them."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@dataclass
class Task:
    """A process that the test started."""

    process: subprocess.Popen[bytes]
    log: Path

    @property
    def text(self) -> str:
        """The lines for people, without the ranks that the launcher puts before them."""
        plain = re.sub(r"^\[rank\d+\]: ", "", self.log.read_text(), flags=re.MULTILINE)
        return re.sub(rf"^{MARK}.*\n", "", plain, flags=re.MULTILINE)

    @property
    def events(self) -> list[events.Event]:
        """The events; every line with the mark must be complete, but one that is being written."""
        whole, _, _ = self.log.read_text().rpartition("\n")
        lines = re.sub(r"^\[rank\d+\]: ", "", whole, flags=re.MULTILINE)
        marked = [line for line in lines.splitlines() if line.startswith(MARK)]
        found = [event for event in map(event_lines.parse, marked) if event is not None]
        assert len(found) == len(marked), marked
        return found

    def of(self, kind: type[EventT]) -> list[EventT]:
        """The events of a kind."""
        return [event for event in self.events if type(event) is kind]

    def wait(self, seconds: float = DEADLINE) -> int:
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            warm_python().show_stacks()
            time.sleep(1)
            raise AssertionError(f"still running after {seconds} s:\n{self.text}") from None

    def expect(self, text: str) -> None:
        def seen() -> bool:
            assert self.process.poll() is None or text in self.text, self.text
            return text in self.text

        wait_until(seen, f"{text!r} in {self.log}")

    def workers(self, program: str = "trainer.train") -> list[int]:
        """The training processes of this host."""
        found = []
        for pid in descendants(self.process.pid):
            try:
                line = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            named = any(word.endswith(program.encode()) for word in line)
            if named and not {b"trainer.elastic.agent", b"agent", b"worker"} & {*line}:
                found.append(pid)
        return found

    def end(self) -> None:
        """Kill the process and its descendants only."""
        below = descendants(self.process.pid)
        self.process.kill()  # First, so that it does not tell of the end of the others.
        kill_all(below)
        self.process.wait(DEADLINE)


@dataclass
class Hosts:
    """Starts tasks in one folder and ends them."""

    folder: Path
    cold: bool = False
    """Whether each process imports PyTorch itself, as users' processes do."""
    python: str = ""
    """Another Python that runs all processes."""
    of_coordinator: dict[str, str] = field(default_factory=dict)
    """More variables of coordinators."""
    tasks: list[Task] = field(default_factory=list)

    def start(
        self,
        name: str,
        argv: Sequence[str | Path],
        environ: Mapping[str, str | Path],
        cwd: Path | None = None,
        prefix: Sequence[str] = (),
    ) -> Task:
        log = self.folder / f"{len(self.tasks)}-{name}.log"
        clean = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("KIT_", "NCCL_", "GLOO_", "NVIDIA_", "PYTHON"))
        }
        # The limits and mounts of a prefix would not affect a process that is forked elsewhere.
        cold = self.cold or prefix or argv[0] == "-S"
        python = self.python or (sys.executable if cold else warm_python().executable)
        with log.open("wb") as stream:
            process = subprocess.Popen(
                [*prefix, python, *map(str, argv)],
                env={**clean, "OMP_NUM_THREADS": "1", **{k: str(v) for k, v in environ.items()}},
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                cwd=cwd or self.folder,
            )
        task = Task(process, log)
        self.tasks.append(task)
        return task

    def rendezvous(
        self,
        nnodes: str = "2:2",
        address: str = "127.0.0.1",
        *,
        launch: Path = LAUNCH,
        script: bool = False,
        spares: int = 0,
    ) -> str:
        """Start a coordinator or, for a script, a store; return its endpoint."""
        endpoint = f"{address}:{free_port()}"
        self.serve(endpoint, nnodes, launch=launch, script=script, spares=spares)
        return endpoint

    def serve(
        self,
        endpoint: str,
        nnodes: str = "2:2",
        *,
        launch: Path = LAUNCH,
        script: bool = False,
        spares: int = 0,
    ) -> Task:
        """Start the coordinator or the store of an endpoint."""
        kind = "rendezvous" if script else "coordinator"
        own = {} if script else {"KIT_NNODES": nnodes, "KIT_SPARES": str(spares)}
        own |= self.of_coordinator
        return self.start(kind, [launch, kind], {"KIT_RENDEZVOUS": endpoint, **own})

    def agent(
        self,
        name: str,
        job: Path,
        endpoint: str,
        processes: int,
        nnodes: str = "",
        program: Sequence[str | Path] = (),
        **more: str | Path,
    ) -> Task:
        """Start a host with its own checkpoints; `more` are variables.

        `program` replaces the built-in training, which it wraps. Only a script needs `nnodes`.
        """
        checkpoints = self.folder / name
        checkpoints.mkdir(exist_ok=True)
        agent = ["-m", "trainer.elastic.agent", *program]
        own: dict[str, str | Path] = {
            "KIT_ADDRESS": "127.0.0.1",
            "GLOO_SOCKET_IFNAME": "lo",
            "PYTHONPATH": ROOT,
        }
        return self.start(
            name,
            agent if program else [LAUNCH],
            {
                **(own if program else {}),
                "KIT_JOB": job,
                "KIT_RENDEZVOUS": endpoint,
                **({"KIT_NNODES": nnodes} if nnodes else {}),
                "KIT_NPROC": str(processes),
                "KIT_HOST": name,
                "KIT_CHECKPOINTS": checkpoints,
                # Nothing restarts the store, except for a test.
                "KIT_ONE_RUN": "1",
                # A warm process is not among the descendants of torchrun, where its sockets count.
                **({} if self.cold else {"KIT_GROUP_TIMEOUT": str(int(DEADLINE))}),
                **more,
            },
        )

    def pair(
        self,
        job: Path,
        nnodes: str = "2:2",
        program: Sequence[str | Path] = (),
        **more: str | Path,
    ) -> tuple[Task, Task]:
        """Two hosts, of one and of two processes, and their coordinator."""
        endpoint = self.rendezvous(nnodes)
        return (
            self.agent("pc1", job, endpoint, 1, "", program, **more),
            self.agent("pc2", job, endpoint, 2, "", program, **more),
        )


@contextmanager
def hosts(folder: Path, *, cold: bool = False, python: str = "") -> Iterator[Hosts]:
    """Hosts that are always ended afterwards."""
    result = Hosts(folder, cold, python)
    try:
        yield result
    finally:
        for task in result.tasks:
            task.end()


def metrics(*folders: Path) -> list[dict[str, Any]]:
    """All lines of metrics.jsonl, in the order of time: rank 0 moves between hosts."""
    lines = []
    for folder in folders:
        file = folder / "metrics.jsonl"
        if file.exists():
            # A line that is being written has no end yet.
            lines += [json.loads(line) for line in file.read_text().split("\n")[:-1]]
    return sorted(lines, key=lambda line: float(line["time"]))


def complete_steps(folder: Path) -> list[str]:
    return sorted(path.parent.name for path in folder.glob("step-*/COMPLETE"))
