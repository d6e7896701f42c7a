"""Checks that the command of a job begins with a Python script, or with `-m` and a module.

The launcher starts one Python process for each GPU, so a command that begins with another
program, or with its own launcher, would fail or train separately on each GPU. kit checks this
before a deploy; the launcher, which contains this module, checks it again.
"""

from collections.abc import Sequence

SCRIPTS = (".py", ".pyc", ".pyw", ".pyz")
LAUNCHERS = (
    *("torch.distributed.run", "torch.distributed.launch", "torchrun", "torchx", "composer"),
    *("accelerate", "accelerate.commands.launch", "accelerate.commands.accelerate_cli"),
    *("deepspeed", "deepspeed.launcher.runner", "deepspeed.launcher.launch"),
    *("colossalai", "colossalai.cli", "horovod.run", "horovod.runner", "horovod.runner.launch"),
    *("lightning", "lightning.fabric.cli", "lightning_fabric.cli", "paddle.distributed.launch"),
    *("oneflow.distributed.launch", "bagua.distributed.run", "bagua.distributed.launch"),
    *("torch_xla.distributed.xla_dist",),
)
"""Modules that start the processes of a training."""


def foreign_start(command: Sequence[str]) -> str:
    """Return the beginning of a command that is not a script or a module, or ""."""
    first = command[0]
    if first == "-m":
        module = "".join(command[1:2])
        file = "/" in module or module.lower().endswith(SCRIPTS) or module.startswith("-")
        return f"-m {module}" if file or module in LAUNCHERS or not module else ""
    *folders, name = first.split("/")
    if name.lower().endswith(SCRIPTS):
        paths = (f"/{each.replace('.', '/')}.py" for each in LAUNCHERS if "." in each)
        return first if f"/{first}".endswith(tuple(paths)) else ""
    # A script may lack `.py`, but files in folders named bin are programs.
    return "" if name and "." not in name and folders and folders[-1] != "bin" else first
