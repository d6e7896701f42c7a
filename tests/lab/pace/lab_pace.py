"""Lets a training rest: LAB_PACE seconds after every step of its optimizer.

Jobs that train until the test has seen enough would keep all cores busy, and everything else of the
tests waiting. PyTorch calls this itself, as an extension that says so (entry_points.txt).
"""

import os
import time


def begin() -> None:
    seconds = float(os.environ.get("LAB_PACE", "0"))
    if seconds:
        from torch.optim.optimizer import register_optimizer_step_post_hook

        register_optimizer_step_post_hook(lambda *_: time.sleep(seconds))
