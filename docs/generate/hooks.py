"""Hooks of MkDocs. Decisions are for people who change kit: the search leaves them out."""

from __future__ import annotations

from typing import Any


def on_page_markdown(markdown: str, page: Any, **_: object) -> str:
    """Leave the decisions out of the search index."""
    if page.file.src_uri.startswith("decisions/"):
        page.meta["search"] = {"exclude": True}
    return markdown
