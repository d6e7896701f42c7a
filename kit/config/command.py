"""The words of a command, also as people write them who have started it by hand."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from pathlib import PurePosixPath

from kit.config.fields import wrong

SCRIPT = 'begin with the script, as in `command: [ddp.py, "50"]`'
LAUNCHERS = frozenset({"torchrun", "accelerate", "deepspeed", "horovodrun", "mpirun"})
SHELLS = frozenset({"sh", "bash"})
_PYTHON = re.compile(r"python[0-9.]*")


def words(command: object, example: str) -> object:
    """Convert the numbers of a server's command to text; reject a text, which has no words."""
    if isinstance(command, str):
        raise wrong("is a list of words", f"write {_line(_split(command) or [example])}")
    if isinstance(command, list):
        return [
            str(w) if isinstance(w, (int, float)) and not isinstance(w, bool) else w
            for w in command
        ]
    return command


def script_words(command: object) -> object:
    """Convert the numbers of a job's command to text; reject a text, and suggest its words."""
    if isinstance(command, str) and (script := _script(_split(command))):
        raise wrong("is a list of words", f"write {_line(script)}")
    return words(command, "ddp.py")


def check_script(command: Sequence[str]) -> None:
    """Refuse a command that begins with the program that starts the script: kit does that."""
    if not command[0] or command == ["-m"]:
        raise wrong("names no script", 'write for example `command: [ddp.py, "50"]`')
    program, script = PurePosixPath(command[0]).name, _script(command)
    if command[0].startswith("-") and command[0] != "-m":
        raise wrong(f"the command begins with the option {command[0]}", SCRIPT)
    if program in SHELLS:
        fix = f"{SCRIPT}; `setup:` has lines for a shell"
        raise wrong(f"the command begins with {command[0]}; kit starts Python itself", fix)
    if program in LAUNCHERS or _PYTHON.fullmatch(program):
        fix = f"write {_line(script)}" if script else SCRIPT
        kits = "torchrun" if program in LAUNCHERS else "Python"
        raise wrong(f"the command begins with {command[0]}; kit starts {kits} itself", fix)


def _script(command: Sequence[str]) -> list[str]:
    """Return the words from the script on, behind the program that starts it; [] without one."""
    program = PurePosixPath(command[0]).name if command else ""
    if program not in LAUNCHERS and not _PYTHON.fullmatch(program):
        return list(command)
    for index, word in enumerate(command[1:], 1):
        module = "".join(command[index + 1 : index + 2])
        if word.endswith(".py") or (
            word == "-m" and module and not module.startswith("torch.distributed.")
        ):
            return list(command[index:])
    return []


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:  # A quote is not closed.
        return text.split()


def _line(command: Sequence[str]) -> str:
    return f"`command: {json.dumps(command, ensure_ascii=False)}`"
