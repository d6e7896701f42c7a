"""The state of a run whose model is divided among its ranks: saved, and resumed at any sizes."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from typing import Any

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
from trainer.checkpoints.format import State
from trainer.checkpoints.newest import Found, is_writer
from trainer.checkpoints.pieces import Joined, cells, pieces_of, place_pieces
from trainer.core.models import build_empty_gpt, grouped_names
from trainer.core.run import Run

FLAT = StateDictOptions(flatten_optimizer_state_dict=True, strict=False)
"""The optimizer's state by the names of parameters, so that stages have nothing in common."""


def named_state(run: Run) -> dict[str, Any]:
    """Return the model's and the optimizer's state by names; tensors share their memory."""
    run.optimizer.zero_grad(set_to_none=True)  # Otherwise the optimizer's state may be missing.
    model = {f"model.{name}": each for name, each in get_model_state_dict(run.model).items()}
    found = get_optimizer_state_dict(run.model, run.optimizer, options=FLAT)
    return model | {f"optimizer.{name}": each for name, each in found.items()}


def set_named_state(run: Run, state: Mapping[str, Any]) -> None:
    """Load what `named_state` has returned, with other values."""

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
    """Return ranks whose parts together are one replica, of those that are on some host."""
    count = cells(parts.own_of(found.saved).way)
    chosen = {rank % count: rank for rank in sorted(found.parts, reverse=True)}
    return [chosen[cell] for cell in sorted(chosen)]


def whole_state(run: Run, state: State) -> State:
    """Return the state of a training that was not divided as the pieces of one rank.

    The optimizer's state has numbers there, in the order of `grouped_names`.
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

    The pieces of one rank after the other pass through the memory of all.
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
