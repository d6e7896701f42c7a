"""Which pages are generated, and from what. A test holds the files in docs/ to them.

They are committed: pages that MkDocs alone makes would not exist on a Git server, and reviewers
would not see a changed option.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from docs.generate.codes import troubleshooting_page
from docs.generate.commands import commands_page
from docs.generate.events import events_page
from docs.generate.index import index_page
from docs.generate.metrics import metrics_page
from docs.generate.ports import ports_page
from docs.generate.schemas import schema_page

ROOT = Path(__file__).parents[2]
DECISIONS = ROOT / "docs" / "decisions"
MARK = (
    "<!-- Generated from {source} by `python -m docs.generate`, which `make examples` runs. "
    "Do not edit. -->\n\n"
)


def pages() -> dict[str, str]:
    """Return the generated pages: paths below the repository, and texts."""
    made = {
        "docs/reference/commands.md": ("the commands of kit/commands", commands_page()),
        "docs/reference/events.md": ("trainer/contract/events.py", events_page()),
        "docs/reference/metrics.md": ("trainer/contract/metrics.py", metrics_page()),
        "docs/reference/ports.md": ("the plan of a cluster with every service", ports_page()),
        "docs/decisions/index.md": ("the files of docs/decisions", decisions_page()),
    }
    for what in ("inventory", "job", "server"):
        schema = f"kit/schema/{what}.schema.json"
        made[f"docs/reference/{what}.md"] = (schema, schema_page(what))
    whole = {path: MARK.format(source=source) + text for path, (source, text) in made.items()}
    whole["docs/troubleshooting.md"] = troubleshooting_page()
    index = MARK.format(source="the navigation in mkdocs.yml") + index_page(whole)
    return {**whole, "docs/index.md": index}


def decisions_page() -> str:
    """List the decisions, the newest first."""
    rows = "\n".join(f"| {date} | [{title}]({name}) |" for date, title, name in _decisions())
    return (
        "# Decisions\n\n"
        "These decisions are in force, and readers ask about them. Each file has the status, the "
        "reason, and the alternatives. All other reasons stand in docstrings and comments, beside "
        "the code that they explain.\n\n"
        f"| date | decision |\n| --- | --- |\n{rows}\n"
    )


def _decisions() -> Iterator[tuple[str, str, str]]:
    files = sorted(path for path in DECISIONS.glob("*.md") if path.name != "index.md")
    for path in sorted(files, key=lambda path: path.name[:10], reverse=True):
        title = re.search(r"^# (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
        assert title is not None, f"{path} has no title"
        yield path.name[:10], title[1], path.name
