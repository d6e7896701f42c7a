"""Detects ranks that are idle for too long, and logs the stacks of their threads."""

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from trainer.launcher.connections import children_of
from trainer.launcher.output import emit, say
from trainer.launcher.worker import MEMBER_EVERY

BUSY = 0.05  # Share of a core; threads of PyTorch and NCCL that only wait use less.
GPU_BUSY = 0.01  # Share of time with a running kernel.
SPY = 15.0  # Seconds for py-spy.
PRINTED = 1.0  # Seconds in which the last process prints its stacks.
APART = 0.2  # Seconds between two processes that share a stream.
MOST_STACKS = 16  # Processes below a rank whose stacks are logged.
# Not SIGUSR1: scripts on clusters save and exit on it, as Lightning and submitit do.
STACKS = signal.SIGRTMAX - 2
# It also applies to child processes of the script, and imports the sitecustomize that it hides.
SITECUSTOMIZE = """\
# Written by kit's launcher: this process prints the stacks of its threads on a signal.
import os
import sys

own = sys.modules.pop(__name__)
here = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [path for path in sys.path if os.path.abspath(path) != here]
try:
    import faulthandler

    faulthandler.register({signal})
except Exception:
    pass
try:
    import sitecustomize
except ImportError:
    sys.modules[__name__] = own
"""


def arm(folder: Path) -> str:
    """Make a folder for PYTHONPATH that lets a process print its stacks on a signal."""
    armed = folder / "armed"
    armed.mkdir()
    (armed / "sitecustomize.py").write_text(SITECUSTOMIZE.format(signal=int(STACKS)))
    return str(armed)


class Quiet:
    """Measures for how long a process and its descendants are idle; times are monotonic."""

    def __init__(self, now: float) -> None:
        self.since = self._at = now
        self._cpu, self._heard = float("-inf"), 0.0
        self.told = float("-inf")  # The time of the last event.

    def look(self, now: float, cpu: float, heard: float, *, gpu: bool) -> float:
        """Return the seconds for which it has been idle.

        `cpu` is its CPU time in seconds, `heard` the time of its last line or file.
        """
        worked = cpu - self._cpu > BUSY * (now - self._at)
        if worked or gpu or heard != self._heard:
            self.since = now
        self._at, self._cpu, self._heard = now, cpu, heard
        return now - self.since

    def ignore(self, heard: float) -> None:
        """Ignore output that was requested, such as stacks."""
        self._heard = heard


class Silence:
    """Detects idle ranks of a host, and logs them with their stacks."""

    def __init__(self, folder: Path, limit: int, gpus: str) -> None:
        """`folder` is the agent's, `limit` is a time in seconds."""
        self._folder, self._limit = folder, limit
        self._gpus = [uuid for uuid in gpus.split(",") if uuid]
        self._quiet: dict[int, Quiet] = {}

    def look(self, torchrun: int) -> dict[int, float]:
        """Check the ranks below torchrun; return the seconds for which local ranks are silent."""
        now, silent = time.monotonic(), dict[int, float]()
        with suppress(OSError):
            ranks = {pid: place for pid in children_of(torchrun) if (place := place_of(pid))}
            self._quiet = {pid: self._quiet.get(pid) or Quiet(now) for pid in ranks}
            busy = busy_gpus(self._gpus) if ranks else [False]
            for pid, (rank, local) in ranks.items():
                # A single process on a host, such as TensorFlow's, may have all GPUs.
                gpu = any(busy) if len(ranks) == 1 else local < len(busy) and busy[local]
                quiet = self._quiet[pid]
                seconds = quiet.look(now, cpu_seconds(pid), self._heard(local), gpu=gpu)
                if seconds >= self._limit:
                    silent[local] = seconds
                    self._tell(pid, rank, local, quiet, now)
                elif quiet.told > 0:
                    quiet.told = float("-inf")
                    say(f"rank {rank} is active again")
                    emit("spoke", rank=rank)
        return silent

    def _heard(self, local: int) -> float:
        """The time of a rank's last line, or of its host's last version of the files."""
        return max(map(modified, (self._folder / f"said-{local}", self._folder / "saved")))

    def _tell(self, pid: int, rank: int, local: int, quiet: Quiet, now: float) -> None:
        first, seconds = quiet.told < 0, now - quiet.since
        if not first and now - quiet.told < MEMBER_EVERY:
            return
        quiet.told = now
        emit("silent", rank=rank, seconds=round(seconds, 1))
        if first:
            idle = "it printed no output, and its CPU and GPU were idle"
            say(f"warning: rank {rank} is silent for {seconds:.0f} s: {idle}", error=True)
            for line in tell_stacks(pid):
                say(f"rank {rank}: {line}", error=True)
            time.sleep(PRINTED)
            quiet.ignore(self._heard(local))


