"""The page: one HTML file without scripts, which loads nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from kit.report.record import Run
from kit.report.run_view import Origin
from kit.report.view import Inventory, view

FOLDER = Path(__file__).parent
LARGEST = 1_000_000
"""Bytes of a page. Pictures are left out until it fits."""
PICTURES = (36, 24, 12, 6, 0)
"""Pictures of each list, in the order of attempts."""


def page(
    runs: Sequence[Run],
    origins: Sequence[Origin],
    inventory: Inventory,
    *,
    cluster: str,
    written: str,
    version: str,
) -> str:
    """Return the page of one run or of several side by side; `written` is its date."""
    environment = Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    template = environment.get_template("page.html.j2")
    about = {"cluster": cluster, "written": written, "version": version, "style": _style()}
    text = ""
    for most in PICTURES:
        values = _with_markup(view(runs, origins, inventory, most))
        text = template.render(page={**values, **about, "sections": _sections(values)})
        if len(text.encode()) <= LARGEST:
            break
    return text


def _style() -> Markup:
    return Markup((FOLDER / "page.css").read_text(encoding="utf-8"))


def _with_markup(values: dict[str, Any]) -> dict[str, Any]:
    """Mark the charts as markup: charts.py has escaped the texts in them."""
    for axis in values["axes"]:
        axis |= {"loss": Markup(axis["loss"]), "accuracy": Markup(axis["accuracy"])}
    values["division"]["chart"] = Markup(values["division"]["chart"])
    for run in values["runs"]:
        run["time_line"] = Markup(run["time_line"])
        for band in run["bands"]:
            band["svg"] = Markup(band["svg"])
    return values


def _sections(values: dict[str, Any]) -> list[tuple[str, str]]:
    sections = [
        ("comparison", "Comparison" if len(values["runs"]) > 1 else "Summary"),
        ("curves", "Loss and accuracy"),
        ("time", "Where the time went"),
        ("events", "Time line"),
        ("ranks", "Ranks"),
    ]
    if values["has_predictions"]:
        sections += [("predictions", "Predictions"), ("confusion", "Confusion")]
    if values["has_classes"]:
        sections.append(("classes", "Classes"))
    if values["has_samples"]:
        sections.append(("texts", "Samples of text"))
    return [*sections, ("details", "What ran")]
