"""The pages of the documentation, as text: links, headings, blocks, tables.

They are read as a Git server does, without network and without MkDocs, which checks the site in CI.
"""

from __future__ import annotations

import re
from pathlib import Path

from tests.sandbox import ROOT

DOCS = ROOT / "docs"
PAGES = [
    *(ROOT / name for name in ("README.md", "AGENTS.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted(DOCS.rglob("*.md")),
]


def page(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def blocks(path: str, language: str) -> list[str]:
    """Return the fenced blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", page(path), re.MULTILINE | re.DOTALL)


def first_cells(path: str) -> list[str]:
    """Return the first cells of all rows of the page's tables."""
    return re.findall(r"^\| ([^|]+?) \|", page(path), re.MULTILINE)


def prose(text: str) -> str:
    """Return a page without its code, which has no links or headings."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"^ {4}.*$", "", text, flags=re.MULTILINE)


def links(file: Path) -> list[str]:
    text = re.sub(r"`[^`\n]*`", "", prose(file.read_text(encoding="utf-8")))
    return re.findall(r"!?\[[^\]]*\]\(([^)\s]+)\)", text)


def anchors(file: Path) -> set[str]:
    """Return the anchors of a page's headings, as a Git server makes them."""
    headings = re.findall(r"^#+ (.+)$", prose(file.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings}
