"""The subcommands of the launcher."""

import sys
from collections.abc import Callable

from trainer.launcher.container import check_health
from trainer.launcher.coordinator import coordinate, serve_rendezvous
from trainer.launcher.errors import LaunchError, guarded
from trainer.launcher.run import run_agent
from trainer.launcher.sender import send_notices
from trainer.launcher.session.hold import session_command
from trainer.launcher.start import train
from trainer.launcher.tell import tell_coordinator
from trainer.launcher.tensorflow import fork_tensorflow
from trainer.launcher.torchrun import fork_torchrun
from trainer.launcher.worker import run_worker


def command(arguments: list[str]) -> Callable[[], int | None]:
    """Return the subcommand that the arguments name."""
    commands = {"": train, "coordinator": coordinate, "health": check_health}
    commands |= {"rendezvous": serve_rendezvous, "notifier": send_notices}
    name = " ".join(arguments)
    if arguments[:1] == ["agent"]:
        return run_agent
    if arguments[:1] == ["pytorch"]:
        return fork_torchrun
    if arguments[:1] == ["tensorflow"]:
        return fork_tensorflow
    if arguments[:1] == ["worker"]:
        return run_worker
    if arguments[:1] == ["session"]:
        return session_command
    if arguments[:1] == ["notify"]:
        return tell_coordinator
    if name not in commands:
        raise LaunchError(f"unknown: {name}; give nothing, coordinator, rendezvous or health")
    return commands[name]


def main(arguments: list[str]) -> int:
    """Run one subcommand; return the exit code."""
    return guarded(lambda: command(arguments)())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
