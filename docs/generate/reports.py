"""Pictures of a report, from two real runs: `python -m docs.generate.reports`.

It runs the page that compares one GPU with three on this machine, with processes for the GPUs and
drawings for CIFAR-10, and photographs the report of both runs in Chromium.
"""

from __future__ import annotations

import base64
import io
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from PIL import Image

from docs.generate.recordings import IMAGES, ROOT, WIDTH, picture
from docs.generate.walk import walk
from tests.ports import free_port
from tests.trainer.browser import Page, browser

PROGRAMS = Path(sys.executable).parent
PAGE = ROOT / "docs" / "start" / "one-or-three.md"
PIXELS = 1120
"""Width of the pictures of the report."""
TERMINAL = "kit report one three"
"""The command whose output is a picture."""
PICTURES = {
    "report": ("#comparison", "#curves .by-epochs figure"),
    "report-mistakes": (
        "#predictions h3:nth-of-type(2)",
        "#predictions .pictures:nth-of-type(2) li:nth-child(14)",
    ),
    "report-predictions": ("#predictions h3", "#predictions .pictures li:nth-child(14)"),
}
"""The parts of the page on each picture: the first and the last element."""
COLOURS = 192
"""Of a picture: fewer make a file that is a third as large."""


def main() -> None:
    """Train, report and photograph."""
    with tempfile.TemporaryDirectory(prefix="kit-report-") as name:
        folder = Path(name)
        printed = run_here(folder)
        text = f"$ {TERMINAL}\n{printed[TERMINAL]}"
        (IMAGES / "comparison.svg").write_text(picture("comparison", text), encoding="utf-8")
        with browser(folder) as page:
            photograph(page, folder / "pool" / "report.html")


def run_here(
    folder: Path, changes: Mapping[str, str] | None = None, programs: Path = PROGRAMS
) -> dict[str, str]:
    """Run the page on this machine, with its project in `folder`; return what commands print.

    The engine, the ports, which others may use, and the paths are adapted; `changes` are more of
    them. `kit` and `python` are in the folder `programs`.
    """
    server, peers, meeting = free_port(), free_port(), free_port()
    own = {
        "$PWD/.venv/bin": str(programs),
        "    .venv/bin": f"    {programs}",
        "../pool": str(folder / "pool"),
        "engine: swarm": "engine: local",
        "data: {cache: 100GiB}": f"data: {{port: {server}, peer_port: {peers}}}",
        "data: [cifar10]": f"data: [cifar10]\nrendezvous: {{port: {meeting}}}",
        **(changes or {}),
    }
    text = PAGE.read_text(encoding="utf-8")
    for before, after in own.items():
        assert before in text, f"{PAGE} does not have: {before}"
        text = text.replace(before, after)
    environ = {name: value for name, value in os.environ.items() if name in {"PATH", "LANG"}}
    # Otherwise one process would use all cores.
    environ |= {"HOME": str(folder), "OMP_NUM_THREADS": "1"}
    environ |= {"COLUMNS": str(WIDTH), "FORCE_COLOR": "1"}
    try:
        return walk(text, ROOT, folder / "pool", environ)
    finally:
        subprocess.run(
            [programs / "kit", "stop", "--all"], cwd=folder / "pool", env=environ, check=False
        )


def photograph(page: Page, report: Path) -> None:
    """Write the pictures of the documentation."""
    page.show(PIXELS, 900)
    page.open(report.as_uri())
    page.until("document.readyState === 'complete' && !!document.querySelector('#details')")
    for name, (first, last) in PICTURES.items():
        script = (
            f"(([a, b]) => [a.top + scrollY - 8, b.bottom + scrollY + 8])"
            f"([{page.box(first)}, {page.box(last)}])"
        )
        top, bottom = page.run(script)
        clip = {"x": 0, "y": top, "width": PIXELS, "height": bottom - top, "scale": 1}
        answer = page.send("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)
        taken = Image.open(io.BytesIO(base64.b64decode(answer["data"]))).convert("RGB")
        small = taken.quantize(COLOURS, dither=Image.Dither.NONE)
        small.save(IMAGES / f"{name}.png", optimize=True)


if __name__ == "__main__":
    main()
