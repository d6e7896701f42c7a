"""Editing of `use` in the inventory's text. Everything else, including comments, stays.

Moving a GPU back restores the earlier bytes: `use` is removed if kit could have written it, and set
to `training` otherwise, so that no record of the earlier text is needed. Only a `use: training`
that somebody wrote at the end of an entry is lost.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import yaml

from kit.errors import INVENTORY, Fault, FaultsError, Loc
from kit.model import Use
from kit.split.sections import Split
from kit.yamledit import Editor, column_of, end_of, start_of, without_byte_order_mark
from kit.yamlfile import Document, parse

_DEFAULT = Use.TRAINING


def edited(text: str, file: str, split: Split, known: Document | None = None) -> str:
    """Return the text of the inventory after the split.

    `text` is the exact content of the file, including carriage returns. `known` is its document, if
    it was parsed before from the same text.

    Raises:
        FaultsError: The text is shared by several places through an anchor or a merge.
    """
    mark, plain = without_byte_order_mark(text)
    document = known if known and known.text == plain else parse(plain, file)
    return mark + _SplitEditor(document).apply(split)


def changes_only(before: Any, after: Any, split: Split) -> bool:
    """Whether two values of the inventory's file differ by the split and by nothing else."""
    uses: dict[str, dict[str, Use]] = {}
    for (section, gpu), use in split.items():
        uses.setdefault(section, {})[gpu] = use
    try:
        wanted = {section: _uses(before, section, changed) for section, changed in uses.items()}
        written = {section: _uses(after, section, {}) for section in uses}
        return wanted == written and _without(before, uses) == _without(after, uses)
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


class _SplitEditor:
    """Writes the uses of GPUs into one text."""

    def __init__(self, document: Document) -> None:
        self._editor = Editor(document)

    def apply(self, split: Split) -> str:
        by_section: dict[str, dict[str, Use]] = {}
        for (section, gpu), use in split.items():
            by_section.setdefault(section, {})[gpu] = use
        for section, uses in by_section.items():
            self._section(section, uses)
        return self._editor.edited()

    def _section(self, section: str, uses: dict[str, Use]) -> None:
        loc: Loc = ()
        node = self._editor.document.root
        for key in ("hosts", section, "gpus"):
            loc += (key,)
            pair = self._editor.pair(node, key)
            if pair is None or any(map(self._editor.is_shared, pair)):
                raise _shared_text(section, loc)
            node = pair[1]
        value = self._editor.document.value["hosts"][section]["gpus"]
        if isinstance(node, yaml.ScalarNode):
            if not self._ends_in(node, str(value)):
                fix = f"write {value}, so that the split can be undone"
                raise FaultsError([Fault(INVENTORY, loc, "a split replaces this number", fix)])
            self._replace_list(node, [_DEFAULT] * value, uses)
            return
        assert isinstance(node, yaml.SequenceNode)
        before = [Use(each.get("use", _DEFAULT)) for each in value]
        if any(use is not _DEFAULT for use in before) and self._ends_in(node, _by_index(before)):
            self._replace_list(node, before, uses)
            return
        for position, (entry, each) in enumerate(zip(node.value, value, strict=True)):
            use = uses.get(_id(each))
            if use is not None:
                self._entry(entry, each, use, section, (*loc, position))

    def _ends_in(self, node: yaml.Node, words: str) -> bool:
        """Whether a value is written with these words, maybe behind an anchor."""
        written = self._editor.text[start_of(node) : end_of(node)]
        return written == words or written.endswith(f" {words}")

    def _replace_list(self, node: yaml.Node, before: Sequence[Use], uses: dict[str, Use]) -> None:
        """Write the GPUs of a host without UUIDs: a number if all are for training, or a list."""
        after = [uses.get(str(index), use) for index, use in enumerate(before)]
        old, new = (
            str(len(each)) if all(use is _DEFAULT for use in each) else _by_index(each)
            for each in (before, after)
        )
        end = end_of(node)
        self._editor.replace(end - len(old), end, new)

    def _entry(
        self, node: yaml.Node, value: dict[str, Any], use: Use, section: str, loc: Loc
    ) -> None:
        editor = self._editor
        pair = editor.pair(node, "use")
        inherited = pair is None and "use" in value
        if inherited or editor.is_shared(node) or any(map(editor.is_shared, pair or ())):
            raise _shared_text(section, (*loc, "use"))
        place = self._place(node)
        if place is None:
            what = "there is no line in this entry that `use` could be added to"
            fix = f"write it as `- {{uuid: …, use: {use}}}`"
            raise FaultsError([Fault(INVENTORY, loc, what, fix)])
        if pair is None:
            editor.insert(*self._addition(*place, use))
            return
        start, end = start_of(pair[1]), end_of(pair[1])
        if use is _DEFAULT:
            at, old = self._addition(*place, Use(value["use"]))
            written_by_kit = at < start and editor.text[at:end] == old
            if written_by_kit and (place[0].flow_style or editor.ends_line(end)):
                editor.replace(at, end, "")
                return
        style = pair[1].style if isinstance(pair[1], yaml.ScalarNode) else None
        quote = style if style in {'"', "'"} else ""
        # Keep a tag or an anchor before the value.
        written = f"{quote}{value['use']}{quote}"
        if editor.text[start:end].endswith(written):
            start = end - len(written)
        editor.replace(start, end, f"{quote}{use}{quote}")

    def _place(
        self, node: yaml.Node
    ) -> tuple[yaml.MappingNode, yaml.ScalarNode, yaml.ScalarNode] | None:
        """Return the entry, and its last pair after which `use` can be added."""
        if not isinstance(node, yaml.MappingNode):
            return None
        for key, value in reversed(node.value):
            scalar = isinstance(value, yaml.ScalarNode) and value.style not in {"|", ">"}
            if key.value != "use" and scalar and not self._editor.is_shared(value):
                return node, key, value
        return None

    def _addition(
        self, node: yaml.MappingNode, key: yaml.ScalarNode, value: yaml.ScalarNode, use: Use
    ) -> tuple[int, str]:
        """Return the position and the text of a new `use` after a pair."""
        end = end_of(value)
        if node.flow_style:
            # Keep a JSON file valid.
            words = f'"use": "{use}"' if key.style == '"' else f"use: {use}"
            return end, f", {words}"
        indent = " " * column_of(node)
        return self._editor.line_end(end), f"{self._editor.newline(end)}{indent}use: {use}"


def _shared_text(section: str, loc: Loc) -> FaultsError:
    what = (
        "several places share this text (an anchor, an alias or a merge), so a change "
        "would affect all of them"
    )
    fix = f"write the GPUs of {section} out, then split again"
    return FaultsError([Fault(INVENTORY, loc, what, fix)])


def _by_index(uses: Sequence[Use]) -> str:
    """Return the list that replaces a number.

    `use` comes first, where people hardly write it and other edits never do. A later split thus
    recognizes the list, and restores the number when all GPUs are for training. A list that a
    person wrote stays.
    """
    entries = (
        f"{{index: {index}}}" if use is _DEFAULT else f"{{use: {use}, index: {index}}}"
        for index, use in enumerate(uses)
    )
    return f"[{', '.join(entries)}]"
