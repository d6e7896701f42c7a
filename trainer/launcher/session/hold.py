"""A session: a container in which a person works until its time is over, or it is unused."""

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from trainer.launcher.errors import FAILURE, LaunchError
from trainer.launcher.limits import spoken
from trainer.launcher.output import emit, say
from trainer.launcher.session.access import (
    SESSION,
    connect,
    host_key,
    prepare_sshd,
    require_home,
    runtime_folder,
)
from trainer.launcher.session.deadline import (
    Deadline,
    begin,
    extended,
    notes_of,
    read_deadline,
    write_deadline,
)
from trainer.launcher.session.jupyter import Jupyter, tell_jupyter
from trainer.launcher.session.use import (
    PROC,
    TERMINALS,
    Sight,
    connections,
    gpus_compute,
    look,
    processor_seconds,
)
from trainer.launcher.settings import Interactive, Job, Settings, read_job
from trainer.launcher.tell import notify

WATCH_EVERY = 5.0
TELL_EVERY = 60.0
# Seconds between two equal events.
WARNINGS = (3600.0, 600.0)
# Seconds before the end.
END_GRACE = 20.0
# Seconds for the programs of a session between SIGTERM and its end.
SIGNALLED = 128
TIME, UNUSED = "its time is over", "nobody was connected and nothing computed for"
# Why a session ends.


class Warner:
    """Decides when to warn of an end; warns again if the end has moved."""

    def __init__(self) -> None:
        self._zones: dict[str, float] = {}

    def due(self, why: str, left: float) -> bool:
        """Return whether to warn of an end in `left` seconds; False at the first call for it."""
        zone = min((each for each in WARNINGS if left <= each), default=float("inf"))
        before = self._zones.get(why, zone)
        self._zones[why] = zone
        return zone < before


class Holder:
    """Keeps a session open, and reports the time that is left."""

    def __init__(self, job: Job, session: Interactive, environ: Mapping[str, str]) -> None:
        self._job, self._session, self._environ = job, session, environ
        self._home = Path(session.home)
        self.user = require_home(self._home)
        self._notes = notes_of(self._home, job.name)
        self._deadline = begin(self._notes, session.started, job.max_duration, time.time())
        own = {**environ, SESSION: self._deadline.id, "HOME": session.home}
        make_runtime_folder()
        self._no_ssh = prepare_sshd(self._notes, session.keys, own, self.user)
        self._jupyter = Jupyter(self._notes, self._home, own)
        now = time.monotonic()
        self._sight = Sight(now, now, processor=processor_seconds())
        self._told, self._told_at = (0.0, 0), float("-inf")
        self._warner = Warner()

    def begin(self) -> None:
        """Log that the session is open, and which ways of access are missing."""
        for missing in filter(None, (self._no_ssh, self._jupyter.missing)):
            say(f"without {'SSH' if missing == self._no_ssh else 'JupyterLab'}: {missing}")
        say(f"the session is open for {self.user}, {self._left(time.time())}")

    def step(self) -> str:
        """Check the session once; return why it ends, or ""."""
        self._jupyter.keep()
        self._deadline = read_deadline(self._notes) or self._deadline
        idle = self._job.idle or float("inf")
        connected = connections(idle) + self._jupyter.connected()
        now = time.monotonic()
        spent, computes = processor_seconds(), gpus_compute()
        self._sight = look(self._sight, now, connected, computes, spent)
        ends = self._ends(time.time(), now)
        over = next((why for why, left in ends.items() if left <= 0), "")
        if not over:
            self._warn(ends)
        self._tell(now, over)
        return over

    def _ends(self, clock: float, now: float) -> dict[str, float]:
        """Return the seconds until the end by each reason, if nothing changes."""
        ends = {}
        if self._deadline.until:
            ends[TIME] = self._deadline.until - clock
        if self._job.idle:
            ends[f"{UNUSED} {spoken(self._job.idle)}"] = self._sight.used + self._job.idle - now
        return ends

    def _warn(self, ends: Mapping[str, float]) -> None:
        """Warn an hour and ten minutes before an end, in the log and on all terminals."""
        for why, left in ends.items():
            if not self._warner.due(why, left):
                continue
            more = f"`kit session extend {self._job.name} --hours 4` gives it more"
            if why != TIME:
                more = "a connection keeps it, or work on its GPUs"
            text = f"session {self._job.name} ends in {spoken(left)}, as {why} then; {more}"
            say(text)
            write_to_terminals(f"kit: {text}")
            notify(self._environ, "session_ending", text)

    def _tell(self, now: float, ends: str) -> None:
        known = (self._deadline.until, self._sight.connected)
        if not ends and known == self._told and now - self._told_at < TELL_EVERY:
            return
        self._told, self._told_at = known, now
        emit(
            "session",
            until=self._deadline.until,
            connected=self._sight.connected,
            unused=round(now - self._sight.used),
            idle=self._job.idle or 0,
            ssh=self._no_ssh,
            jupyter=self._jupyter.missing,
            ended=ends,
        )

    def _left(self, clock: float) -> str:
        if not self._deadline.until:
            return "without an end"
        return f"for {spoken(self._deadline.until - clock)} still"

    def end(self, why: str) -> None:
        """End its programs, and store that it has ended."""
        say(f"session {self._job.name} ends: {why}; its home stays")
        write_to_terminals(f"kit: session {self._job.name} ends now: {why}")
        notify(self._environ, "ended", f"session {self._job.name} has ended: {why}")
        end_programs(self._deadline.id, END_GRACE)
        try:
            write_deadline(self._notes, self._deadline._replace(over=True))
        except LaunchError as error:  # The session ends nevertheless.
            say(f"warning: {error}", error=True)

    def leave(self) -> None:
        """End its programs; the session continues when its container is started again."""
        say("was asked to end")
        end_programs(self._deadline.id, min(END_GRACE, self._job.stop_grace_period / 2))


