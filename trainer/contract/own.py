"""Custom functions, which a job names as `module:function`. Standard library only.

`train.model` names the function that builds the model, `train.dataset` the one that loads the data.
trainer/custom/ has their contract; the modules are in the job's code, or in the image.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from trainer.contract.words import shown

REFERENCE = r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*"
TAKEN = frozenset({"torch", "torchvision", "numpy", "trainer", "kit", *sys.stdlib_module_names})
"""Modules that the trainer itself imports: a file of such a name would replace them."""
Fault = tuple[str, str]


class Reference(NamedTuple):
    """A custom function."""

    module: str
    function: str

    @property
    def package(self) -> str:
        """The first part of the module's name."""
        return self.module.partition(".")[0]


def is_own(name: object) -> bool:
    """Whether a model or a data set is the user's own."""
    return isinstance(name, str) and ":" in name


def reference(name: str) -> Reference:
    """Split `module:function`."""
    module, _, function = name.partition(":")
    return Reference(module, function)


def references(names: Iterable[str]) -> list[Reference]:
    """Return the user's own functions among the names of a model and a data set."""
    return [reference(name) for name in names if is_own(name)]


def reference_fault(name: str, example: str) -> Fault | None:
    """Return the fault in the form of `module:function`; None if it is valid."""
    what = f"{shown(name)} is not a function of a module"
    if ".py:" in name:
        return what, f"leave out the .py, as in `{example}`"
    if not re.fullmatch(REFERENCE, name, flags=re.ASCII):
        return what, f"write for example `{example}`, for a function in mymodel.py"
    if (package := reference(name).package) in TAKEN:
        what = f"a module {package} exists already, and the trainer may need it"
        return what, f"give the file another name, as in `{example}`"
    return None


def options_fault(value: object) -> Fault | None:
    """Return the fault in the options of custom functions; None if they are valid."""
    fix = "write for example `options: {width: 64}`, names with plain values or lists of them"
    if not isinstance(value, Mapping):
        return f"{shown(value)} is not a mapping", fix
    for name, each in value.items():
        if not isinstance(name, str):
            return f"the name {shown(name)} is not a text", fix
        parts = each if isinstance(each, list) else [each]
        if not all(part is None or isinstance(part, str | int | float) for part in parts):
            return f"the value of {name} is no plain value", fix
    return None
