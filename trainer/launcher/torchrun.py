"""torchrun: forked for each round, because its import takes seconds."""

import json
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from trainer.group.messages import Group
from trainer.launcher.errors import FAILURE, LaunchError
from trainer.launcher.failures import first_failure
from trainer.launcher.network import family_of
from trainer.launcher.process import die_with_parent

LAST_WORDS = 0.5  # Seconds for other hosts to read from the store that all have ended.


def torchrun_argv(nproc: int, around: Group, rank: int, job: str) -> list[str]:
    """The options of torchrun for a round; `rank` is the group rank of this host."""
    argv = ["--nnodes", str(len(around.members)), "--node-rank", str(rank)]
    argv += ["--nproc-per-node", str(nproc), "--rdzv-backend", "static"]
    argv += ["--rdzv-endpoint", around.members[0].store]
    argv += ["--rdzv-id", f"{job}-{around.generation}", "--max-restarts", "0"]
    return [*argv, "--monitor-interval", "0.1"]  # Seconds; 5 in old releases.


def fork_torchrun() -> None:
    """Import torchrun once, and fork it whenever the agent asks for it."""
    die_with_parent()
    from torch.distributed import run as torchrun

    assert torchrun
    serve_forks(run_torchrun)


def serve_forks(act: Callable[[Mapping[str, Any], socket.socket], int]) -> None:
    """Fork a process for each order of the agent: it acts, and exits with the result."""
    with socket.socket(socket.AF_UNIX) as agent:
        agent.connect(sys.argv[2])
        for line in agent.makefile():
            order = json.loads(line)
            if (pid := os.fork()) == 0:
                code = act(order, agent)
                sys.stdout.flush()
                os._exit(code)
            agent.sendall(b'{"pid": %d}\n' % pid)
            _, status = os.waitpid(pid, 0)
            agent.sendall(b'{"ended": %d}\n' % os.waitstatus_to_exitcode(status))


def serve_round(address: str, port: int) -> Any:
    """Serve the store of a round, which torchrun finds in its process and does not close.

    torchrun closes its own store before the other hosts have read that all have ended.
    """
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    # By default the master listens on all interfaces.
    listener = socket.create_server((address, port), family=family_of(address))
    return TCPStore(
        address,
        port,
        is_master=True,
        wait_for_workers=False,
        multi_tenant=True,
        master_listen_fd=listener.detach(),
    )


def run_torchrun(order: Mapping[str, Any], agent: socket.socket) -> int:
    """Run torchrun in a forked process, without its traceback; report why it failed."""
    from torch.distributed.elastic import multiprocessing
    from torch.distributed.run import main as torchrun

    die_with_parent()
    os.environ.update(order["environ"])
    failure: LaunchError | None = None
    try:
        store = serve_round(*order["store"]) if order["store"] else None
        torchrun(order["argv"])
        if store is not None:
            time.sleep(LAST_WORDS)
    except multiprocessing.errors.ChildFailedError as error:
        failure = first_failure(error.failures, Path(os.environ["KIT_LAST_WORDS"]))
    except multiprocessing.SignalException as error:
        return 128 + int(error.sigval)
    except Exception as error:
        what = f"torchrun has failed ({type(error).__name__}: {error})".partition("\n")[0]
        failure = LaunchError(what, FAILURE, "rendezvous")
    if failure:
        tell_failure(agent, failure)
    return 0


def tell_failure(agent: socket.socket, failure: LaunchError) -> None:
    """Report to the agent why a script has failed."""
    place = (failure.rank, failure.exit_code, failure.fault)
    values = (str(failure), failure.code, failure.kind, *place)
    agent.sendall(json.dumps({"failure": values}).encode() + b"\n")
