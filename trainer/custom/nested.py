"""Tensors in nested tuples, lists and dicts, for inputs and outputs of custom models."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor


def mapped(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Apply a function to each tensor; keep other values."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, Mapping):
        return {name: mapped(each, change) for name, each in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(mapped(each, change) for each in value))
    if isinstance(value, list | tuple):
        return type(value)(mapped(each, change) for each in value)
    return value


def floated(value: Any) -> Any:
    """Convert floating-point tensors to float32: autocast's outputs have lower precision."""
    return mapped(value, lambda each: each.float() if each.is_floating_point() else each)


def first_tensor(value: Any) -> Tensor:
    """Return the first tensor, whose first dimension is the batch; raises TypeError."""
    if isinstance(value, Tensor):
        return value
    parts = value.values() if isinstance(value, Mapping) else value
    if isinstance(parts, str) or not hasattr(parts, "__iter__"):
        raise TypeError(f"a {type(value).__name__} has no tensor")
    return first_tensor(next(iter(parts)))
