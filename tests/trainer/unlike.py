"""Two ranks as two hosts with different environments, one case after the other.

    unlike.py CASE:JOB:MASTER_PORT…

The second rank has its data in another folder, named after the case; the cases torch, trainer and
job are simulated on it.
"""

import os
import sys
from pathlib import Path

import torch

from trainer.core import alike
from trainer.train import main

os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "False"  # It keeps the keys of earlier groups.
if __name__ == "__main__":
    second = os.environ["RANK"] == "1"
    os.environ |= {"LOCAL_RANK": "0", "KIT_HOST": "pc2" if second else "pc1"}
    own = alike.sources
    for argument in sys.argv[1:]:
        case, name, port = argument.split(":")
        job = Path(name)
        os.environ |= {"MASTER_PORT": port, "KIT_JOB": name}
        other = job.with_name(case)
        os.environ["KIT_DATA"] = str(other if second and other.is_dir() else job.parent)
        os.environ["KIT_CHECKPOINTS"] = str(job.parent / os.environ["KIT_HOST"] / case)
        version = torch.__version__
        if second and case == "torch":
            torch.__version__ = "2.6.0"  # type: ignore[assignment]
        if second and case == "trainer":
            alike.sources = lambda folder: str(folder.name)
        if second and case == "job":
            os.environ["KIT_JOB"] = str(job.with_name("changed.json"))
        code = main()
        alike.sources, torch.__version__ = own, version
        print(f"case {case} ended with {code}", flush=True)
