"""The state of a divided model in pieces, and the state that ranks hold in memory.

The pieces of a divided model can be resumed at any world size. The state in memory is used when
the group of a training has changed.

An all-reduce is not atomic: when a rank is lost, some of the others may have taken a step whose
gradients the rest did not receive. A rank that took it has the gradients of all ranks, including
the lost one. So each state is valid: it has processed a prefix of the job's samples, each once.
The state with the most samples is the best, and the ranks without it get it from one that has
it. States with equal numbers of samples differ if a rank was left out and the others have repeated
its step without it: the newest group in which a rank has agreed on a state distinguishes them.
tests/trainer/interleavings.py tests the orders in which this can happen.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

from trainer.checkpoints import parts
from trainer.checkpoints.format import Progress, State
from trainer.checkpoints.newest import Found, is_writer
from trainer.checkpoints.pieces import Joined, cells, pieces_of, place_pieces
from trainer.core.models import build_empty_gpt, grouped_names
from trainer.core.run import Run
from trainer.record.telemetry import Evaluation

FLAT = StateDictOptions(flatten_optimizer_state_dict=True, strict=False)
"""The optimizer's state by the names of parameters, which differ between stages."""


def named_state(run: Run) -> dict[str, Any]:
    """Return the model's and the optimizer's state by names; tensors share their memory."""
    run.optimizer.zero_grad(set_to_none=True)  # With gradients, its state may be missing.
    model = {f"model.{name}": each for name, each in get_model_state_dict(run.model).items()}
    found = get_optimizer_state_dict(run.model, run.optimizer, options=FLAT)
    return model | {f"optimizer.{name}": each for name, each in found.items()}


def set_named_state(run: Run, state: Mapping[str, Any]) -> None:
    """Load a state of the form that `named_state` returns."""

    def below(prefix: str) -> dict[str, Any]:
        found = {key: each for key, each in state.items() if key.startswith(prefix)}
        return {key.removeprefix(prefix): each for key, each in found.items()}

    set_model_state_dict(run.model, below("model."))
    set_optimizer_state_dict(run.model, run.optimizer, below("optimizer."), options=FLAT)


def saved_pieces(run: Run) -> State:
    """Return this rank's pieces of the model and the optimizer."""
    return pieces_of(named_state(run))


def join(run: Run, contents: Iterator[State]) -> None:
    """Load a state from the pieces of a checkpoint.

    Raises:
        ValueError: They are of another model, or some are missing.
    """
    joined = Joined(named_state(run))
    for content in contents:
        joined.add(content)
    if lacking := joined.lacking:
        raise ValueError(f"nothing has all of {lacking[0]} ({len(lacking)} such values)")
    set_named_state(run, joined.state)


def ranks_of_parts(found: Found) -> list[int]:
    """Return ranks whose parts form one replica, of the parts that some host has."""
    count = cells(parts.own_of(found.saved).way)
    chosen = {rank % count: rank for rank in sorted(found.parts, reverse=True)}
    return [chosen[cell] for cell in sorted(chosen)]


def whole_state(run: Run, state: State) -> State:
    """Return the state of an undivided model as the pieces of one rank.

    Its optimizer's state is keyed by numbers, in the order of `grouped_names`.
    """
    train = run.job.train
    model = build_empty_gpt(train, run.data) if train.model == "gpt" else run.model
    names = [name for group in grouped_names(model, train) for name in group]
    found = {f"model.{name}": each for name, each in state["model"].items()}
    for number, values in state["optimizer"]["state"].items():
        for key, value in values.items():
            found[f"optimizer.state.{names[number]}.{key}"] = value
    return pieces_of(found)


def whole_model(run: Run) -> dict[str, Tensor]:
    """Return the state of the whole model on the CPU, on the ranks that write; all must call it.

    Each rank in turn broadcasts its pieces, so all ranks need memory for one rank's pieces.
    """
    own = saved_as_bytes(pieces_of(get_model_state_dict(run.model)))
    keeps, found = is_writer(run.job, run.world), dict[str, Tensor]()
    for rank in range(cells(run.ranks.way)):
        content = run.world.broadcast(own, rank)
        if keeps:
            pieces = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
            place_pieces(pieces, found)
    return found


def saved_as_bytes(state: State) -> bytes:
    """Return a state as torch.save writes it."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


class Claim(NamedTuple):
    """The position of the state in a rank's memory; all ranks get the state of the highest.

    At an epoch's end the state before the evaluation is higher: all ranks must take part in it.
    """

    samples: int  # Of all epochs.
    generation: int  # Of the last group in which it agreed on a state.
    epoch: int  # Negated.


@dataclass(frozen=True)
class About:
    """The parts of a rank's state besides tensors."""

    claim: Claim
    progress: Progress
    saved: int  # The step of its newest checkpoint.
    run: str
    checkpoint: str | None
    found: Evaluation


def elect(claims: list[Claim | None]) -> int | None:
    """Return the first rank with the highest claim; None if no rank has any."""
    known = [claim for claim in claims if claim]
    return claims.index(max(known)) if known else None


def resume_live(run: Run) -> Progress | None:
    """Give all ranks the state that one of them has in memory; None if none has any.

    All ranks must call it. With local steps the ranks' states differ, and those of lost ranks are
    lost: the newest common state is then a checkpoint.
    """
    known = run.world.gather(describe(run))
    first = elect([about.claim if about else None for about in known])
    chosen = known[first] if first is not None else None
    if first is None or chosen is None:
        return None
    lacks = [about is None or about.claim != chosen.claim for about in known]
    if any(lacks):
        content = run.world.broadcast(pack(run) if run.world.rank == first else b"", first)
        if lacks[run.world.rank]:
            unpack(run, content)
    run.saver.step = chosen.saved
    run.recorder.run = chosen.run
    run.announcer.recall(chosen.checkpoint, chosen.found)
    run.reached.progress, run.reached.generation = chosen.progress, run.world.generation
    run.ranks.share_buffers(run.modules)
    return chosen.progress


def describe(run: Run) -> About | None:
    """Describe the state in this rank's memory, if it has trained."""
    progress, saver = run.reached.progress, run.saver
    if progress is None or not run.ranks.holds_all:
        return None
    samples = progress.epoch * len(run.data.train) + progress.position
    claim = Claim(samples, run.reached.generation, -progress.epoch)
    announcer = run.announcer
    newest = (announcer.checkpoint, announcer.found)
    return About(claim, progress, saver.step, run.recorder.run, *newest)


def pack(run: Run) -> bytes:
    """Serialise this rank's state."""
    state: dict[str, Any] = {name: each.state_dict() for name, each in objects(run).items()}
    content = io.BytesIO()
    torch.save(state | {"own": run.ranks.own(run.modules)}, content)
    return content.getvalue()


def unpack(run: Run, content: bytes) -> None:
    """Restore what another rank has packed."""
    state = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    for name, each in objects(run).items():
        each.load_state_dict(state[name])
    run.ranks.load_own(state["own"], run.modules)


def objects(run: Run) -> dict[str, Any]:
    """The objects that hold the state of the training."""
    return {**run.parts(), **run.steppers}
