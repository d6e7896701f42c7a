"""Runs a page of the documentation: writes its files, and executes its commands in order.

A file is a block of YAML whose first line is a comment with its path. Commands are the indented
lines; other blocks show output.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

STEP = re.compile(
    r"^```yaml\n# (?P<path>\S+\.yaml)\n(?P<text>.*?)^```|^```.*?^```|^    (?P<command>\S[^\n]*)$",
    re.MULTILINE | re.DOTALL,
)
SECONDS = 900


@dataclass(frozen=True)
class File:
    """A file of the reader's project."""

    path: str
    text: str


def steps(page: str) -> Iterator[File | str]:
    """Yield the files and the commands of a page, in order; commands without their comments."""
    for found in STEP.finditer(page):
        if found["path"]:
            yield File(found["path"], found["text"])
        elif found["command"]:
            yield re.sub(r"\s+# .*", "", found["command"])


def walk(
    page: str,
    clone: Path,
    project: Path,
    env: Mapping[str, str],
) -> dict[str, str]:
    """Run the text of a page as its reader would; return what each command has printed.

    It begins in the folder `clone`; its files are in `project`. Commands run one by one; a line
    with `cd` is repeated before those after it.

    Raises:
        RuntimeError: A command has failed; the message has its output.
    """
    printed: dict[str, str] = {}
    state = ""  # What the shell keeps from one command to the next.
    for step in steps(page):
        if isinstance(step, File):
            (project / step.path).write_text(step.text, encoding="utf-8")
            continue
        done = subprocess.run(
            ["bash", "-ec", f"{state}{step}"],
            cwd=clone,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"$ {step}\n{done.stdout}")
        printed[step] = done.stdout
        if "cd " in step:
            state += f"{step}\n"
    return printed
