"""The state of a run: saved to a checkpoint, and restored from one."""

from __future__ import annotations

import shutil
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from trainer.checkpoints import format as checkpoints
from trainer.checkpoints import parts
from trainer.checkpoints.format import Progress, State
from trainer.checkpoints.layout import folder_name
from trainer.checkpoints.newest import Found, is_writer, newest_of_all
from trainer.checkpoints.pieces import is_divided
from trainer.core.divided import join, ranks_of_parts, saved_pieces, whole_model, whole_state
from trainer.core.run import Run
from trainer.output import say
from trainer.parallel.halt import HaltError
from trainer.parallel.sharded import all_finite
from trainer.record.telemetry import Evaluation

MERGED = ("optimizer", "scaler", "powersgd")
"""Objects in the ranks' own parts: at another world size, ranks resume from their mean. The shared
part has the state of all other objects."""


@dataclass(frozen=True)
class Resumed:
    """The beginning of a training: new, or from a checkpoint."""

    progress: Progress = field(default_factory=Progress)
    found: Found | None = None


def resume(run: Run) -> Resumed:
    """Load the shared part of the newest checkpoint of any host, if there is one."""
    found = newest_of_all(run.checkpoints, run.job, run.world)
    if found is None:
        return Resumed()
    state = found.saved.load()
    restore(run, state)
    progress = Progress(**state["progress"])
    run.saver.step = progress.step
    run.recorder.run = state.get("run", "")
    run.announcer.know(folder_name(progress.step), found.saved.accuracy)
    return Resumed(progress, found)


def restore(run: Run, state: State) -> None:
    """Restore the shared state."""
    divided = run.job.parallel.used
    load(run, run.parts() if divided else {**run.parts(), **run.steppers}, state)
    if divided and "model" in state and "optimizer" in state:  # The model was not divided before.
        with run.task.loading("the checkpoint"):
            join(run, iter([whole_state(run, state)]))
    if len(state["rng"]) == run.world.size:
        set_random_states(state["rng"][run.world.rank], run.world.device)


def load(run: Run, objects: dict[str, Any], state: State) -> None:
    """Load the state of each object by its name, if `state` has it."""
    groups = run.optimizer.param_groups
    figures = [{key: group[key] for key in group if key != "params"} for group in groups]
    for name, part in objects.items():
        # A job may change its exchange or precision: then some objects have no state.
        if state.get(name):
            with run.task.loading(f"the checkpoint's {name}"):
                part.load_state_dict(state[name])
    # The optimizer's state has the old hyperparameters; those of the job file replace them.
    for group, own in zip(run.optimizer.param_groups, figures, strict=True):
        group.update(own)


def resume_own(run: Run, resumed: Resumed) -> None:
    """Restore each rank's own part; if this is not possible, load the mean of all parts.

    All ranks must call it, and must already have the same model.
    """
    found = resumed.found
    if not found or not (words := parts.own_of(found.saved)).ranks:
        return
    if is_divided(words.way):
        resume_divided(run, found)
        return
    same = words.ranks == tuple(range(run.world.size)) and words.way == run.ranks.way
    state = mean_part(run, found) if not same or found.lacking else own_part(run, found)
    load(run, run.steppers, state)
    run.ranks.load_own(state, run.modules)


def resume_divided(run: Run, found: Found) -> None:
    """Load each rank's piece of the model and the optimizer, at any former world size.

    Raises HaltError on all ranks if no host has a piece.
    """
    words, name = parts.own_of(found.saved), folder_name(found.saved.step)
    if found.lacking:
        ranks = ", ".join(map(str, found.lacking))
        what = f"{name}: no host has the part of rank {ranks}, which has a piece of the model"
        raise HaltError("disk", f"{what}; bring its disk back, or begin again: kit deploy --fresh")
    same = words.ranks == tuple(range(run.world.size)) and words.way == run.ranks.way
    if same and len(found.parts) == run.world.size:
        contents = iter([own_part(run, found)])
    else:
        if run.world.rank == 0:
            before = " x ".join(map(str, words.way[1:]))
            say(f"joins {name}, which was divided by {before} (data, pipeline, shard, tensor)")
        sent = (send_part(run, found, rank) for rank in ranks_of_parts(found))
        contents = map(parts.load_part, sent)
    with run.task.loading(f"the checkpoint {name}"):
        join(run, (content["pieces"] for content in contents))


def own_part(run: Run, found: Found) -> State:
    """Return this rank's part, from any host."""
    content = parts.read_part(run.checkpoints, found.saved, run.world.rank)
    for rank, lacks in enumerate(run.world.gather(content is None)):
        if lacks:
            sent = send_part(run, found, rank)
            content = sent if rank == run.world.rank else content
    return parts.load_part(content or b"")


