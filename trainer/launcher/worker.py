"""The worker: puts its rank before each line, and prints its events."""

import json
import os
import re
import select
import sys
import time
from collections.abc import Mapping, MutableMapping, Sequence
from contextlib import suppress
from pathlib import Path

from trainer.contract.mark import MARK
from trainer.launcher.failures import Trace
from trainer.launcher.metrics import read_object
from trainer.launcher.output import event, replace_file
from trainer.launcher.process import die_with_parent
from trainer.launcher.rounds import MAX_RESTARTS
from trainer.launcher.script_files import wait_for_files

LINE = 16384  # Bytes after which a line is split, as in Docker's log.
MEMBER_EVERY = 60  # Seconds between two `member` events.


def run_worker() -> None:
    """Become the script in the arguments after `worker`; each of its lines begins with its rank."""
    if "KIT_ROUND" in os.environ:
        die_with_parent()
        place_worker(os.environ)
    streams = (sys.stdout.fileno(), sys.stderr.fileno())
    pipes = [os.pipe() for _ in streams]
    # Fork twice, so that the script has no unexpected child process.
    if os.fork() == 0:
        if os.fork() == 0:
            os.setsid()  # A signal to the script's process group must not end this process.
            for _, end in pipes:
                os.close(end)
            Prefix(os.environ, [begin for begin, _ in pipes], streams).copy()
        os._exit(0)
    os.wait()
    for stream, (begin, end) in zip(streams, pipes, strict=True):
        os.dup2(end, stream)
        os.close(begin)
        os.close(end)
    os.environ["KIT_BORN"] = str(time.time())  # For the metrics.
    if armed := os.environ.pop("KIT_ARMED", ""):
        paths = (armed, os.environ.get("PYTHONPATH", ""))
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    os.environ.pop("KIT_FAILURE", None)  # For the launcher alone.
    os.execv(sys.executable, [sys.executable, "-u", *sys.argv[2:]])


def place_worker(environ: MutableMapping[str, str]) -> None:
    """Set the script's variables for its round; its own store gets a free port."""
    environ.update(
        {
            "MASTER_PORT": environ["KIT_MASTER_PORT"],
            "TORCHELASTIC_USE_AGENT_STORE": "False",
            "TORCHELASTIC_RESTART_COUNT": environ["KIT_RESTARTS"],
            "TORCHELASTIC_MAX_RESTARTS": str(MAX_RESTARTS),
        }
    )
    if "KIT_KEEPER" in environ:
        wait_for_files(environ)


# PyTorch puts the rank of the present group before the lines of a traceback, and at each new group
# once more (distributed_c10d._set_pg_excepthook).
TORCHS_RANKS = re.compile(rb"^(\[rank\d+\]: ?)+")