def modified(file: Path) -> float:
    """The time of a file's last change, or 0."""
    with suppress(OSError):
        return file.stat().st_mtime
    return 0.0


def place_of(pid: int) -> tuple[int, int] | None:
    """The rank and the local rank of a worker; None for another process."""
    with suppress(OSError, KeyError, ValueError):
        lines = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
        environ = dict(line.partition("=")[::2] for line in lines)
        return int(environ["RANK"]), int(environ["LOCAL_RANK"])
    return None


def below(pid: int) -> list[int]:
    """A process and its descendants."""
    found = [pid]
    for child in found:
        with suppress(OSError):  # It has just ended.
            found += children_of(child)
    return found


def cpu_seconds(pid: int) -> float:
    """The CPU time of a process and its descendants, in seconds."""
    ticks = 0
    for each in below(pid):
        with suppress(OSError):
            stat = Path(f"/proc/{each}/stat").read_text()
            # utime, stime, and those of children that have ended (proc(5)).
            ticks += sum(map(int, stat.rpartition(")")[2].split()[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def busy_gpus(uuids: Sequence[str]) -> list[bool]:
    """Whether each GPU has run kernels lately; a GPU that does not report it counts as idle."""
    shares = gpu_shares(uuids)
    return [shares.get(uuid, 0.0) > GPU_BUSY for uuid in uuids]


def gpu_shares(uuids: Sequence[str]) -> dict[str, float]:
    """The share of time in which each GPU runs kernels, if it reports this: not with MIG."""
    shares: dict[str, float] = {}
    if uuids:
        command = ["nvidia-smi", "--query-gpu=uuid,utilization.gpu"]
        command += ["--format=csv,noheader,nounits"]
        with suppress(OSError, subprocess.TimeoutExpired):
            listed = subprocess.run(command, capture_output=True, text=True, timeout=5).stdout
            for uuid, _, share in (line.partition(", ") for line in listed.splitlines()):
                with suppress(ValueError):
                    shares[uuid] = float(share) / 100
    return {uuid: shares[uuid] for uuid in uuids if uuid in shares}


def tell_stacks(pid: int) -> Iterator[str]:
    """The stacks of a rank and its descendants, by py-spy if the image has it.

    Otherwise signal the processes to print them to their own output, which is logged.
    """
    spy = shutil.which("py-spy")
    for each in below(pid)[:MOST_STACKS]:
        if spy and (stack := spied(spy, each)):
            yield from stack
        elif armed(each):
            with suppress(OSError):
                os.kill(each, STACKS)
                time.sleep(APART)
        else:
            with suppress(OSError):
                name = Path(f"/proc/{each}/comm").read_text().strip()
                yield f"no stack trace of process {each} ({name})"


def spied(spy: str, pid: int) -> list[str]:
    """The lines of py-spy; none if it is not allowed to trace the process."""
    with suppress(OSError, subprocess.TimeoutExpired):
        command = [spy, "dump", "--pid", str(pid)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=SPY)
        return done.stdout.splitlines() if done.returncode == 0 else []
    return []


def armed(pid: int) -> bool:
    """Whether a process handles the signal for its stacks; the signal ends other processes."""
    with suppress(OSError):
        status = Path(f"/proc/{pid}/status").read_text()
        caught = re.search(r"^SigCgt:\s*([0-9a-f]+)$", status, re.MULTILINE)
        return bool(caught and int(caught[1], 16) >> (int(STACKS) - 1) & 1)
    return False
