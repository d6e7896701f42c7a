"""The Python files beside a job or a server that names their functions: read, but not run."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from kit.errors import Fault, FaultsError, Loc, Problem, ProblemsError
from kit.jobs import CodeFile, Job
from kit.yamlfile import read_text
from trainer.contract.own import Reference, is_own, reference
from trainer.contract.words import nearest

LARGEST = 500_000
"""Bytes of a file: older versions of Swarm refuse larger configs."""
IN_THE_IMAGE = "put it into the image, or mount its folder and set PYTHONPATH in `environment:`"


def code_files(job: Job, folder: Path) -> tuple[CodeFile, ...]:
    """Return the files in the folder of a job's code that it names; see `named_files`."""
    if job.train is None:
        return ()
    keys: dict[Loc, str] = {("train", key): getattr(job.train, key) for key in ("dataset", "model")}
    names = {loc: name for loc, name in keys.items() if is_own(name)}
    return named_files(job.name, names, folder, packages=job.package is not None)


def named_files(
    source: str, names: Mapping[Loc, str], folder: Path, *, packages: bool = False
) -> tuple[CodeFile, ...]:
    """Return the files in a folder with functions or classes that the keys of a file name.

    Other modules are in the image, or in `packages` of a folder that is sent with the job.

    Raises:
        FaultsError: A file lacks the function, or is too large; a module is a folder.
        ProblemsError: A file is not Python.
    """
    by_name: dict[str, CodeFile] = {}
    faults: list[Fault] = []
    for loc, name in names.items():
        wanted = reference(name)
        file = folder / f"{wanted.package}.py"
        if file.is_file() and "." not in wanted.module:
            code = _read(file)
            by_name[code.name] = code
            faults += (Fault(source, loc, *each) for each in _faults(code, wanted, file))
        elif not packages and (folder / wanted.package).is_dir():
            what = f"{folder / wanted.package} is a folder: kit sends only files with a job"
            faults.append(Fault(source, loc, what, IN_THE_IMAGE))
    if faults:
        raise FaultsError(faults)
    return tuple(by_name.values())


def _read(file: Path) -> CodeFile:
    return CodeFile(file.name, read_text(file, str(file), ""))


def _faults(code: CodeFile, wanted: Reference, file: Path) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with a file, and its correction."""
    if (size := len(code.text.encode())) > LARGEST:
        yield f"{file} has {size:,} bytes, a file may have {LARGEST:,}", IN_THE_IMAGE
        return
    names = _names(_parsed(code, file))
    if "*" not in names and wanted.function not in names:
        what = f"{file} has no function {wanted.function}"
        yield what, nearest(wanted.function, sorted(names)) if names else "write the function"


def _parsed(code: CodeFile, file: Path) -> ast.Module:
    try:
        return ast.parse(code.text, code.name)
    except SyntaxError as error:
        fix = f"correct it (read as Python {sys.version_info.major}.{sys.version_info.minor})"
        raise ProblemsError([Problem(str(file), error.lineno or 1, "", error.msg, fix)]) from None
    except (ValueError, RecursionError) as error:
        problem = Problem(str(file), 1, "", f"this is not Python: {error}", "correct it")
        raise ProblemsError([problem]) from None


def _names(module: ast.Module) -> set[str]:
    """Return the names that a module may define, wherever they are in it."""
    names = set[str]()
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.alias):
            names.add(node.asname or node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names
