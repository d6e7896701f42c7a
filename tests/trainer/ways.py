"""The built-in training of several jobs, one after the other, in the same processes.

    ways.py JOB:MASTER_PORT[:FOLDER]…

So torch is imported only once. Every training forms its own group, and writes its checkpoints to
the folder or, without one, beside the job file, to a folder of the job's name.
"""

import os
import sys
from pathlib import Path

from trainer.train import main

os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "False"  # It keeps the keys of earlier groups.
for argument in sys.argv[1:]:
    name, port, *folder = argument.split(":")
    job = Path(name)
    print(f"way {job.stem}", flush=True)
    os.environ |= {"MASTER_PORT": port, "KIT_JOB": name}
    os.environ["KIT_CHECKPOINTS"] = folder[0] if folder else str(job.with_suffix(""))
    if code := main():
        sys.exit(code)
