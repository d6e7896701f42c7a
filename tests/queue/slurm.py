"""A trace of jobs carried out by Slurm, whose controller's clock runs faster.

The daemons are those of Debian: slurmctld with libfaketime, and a slurmd for each host, by the true
clock. A job is a `sleep`. CPUs stand for GPUs, so that no GPU is needed: the backfill scheduler
treats both alike. Slurm is told how long each job runs, to the minute, and stops none for it.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

import psutil

from tests.queue.replay import GPUS, Result, hosts_of
from tests.queue.trace import TraceJob

PROGRAMS = ("slurmctld", "slurmd", "sbatch", "sinfo", "faketime")
PORT = 17000
PATIENCE = 60.0
"""True seconds until the daemons answer, and after the last job should have ended."""
CONFIG = """\
ClusterName=compare
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={port}
AuthType=auth/none
CredType=cred/none
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
JobCompType=jobcomp/filetxt
JobCompLoc={folder}/jobs.txt
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/backfill
SchedulerParameters={scheduler}
PriorityType=priority/basic
SlurmdParameters=config_overrides
ReturnToService=2
OverTimeLimit=UNLIMITED
MessageTimeout=100
SlurmdTimeout=0
InactiveLimit=0
MaxJobCount=20000
NodeName=h[0-{last}] NodeHostname=localhost NodeAddr=127.0.0.1 Port=[{first}-{end}] CPUs={gpus} \
RealMemory=1000
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE DefMemPerCPU=1
"""
SCHEDULER = (
    # Look at all jobs, as far ahead as the longest takes, each 30 s.
    "bf_interval=30,bf_max_job_test=5000,bf_window=20160,bf_resolution=60,bf_continue,"
    "default_queue_depth=5000,sched_min_interval=0,batch_sched_delay=0,"
    # These are times of computation, which the fast clock makes look long.
    "bf_max_time=3600,max_sched_time=3600,bf_yield_interval=60000000"
)


def missing() -> str:
    """Return why Slurm cannot run here, or nothing."""
    names = [name for name in PROGRAMS if not shutil.which(name)]
    if names:
        return f"{', '.join(names)} not found: apt-get install slurm-wlm faketime"
    return "" if os.geteuid() == 0 else "slurmd needs root"


def by_slurm(trace: list[TraceJob], hosts: int, speed: float) -> Result:
    """Carry out a trace with Slurm; a true second is `speed` seconds of the trace."""
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))
    daemons: list[subprocess.Popen[bytes]] = []
    try:
        environment = _configure(folder, hosts)
        _start(daemons, folder, environment, hosts, speed)
        _submit(trace, environment, speed)
        return _results(trace, folder / "jobs.txt", speed)
    finally:
        _stop(daemons, folder)


def _configure(folder: Path, hosts: int) -> dict[str, str]:
    (folder / "state").mkdir()
    (folder / "slurm.conf").write_text(
        CONFIG.format(
            folder=folder,
            port=PORT,
            first=PORT + 1,
            end=PORT + hosts,
            last=hosts - 1,
            gpus=GPUS,
            scheduler=SCHEDULER,
        )
    )
    return {**os.environ, "SLURM_CONF": str(folder / "slurm.conf"), "TZ": "UTC"}


def _start(
    daemons: list[subprocess.Popen[bytes]],
    folder: Path,
    environment: dict[str, str],
    hosts: int,
    speed: float,
) -> None:
    commands = [["slurmd", "-D", "-N", f"h{host}"] for host in range(hosts)]
    commands.append(["faketime", "-f", f"+0 x{speed:g}", "slurmctld", "-D"])
    for command in commands:
        daemon = subprocess.Popen(
            command,
            env=environment,
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        daemons.append(daemon)
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        asked = ["sinfo", "--noheader", "--format=%D", "--states=idle"]
        answer = subprocess.run(asked, env=environment, capture_output=True, text=True, check=False)
        if answer.stdout.strip() == str(hosts):
            return
        time.sleep(0.5)
    raise RuntimeError(f"Slurm's hosts did not become idle: {answer.stdout}{answer.stderr}")


def _submit(trace: list[TraceJob], environment: dict[str, str], speed: float) -> None:
    """Submit each job when it arrives."""
    start = time.monotonic()
    for job in trace:
        time.sleep(max(0.0, start + job.arrived / speed - time.monotonic()))
        number, each = hosts_of(job)
        size = (
            [f"--ntasks={job.gpus}"]
            if job.elastic
            else [f"--nodes={number}", f"--ntasks-per-node={each}"]
        )
        limit = f"--time={int(job.seconds // 60) + 1}"
        command = ["sbatch", f"--job-name={job.name}", "--output=/dev/null", limit, *size]
        wrapped = f"--wrap=exec sleep {job.seconds / speed:.4f}"
        subprocess.run([*command, wrapped], env=environment, check=True, capture_output=True)


def _results(trace: list[TraceJob], path: Path, speed: float) -> Result:
    """Wait until all jobs have ended, and read when they began."""
    until = time.monotonic() + sum(job.seconds for job in trace) / speed + PATIENCE
    while time.monotonic() < until:
        lines = path.read_text().splitlines() if path.exists() else []
        if len(lines) >= len(trace):
            return _result(trace, lines)
        time.sleep(0.5)
    raise RuntimeError(f"{len(lines)} of {len(trace)} jobs of Slurm ended")


def _result(trace: list[TraceJob], lines: list[str]) -> Result:
    """Return what became of the jobs, by the times of Slurm's own record."""
    result, jobs = Result("Slurm's backfill"), {job.name: job for job in trace}
    found = {fields["Name"]: fields for fields in map(_fields, lines)}
    zero = min(_seconds(found[job.name]["SubmitTime"]) - job.arrived for job in trace)
    late = held = 0.0
    for name, fields in found.items():
        job, state = jobs[name], fields["JobState"]
        if state != "COMPLETED":
            raise RuntimeError(f"{name} has ended as {state}")
        begin, end = _seconds(fields["StartTime"]) - zero, _seconds(fields["EndTime"]) - zero
        result.waits[name] = begin + zero - _seconds(fields["SubmitTime"])
        result.ends[name] = end
        result.spans.append((begin, min(end, begin + job.seconds), job.gpus))
        late += end - begin - job.seconds
        held += job.gpus * (end - begin - job.seconds)
    result.note = (
        f"Slurm held the GPUs of a job for {late / len(trace):.0f} s longer than it worked, on "
        f"average, or {held / sum(job.work for job in trace):.1%} of all work: its messages take "
        "longer at the speed of the clock."
    )
    return result


def _fields(line: str) -> dict[str, str]:
    return dict(re.findall(r"(\w+)=(\S*)", line))


def _seconds(stamp: str) -> float:
    return datetime.fromisoformat(stamp).replace(tzinfo=UTC).timestamp()


def _stop(daemons: list[subprocess.Popen[bytes]], folder: Path) -> None:
    """End the daemons and what they started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                # faketime ends with the controller, and removes its shared memory.
                waits = process.name() == "faketime" and number == signal.SIGTERM
                if not waits and _ours(process, folder):
                    process.send_signal(number)
        for daemon in daemons:
            with contextlib.suppress(subprocess.TimeoutExpired):
                daemon.wait(10)
    shutil.rmtree(folder, ignore_errors=True)
    for left in Path("/dev/shm").glob(f"*faketime_*_{daemons[-1].pid}") if daemons else ():
        left.unlink()


def _ours(process: psutil.Process, folder: Path) -> bool:
    """Return whether a daemon, a step of a job, or a job belongs to this run."""
    configuration = process.environ().get("SLURM_CONF")
    return configuration == str(folder / "slurm.conf") or process.cwd() == str(folder)
