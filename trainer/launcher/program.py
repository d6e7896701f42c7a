"""The path of this program, which starts itself again as the agent and as each worker."""

from pathlib import Path

PROGRAM = Path(__file__).resolve()
if __package__:  # A module of the trainer's package: the program is the file beside it.
    PROGRAM = PROGRAM.parents[1] / "launch.py"
