"""The script's files: a keeper beside torchrun copies the newest version to every host."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from trainer.launcher.errors import FAILURE, LaunchError
from trainer.launcher.program import PROGRAM
from trainer.launcher.settings import Job, Settings


def newest_saved() -> str | None:
    """A name of the content of the script's newest version; None if no files are kept."""
    if "KIT_SAVED" not in os.environ:
        return None
    with suppress(OSError):
        return Path(os.environ["KIT_SAVED"]).read_text()
    return ""


KEEPER_ENDS = 30.0  # Seconds for the keeper to pass on the last version (keeper.END, and more).
KEEPER_SILENT = 60.0  # Timeout for heartbeats of the keeper, which it sends every 5 s.


def keeper_variables(settings: Settings, job: Job, address: str) -> dict[str, str]:
    """The variables of keeper.py, without its socket."""
    return {
        "KIT_HOST": settings.host,
        "KIT_CHECKPOINTS": str(settings.checkpoints),
        "KIT_FILES": json.dumps(job.files),
        "KIT_KEEP": str(job.keep),
        "KIT_FILES_AT": address,
    }


@contextmanager
def keeper(folder: str) -> Iterator[None]:
    """Run a keeper, if the job has files for it; it ends when its standard input closes."""
    if "KIT_FILES" not in os.environ:
        yield
        return
    os.environ["KIT_KEEPER"] = str(Path(folder, "keeper"))
    os.environ["KIT_SAVED"] = str(Path(folder, "saved"))
    argv = [sys.executable, str(PROGRAM.with_name("keeper.py"))]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE)
    try:
        yield
    finally:
        assert process.stdin
        process.stdin.close()
        try:
            process.wait(KEEPER_ENDS)
        except subprocess.TimeoutExpired:
            process.kill()


def wait_for_files(environ: Mapping[str, str]) -> None:
    """Wait until the keeper has copied the newest version of the script's files to this host.

    Raises LaunchError if it fails: the round ends, and the coordinator begins another.
    """
    names = {"address": "MASTER_ADDR", "run": "KIT_ROUND"}
    numbers = {"port": "MASTER_PORT", "rank": "GROUP_RANK", "hosts": "GROUP_WORLD_SIZE"}
    numbers |= {"workers": "LOCAL_WORLD_SIZE", "worker": "LOCAL_RANK"}
    place: dict[str, Any] = {key: environ[name] for key, name in names.items()}
    place |= {key: int(environ[name]) for key, name in numbers.items()}
    lost = "the keeper of this host's files has ended"
    try:
        with connect_keeper(environ["KIT_KEEPER"]) as connection:
            connection.sendall(json.dumps(place).encode() + b"\n")
            for line in connection.makefile():
                answer = json.loads(line)
                if answer.get("error"):
                    raise LaunchError(f"{answer['error']}", FAILURE, "peer")
                if answer.get("ready"):
                    return
    except (OSError, ValueError) as error:
        raise LaunchError(f"{lost} ({error})", FAILURE, "peer") from error
    raise LaunchError(lost, FAILURE, "peer")


def connect_keeper(path: str) -> socket.socket:
    """Connect to the keeper, which the agent starts beside torchrun; raises OSError."""
    deadline = time.monotonic() + KEEPER_SILENT
    while True:
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(KEEPER_SILENT)
        try:
            connection.connect(path)
        except OSError as error:
            connection.close()
            died = isinstance(error, ConnectionRefusedError)  # The socket file remains.
            if time.monotonic() > deadline - (KEEPER_SILENT - 5 if died else 0):
                raise
        else:
            return connection
        time.sleep(0.05)
