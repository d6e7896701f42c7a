"""The words of a command, and corrections of commands that were copied from a shell."""

from __future__ import annotations

import re
from collections.abc import Sequence

from kit.config.fields import wrong
from kit.config.flow import flow, line
from kit.config.shell import (
    LAUNCHERS,
    PYTHON,
    SHELLS,
    SYNTAX,
    ParsedCommand,
    program,
    read_line,
    read_words,
    separated,
    split,
)
from trainer.contract.script import LAUNCHERS as MODULES
from trainer.contract.script import foreign_start

SCRIPT = 'begin with the script, as in `command: [ddp.py, "50"]`'
SETUP = "`setup: [pip install -r requirements.txt]` has lines for a shell"


def server_words(command: object) -> object:
    """Convert the numbers of a server's command to text; reject a text, which has no words."""
    if isinstance(command, str):
        # Only a shell sets variables and joins commands.
        shell = re.search(r"[|;&<>$`\n]|^\s*\w+=", command)
        words = ["sh", "-c", command] if shell else split(command)
        raise wrong("is a list of words", f"write {line('command', words or ['server'])}")
    return _texts(command)


def script_words(command: object) -> object:
    """Convert the numbers of a job's command to text; reject a text, and suggest its words."""
    if isinstance(command, str):
        words = split(command) or ["ddp.py"]
        raise wrong("is a list of words", _fix(words, read_line(command) or read_words(words)))
    return _texts(command)


def _texts(command: object) -> object:
    if isinstance(command, list):
        return [
            str(w) if isinstance(w, (int, float)) and not isinstance(w, bool) else w
            for w in command
        ]
    return command


def check_script(command: Sequence[str]) -> None:
    """Refuse a command that does not begin with the script: kit starts it."""
    if what := _mistake(command):
        words = separated(command)
        ends = [index for index, word in enumerate(words) if word in SYNTAX]
        alone = (
            ParsedCommand(tuple(words[: ends[0]])) if ends and not foreign_start(words) else None
        )
        raise wrong(what, _fix(words, alone or read_words(words)))


def _mistake(command: Sequence[str]) -> str:
    """Return what is wrong with a command, or ""."""
    if not command[0].strip() or [*command] in (["-m"], ["-m", ""]):
        return "names no script"
    words = separated(command)
    if start := foreign_start(words):
        return _what(start)
    if words != list(command):
        several = next(word for word in command if word not in words)
        return f"{flow(several)} is not one word"
    syntax = [word for word in words if word in SYNTAX]
    return f"no shell reads the command, which has {syntax[0]}" if syntax else ""


def _what(start: str) -> str:
    """Describe the wrong beginning of a command."""
    name = program(start)
    if start.startswith("-m ") and start.removeprefix("-m ") not in MODULES:
        return f"{start.removeprefix('-m ')} is not a module"
    if start.startswith("-") and not start.startswith("-m "):
        return f"the command begins with the option {start}"
    if name in LAUNCHERS or start.startswith("-m ") or name.endswith(".py"):
        return f"the command begins with {start}; kit starts torchrun itself"
    if "." in name and not PYTHON.fullmatch(name):
        return f"{start} is not a Python script; kit starts Python itself"
    return f"the command begins with {start}; kit starts Python itself"


def _fix(words: Sequence[str], meant: ParsedCommand | None) -> str:
    """Return the correction of a command."""
    if meant and not _mistake(meant.command):
        return f"write {meant.lines()}"
    name = program("".join(words[:1]))
    if name.endswith(".ipynb"):
        python = name.replace(".ipynb", ".py")
        return f"run `jupyter nbconvert --to script {name}`, and write {line('command', [python])}"
    scripts = [word for word in words if re.search(r"\.(sh|bash|slurm|sbatch)$", word)]
    if name in SHELLS or scripts:
        what = scripts[0] if scripts else "the shell"
        return f'write what {what} starts, as in `command: [ddp.py, "50"]`; {SETUP}'
    if PYTHON.fullmatch(name) and "-c" in words:
        return f"write the code into a file, and {SCRIPT}"
    return f"{SCRIPT}, or with `-m` and a module"
