"""Editing of an inventory's text for another engine: all other text stays. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import yaml

from kit.errors import Loc
from kit.yamledit import Editor, end_of, start_of, without_byte_order_mark
from kit.yamlfile import Document


def edited(
    text: str, document: Document, engine: str, section: str, numbered: Iterable[Loc]
) -> str:
    """Return the text with another engine and a new `section` after it.

    The GPUs of the `numbered` sections of hosts are named by index, in place of UUIDs.
    """
    mark, _ = without_byte_order_mark(text)
    editor = Editor(document)
    if pair := editor.pair(document.root, "engine"):
        editor.replace(start_of(pair[1]), end_of(pair[1]), engine)
        at = editor.line_end(end_of(pair[1]))
        editor.insert(at, f"{editor.newline(at)}{section}")
    elif document.root is not None:  # It has the default engine.
        at = start_of(document.root)
        newline = editor.newline(at)
        editor.insert(at, f"engine: {engine}{newline}{section}{newline}")
    for loc in numbered:
        _number_gpus(editor, loc)
    return mark + editor.edited()


def _number_gpus(editor: Editor, loc: Loc) -> None:
    node: yaml.Node | None = editor.document.root
    for key in (*loc, "gpus"):
        node = editor.value(node, str(key))
    if isinstance(node, yaml.SequenceNode):
        for index, gpu in enumerate(node.value):
            if pair := editor.pair(gpu, "uuid"):
                editor.replace(start_of(pair[0]), end_of(pair[1]), f"index: {index}")


def changes_only(before: Any, after: Any, engine: str, numbered: Collection[Loc]) -> bool:
    """Whether two values of the inventory's file differ by the conversion and by nothing else."""
    try:
        return after["engine"] == engine and _rest(before, numbered) == _rest(after, numbered)
    except (AttributeError, LookupError, TypeError):  # It has another structure.
        return False


def _rest(value: Any, numbered: Collection[Loc]) -> dict[str, Any]:
    """Return the inventory without what a conversion changes."""
    hosts = {
        name: {**host, "gpus": None} if ("hosts", name) in numbered else host
        for name, host in value.get("hosts", {}).items()
    }
    return {**value, "engine": None, "kubernetes": None, "hosts": hosts}
