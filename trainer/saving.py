"""Checkpoints beside the training: it waits for a copy in memory, not for hash and disk.

The training's thread copies its state to the CPU, into pinned memory where it comes from a GPU; a
thread serialises, hashes, syncs and renames. So did CheckFreq (Mohan et al., FAST 2021) and
PyTorch's own torch.distributed.checkpoint.async_save.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from copy import copy
from typing import Any

import torch

from trainer import checkpoint
from trainer.checkpoint import NONE, Progress, Saved, State
from trainer.report import complain, say
from trainer.steps import Run
from trainer.world import require_equal


class Saver:
    """Writes one checkpoint at a time and remembers how long the training stood still for it."""

    def __init__(self, *, asynchronous: bool) -> None:
        self._writer = ThreadPoolExecutor(1, "checkpoint") if asynchronous else None
        self._pending: Future[object] | None = None
        self._copy: Any = None
        self.step = NONE  # That was saved last, by this rank or by its host's writer.
        self.stalls: list[float] = []  # Seconds that the training stood still for each save.

    def save(self, state: State, write: Callable[[State], object]) -> None:
        """Have `write` put a state on disk, in another thread; return when it may change again.

        It raises the OSError of this save or the one before, as `wait` and `check` do.
        """
        self.wait()
        if not self._writer:
            write(state)
            return
        # The copy before this one is on disk: its memory can be used again.
        self._copy = copied(state, self._copy)
        if torch.cuda.is_available():
            torch.cuda.current_stream().synchronize()
        self._pending = self._writer.submit(write, self._copy)

    def wait(self) -> None:
        """Return when what was given to be saved is on disk, or raise the writer's error."""
        pending, self._pending = self._pending, None
        if pending:
            pending.result()

    def check(self) -> None:
        """Raise the writer's error, if it has failed by now."""
        if self._pending and self._pending.done():
            self.wait()


def copied(value: Any, old: Any) -> Any:
    """Copy nested dicts and lists of tensors to the CPU; those from a GPU arrive in stream order.

    `old` is None or an earlier copy of the same shape, whose memory is used again.
    """
    if isinstance(value, torch.Tensor):
        layout = value.shape, value.dtype, value.stride()
        if not isinstance(old, torch.Tensor) or layout != (old.shape, old.dtype, old.stride()):
            old = torch.empty_like(value, device="cpu", pin_memory=value.is_cuda)
        return old.copy_(value, non_blocking=True)
    if isinstance(value, dict):
        before = old if isinstance(old, dict) else {}
        result = copy(value)  # The state of a module carries its version as an attribute.
        result.update((key, copied(each, before.get(key))) for key, each in value.items())
        return result
    if isinstance(value, list):
        last = old if isinstance(old, list) and len(old) == len(value) else [None] * len(value)
        return [copied(each, was) for each, was in zip(value, last, strict=True)]
    return value


def is_writer(run: Run) -> bool:
    """Whether this rank writes: the first of each host, or of all where the folder is shared."""
    return (run.world.rank if run.job.checkpoint.shared else run.world.local_rank) == 0


def agree(run: Run) -> Saved | None:
    """Let all ranks have the newest checkpoint that any host has; None where no host has any.

    Ranks can be one step apart after a fault, and a host may have lost its disk: the highest step
    wins, the lowest rank that has it sends it to all, and hosts that lack it write a copy.
    """
    world, job, own = run.world, run.job, None
    if is_writer(run):
        warning = f"trainer {world.host}: warning: "
        own = checkpoint.newest(run.checkpoints, job, lambda text: complain(warning + text))
    steps = world.gather(own.step if own else NONE)
    if max(steps) == NONE:
        return None
    holder = steps.index(max(steps))
    chosen = Saved(*(world.broadcast(part, holder) for part in own or (b"", b"")))
    if is_writer(run) and chosen != own:
        checkpoint.write(run.checkpoints, chosen, job, job.checkpoint.keep)
    return chosen


def resume(run: Run) -> Progress:
    """Load the newest checkpoint of any host, if there is one, on all ranks."""
    saved = agree(run)
    if saved is None:
        return Progress()
    state, groups = saved.load(), run.optimizer.param_groups
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
    progress = Progress(**state["progress"])
    run.saver.step = progress.step
    return progress


def save(run: Run, progress: Progress, accuracy: float | None = None) -> None:
    """Have a checkpoint written on every host; all ranks must call it at the same step."""
    if run.saver.step == progress.step:
        return
    began, job = time.monotonic(), run.job
    run.world.share_buffers(run.model)
    require_equal(run.world, run.model)
    # The states, uint8, of torch's generators on the CPU and, where this is one, on the GPU.
    rng = {"cpu": torch.get_rng_state()}
    if run.world.device.type == "cuda":
        rng["cuda"] = torch.cuda.get_rng_state(run.world.device)
    ranks = run.world.gather(rng)
    if is_writer(run):
        state: State = {name: part.state_dict() for name, part in run.parts().items()}
        state |= {"progress": vars(progress), "seed": job.train.seed, "rng": ranks}

        def write(state: State) -> None:
            size, labels = run.world.size, run.data.labels
            saved = checkpoint.pack(state, progress, job, size, accuracy, labels)
            path = checkpoint.write(run.checkpoints, saved, job, job.checkpoint.keep)
            if run.world.rank == 0:
                run.live.clear()
                say(f"saved {path.name}")

        run.saver.save(state, write)
    run.saver.step = progress.step
    run.saver.stalls.append(time.monotonic() - began)
