"""TensorFlow: one process on each host, which uses all GPUs of the host."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainer.group.messages import Group
from trainer.launcher.failures import exception_in, worker_failure
from trainer.launcher.process import die_with_parent
from trainer.launcher.torchrun import serve_forks, tell_failure


def tensorflow_environ(around: Group, rank: int) -> dict[str, str]:
    """The variables of the process on the host `rank` of a round.

    TF_CONFIG (tensorflow.org/guide/distributed_training) lists a port of each host. It is not set
    for a single host, where a strategy for several workers would wait forever.
    """
    environ = {
        "RANK": str(rank),
        "LOCAL_RANK": "0",
        "GROUP_RANK": str(rank),
        "WORLD_SIZE": str(len(around.members)),
        "LOCAL_WORLD_SIZE": "1",
        "GROUP_WORLD_SIZE": str(len(around.members)),
        "MASTER_ADDR": around.members[0].address,
    }
    if len(around.members) > 1:
        ends = [each.endpoint for each in around.members]
        task = {"type": "worker", "index": rank}
        environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": ends}, "task": task})
    return environ


def fork_tensorflow() -> None:
    """Run a script's process for each round, whenever the agent asks for it."""
    die_with_parent()
    serve_forks(run_tensorflow)


def run_tensorflow(order: Mapping[str, Any], agent: socket.socket) -> int:
    """Run one process, and forward signals to it; report why it failed."""
    die_with_parent()
    environ = {**os.environ, **order["environ"]}
    received: list[int] = []
    process: subprocess.Popen[bytes] | None = None

    def pass_on(number: int, _: object) -> None:
        received.append(number)
        if process:
            process.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, pass_on)
    argv = [sys.executable, *order["argv"]]
    process = subprocess.Popen(argv, env=environ, start_new_session=True)
    if received:  # Before the process was started.
        process.send_signal(received[0])
    code = process.wait()
    if received:
        return 128 + received[0]
    if code:
        rank = int(environ["RANK"])
        said = exception_in(Path(environ["KIT_LAST_WORDS"], str(rank)), code)
        tell_failure(agent, worker_failure(f"rank {rank} failed", code, said, rank=rank))
    return 0
