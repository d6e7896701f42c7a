"""The reference of the files that people write, from their JSON Schemas."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kit.values import show_size, show_speed

SCHEMAS = Path(__file__).parents[2] / "kit" / "schema"

HEADS = {
    "inventory": (
        "Inventory",
        "`inventory.yaml` describes the machines of one cluster. `kit schema inventory` prints the "
        "JSON Schema of this page, which editors use to complete and check the file.",
    ),
    "job": (
        "Job",
        "`jobs/<name>.yaml` describes one job; the name of the file is the name of the job. "
        "`kit schema job` prints the JSON Schema of this page. kit refuses a key that has no "
        "effect beside the other keys.",
    ),
    "server": (
        "Server",
        "`serve/<name>.yaml` describes one inference server. `kit schema server` prints the JSON "
        "Schema of this page. Another page describes [the HTTP interface](server-api.md).",
    ),
}

Schema = Mapping[str, Any]


def schema_page(what: str) -> str:
    """Return the page of one kind of file."""
    schema = json.loads((SCHEMAS / f"{what}.schema.json").read_text(encoding="utf-8"))
    title, intro = HEADS[what]
    parts = [f"# {title}\n", f"{intro}\n"]
    headings = dict(_sections(schema))
    for name, heading in headings.items():
        section = schema["$defs"][name] if name else schema
        parts.append(f"## {heading}\n")
        parts.append(f"{_sentence(section['description'])}\n")
        parts.append(_Table(headings).of(section))
    return "\n".join(parts)


def _sections(schema: Schema) -> Iterator[tuple[str, str]]:
    """Yield the name of each section's definition and its heading: the place in the file.

    They come in the order in which keys name them; the whole file comes first, without a name.
    """
    definitions = schema.get("$defs", {})
    seen: set[str] = set()

    def below(name: str, place: str, section: Schema) -> Iterator[tuple[str, str]]:
        yield name, place or "Top level"
        for key, value in section["properties"].items():
            shapes = list(_references(value))
            for name, suffix in shapes:
                if name not in seen:
                    seen.add(name)
                    # Sections that exclude each other are told apart by the key that they need.
                    needed = definitions[name].get("required", [""])[0]
                    which = f" with {needed}" if len(shapes) > 1 else ""
                    path = f"{place}.{key}{suffix}".lstrip(".")
                    yield from below(name, f"{path}{which}", definitions[name])

    yield from below("", "", schema)


def _references(value: Schema, suffix: str = "") -> Iterator[tuple[str, str]]:
    """Yield the sections that a value may be, and how they are reached: a list, or a mapping."""
    if "$ref" in value:
        yield value["$ref"].rpartition("/")[2], suffix
    for each in (*value.get("anyOf", ()), *value.get("oneOf", ())):
        yield from _references(each, suffix)
    if isinstance(value.get("items"), dict):
        yield from _references(value["items"], f"{suffix}[]")
    if isinstance(value.get("additionalProperties"), dict):
        yield from _references(value["additionalProperties"], f"{suffix}.NAME")


class _Table:
    """The table of a section's keys; `headings` are those of the page's sections, by definition."""

    def __init__(self, headings: Mapping[str, str]) -> None:
        self._headings = headings

    def of(self, section: Schema) -> str:
        """Write a row for each key."""
        rows = ["| key | value | default | meaning |", "| --- | --- | --- | --- |"]
        required = section.get("required", ())
        for key, value in section["properties"].items():
            default = "required" if key in required else _default(value)
            meaning = _sentence(value.get("description", ""))
            examples = value.get("examples", ())
            if examples and default in ("", "required"):
                meaning = f"{meaning} Example: `{_flow(examples[0], value)}`".strip()
            rows.append(f"| `{key}` | {self._kind(value)} | {default} | {meaning} |")
        return "\n".join(rows) + "\n"

    def _kind(self, value: Schema) -> str:
        """Say in words which values are allowed."""
        if "$ref" in value:
            heading = self._headings[value["$ref"].rpartition("/")[2]]
            _, apart, needed = heading.partition(" with ")
            return f"[section{apart}{needed}](#{anchor(heading)})"
        options = [each for each in _options(value) if each.get("type") != "null"]
        if len(options) != 1 or options[0] is not value:
            return " or ".join(dict.fromkeys(self._kind(each) for each in options))
        if "enum" in value:
            return ", ".join(f"`{each}`" for each in value["enum"])
        if "const" in value:
            return f"`{value['const']}`"
        if value["type"] == "array":
            inner = self._kind(value["items"])
            return {"text": "list of texts"}.get(inner, f"list: {inner}")
        if value["type"] == "object":
            inner = value["additionalProperties"]
            return f"mapping: {self._kind(inner)}"
        if value["type"] in ("integer", "number"):
            return _bounded(value)
        return _text(value) if value["type"] == "string" else _plain(value["type"])


def anchor(heading: str) -> str:
    """Return the anchor that a Git server and MkDocs give a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _options(value: Schema) -> list[Schema]:
    return [*value.get("anyOf", ()), *value.get("oneOf", ())] or [value]


def _plain(kind: str | list[str]) -> str:
    if isinstance(kind, list):
        return " or ".join(_plain(each) for each in kind)
    return {"string": "text", "boolean": "`true`, `false`"}.get(kind, kind)


def _bounded(value: Schema) -> str:
    least, most = value.get("minimum"), value.get("maximum")
    words = [value["type"]]
    if least is not None and most is not None:
        words.append(f"{least:g} to {most:,}")
    elif least is not None:
        words.append(f"{least:g} or more")
    if "exclusiveMinimum" in value:
        words.append(f"above {value['exclusiveMinimum']:g}")
    if "exclusiveMaximum" in value:
        words.append(f"below {value['exclusiveMaximum']:,}")
    return ", ".join(words)


UNITS = {
    "GiB": ("size", show_size),
    "Gbit": ("speed", show_speed),
    "[smh]": ("duration", None),
    "torchvision/": ("`torchvision/NAME`", None),
    ":[A-Za-z_]": ("`MODULE:FUNCTION`", None),
}
"""What a pattern's unit, or beginning, says of a text."""


def _text(value: Schema) -> str:
    pattern = value.get("pattern", "")
    return next((kind for unit, (kind, _) in UNITS.items() if unit in pattern), "text")


def _default(value: Schema) -> str:
    default = value.get("default")
    if default is None or isinstance(default, dict) or default == []:
        return ""  # A section's own keys say theirs.
    return f"`{_shown(default, value)}`"


def _shown(default: Any, value: Schema) -> str:
    """Write a default as a person writes it in the file: sizes with their unit."""
    if isinstance(default, int) and not isinstance(default, bool):
        for each in _options(value):
            for unit, (_, show) in UNITS.items():
                if unit in each.get("pattern", ""):
                    return show(default).replace(" ", "") if show else f"{default}s"
    return _flow(default, value)


def _flow(content: Any, value: Schema) -> str:
    """Write a value as YAML's flow style, on one line."""
    if isinstance(content, dict):
        return f"{{{', '.join(f'{key}: {_flow(each, value)}' for key, each in content.items())}}}"
    if isinstance(content, list):
        return f"[{', '.join(_flow(each, value) for each in content)}]"
    if isinstance(content, bool) or content is None:
        return {True: "true", False: "false", None: "null"}[content]
    if isinstance(content, float):
        return f"{content:g}"
    quoted = isinstance(content, str) and (content.isdecimal() or not content)
    return f'"{content}"' if quoted else str(content)


def _sentence(text: str) -> str:
    text = text.strip()
    return text if not text or text.endswith((".", "?", "!")) else f"{text}."