class Prefix:
    """Copies a worker's lines with its rank before each, and prints the worker's events.

    At its end, it writes the exception of a traceback, or the last line of stderr, to the folder
    KIT_LAST_WORDS.
    """

    def __init__(
        self, environ: Mapping[str, str], sources: Sequence[int], targets: Sequence[int]
    ) -> None:
        self._environ = environ
        self._place = {name: self._number(name) for name in ("RANK", "WORLD_SIZE")}
        # A worker of the built-in training gets its rank later, and prints an event with it.
        self._learns = "KIT_WORKERS" in environ
        self._words = b"" if self._learns else f"[rank{environ['RANK']}]: ".encode()
        self._targets = dict(zip(sources, targets, strict=True))
        self._rest = dict.fromkeys(sources, b"")
        self._out, self._error = targets[0], targets[-1]
        self._trace = Trace()
        self._note: Path | None = None  # The worker's file for the metrics.
        self._folder = Path(environ.get("KIT_LAST_WORDS") or os.devnull)
        self._began = time.time()
        self._due = float("inf") if self._learns else 0.0  # Time of the next event of a member.

    def copy(self) -> None:
        """Copy until all sources have ended."""
        local = self._number("LOCAL_RANK")
        left = self._folder / self._environ.get("RANK", "none")
        before = self._folder / f"local-{local}"  # A restart may change the rank.
        reason = ""
        with suppress(OSError):
            reason = before.read_text(errors="replace")
        for old in (left, before):  # Of the previous start.
            with suppress(OSError):
                old.unlink()
        restarts = self._number("TORCHELASTIC_RESTART_COUNT")
        if restarts and (reason or not local):
            self._write(self._out, event("restart", restarts=restarts, reason=reason).encode())
        self._note_worker(restarts)
        while self._rest:
            if time.monotonic() >= self._due:
                self._write(self._out, self._member(restarts).encode())
                self._due = time.monotonic() + MEMBER_EVERY
            wait = min(MEMBER_EVERY, max(0.0, self._due - time.monotonic()))
            for source in select.select(list(self._rest), [], [], wait)[0]:
                self._take(source)
        for file, text in ((left, self._trace.words), (before, self._trace.exception)):
            with suppress(OSError):
                replace_file(file, text)
        if self._note and read_object(self._note).get("copier") == os.getpid():
            self._note.unlink(missing_ok=True)

    def _note_worker(self, restarts: int) -> None:
        """Write the worker's ranks for the metrics while it runs."""
        folder, local = self._environ.get("KIT_METRICS"), self._number("LOCAL_RANK")
        self._note = Path(folder, f"worker-{local}.json") if folder else None
        if self._note:
            place = {"local_rank": local, "rank": self._place["RANK"], "began": self._began}
            place |= {"world_size": self._place["WORLD_SIZE"], "restarts": restarts}
            with suppress(OSError):
                replace_file(self._note, json.dumps({**place, "copier": os.getpid()}))

    def _member(self, restarts: int) -> str:
        return event(
            "member",
            rank=self._place["RANK"],
            local_rank=self._number("LOCAL_RANK"),
            world_size=self._place["WORLD_SIZE"],
            restarts=restarts,
            gpus=[uuid for uuid in self._environ.get("KIT_GPUS", "").split(",") if uuid],
            failure=self._failure(),
        )

    def _failure(self) -> str:
        """The failure of the previous round, until this round has lasted longer."""
        failed = json.loads(self._environ.get("KIT_FAILURE") or "null")
        if not failed or time.time() - self._began >= max(MEMBER_EVERY, failed["ran"]):
            return ""
        return f"{failed['host']}: {failed['message']}"

    def _number(self, name: str) -> int:
        return int(self._environ.get(name) or 0)

    def _take(self, source: int) -> None:
        content = os.read(source, LINE)
        *lines, left = (self._rest[source] + content).split(b"\n")
        if left and (not content or len(left) >= LINE):
            lines, left = [*lines, left], b""
        if content:
            with suppress(OSError):
                (self._folder / f"said-{self._number('LOCAL_RANK')}").touch()
        for line in (TORCHS_RANKS.sub(b"", each) for each in lines):
            if self._learns and line.startswith(MARK.encode()):
                self._learn(line)
            self._write(self._targets[source], line)
            if self._targets[source] == self._error:
                self._trace.read(line.decode(errors="replace"))
        self._rest[source] = left
        if not content:
            del self._rest[source]

    def _learn(self, line: bytes) -> None:
        """Read the worker's rank, if the line is a `member` event."""
        with suppress(ValueError, KeyError):
            found = json.loads(line[len(MARK) :])
            if found["event"] == "member":
                self._place = {"RANK": found["rank"], "WORLD_SIZE": found["world_size"]}
                self._words = f"[rank{found['rank']}]: ".encode()
                self._due = time.monotonic() + MEMBER_EVERY
                self._note_worker(found["restarts"])

    def _write(self, target: int, line: bytes) -> None:
        """Write a line; events are not written to a terminal."""
        if line.startswith(MARK.encode()) and os.isatty(target):
            return
        os.write(target, self._words + line + b"\n")
