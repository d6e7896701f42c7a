"""The Jinja templates. They are strict: they loop over the plan's fields, and errors have lines."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import jinja2
from jinja2.sandbox import SandboxedEnvironment

from kit.errors import InputError
from kit.plan.types import Placement
from kit.values import count, show_size
from kit.workload.settings import Word
from kit.workload.types import Part
from trainer.contract.words import nearest

_SOURCE = Path(__file__).parents[2] / "templates"
_INSTALLED = Path(__file__).parents[1] / "templates"
BUILT_IN = _INSTALLED if _INSTALLED.is_dir() else _SOURCE
"""The templates: beside the package in a checkout, inside the installed package otherwise."""
LONGEST = 64 * 2**20
"""Characters of one rendered file; 4,000 hosts need a tenth of them."""
# A hyphen before anything but a letter may begin a number or a list in YAML.
_PLAIN = re.compile(r"-{0,2}[A-Za-z/][A-Za-z0-9_./-]*")
# json.dumps escapes control characters below the space; YAML treats these specially too.
_NO_TEXT = re.compile("null|true|false|yes|no|on|off|y|n", re.IGNORECASE)
_UNPRINTABLE = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")


class Templates:
    """The built-in templates, each of which a file in the user's folder may replace.

    `compiled` keeps only the code of built-in templates: code for the sandbox differs.
    """

    def __init__(
        self, override: Path | None = None, compiled: jinja2.BytecodeCache | None = None
    ) -> None:
        self._folders = [BUILT_IN]
        if override is not None:
            _check_override(override)
            self._folders.insert(0, override)
        # The user's templates must not run code or end kit: {{ lipsum.__globals__ … }}.
        kind = jinja2.Environment if override is None else SandboxedEnvironment
        self._environment = kind(
            loader=jinja2.FileSystemLoader(self._folders),
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            keep_trailing_newline=True,
            autoescape=False,
            bytecode_cache=compiled,
            auto_reload=False,  # A host's files come from the same two templates, a thousand times.
        )
        self._environment.filters |= {
            "quoted": quoted,
            "text": text,
            "scalar": scalar,
            "key": key,
            "words": words,
            "docker_size": docker_size,
            "docker_time": docker_time,
            "indented": indented,
            "gpus_line": gpus_line,
            "hosts_line": hosts_line,
            "plain": plain,
            "processes_line": processes_line,
        }

    def render(self, name: str, **context: Any) -> str:
        """Render one template.

        Raises:
            InputError: The template is wrong; the message names file and line.
        """
        try:
            text = self._environment.get_template(name).render(context)
        except jinja2.TemplateSyntaxError as error:
            raise self._wrong(error.name or name, error.lineno, str(error.message)) from None
        except jinja2.TemplateNotFound as error:
            what = f"there is no template {error.name}"
            raise self._wrong(name, self._line(error, name), what) from None
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
        """Return the innermost line of the template in the traceback that Jinja rewrote."""
        file, line = self._file(name), 1
        trace = error.__traceback__
        while trace is not None:
            if trace.tb_frame.f_code.co_filename == file:
                line = trace.tb_lineno
            trace = trace.tb_next
        return line

    def _file(self, name: str) -> str:
        """Return the path of a template, joined in the same way as Jinja does."""
        paths = (f"{folder}/{name}" for folder in self._folders if (folder / name).is_file())
        return next(paths, name)

    def _wrong(self, name: str, line: int, message: str) -> InputError:
        return InputError(
            f"{self._file(name)}:{line}: the template fails: {message}",
            f"compare it with kit's own: {BUILT_IN / name}",
        )


def names() -> list[str]:
    """Return the names of all templates.

    Each is one output file, with braces for names; those that begin with `_` are macros of others.
    """
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
                raise InputError(f"{path}: this is not a file", "write the template there")
    except OSError as error:
        raise InputError(f"{error.filename}: cannot be read: {error.strerror}") from None


def _visible(folder: Path, folders: Collection[Path]) -> Iterator[Path]:
    """Yield the content of these `folders`, without the hidden files of editors and git."""
    for path in sorted(folder.iterdir()):
        if path.name.startswith("."):
            continue
        if path in folders and path.is_dir():
            yield from _visible(path, folders)
        else:
            yield path


def text(value: object) -> str:
    """Return a text as a YAML scalar in double quotes."""
    written = json.dumps(str(value), ensure_ascii=False)
    return _UNPRINTABLE.sub(lambda match: f"\\u{ord(match[0]):04x}", written)


def quoted(value: object) -> str:
    """Return a text as a YAML scalar in double quotes, with `$` doubled for Compose."""
    return text(value).replace("$", "$$")


def scalar(value: str) -> str:
    """Return a variable's value: kit's own words plain, all other texts quoted."""
    return value if isinstance(value, Word) else quoted(value)


def key(name: str) -> str:
    """Return a variable's name, quoted if YAML 1.1 or 1.2 would not read it as text: `N`, `on`."""
    return quoted(name) if _NO_TEXT.fullmatch(name) else name


def words(command: Iterable[str]) -> str:
    """Return the words of a command as the content of a YAML list."""
    return ", ".join(word if _is_plain(word) else quoted(word) for word in command)


def _is_plain(word: str) -> bool:
    """Return whether YAML 1.1 and 1.2 read a word as this text without quotes."""
    return bool(_PLAIN.fullmatch(word)) and not _NO_TEXT.fullmatch(word)


def docker_size(size: int) -> str:
    """Return bytes in Docker's format: `16g`."""
    text = show_size(size)
    return text.removesuffix("iB").lower() if text.endswith("iB") else text.lower()


def indented(text: str, spaces: int) -> str:
    """Indent all lines of a macro's text; Jinja's own filter indents an empty text too."""
    return textwrap.indent(text, " " * spaces)


def hosts_line(part: Part) -> str:
    """Return the hosts of a part as text, shortened if there are many."""
    hosts = [host.name for host in part.hosts]
    shown = ", ".join(hosts) if len(hosts) <= 8 else f"{hosts[0]} … {hosts[-1]}"
    gpus = count(len(part.placements[0].gpus), "GPU")
    line = f"{len(hosts)} × {gpus}: {shown}" if len(hosts) > 1 else shown
    if not part.placements[0].spare:
        return line
    return f"{line}: a spare, which stands by until a host of the job is lost"


def processes_line(placement: Placement) -> str:
    """Return the number of processes as text; their ranks are not known before they run."""
    return "1 process" if placement.processes == 1 else f"{placement.processes} processes"


def docker_time(seconds: int) -> str:
    """Return seconds in Docker's format: `2m`, `30s`."""
    return f"{seconds // 60}m" if seconds >= 60 and seconds % 60 == 0 else f"{seconds}s"


def gpus_line(placement: Placement) -> str:
    """Return the number of GPUs as text."""
    return count(len(placement.gpus), "GPU")


def plain(number: float) -> str:
    """Return a number without an exponent and trailing zeros: `8`, `0.5`."""
    return f"{number:f}".rstrip("0").rstrip(".")
