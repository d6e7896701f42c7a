"""The run of a script on this host: its agent, with the keeper and the metrics."""

import asyncio
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from trainer.launcher.agent import Agent
from trainer.launcher.metrics import serve_metrics
from trainer.launcher.output import say
from trainer.launcher.script_files import keeper
from trainer.launcher.settings import parse_endpoint
from trainer.launcher.silence import arm


def run_agent() -> int:
    """Run the script behind `agent`; after a signal the exit code is 128 + its number.

    Raises LaunchError if the script fails for good.
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
    agent = Agent(os.environ, folder, command)
    if at := os.environ.get("KIT_METRICS_AT"):
        agent.metrics = serve_metrics(parse_endpoint(at), Path(os.environ["KIT_METRICS"]))
    code = await agent.run()
    if code > 128:
        say(f"torchrun ended on {signal.Signals(code - 128).name}")
        if agent.metrics:
            await asyncio.to_thread(agent.metrics.wait_for_reader)
    return code