def mean_part(run: Run, found: Found) -> State:
    """Return the mean of parts on all hosts, the same on all ranks."""
    known = sorted(found.parts)
    some = known[:: -(-len(known) // parts.MOST) or 1]
    loaded = [parts.load_part(send_part(run, found, rank)) for rank in some]
    names = [name for name in MERGED if loaded and name in loaded[0]]
    if run.world.rank == 0:
        had = f"own parts ({', '.join(names)})" if names else "own parts"
        before = len(parts.own_of(found.saved).ranks)
        mean = f"with the mean of the {had} of {len(some)} of {before} ranks"
        say(f"{run.world.size} ranks continue {mean}" if some else f"no host has the ranks' {had}")
    return {name: parts.mean([each[name] for each in loaded]) for name in names}


def send_part(run: Run, found: Found, rank: int) -> bytes:
    """Send a part from a host that has it to all ranks; all must call it."""
    reader, content = found.parts[rank], None
    if run.world.rank == reader:
        content = parts.read_part(run.checkpoints, found.saved, rank)
    return run.world.broadcast(content or b"", reader)


def save(run: Run, progress: Progress, found: Evaluation | None = None) -> None:
    """Start to write a checkpoint on every host; all ranks must call it at the same step."""
    if run.saver.step == progress.step:
        return
    began = time.monotonic()
    # After the collectives below, all ranks know that the previous checkpoint is complete.
    run.saver.wait()
    with run.ranks.settled(run.modules) as own:
        model = run.ranks.require_equal()
        require_finite(run, progress)
        if run.ranks.optimizers_differ:
            own |= {name: part.state_dict() for name, part in run.steppers.items()}
        whole = dict[str, Tensor]()
        if run.job.parallel.used:
            own["pieces"] = saved_pieces(run)
            if progress.epoch == run.job.train.epochs:
                whole = whole_model(run)  # For servers.
        known = run.world.gather((random_states(run.world.device), bool(own)))
        ranks = [rank for rank, (_, has_own) in enumerate(known) if has_own]
        state: State = {"own": own}
        if is_writer(run.job, run.world):
            state |= {name: part.state_dict() for name, part in run.parts().items()}
            state |= {"progress": vars(progress), "seed": run.job.train.seed}
            state |= {"model": whole} if whole else {}
            # Not in the manifest, which stays small: the tokens of GPT-2 take 1.4 MB.
            state |= {"tokenizer": run.data.tokenizer} if run.data.tokenizer else {}
            state |= {"rng": [states for states, _ in known], "run": run.recorder.run}
        if own or is_writer(run.job, run.world):
            words = {"model": model, "ranks": ranks, "way": run.ranks.way}
            run.saver.save(state, lambda state: write(run, state, progress, found, words))
    run.saver.step = progress.step
    run.saver.stalls.append(time.monotonic() - began)
    run.meter.stalled(run.saver.stalls[-1])
    run.recorder.note("saved", progress, stall=run.saver.stalls[-1])


def require_finite(run: Run, progress: Progress) -> None:
    """Raise HaltError on all ranks if a weight is not finite: no later step repairs it."""
    if run.world.sums([not all_finite(run.model.state_dict().values())])[0]:
        what = f"weights are not finite after step {progress.step}, which is not saved"
        fix = "the checkpoints before it are whole: look at the loss, lower train.learning_rate"
        raise HaltError("loss", f"{what}; {fix}")


def random_states(device: torch.device) -> dict[str, Tensor]:
    """The states, uint8, of torch's generators on the CPU and, if it is used, the GPU."""
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def set_random_states(states: dict[str, Tensor], device: torch.device) -> None:
    """Restore the states that `random_states` returned."""
    torch.set_rng_state(states["cpu"])
    if device.type == "cuda" and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"], device)


class NotSavedError(Exception):
    """A checkpoint could not be written; the message has the host, the reason and a remedy."""


def write(
    run: Run, state: State, progress: Progress, found: Evaluation | None, words: dict[str, Any]
) -> None:
    """Write this rank's files of a checkpoint on this host; rank 0 emits the event.

    Raises:
        NotSavedError: The disk refused it.
    """
    try:
        write_files(run, state, progress, found, words)
    except OSError as error:
        what = f"{run.world.host}: {run.checkpoints}: {folder_name(progress.step)} was not saved"
        raise NotSavedError(f"{what} ({error}); {advice(run, state, error)}") from error


def advice(run: Run, state: State, error: OSError) -> str:
    """Return the remedy after an error of the disk."""
    if isinstance(error, FileExistsError | NotADirectoryError):
        return f"a file is in the place of the folder {error.filename}: move it away"
    with suppress(OSError):
        free = shutil.disk_usage(run.checkpoints).free / 1e6
        room = f"{free:.1f} MB are free, it needs {size_of(state) / 1e6:.1f} MB"
        return f"{room}: make room there"
    return "check that folder"


def size_of(value: Any) -> int:
    """The bytes of all tensors in nested values."""
    if isinstance(value, Tensor):
        return value.numel() * value.element_size()
    if isinstance(value, dict):
        return sum(map(size_of, value.values()))
    return sum(map(size_of, value)) if isinstance(value, list) else 0


def write_files(
    run: Run, state: State, progress: Progress, found: Evaluation | None, words: dict[str, Any]
) -> None:
    """Write this rank's files of a checkpoint."""
    job, size, data = run.job, run.world.size, run.data
    if own := state["own"]:
        parts.write_part(run.checkpoints, progress.step, run.world.rank, words["model"], own)
    if not is_writer(job, run.world):
        return
    shared = {name: each for name, each in state.items() if name != "own"}
    accuracy, loss = (found.accuracy, found.loss) if found else (None, None)
    about = (data.labels, data.preparation(), words)
    saved = checkpoints.pack(shared, progress, job, size, accuracy, *about, loss)
    path = checkpoints.write(run.checkpoints, saved, job, job.checkpoint.keep)
    parts.prune_parts(run.checkpoints, progress.step)
    run.meter.saved()
    if run.world.rank == 0:
        run.live.clear()
        say(f"saved {path.name}")
        run.announcer.saved(progress, path.name)
