"""Pictures of a report, from two real runs: `python -m docs.generate.reports`.

It trains the digits on this machine with one and with three processes, writes the report of both
by kit, and photographs it in Chromium.
"""

from __future__ import annotations

import base64
import shutil
import tempfile
from pathlib import Path

from docs.generate.recordings import IMAGES, ROOT, _run
from tests.trainer.browser import Page, browser

WIDTH = 1120
JOB = """\
image: registry.lab:5000/trainer:0.1.0
train: {dataset: digits, model: cnn, epochs: 10, batch_size: 32, learning_rate: 0.1}
environment: {OMP_NUM_THREADS: "1"} # Otherwise one process would use all cores.
"""
PICTURES = {
    "report": ("#comparison", "#curves .by-epochs figure"),
    "report-predictions": ("#predictions h3", "#predictions .pictures"),
}
"""The parts of the page on each picture: the first and the last element."""


def main() -> None:
    """Train, report and photograph."""
    with tempfile.TemporaryDirectory(prefix="kit-report-") as name:
        folder = Path(name)
        shutil.copy(ROOT / "inventory.yaml", folder)
        (folder / "jobs").mkdir()
        (folder / "jobs" / "one.yaml").write_text(f"{JOB}hosts: {{names: [pc1]}}\n")
        _run(folder, "kit render")
        _run(folder, "kit deploy one --engine local")
        (folder / "jobs" / "one.yaml").unlink()
        (folder / "jobs" / "three.yaml").write_text(JOB)
        _run(folder, "kit render")
        _run(folder, "kit deploy three --engine local")
        print(_run(folder, "kit report one three --engine local --out report.html"))  # noqa: T201
        with browser(folder) as page:
            photograph(page, folder / "report.html")


def photograph(page: Page, report: Path) -> None:
    """Write the pictures of the documentation."""
    page.show(WIDTH, 900)
    page.open(report.as_uri())
    page.until("document.readyState === 'complete' && !!document.querySelector('#details')")
    for name, (first, last) in PICTURES.items():
        script = (
            f"(([a, b]) => [a.top + scrollY - 8, b.bottom + scrollY + 8])"
            f"([{page.box(first)}, {page.box(last)}])"
        )
        top, bottom = page.run(script)
        clip = {"x": 0, "y": top, "width": WIDTH, "height": bottom - top, "scale": 1}
        answer = page.send("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)
        (IMAGES / f"{name}.png").write_bytes(base64.b64decode(answer["data"]))


if __name__ == "__main__":
    main()