def make_runtime_folder() -> None:
    """Make the folder for files that a session keeps while it runs; raises LaunchError."""
    folder = runtime_folder()
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        what = f"{folder}: {error.strerror}"
        raise LaunchError(
            f"{what}; a session needs a folder for temporary files", FAILURE
        ) from error


def hold_session(job: Job, session: Interactive, environ: Mapping[str, str]) -> int:
    """Keep a session open until its end; return the exit code, after a signal 128 + its number."""
    stopped = threading.Event()
    came: list[int] = []

    def stop(number: int, _frame: object) -> None:
        came.append(number)
        stopped.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    holder = Holder(job, session, environ)
    holder.begin()
    while not (why := holder.step()):
        if stopped.wait(WATCH_EVERY):
            holder.leave()
            return SIGNALLED + came[0]
    holder.end(why)
    return 0


def end_programs(session: str, grace: float) -> None:
    """Send SIGTERM to all processes of a session, and wait until they have ended."""
    mark = f"{SESSION}={session}".encode()

    def running() -> set[int]:
        found = set()
        for entry in PROC.iterdir():
            if entry.name.isdigit() and entry.name != str(os.getpid()):
                with suppress(OSError):
                    if mark in (entry / "environ").read_bytes().split(b"\0"):
                        found.add(int(entry.name))
        return found

    until = time.monotonic() + grace
    asked, quiet = set[int](), 0
    # A process that has just started has no environment for some milliseconds.
    while quiet < 2 and time.monotonic() < until:
        found = running()
        for process in found - asked:
            with suppress(OSError):
                os.kill(process, signal.SIGTERM)
        asked |= found
        quiet = 0 if found else quiet + 1
        time.sleep(0.2)


def write_to_terminals(text: str) -> None:
    """Write a line on the terminals of this container, as wall(1) does."""
    with suppress(OSError):
        for terminal in TERMINALS.iterdir():
            if terminal.name.isdigit():
                with suppress(OSError):
                    handle = os.open(terminal, os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK)
                    with os.fdopen(handle, "w") as screen:
                        screen.write(f"\r\n{text}\r\n")


def change_end(change: Callable[[Deadline, float], Deadline]) -> None:
    """Apply `change` to the end of this container's session, and print it; raises LaunchError."""
    job = read_job(Settings(os.environ).job)
    if job.session is None:
        raise LaunchError(f"{job.name} is no session")
    home = Path(job.session.home)
    notes = notes_of(home, job.name)
    before = read_deadline(notes)
    if before is None or before.over:
        raise LaunchError("the session has not begun yet, or has ended", FAILURE)
    deadline = change(before, time.time())
    if deadline != before:
        write_deadline(notes, deadline)
    known = {"until": deadline.until, "user": require_home(home), "host_key": host_key(notes)}
    sys.stdout.write(json.dumps(known) + "\n")


def session_command() -> None:
    """Run a subcommand for `kit session`: access to the session, or a change of its end."""
    words = sys.argv[2:]
    if words == ["connect"]:
        connect()
    elif words == ["jupyter"]:
        tell_jupyter()
    elif words[:1] == ["extend"]:
        seconds = float(words[1])
        change_end(lambda deadline, now: extended(deadline, seconds, now))
    elif words == ["about"]:
        change_end(lambda deadline, _: deadline)
    else:
        raise LaunchError(f"session {' '.join(words)}: unknown")
