"""The run of a script on this host: its agent, with the keeper and the metrics."""

import asyncio
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from trainer.launcher.agent import Agent
from trainer.launcher.host_agent import run_host
from trainer.launcher.script_files import keeper
from trainer.launcher.silence import arm


def run_agent() -> int:
    """Run the script in the arguments after `agent`; after a signal, return 128 + its number.

    Raises LaunchError if the script fails permanently.
    """
    # torchrun does not remove its folders, torchelastic_…: one for each start.
    with tempfile.TemporaryDirectory(prefix="kit-agent-", ignore_cleanup_errors=True) as folder:
        os.environ["KIT_LAST_WORDS"] = folder
        if os.environ.get("KIT_METRICS_AT"):
            os.environ["KIT_METRICS"] = tempfile.mkdtemp(prefix="metrics-", dir=folder)
        os.environ["KIT_ARMED"] = arm(Path(folder))
        with keeper(folder):
            return asyncio.run(run_rounds(Path(folder), sys.argv[2:]))


async def run_rounds(folder: Path, command: Sequence[str]) -> int:
    """Run the agent; return its exit code. Raises LaunchError."""
    metrics = Path(os.environ.get("KIT_METRICS", folder))
    return await run_host(Agent(os.environ, folder, command), metrics, "torchrun ended")
