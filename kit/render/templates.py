"""Jinja, strict and boring: templates loop over the plan's fields, and a slip names its line."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import jinja2
from jinja2.sandbox import SandboxedEnvironment

from kit.errors import InputError
from kit.plan.types import Placement
from kit.values import count, show_size
from kit.workload.types import Part, Word
from trainer.contract.words import nearest

_SOURCE = Path(__file__).parents[2] / "templates"
_INSTALLED = Path(__file__).parents[1] / "templates"
BUILT_IN = _INSTALLED if _INSTALLED.is_dir() else _SOURCE
"""The templates: beside the package in a checkout, inside it where kit is installed."""
LONGEST = 64 * 2**20
"""Characters of one rendered file; that of 4,000 hosts has a tenth of them."""
_PLAIN = re.compile(r"[A-Za-z/-][A-Za-z0-9_./-]*")
# json.dumps escapes what lies below the space; YAML takes these too for line ends or for nothing.
_NO_TEXT = re.compile("null|true|false|yes|no|on|off|y|n", re.IGNORECASE)
_UNPRINTABLE = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")


class Templates:
    """The built-in templates, single ones of them overridden by the files of a folder."""

    def __init__(self, override: Path | None = None) -> None:
        self._folders = [BUILT_IN]
        if override is not None:
            _check_override(override)
            self._folders.insert(0, override)
        # What others wrote may neither run code nor end kit: {{ lipsum.__globals__ … }}.
        kind = jinja2.Environment if override is None else SandboxedEnvironment
        self._environment = kind(
            loader=jinja2.FileSystemLoader(self._folders),
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            keep_trailing_newline=True,
            autoescape=False,
        )
        self._environment.filters |= {
            "quoted": quoted,
            "scalar": scalar,
            "key": key,
            "words": words,
            "docker_size": docker_size,
            "docker_time": docker_time,
            "gpus_line": gpus_line,
            "hosts_line": hosts_line,
            "plain": plain,
            "processes_line": processes_line,
        }

    def render(self, name: str, **context: Any) -> str:
        """Render one template.

        Raises:
            InputError: The template is wrong: which one, in which line.
        """
        try:
            text = self._environment.get_template(name).render(context)
        except jinja2.TemplateSyntaxError as error:
            raise self._wrong(error.name or name, error.lineno, str(error.message)) from None
        except UnicodeDecodeError:
            raise self._wrong(name, 1, "this is not UTF-8 text") from None
        except RecursionError:
            raise self._wrong(name, 1, "it includes itself") from None
        except MemoryError as error:
            raise self._wrong(name, self._line(error, name), "it needs too much memory") from None
        except (
            jinja2.TemplateError,
            TypeError,
            ValueError,
            ArithmeticError,
            AttributeError,
            LookupError,
        ) as error:
            raise self._wrong(name, self._line(error, name), str(error)) from None
        if len(text) > LONGEST:
            raise self._wrong(name, 1, f"its text has {len(text):,} characters")
        return text

    def _line(self, error: Exception, name: str) -> int:
        """Find the innermost line of the template in the traceback that Jinja has rewritten."""
        file, line = self._file(name), 1
        trace = error.__traceback__
        while trace is not None:
            if trace.tb_frame.f_code.co_filename == file:
                line = trace.tb_lineno
            trace = trace.tb_next
        return line

    def _file(self, name: str) -> str:
        """Return the file of a template, joined as Jinja does."""
        found = (f"{folder}/{name}" for folder in self._folders if (folder / name).is_file())
        return next(found, name)

    def _wrong(self, name: str, line: int, message: str) -> InputError:
        return InputError(
            f"{self._file(name)}:{line}: the template fails: {message}",
            f"compare it with kit's own: {BUILT_IN / name}",
        )


def names() -> list[str]:
    """Return the names of all templates: one is one output file, what is in braces filled in."""
    return sorted(path.relative_to(BUILT_IN).as_posix() for path in BUILT_IN.rglob("*.j2"))


def _check_override(folder: Path) -> None:
    known = names()
    folders = {folder / parent for name in known for parent in PurePosixPath(name).parents}
    try:
        if not folder.is_dir():
            raise InputError(
                f"{folder}: there is no such folder of templates",
                f"copy those that you want to change from {BUILT_IN}",
            )
        for path in _visible(folder, folders):
            name = path.relative_to(folder).as_posix()
            if name not in known:
                raise InputError(f"{path}: kit has no template {name}", nearest(name, known))
            if not path.is_file():
                raise InputError(f"{path}: this is no file", "write the template there")
    except OSError as error:
        raise InputError(f"{error.filename}: cannot be read: {error.strerror}") from None


def _visible(folder: Path, folders: Collection[Path]) -> Iterator[Path]:
    """Yield what is in these `folders`, but not what editors and git hide."""
    for path in sorted(folder.iterdir()):
        if path.name.startswith("."):
            continue
        if path in folders and path.is_dir():
            yield from _visible(path, folders)
        else:
            yield path


def quoted(value: object) -> str:
    """Write a text as a YAML scalar in double quotes; `$` is doubled: Compose expands it."""
    text = json.dumps(str(value), ensure_ascii=False).replace("$", "$$")
    return _UNPRINTABLE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def scalar(value: str) -> str:
    """Write a variable's value: kit's own words as they are, what others wrote in quotes."""
    return value if isinstance(value, Word) else quoted(value)


def key(name: str) -> str:
    """Write the name of a variable: some are no text in YAML 1.1 or 1.2, as `N`, `on`, `null`."""
    return quoted(name) if _NO_TEXT.fullmatch(name) else name


def words(command: Iterable[str]) -> str:
    """Write the words of a command as the inside of a YAML list."""
    return ", ".join(word if _PLAIN.fullmatch(word) else quoted(word) for word in command)


def docker_size(size: int) -> str:
    """Write bytes as Docker does: `16g`."""
    text = show_size(size)
    return text.removesuffix("iB").lower() if text.endswith("iB") else text.lower()


def hosts_line(part: Part) -> str:
    """Say which hosts a part runs on, briefly where they are many."""
    hosts = [host.name for host in part.hosts]
    shown = ", ".join(hosts) if len(hosts) <= 8 else f"{hosts[0]} … {hosts[-1]}"
    plural = "GPU" if part.processes == 1 else "GPUs"
    return f"{len(hosts)} × {part.processes} {plural}: {shown}" if len(hosts) > 1 else shown


def processes_line(placement: Placement) -> str:
    """Say how many processes a placement has; their ranks are torchrun's to give."""
    return "1 process" if placement.processes == 1 else f"{placement.processes} processes"


def docker_time(seconds: int) -> str:
    """Write seconds as Docker does: `2m`, `30s`."""
    return f"{seconds // 60}m" if seconds >= 60 and seconds % 60 == 0 else f"{seconds}s"


def gpus_line(placement: Placement) -> str:
    """Say how many GPUs a placement has."""
    return count(placement.processes, "GPU")


def plain(number: float) -> str:
    """Write a number without an exponent and without zeros behind: `8`, `0.5`."""
    return f"{number:f}".rstrip("0").rstrip(".")
