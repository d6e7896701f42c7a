"""Edits of a YAML file's text in place: all other text stays, including comments. Pure.

The positions are those of the document's nodes.
"""

from __future__ import annotations

import re
from collections import Counter

import yaml

from kit.yamlfile import Document

_BREAK = re.compile(r"\r\n|[\r\n\x85\u2028\u2029]")

Pair = tuple[yaml.Node, yaml.Node]
"""The key and the value of a mapping's entry."""


def without_byte_order_mark(text: str) -> tuple[str, str]:
    """Return the byte order mark of a text, or "", and the rest, which positions count from."""
    mark = text[: text.startswith("\ufeff")]
    return mark, text.removeprefix(mark)


class Editor:
    """Finds places in the text of a document, and collects the edits.

    The document's text is exactly that of the file, with its carriage returns.
    """

    def __init__(self, document: Document) -> None:
        self.document = document
        self.text = document.text
        self._edits: list[tuple[int, int, str]] = []
        self._pairs: dict[int, dict[str, Pair]] = {}
        self._places: Counter[int] | None = None

    def replace(self, start: int, end: int, new: str) -> None:
        """Replace `text[start:end]`."""
        self._edits.append((start, end, new))

    def insert(self, at: int, new: str) -> None:
        """Insert a text at a position, after the texts that are already inserted there."""
        self.replace(at, at, new)

    def edited(self) -> str:
        """Return the text with all edits."""
        parts, end = [], 0
        for start, stop, new in sorted(self._edits, key=lambda edit: edit[:2]):
            parts += [self.text[end:start], new]
            end = stop
        return "".join([*parts, self.text[end:]])

    def pair(self, node: yaml.Node | None, key: str) -> Pair | None:
        """Return an entry of the mapping itself, not of one that it merges."""
        if not isinstance(node, yaml.MappingNode):
            return None
        if id(node) not in self._pairs:  # Thousands of hosts are looked up in one mapping.
            pairs = [pair for pair in node.value if isinstance(pair[0], yaml.ScalarNode)]
            self._pairs[id(node)] = {pair[0].value: pair for pair in reversed(pairs)}
        return self._pairs[id(node)].get(key)

    def value(self, node: yaml.Node | None, key: str) -> yaml.Node | None:
        """Return a value of the mapping itself, not of one that it merges."""
        pair = self.pair(node, key)
        return pair[1] if pair else None

    def is_shared(self, node: yaml.Node) -> bool:
        """Whether a node occurs several times in the document: each alias is an occurrence."""
        if self._places is None:
            self._places = Counter()
            if self.document.root is not None and "*" in self.text:
                self._count(self.document.root, self._places)
        return self._places[id(node)] > 1

    def _count(self, node: yaml.Node, places: Counter[int]) -> None:
        places[id(node)] += 1
        if places[id(node)] > 1:
            return
        if isinstance(node, yaml.MappingNode):
            for pair in node.value:
                for part in pair:
                    self._count(part, places)
        elif isinstance(node, yaml.SequenceNode):
            for item in node.value:
                self._count(item, places)

    def line_end(self, position: int) -> int:
        """Return the end of the line of a position, before its line break."""
        line_break = _BREAK.search(self.text, position)
        return line_break.start() if line_break else len(self.text)

    def ends_line(self, position: int) -> bool:
        """Whether nothing follows in the line of a position."""
        return position == self.line_end(position)

    def newline(self, position: int) -> str:
        """Return the line break for a new line after the line of a position."""
        line_break = _BREAK.search(self.text, position) or _BREAK.search(self.text)
        return "\r\n" if line_break and line_break[0] == "\r\n" else "\n"


def start_of(node: yaml.Node) -> int:
    """Return the position of a node's first character."""
    return int(node.start_mark.index)


def end_of(node: yaml.Node) -> int:
    """Return the end of a node; PyYAML's end of a block is the start of the next token."""
    while isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        last = node.value[-1]
        node = last[1] if isinstance(last, tuple) else last
    return int(node.end_mark.index)


def column_of(node: yaml.MappingNode) -> int:
    """Return the column of a mapping's keys."""
    return int(node.value[0][0].start_mark.column)


def has_aliased_values(node: yaml.MappingNode) -> bool:
    """Whether a value of a mapping is an alias, or merged."""
    return any(
        start_of(value) < start_of(key) or (isinstance(key, yaml.ScalarNode) and key.value == "<<")
        for key, value in node.value
    )
