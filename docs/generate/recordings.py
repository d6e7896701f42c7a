"""Pictures of a terminal, from real runs of kit: `python -m docs.generate.recordings`.

The commands run on the example cluster in a folder of their own, so nothing of the user's is
touched. The text of each picture is in its description too, for screen readers and for the test.
"""

from __future__ import annotations

import html
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "docs" / "images"
WIDTH = 104
"""Columns of a picture; longer lines are folded."""

RECORDINGS = {
    "plan": ("kit plan",),
    "split-command": ("kit split --infer pc2:1 --dry-run",),
    "deploy": ("kit render", "kit deploy digits --engine local"),
}

# GitHub Primer's dark palette: a picture with its own ground is legible on any page.
THEME = TerminalTheme(
    (13, 17, 23),
    (240, 246, 252),
    [
        (101, 108, 118),
        (255, 123, 114),
        (63, 185, 80),
        (210, 153, 34),
        (88, 166, 255),
        (188, 140, 255),
        (57, 197, 207),
        (240, 246, 252),
    ],
)
# rich's own format loads fonts from a server on the internet; this one takes the reader's.
FORMAT = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, Menlo, Consolas, monospace; \
font-size: {char_height}px; line-height: {line_height}px }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal"><rect width="{terminal_width}" \
height="{terminal_height}"/></clipPath>
{lines}
</defs>
<rect fill="#0d1117" width="{width}" height="{height}" rx="8"/>
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def main() -> None:
    """Run the commands and write a picture of each."""
    for name, commands in RECORDINGS.items():
        with tempfile.TemporaryDirectory(prefix="kit-recording-") as folder:
            text = picture(name, record(Path(folder), commands))
            (IMAGES / f"{name}.svg").write_text(text, encoding="utf-8")


def record(folder: Path, commands: Sequence[str]) -> str:
    """Return what the last of some commands prints in a copy of the example, with its prompt."""
    shutil.copy(ROOT / "inventory.yaml", folder)
    shutil.copytree(ROOT / "jobs", folder / "jobs", dirs_exist_ok=True)
    printed = ""
    for command in commands:
        printed = _run(folder, command)
    # Seconds of the deploy differ from run to run; paths must not name this machine's folders.
    return f"$ {commands[-1]}\n{printed.replace(str(folder), '~')}"


def _run(folder: Path, command: str) -> str:
    keep = {"PATH", "LANG"}
    environ = {name: value for name, value in os.environ.items() if name in keep}
    done = subprocess.run(
        [sys.executable, "-m", *shlex.split(command)],
        cwd=folder,
        env={**environ, "HOME": str(folder), "COLUMNS": str(WIDTH), "FORCE_COLOR": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=True,
    )
    return done.stdout


def plain(text: str) -> str:
    """Return a recording without its colours and without blanks at the ends of lines."""
    lines = (line.rstrip() for line in Text.from_ansi(text).plain.splitlines())
    return "\n".join(lines).strip()


def picture(name: str, text: str) -> str:
    """Draw what a terminal shows."""
    screen = Console(record=True, width=WIDTH, file=io.StringIO())
    screen.print(Text.from_ansi(text.rstrip()), soft_wrap=False, overflow="fold")
    drawn = screen.export_svg(theme=THEME, code_format=FORMAT, unique_id=f"terminal-{name}")
    drawn = re.sub(r"[ \t]+$", "", drawn, flags=re.MULTILINE)
    description = f"<desc>{html.escape(plain(text))}</desc>"
    return drawn.replace('role="img">', f'role="img">\n{description}', 1)


def description(file: Path) -> str:
    """Return the text that a picture shows."""
    found = re.search(r"<desc>(.*?)</desc>", file.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None, f"{file} has no description"
    return html.unescape(found[1])


if __name__ == "__main__":
    main()
