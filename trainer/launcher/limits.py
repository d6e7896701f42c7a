"""The limits of a job: it ends after `max_duration`, or once it has computed nothing for `idle`.

All hosts end together, as by `kit stop`: a training saves, a script gets SIGTERM and its grace
period. The exit code is 0, as engines restart failed containers.
"""

import os
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from trainer.group.messages import Order, Report, name_agent
from trainer.launcher.last_failure import ask
from trainer.launcher.output import emit, say
from trainer.launcher.settings import Job, Settings, read_nnodes
from trainer.launcher.silence import GPU_BUSY, Quiet, cpu_seconds, gpu_shares

LOOKS = 10.0  # The most seconds between two checks whether a host computes.
ASKS = 5.0  # The most seconds between two requests of a host that starts up.


class Work:
    """Measures for how long this host has computed nothing."""

    def __init__(self, gpus: str) -> None:
        """`gpus` are UUIDs, separated by commas."""
        self._gpus = [uuid for uuid in gpus.split(",") if uuid]
        self._last, self._place = time.monotonic(), object()
        self._quiet: dict[int, Quiet] = {}

    @property
    def idle(self) -> float:
        """Seconds since the last check that has seen it compute."""
        return time.monotonic() - self._last

    def look(self, ranks: Sequence[int], place: object) -> None:
        """Check the processes of its ranks; another `place` in the training counts as work too.

        The utilisation of GPUs decides. CPU time counts only if no GPU reports it: a rank that
        waits for a GPU, or for another rank, may also use CPU time.
        """
        now, shares = time.monotonic(), gpu_shares(self._gpus)
        self._quiet = {pid: self._quiet.get(pid) or Quiet(now) for pid in ranks}
        looks = [
            each.look(now, cpu_seconds(pid), 0.0, gpu=False) for pid, each in self._quiet.items()
        ]
        busy = max(shares.values()) > GPU_BUSY if shares else 0.0 in looks
        if busy or place != self._place:
            self._last = now
        self._place = place


class LimitWatch:
    """Decides on this host whether the job has reached a limit; times are monotonic."""

    def __init__(self, job: Job, environ: Mapping[str, str]) -> None:
        self.job, self.work = job, Work(environ.get("KIT_GPUS", ""))
        self.since = float(environ.get("KIT_RUN_SINCE") or time.monotonic())
        self._warned, self._ends = False, float("inf")

    def timed(self, report: Report, *, stopped: bool) -> Report:
        """Return a report with the elapsed time of the run, unless this host was asked to end."""
        counts = self.job.max_duration and not stopped
        ran = round(time.monotonic() - self.since, 3) if counts else None
        idle = round(self.work.idle, 3) if self.job.idle else None
        return replace(report, ran=ran, idle=idle)

    def learn(self, order: Order) -> None:
        """Adopt an earlier start of the run, and warn before the job ends because it is idle."""
        self.since = min(self.since, time.monotonic() - order.ran)
        limit = self.job.idle
        warns = limit is not None and order.idle >= limit / 2
        if limit and warns != self._warned:
            self._warned = warns
            emit("idle", seconds=round(order.idle, 1) if warns else 0.0, limit=limit)
            what = f"no host has computed anything for {spoken(order.idle)}"
            rest = f"the job ends after {spoken(limit)} of that (`idle`)"
            say(f"warning: {what}: {rest}" if warns else "a host computes again", error=warns)

    def reached(self, order: Order) -> str:
        """The key of the limit that the job has reached, or ""; an end that has begun continues."""
        if order.ends in {"max_duration", "idle"}:
            return order.ends
        most, idle = self.job.max_duration, self.job.idle
        if most and time.monotonic() - self.since >= most:
            return "max_duration"
        return "idle" if idle and order.idle >= idle else ""

    def begin_end(self, key: str) -> None:
        """Log that the job ends now, and start its grace period."""
        self._ends = time.monotonic() + self.job.stop_grace_period
        say(f"{reason(key, self.job)}: the job ends on all hosts, as by `kit stop`")

    def overdue(self) -> bool:
        """Whether the grace period of its processes is over."""
        return time.monotonic() > self._ends


def reason(key: str, job: Job) -> str:
    """Why the job ends, for people."""
    seconds = spoken(getattr(job, key) or 0)
    if key == "idle":
        return f"nothing was computed for {seconds} (`idle`)"
    return f"{seconds} passed since the first start (`max_duration`)"


def tell_end(key: str, job: Job) -> None:
    """Report that the job has ended by one of its limits."""
    emit("limit", key=key, seconds=getattr(job, key) or 0)
    say(f"has ended: {reason(key, job)}; `kit deploy` starts the job again")


def spoken(seconds: float) -> str:
    """A time for people: 45 s, 90 min, 12 h, 2 h 5 min."""
    if seconds < 120:
        return f"{max(seconds, 0.0):.0f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    if hours < 2 and minutes:
        hours, minutes = 0, minutes + 60 * hours
    words = [f"{hours} h"] * bool(hours) + [f"{minutes} min"] * bool(minutes or not hours)
    return " ".join(words)


# ---- While this host starts up


def interrupt(*_: object) -> None:
    """End this process: the job has ended while this host starts up."""
    raise SystemExit(0)


class Asking(threading.Thread):
    """Requests the elapsed time of the run from the coordinator while the main thread fetches data.

    So the other hosts know that this host is busy, and it ends with them.
    """

    def __init__(self, settings: Settings, job: Job) -> None:
        super().__init__(name="limits", daemon=True)
        self._watch, self._settings = LimitWatch(job, {}), settings
        self._bounds = read_nnodes(os.environ) if job.command else None
        self._agent = name_agent(settings.host, time.time_ns())
        self._over, self._lock = threading.Event(), threading.Lock()
        self._prepared: float | None = None

    def begin(self) -> None:
        """Start the thread, if the job has limits."""
        if self._watch.job.max_duration or self._watch.job.idle:
            signal.signal(signal.SIGALRM, interrupt)
            self.start()

    def prepared(self) -> None:
        """Count this host as idle from now on: it only waits."""
        self._prepared = time.monotonic()

    def end(self) -> None:
        """Stop interrupting this process; pass the start of the run to the agent."""
        if self.ident is None:
            return
        with self._lock:
            self._over.set()
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        os.environ["KIT_RUN_SINCE"] = str(self._watch.since)
        if most := self._watch.job.max_duration:
            left = most - (time.monotonic() - self._watch.since)
            say(f"the job ends in {spoken(max(left, 0.0))} (`max_duration`)")

    def run(self) -> None:
        """Send requests and check the limits until the end."""
        pause = 0.0
        while not self._over.wait(pause):
            order = Order()
            with suppress(OSError, ValueError):  # It may start later.
                order = ask(self._settings, self._report())
                self._watch.learn(order)
            if limit := self._watch.reached(order):
                with suppress(OSError, ValueError):  # Without a rendezvous, nobody is notified.
                    ask(self._settings, replace(self._report(), ends=limit))
                self._end_process(limit)
                return
            most = self._watch.job.max_duration
            left = most - (time.monotonic() - self._watch.since) if most else ASKS
            pause = min(ASKS, max(left, 0.0))

    def _report(self) -> Report:
        idle = time.monotonic() - self._prepared if self._prepared else 0.0
        report = Report(self._agent, self._settings.host, 0, starting=True, asks=True)
        return replace(report, bounds=self._bounds, idle=round(idle, 3))

    def _end_process(self, key: str) -> None:
        with self._lock:
            if not self._over.is_set():
                tell_end(key, self._watch.job)
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGALRM)
