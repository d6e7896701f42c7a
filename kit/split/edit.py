"""Editing of `use` in the inventory's text. Everything else, including comments, stays.

The positions of PyYAML's nodes give the places. Moving a GPU back restores the earlier bytes: `use`
is removed if kit could have written it, and set to `training` otherwise, so that no record of the
earlier text is needed. Only a `use: training` that somebody wrote at the end of an entry is lost.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from kit.errors import INVENTORY, Fault, FaultsError, Loc
from kit.model import Use
from kit.split.sections import Split
from kit.yamlfile import Document, parse

_BREAK = re.compile(r"\r\n|[\r\n\x85\u2028\u2029]")
_DEFAULT = Use.TRAINING
_Pair = tuple[yaml.Node, yaml.Node]


@dataclass(frozen=True, slots=True)
class _Edit:
    """The replacement of `text[start:end]`."""

    start: int
    end: int
    new: str


def edited(text: str, file: str, split: Split, known: Document | None = None) -> str:
    """Return the text of the inventory after the split.

    `text` is the exact content of the file, including carriage returns. `known` is its document, if
    it was parsed before from the same text.

    Raises:
        FaultsError: The text is shared by several places through an anchor or a merge.
    """
    # PyYAML's positions ignore a byte order mark.
    mark = text[: text.startswith("\ufeff")]
    plain = text.removeprefix(mark)
    document = known if known and known.text == plain else parse(plain, file)
    return mark + _Editor(plain, document).apply(split)


def changes_only(before: Any, after: Any, split: Split) -> bool:
    """Whether two values of the inventory's file differ by the split and by nothing else."""
    uses: dict[str, dict[str, Use]] = {}
    for (section, gpu), use in split.items():
        uses.setdefault(section, {})[gpu] = use
    try:
        wanted = {section: _uses(before, section, changed) for section, changed in uses.items()}
        found = {section: _uses(after, section, {}) for section in uses}
        return wanted == found and _without(before, uses) == _without(after, uses)
    except (AttributeError, LookupError, TypeError, ValueError):  # It has another structure.
        return False


def _uses(value: Any, section: str, changed: dict[str, Use]) -> list[dict[str, Any]]:
    """Return the GPUs of a section, as a list with a `use` in each entry."""
    gpus = value["hosts"][section]["gpus"]
    entries = [{"index": index} for index in range(gpus)] if isinstance(gpus, int) else gpus
    listed = [{"use": _DEFAULT, **entry} for entry in entries]
    for entry in listed:
        entry["use"] = changed.get(_id(entry), Use(entry["use"]))
    return listed


def _without(value: Any, sections: Collection[str]) -> dict[str, Any]:
    """Return the inventory without the GPUs of these sections."""
    hosts = {
        name: {**host, "gpus": None} if name in sections else host
        for name, host in value["hosts"].items()
    }
    return {**value, "hosts": hosts}


def _id(entry: dict[str, Any]) -> str:
    return str(entry.get("uuid") or entry.get("index"))


