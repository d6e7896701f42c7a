"""A YAML parser that records the line of every value.

libyaml's events become values by the core schema of YAML 1.2 (`on`, `NO` and `22:30` are text), and
duplicate keys are rejected. Nodes with positions are made when something asks for a place.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml
from yaml.events import (
    AliasEvent,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    StreamEndEvent,
)

from kit.errors import InputError, Loc, Problem, ProblemsError
from kit.files import LARGEST, read_plain
from kit.values import WrongValueError
from kit.yaml_schema import MAP, MERGE, SCALARS, SEQ, Loader, plain
from trainer.contract.words import shown

_COLLECTIONS = {None, "!", MAP, SEQ}

_Event = Any
"""One of the events of PyYAML."""

_TOO_DEEP = ("this is nested too deeply", "check the brackets")
_DEEPEST = 100
"""`_Builder` and PyYAML's nodes are recursive: 100,000 brackets overflow the stack."""
_LARGEST_EXPANDED = 1_000_000
"""The most values that aliases may expand to: ten lines can expand to billions."""


@dataclass(frozen=True)
class Document:
    """One YAML file: its value and its text. `file` is the name for messages."""

    file: str
    value: Any
    text: str = field(repr=False)
    _children: dict[int, dict[str, tuple[int, yaml.Node]]] = field(
        default_factory=dict, repr=False, compare=False
    )

    @cached_property
    def root(self) -> yaml.Node | None:
        """The nodes, with the positions of all values. Only mistakes and edits need them."""
        return yaml.compose(self.text, Loader=Loader)

    def line(self, loc: Loc) -> int:
        """Return the 1-based line of `loc`, or of its nearest ancestor in the file."""
        node, line = self.root, 1
        if node is not None:
            line = node.start_mark.line + 1
        for part in loc:
            child = self._child(node, part)
            if child is None:
                break
            line, node = child
        return line

    def _child(self, node: yaml.Node | None, part: str | int) -> tuple[int, yaml.Node] | None:
        if isinstance(node, yaml.MappingNode):
            if id(node) not in self._children:
                self._children[id(node)] = {
                    key.value: (key.start_mark.line + 1, value)
                    for key, value in reversed(node.value)
                    if key.tag != MERGE and isinstance(key, yaml.ScalarNode)
                }
            own = self._children[id(node)].get(str(part))
            merged = (value for key, value in node.value if not own and key.tag == MERGE)
            return own or next(filter(None, (self._child(each, part) for each in merged)), None)
        if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            item = node.value[part]
            return item.start_mark.line + 1, item
        return None


@dataclass(frozen=True, slots=True)
class _Anchor:
    """The node of an alias; `size` is the number of its collections, `word` a scalar's text."""

    line: int
    value: Any = None
    size: int = 0
    word: str | None = None
    open: bool = False


