"""The story of kit in a minute, an animated picture of a terminal: `python -m docs.generate.story`.

The commands run for real, on this machine, in a folder of their own. Only the pauses are not real:
a wait is shortened, and output stays long enough to be read.
"""

from __future__ import annotations

import html
import io
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template

from rich.console import Console
from rich.text import Text

from docs.generate.recordings import IMAGES, ROOT, THEME, WIDTH, plain

FILE = IMAGES / "story.svg"
ROWS = 34
"""Lines that the picture shows at a time."""
SECONDS = 60.0
WAIT, READ, TYPE, LAST = 1.0, 0.12, 1.2, 4.0
"""Seconds at most for a real pause, for each line that is read, before a command and at the end."""
PROMPT = "\x1b[32m$\x1b[0m "

FILES = {
    "jobs/digits.yaml": """\
image: registry.lab:5000/trainer:0.2.0
train: {dataset: digits, model: cnn, epochs: 400, batch_size: 32}
checkpoint: {every_epochs: 5}
""",
    "serve/digits.yaml": """\
image: registry.lab:5000/trainer:0.2.0
job: digits                        # the server uses its best checkpoint
port: 8080
""",
}
TRAINS = "until kit status --json | grep -q 'images_per_second.: [0-9]'; do sleep 0.2; done"
SERVES = "until curl -sf http://127.0.0.1:8080/ready; do sleep 0.2; done"
STORY: tuple[tuple[str, str], ...] = (
    ("kit init pool && cd pool", ""),
    ("cat inventory.yaml jobs/digits.yaml serve/digits.yaml   # now with your hosts", ""),
    ("kit plan", ""),
    ("kit render && kit deploy --detach", ""),
    ("kit status", TRAINS),
    ("kit split --infer pc2:1 --yes", ""),
    ("kit render && kit deploy --detach", ""),
    ("curl -s http://127.0.0.1:8080/model | python3 -m json.tool | head -12", SERVES),
    ("kit status", TRAINS),
    ("kit stop --all", ""),
)
"""Commands, and what is waited for before each, which is not shown."""


LINE, TOP = 24.4, 41
"""The height of a line, and of the frame above the first, as rich draws them."""
TEMPLATE = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} $height" role="img">
<desc>$text</desc>
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, Menlo, Consolas, monospace; \
font-size: {char_height}px; line-height: {line_height}px }}
{styles}
@keyframes scroll {{ $scrolls }}
@keyframes cover {{ $covers }}
.scroll {{ animation: scroll ${seconds}s step-end infinite }}
.cover {{ animation: cover ${seconds}s step-end infinite }}
@media (prefers-reduced-motion) {{
.scroll, .cover {{ animation: none }}
.cover {{ display: none }}
}}
</style>
<defs>
<clipPath id="window"><rect width="{terminal_width}" height="$window"/></clipPath>
{lines}
</defs>
<rect fill="#0d1117" width="{width}" height="$height" rx="8"/>
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#window)">
<g class="scroll">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
<rect class="cover" fill="#0d1117" width="{terminal_width}" height="{terminal_height}"/>
</g>
</g>
</svg>
"""
"""For `string.Template`, and then for rich. The cover hides the lines that are still to come."""


@dataclass(frozen=True)
class Line:
    """A line of a terminal, with its colours, and the seconds at which it appears."""

    at: float
    text: str


def main() -> None:
    """Run the story and write its picture."""
    with tempfile.TemporaryDirectory(prefix="kit-story-") as folder:
        shell = _Shell(Path(folder))
        try:
            lines = list(record(shell))
        finally:
            list(shell.run("kit stop --all || true"))
    FILE.write_text(animated(lines), encoding="utf-8")


def record(shell: _Shell) -> Iterator[Line]:
    """Run the commands, and yield what they print, with the times at which a reader sees it."""
    now = 0.0
    for command, before in STORY:
        if before:
            list(shell.run(before))
        now += TYPE
        yield Line(now, f"{PROMPT}{command}")
        printed = 0
        for pause, text in shell.run(command):
            now += min(pause, WAIT)
            printed += 1
            yield Line(now, text)
        now += READ * printed
        if command.startswith("kit init"):
            shell.enter("pool")
    yield Line(now + LAST, "")


class _Shell:
    """A shell that keeps its folder between commands."""

    def __init__(self, folder: Path) -> None:
        self._home, self._place = folder, folder
        path = f"{ROOT / '.venv' / 'bin'}{os.pathsep}{os.environ['PATH']}"
        self._environ = {"PATH": path, "LANG": "C.UTF-8", "HOME": str(folder)}
        self._environ |= {"COLUMNS": str(WIDTH), "FORCE_COLOR": "1", "PYTHONPATH": str(ROOT)}

    def enter(self, name: str) -> None:
        """Change to a folder, with the files as a person would have them now."""
        pool = self._home / name
        shutil.copy(ROOT / "inventory.yaml", pool)
        for name, text in FILES.items():
            (pool / name).parent.mkdir(exist_ok=True)
            (pool / name).write_text(text)
        self._place = pool

    def run(self, command: str) -> Iterator[tuple[float, str]]:
        """Yield the lines that a command prints, each with the seconds since the one before.

        Raises:
            RuntimeError: It has failed.
        """
        process = subprocess.Popen(
            ["timeout", "120", "bash", "-c", command],
            cwd=self._place,
            env=self._environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert process.stdout is not None
        last, text = time.monotonic(), ""
        for line in process.stdout:
            now = time.monotonic()
            # Paths must not name this machine's folders.
            text = line.rstrip("\n").replace(str(self._home), "~")
            yield now - last, text
            last = now
        if process.wait() != 0:
            raise RuntimeError(f"$ {command}: {text}")


def animated(lines: Sequence[Line]) -> str:
    """Draw a terminal that shows each line from its time on, and begins again after the last."""
    screen = Console(record=True, width=WIDTH, file=io.StringIO())
    rows = [(each.at, row) for each in lines[:-1] for row in _folded(screen, each.text)]
    for _, row in rows:
        screen.print(row, soft_wrap=False, overflow="fold")
    shown = {at / lines[-1].at: number for number, (at, _) in enumerate(rows, start=1)}
    text = plain("\n".join(each.text for each in lines))
    code = Template(TEMPLATE).substitute(
        seconds=f"{SECONDS:g}",
        height=f"{TOP + ROWS * LINE + TOP / 4:.0f}",
        window=f"{ROWS * LINE:.1f}",
        scrolls=_keyframes({at: min(0, ROWS - number) for at, number in shown.items()}),
        covers=_keyframes(shown),
        text=html.escape(text).replace("{", "{{").replace("}", "}}"),
    )
    drawn = screen.export_svg(theme=THEME, code_format=code, unique_id="story")
    return re.sub(r"[ \t]+$", "", drawn, flags=re.MULTILINE)


def _folded(screen: Console, text: str) -> Sequence[Text]:
    return list(Text.from_ansi(text).wrap(screen, WIDTH)) or [Text("")]


def _keyframes(moves: dict[float, int]) -> str:
    """Return the moves by so many lines, each at a share of the time."""
    return " ".join(
        f"{share:.3%} {{{{ transform: translateY({lines * LINE:.1f}px) }}}}"
        for share, lines in {0.0: 0, **moves}.items()
    )


if __name__ == "__main__":
    main()
