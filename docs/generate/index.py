"""The first page of the site: each page of MkDocs' navigation, with its first sentence."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
INDEX = "index.md"

HEAD = """\
# kit

kit trains one model on the GPUs of several machines, with plain Docker and without Kubernetes. You
describe the machines and the jobs in YAML. kit decides which GPU does what, writes plain Compose
and Swarm files, and deploys them.

![inventory.yaml, jobs and servers become a plan, the plan becomes files in Git, and an \
engine runs the files](images/flow.svg)

You can review the rendered files, commit them, and deploy them without kit. kit has no database,
and no daemon except the optional queue.
"""


def index_page(texts: Mapping[str, str]) -> str:
    """Return the page; `texts` has the generated pages, by their paths."""
    parts = [HEAD]
    for section, pages in _sections():
        parts.append(f"## {section}\n")
        parts.append("\n".join(_line(path, texts) for path in pages) + "\n")
    return "\n".join(parts)


def _sections() -> Iterator[tuple[str, list[str]]]:
    """Yield the sections of the navigation, and the paths of their pages below docs/."""
    navigation = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    for entry in navigation:
        ((section, pages),) = entry.items()
        if pages != INDEX:
            yield section, [_path(page) for page in pages]


def _path(page: str | Mapping[str, Any]) -> str:
    return page if isinstance(page, str) else str(next(iter(page.values())))


def _line(path: str, texts: Mapping[str, str]) -> str:
    text = texts.get(f"docs/{path}") or (ROOT / "docs" / path).read_text(encoding="utf-8")
    found = re.search(r"^# (.+)\n\n((?:[^#|`\n ].*\n|`(?!``).*\n)+)", text, re.MULTILINE)
    assert found is not None, f"{path} does not begin with a title and a sentence"
    title, paragraph = found.groups()
    words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(paragraph.split()))
    return f"- [{title}]({path}): {re.split(r'[.:]?$|[.] ', words)[0]}."
