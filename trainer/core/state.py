"""The state of a run: saved to a checkpoint, and restored from one."""

from __future__ import annotations

import time

import torch
from torch import Tensor

from trainer.checkpoints import format as checkpoints
from trainer.checkpoints.format import Progress, State
from trainer.checkpoints.layout import folder_name
from trainer.checkpoints.newest import is_writer, newest_of_all
from trainer.core.run import Run
from trainer.output import say


def resume(run: Run) -> Progress:
    """Load the newest checkpoint of any host, if there is one, on all ranks."""
    saved = newest_of_all(run.checkpoints, run.job, run.world)
    if saved is None:
        return Progress()
    state = saved.load()
    restore(run, state)
    progress = Progress(**state["progress"])
    run.saver.step = progress.step
    run.announcer.know(folder_name(progress.step), saved.accuracy)
    return progress


def restore(run: Run, state: State) -> None:
    """Put back what a checkpoint holds."""
    groups = run.optimizer.param_groups
    figures = [{key: group[key] for key in group if key != "params"} for group in groups]
    for name, part in run.parts().items():
        # With another exchange or precision than before, one begins anew: that is a job's right.
        if state.get(name):
            part.load_state_dict(state[name])
    # The optimizer's state brings the old figures along; the job file decides.
    for group, own in zip(run.optimizer.param_groups, figures, strict=True):
        group.update(own)
    if len(state["rng"]) == run.world.size:
        own = state["rng"][run.world.rank]
        torch.set_rng_state(own["cpu"])
        if run.world.device.type == "cuda" and "cuda" in own:
            torch.cuda.set_rng_state(own["cuda"], run.world.device)


def save(run: Run, progress: Progress, accuracy: float | None = None) -> None:
    """Have a checkpoint written on every host; all ranks must call it at the same step."""
    if run.saver.step == progress.step:
        return
    began = time.monotonic()
    run.ranks.share_buffers()
    run.ranks.require_equal()
    rng = run.world.gather(random_states(run.world.device))
    if is_writer(run.job, run.world):
        state: State = {name: part.state_dict() for name, part in run.parts().items()}
        state |= {"progress": vars(progress), "seed": run.job.train.seed, "rng": rng}
        run.saver.save(state, lambda state: write(run, state, progress, accuracy))
    run.saver.step = progress.step
    run.saver.stalls.append(time.monotonic() - began)


def random_states(device: torch.device) -> dict[str, Tensor]:
    """The states, uint8, of torch's generators on the CPU and, where this is one, on the GPU."""
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def write(run: Run, state: State, progress: Progress, accuracy: float | None) -> None:
    """Write a checkpoint on this host; rank 0 tells."""
    job, size, labels = run.job, run.world.size, run.data.labels
    saved = checkpoints.pack(state, progress, job, size, accuracy, labels)
    path = checkpoints.write(run.checkpoints, saved, job, job.checkpoint.keep)
    if run.world.rank == 0:
        run.live.clear()
        say(f"saved {path.name}")
        run.announcer.saved(progress, path.name)
