"""Imports the modules of custom functions, and reports faults in them by file and line.

KIT_CODE    a file of the job's code; its folder has modules that are not installed
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from trainer.contract.own import reference
from trainer.contract.words import nearest
from trainer.core.job import JobError
from trainer.parallel.halt import HaltError
from trainer.parallel.world import is_lost_peer

ROOTS: set[Path] = set()
"""Folders and files with custom code, from `load_module`."""
LONGEST = 400
"""Maximum length of an exception's message, in characters."""


class CodeError(JobError):
    """A fault in the user's functions; the message begins with file and line.

    `frames` are the calls in the user's files, the newest last.
    """

    def __init__(self, message: str, frames: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.frames = frames


def find(name: str) -> Callable[..., Any]:
    """Return the function `module:function`; raises CodeError."""
    wanted = reference(name)
    module = load_module(wanted.module)
    found = getattr(module, wanted.function, None)
    if found is None:
        fix = nearest(wanted.function, [each for each in vars(module) if not each.startswith("_")])
        raise CodeError(f"{place_of(module)}: it has no function {wanted.function}; {fix}")
    return callable_of(module, wanted.function)


def find_optional(name: str, function: str) -> Callable[..., Any] | None:
    """Return a function beside `name` (`module:function`), if there is one; raises CodeError."""
    module = load_module(reference(name).module)
    return callable_of(module, function) if hasattr(module, function) else None


def callable_of(module: ModuleType, name: str) -> Callable[..., Any]:
    """Return a function of a module; raises CodeError if it is not callable."""
    found = getattr(module, name)
    if not callable(found):
        raise CodeError(f"{place_of(module)}: {name} is no function, but a {kind_of(found)}")
    function: Callable[..., Any] = found
    return function


def load_module(name: str) -> ModuleType:
    """Import a module: a file beside KIT_CODE, or an installed module."""
    if name in sys.modules:
        return sys.modules[name]
    folder = Path(code).absolute().parent if (code := os.environ.get("KIT_CODE")) else None
    if folder:
        sys.dont_write_bytecode = True  # The folder is rendered, and has only kit's files.
    if folder and str(folder) not in sys.path:
        sys.path.append(str(folder))  # Last: the files import each other, and replace no package.
        ROOTS.add(folder)
    file = folder / f"{name}.py" if folder else None
    with blamed(f"the import of {name}"):
        module = _run(name, file) if file and file.is_file() else importlib.import_module(name)
    package = sys.modules[name.partition(".")[0]]
    ROOTS.add(Path(package.__path__[0]) if hasattr(package, "__path__") else file_of(module))
    return module


def _run(name: str, file: Path) -> ModuleType:
    """Import a file, even if a package of the same name is installed."""
    ROOTS.add(file)
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # As `import` does: its classes are looked up by this name.
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def file_of(module: ModuleType) -> Path:
    """Return the file of a module."""
    return Path(module.__file__ or module.__name__)


def shown_path(file: Path) -> str:
    """Return the path of a user's file from the folder of its package."""
    package = next(
        (
            root
            for root in ROOTS
            if root.is_dir() and (root / "__init__.py").exists() and file.is_relative_to(root)
        ),
        file,
    )
    return str(file.relative_to(package.parent))


def place_of(found: object) -> str:
    """Return the place of a module or function as `file:line`, if it is known."""
    if isinstance(found, ModuleType):
        return shown_path(file_of(found))
    code = getattr(found, "__code__", None)
    if code is None:
        return type(found).__name__
    return f"{shown_path(Path(code.co_filename))}:{code.co_firstlineno}"


def kind_of(value: object) -> str:
    """Return the type of a value for a message, with the shape of a tensor."""
    if isinstance(value, torch.Tensor):
        return f"Tensor {list(value.shape)} of {value.dtype}"
    return type(value).__name__


@contextmanager
def blamed(what: str) -> Iterator[None]:
    """Turn an exception of the user's code into a CodeError.

    `what` describes the call, for exceptions without a line of the user's code. Failures of other
    ranks, of a GPU and of its memory are raised unchanged.
    """
    try:
        yield
    except (JobError, HaltError, torch.cuda.OutOfMemoryError):
        raise
    except (Exception, SystemExit) as error:  # sys.exit() would end a server, or a job as complete.
        if isinstance(error, RuntimeError) and (is_lost_peer(error) or "CUDA error" in str(error)):
            raise
        raise blame(error, what) from None


def blame(error: BaseException, what: str) -> CodeError:
    """Describe an exception by the innermost line of the user's code in its traceback."""
    reason = " ".join(f"{type(error).__name__}: {error}".split())[:LONGEST]
    calls = [
        each
        for each in traceback.extract_tb(error.__traceback__)
        if any(Path(each.filename).is_relative_to(root) for root in ROOTS)
    ]
    frames = tuple(
        f"  {shown_path(Path(each.filename))}:{each.lineno}: in {each.name}: {each.line}"
        for each in calls
    )
    if isinstance(error, SyntaxError) and error.filename:
        return CodeError(f"{shown_path(Path(error.filename))}:{error.lineno}: {error.msg}", frames)
    if not calls:
        return CodeError(f"{what}: {reason}")
    last = calls[-1]
    where = f"{shown_path(Path(last.filename))}:{last.lineno}: in {last.name}"
    return CodeError(f"{where}: {reason}", frames)