class _Editor:
    """Finds the places to edit in one text."""

    def __init__(self, text: str, document: Document) -> None:
        self._text = text
        self._document = document
        self._places: Counter[int] = Counter()
        self._pairs: dict[int, dict[str, _Pair]] = {}
        if document.root is not None and "*" in text:  # Without an alias nothing is shared.
            self._count(document.root)

    def apply(self, split: Split) -> str:
        by_section: dict[str, dict[str, Use]] = {}
        for (section, gpu), use in split.items():
            by_section.setdefault(section, {})[gpu] = use
        edits: list[_Edit] = []
        for section, uses in by_section.items():
            edits += self._section(section, uses)
        parts, end = [], 0
        for edit in sorted(edits, key=lambda each: each.start):
            parts += [self._text[end : edit.start], edit.new]
            end = edit.end
        return "".join([*parts, self._text[end:]])

    def _count(self, node: yaml.Node) -> None:
        """Count the places of a node: an alias is another place of the same node."""
        self._places[id(node)] += 1
        if self._places[id(node)] > 1:
            return
        if isinstance(node, yaml.MappingNode):
            for pair in node.value:
                for part in pair:
                    self._count(part)
        elif isinstance(node, yaml.SequenceNode):
            for item in node.value:
                self._count(item)

    def _shared(self, node: yaml.Node) -> bool:
        return self._places[id(node)] > 1

    def _own(self, node: yaml.Node | None, key: str) -> _Pair | None:
        """Return a pair of the mapping itself, not of a merged one."""
        if not isinstance(node, yaml.MappingNode):
            return None
        if id(node) not in self._pairs:  # Thousands of hosts are looked up in one mapping.
            pairs = [pair for pair in node.value if isinstance(pair[0], yaml.ScalarNode)]
            self._pairs[id(node)] = {pair[0].value: pair for pair in reversed(pairs)}
        return self._pairs[id(node)].get(key)

    def _section(self, section: str, uses: dict[str, Use]) -> list[_Edit]:
        loc: Loc = ()
        node = self._document.root
        for key in ("hosts", section, "gpus"):
            loc += (key,)
            pair = self._own(node, key)
            if pair is None or any(map(self._shared, pair)):
                raise self._several(section, loc)
            node = pair[1]
        value = self._document.value["hosts"][section]["gpus"]
        if isinstance(node, yaml.ScalarNode):
            if not self._ends_in(node, str(value)):
                fix = f"write {value}, so that the split can be undone"
                raise FaultsError([Fault(INVENTORY, loc, "a split replaces this number", fix)])
            return [self._listed(node, [_DEFAULT] * value, uses)]
        assert isinstance(node, yaml.SequenceNode)
        before = [Use(each.get("use", _DEFAULT)) for each in value]
        if any(use is not _DEFAULT for use in before) and self._ends_in(node, _by_index(before)):
            return [self._listed(node, before, uses)]
        edits = []
        for position, (entry, each) in enumerate(zip(node.value, value, strict=True)):
            use = uses.get(_id(each))
            if use is not None:
                edits.append(self._entry(entry, each, use, section, (*loc, position)))
        return edits

    def _ends_in(self, node: yaml.Node, words: str) -> bool:
        """Whether a value is written with these words, maybe behind an anchor."""
        start, end = _span(node)
        written = self._text[start:end]
        return written == words or written.endswith(f" {words}")

    def _listed(self, node: yaml.Node, before: Sequence[Use], uses: dict[str, Use]) -> _Edit:
        """Return the GPUs of a host without UUIDs: a number if all are for training, or a list."""
        after = [uses.get(str(index), use) for index, use in enumerate(before)]
        words = [
            str(len(each)) if all(use is _DEFAULT for use in each) else _by_index(each)
            for each in (before, after)
        ]
        end = _span(node)[1]
        return _Edit(end - len(words[0]), end, words[1])

    def _entry(
        self, node: yaml.Node, value: dict[str, Any], use: Use, section: str, loc: Loc
    ) -> _Edit:
        pair = self._own(node, "use")
        inherited = pair is None and "use" in value
        if inherited or self._shared(node) or any(map(self._shared, pair or ())):
            raise self._several(section, (*loc, "use"))
        place = self._place(node)
        if place is None:
            what = "there is no line in this entry that `use` could be added to"
            fix = f"write it as `- {{uuid: …, use: {use}}}`"
            raise FaultsError([Fault(INVENTORY, loc, what, fix)])
        if pair is None:
            at, new = self._addition(*place, use)
            return _Edit(at, at, new)
        start, end = _span(pair[1])
        if use is _DEFAULT:
            at, old = self._addition(*place, Use(value["use"]))
            if at < start and at + len(old) == end and self._text[at:end] == old:
                own_line = place[0].flow_style or _BREAK.match(self._text, end)
                if own_line or end == len(self._text):
                    return _Edit(at, end, "")
        style = pair[1].style if isinstance(pair[1], yaml.ScalarNode) else None
        quote = style if style in {'"', "'"} else ""
        # Keep a tag or an anchor before the value.
        written = f"{quote}{value['use']}{quote}"
        if self._text[start:end].endswith(written):
            start = end - len(written)
        return _Edit(start, end, f"{quote}{use}{quote}")

    def _place(
        self, node: yaml.Node
    ) -> tuple[yaml.MappingNode, yaml.ScalarNode, yaml.ScalarNode] | None:
        """Return the entry, and its last pair after which `use` can be added."""
        if not isinstance(node, yaml.MappingNode):
            return None
        for key, value in reversed(node.value):
            scalar = isinstance(value, yaml.ScalarNode) and value.style not in {"|", ">"}
            if key.value != "use" and scalar and not self._shared(value):
                return node, key, value
        return None

    def _addition(
        self, node: yaml.MappingNode, key: yaml.ScalarNode, value: yaml.ScalarNode, use: Use
    ) -> tuple[int, str]:
        """Return the position and the text of a new `use` after a pair."""
        end = _span(value)[1]
        if node.flow_style:
            # Keep a JSON file valid.
            words = f'"use": "{use}"' if key.style == '"' else f"use: {use}"
            return end, f", {words}"
        found = _BREAK.search(self._text, end)
        line_end = found.start() if found else len(self._text)
        first = found or _BREAK.search(self._text)
        newline = first[0] if first and first[0] == "\r\n" else "\n"
        indent = " " * node.value[0][0].start_mark.column
        return line_end, f"{newline}{indent}use: {use}"

    def _several(self, section: str, loc: Loc) -> FaultsError:
        what = (
            "several places share this text (an anchor, an alias or a merge), so a change "
            "would affect all of them"
        )
        fix = f"write the GPUs of {section} out, then split again"
        return FaultsError([Fault(INVENTORY, loc, what, fix)])


def _span(node: yaml.Node) -> tuple[int, int]:
    return node.start_mark.index, node.end_mark.index


def _by_index(uses: Sequence[Use]) -> str:
    """Return the list that replaces a number.

    `use` comes first, where people hardly write it and other edits never do: so the list is known
    again, and becomes the number when all are for training. A list of somebody's own stays one.
    """
    entries = (
        f"{{index: {index}}}" if use is _DEFAULT else f"{{use: {use}, index: {index}}}"
        for index, use in enumerate(uses)
    )
    return f"[{', '.join(entries)}]"