class _Builder:
    """Converts libyaml's events to one value, and collects the mistakes."""

    def __init__(self, text: str, file: str) -> None:
        self.problems: list[Problem] = []
        self._file = file
        self._next = Loader(text).get_event
        self._anchors: dict[str, _Anchor] = {}
        self._size = self._depth = 0

    def document(self) -> Any:
        """Return the value of the only document, or None of an empty text."""
        self._next()  # The start of the stream.
        if isinstance(self._next(), StreamEndEvent):
            return None
        value = self._value(self._next())
        self._next()  # The end of the document.
        event = self._next()
        if not isinstance(event, StreamEndEvent):
            self._problem(event, "a second document begins here", "write one in each file")
            raise ProblemsError(self.problems[-1:])
        return value

    def _value(self, event: _Event) -> Any:
        kind = type(event)
        if kind is AliasEvent:
            return self._alias(event)
        if event.anchor is not None:
            return self._anchored(event)
        return self._scalar(event) if kind is ScalarEvent else self._collection(event)

    def _scalar(self, event: _Event) -> Any:
        text: str = event.value
        tag = event.tag
        try:
            if tag is None and event.implicit[0]:
                return plain(text)
            if "\0" in text:  # No path, argument or variable can contain it.
                self._problem(event, "the character #x00 is not allowed", "remove it")
                return text.replace("\0", "")
            if tag is None or tag == "!":
                return text
            if tag in SCALARS:
                return SCALARS[tag](text)
            self._problem(event, f"the tag {tag} is not supported", "leave it out")
        except WrongValueError as error:
            self._problem(event, error.what, error.fix)
            return 0
        except ValueError:
            kind = tag.rsplit(":", 1)[-1]
            self._problem(event, f"{shown(text)} is no {kind}", "write it without the tag")
        return text

    def _collection(self, event: _Event) -> Any:
        if event.tag not in _COLLECTIONS:
            self._problem(event, f"the tag {event.tag} is not supported", "leave it out")
        self._depth += 1
        self._size += 1
        if self._depth > _DEEPEST:
            raise ProblemsError([Problem(self._file, _line(event), "", *_TOO_DEEP)])
        value = self._mapping() if type(event) is MappingStartEvent else self._sequence()
        self._depth -= 1
        return value

    def _sequence(self) -> list[Any]:
        value = []
        while type(event := self._next()) is not SequenceEndEvent:
            value.append(self._value(event))
        return value

    def _mapping(self) -> dict[str, Any]:
        value: dict[str, Any] = {}
        inherited: dict[str, Any] = {}
        keys: dict[str, _Event] = {}
        while type(event := self._next()) is not MappingEndEvent:
            key = self._key(event)
            if key == "<<" and _is_merge(event):
                inherited |= self._merged()
                continue
            if key is None:
                self._problem(event, "a key must be a plain word", "write `key: value`")
                key = ""
            elif key in keys:
                what = f"the key {key} is already given in line {_line(keys[key])}"
                self._problem(event, what, "keep one of the two")
            keys[key] = event
            value[key] = self._value(self._next())
        return {**inherited, **value} if inherited else value

    def _key(self, event: _Event) -> str | None:
        """Return the text of a key; its type as a value does not matter."""
        if type(event) is ScalarEvent and event.anchor is None and "\0" not in event.value:
            return str(event.value)
        self._value(event)
        if type(event) is ScalarEvent:
            return str(event.value).replace("\0", "")
        return self._anchors[str(event.anchor)].word if type(event) is AliasEvent else None

    def _merged(self) -> dict[str, Any]:
        """Return the keys that `<<` adds; the first of several mappings wins."""
        event = self._next()
        known = len(self.problems)
        value = self._value(event)
        merged: dict[str, Any] = {}
        for part in reversed(value if isinstance(value, list) else [value]):
            if isinstance(part, dict):
                merged |= part
            elif len(self.problems) == known:
                what, fix = "<< merges a mapping only", "point it at a mapping's anchor"
                self._problem(event, what, fix)
        return merged

    def _anchored(self, event: _Event) -> Any:
        name, line, before = event.anchor, _line(event), self._size
        if name in self._anchors:
            self._problem(event, "this anchor is already defined", "give it another name")
            raise ProblemsError(self.problems[-1:])
        self._anchors[name] = _Anchor(line, open=True)
        if isinstance(event, ScalarEvent):
            value = self._scalar(event)
            self._anchors[name] = _Anchor(line, value, word=event.value)
        else:
            value = self._collection(event)
            self._anchors[name] = _Anchor(line, value, self._size - before)
        return value

    def _alias(self, event: _Event) -> Any:
        anchor = self._anchors.get(event.anchor)
        if anchor is None:
            fix = f"write &{event.anchor} before the value that it stands for, above this line"
            self._problem(event, f"there is no anchor &{event.anchor}", fix)
            raise ProblemsError(self.problems[-1:])
        if anchor.open:
            what = "the anchor contains itself"
            self.problems.append(
                Problem(self._file, anchor.line, "", what, "write the value out once")
            )
        self._size += anchor.size
        if self._size > _LARGEST_EXPANDED:
            self._problem(event, "the aliases stand for too many values", "write fewer")
            raise ProblemsError(self.problems)
        return anchor.value

    def _problem(self, event: _Event, what: str, fix: str) -> None:
        self.problems.append(Problem(self._file, _line(event), "", what, fix))


def _line(event: _Event) -> int:
    return int(event.start_mark.line) + 1


def _is_merge(event: _Event) -> bool:
    """Whether a key is `<<` without quotes."""
    return event.tag == MERGE or (event.tag is None and event.implicit[0])


def read_text(path: Path, file: str, missing_hint: str) -> str:
    """Read a file of the user.

    Raises:
        InputError: It cannot be read, or is not UTF-8.
    """
    try:
        content = read_plain(path, largest=LARGEST)
        return content.decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")
    except FileNotFoundError:
        raise InputError(f"{file}: there is no such file", missing_hint) from None
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        problem = Problem(file, line, "", "this is not UTF-8 text", "save the file as UTF-8")
        raise ProblemsError([problem]) from None
    except OSError as error:
        raise InputError(f"{file}: cannot be read: {error.strerror}") from None


def parse(text: str, file: str) -> Document:
    """Parse one YAML document.

    Raises:
        ProblemsError: The text is not YAML, or has duplicate keys, unknown tags or cyclic anchors.
    """
    builder = _Builder(text, file)
    try:
        value = builder.document()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        if _is_deep(text):  # libyaml reads ahead, and newer versions refuse a thousand levels.
            raise ProblemsError([Problem(file, line, "", *_TOO_DEEP)]) from None
        raise ProblemsError([_not_yaml(error, file, line)]) from None
    except yaml.reader.ReaderError as error:
        # libyaml counts bytes.
        line = text.encode()[: error.position].count(b"\n") + 1
        what = f"the character #x{error.character:02x} is not allowed in YAML"
        raise ProblemsError([Problem(file, line, "", what, "remove it")]) from None
    if builder.problems:
        raise ProblemsError(builder.problems)
    return Document(file, value, text)


def _not_yaml(error: yaml.MarkedYAMLError, file: str, line: int) -> Problem:
    what = f"this is not valid YAML: {error.problem or error.context}"
    fix = "look at this line and the one before it: quotes, indentation, tabs"
    return Problem(file, line, "", what, fix)


def _is_deep(text: str) -> bool:
    """Whether brackets, or indicators such as `- - -` in one line, are nested too deeply."""
    depth = deepest = 0
    for bracket in re.findall(r"[\[\]{}]", text):
        depth = depth + 1 if bracket in "[{" else max(depth - 1, 0)
        deepest = max(deepest, depth)
    indicators = rf"^(?: *[?:-] ){{{_DEEPEST}}}"
    return deepest > _DEEPEST or re.search(indicators, text, re.MULTILINE) is not None
