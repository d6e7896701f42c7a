"""Edits of YAML text in place, as `kit split` and `kit discover` make them."""

from __future__ import annotations

import pytest
import yaml

from kit.yamledit import (
    Editor,
    column_of,
    end_of,
    has_aliased_values,
    start_of,
    without_byte_order_mark,
)
from kit.yamlfile import parse

TEXT = """\
hosts:
  pc1: &first  # by the window
    gpus:
      - {uuid: a}
      - uuid: b
        use: none  # for now
  pc2: {gpus: 2}
  pc3: {<<: *first, gpus: 1}
"""


def editor(text: str) -> Editor:
    return Editor(parse(text, "inventory.yaml"))


def mapping(node: yaml.Node | None) -> yaml.MappingNode:
    assert isinstance(node, yaml.MappingNode)
    return node


def test_edits_are_applied_at_their_positions_in_any_order() -> None:
    edits = editor("a: 1  # one\nb: 2\n")
    node = edits.value(edits.document.root, "a")
    assert node is not None
    edits.insert(edits.line_end(end_of(node)), "\nx: 1")
    edits.insert(edits.line_end(end_of(node)), "\ny: 2")
    edits.replace(start_of(node), end_of(node), "10")
    assert edits.edited() == "a: 10  # one\nx: 1\ny: 2\nb: 2\n"
    assert editor("a: 1\n").edited() == "a: 1\n"


def test_places_in_a_document() -> None:
    edits = editor(TEXT)
    hosts = mapping(edits.value(edits.document.root, "hosts"))
    first, second, third = (mapping(edits.value(hosts, f"pc{number}")) for number in (1, 2, 3))
    assert (column_of(hosts), column_of(first)) == (2, 4)
    assert edits.text[: end_of(first)].endswith("use: none")
    assert edits.value(hosts, "pc4") is None
    assert edits.value(third, "uuid") is None
    assert [edits.is_shared(node) for node in (first, second, third)] == [True, False, False]
    assert [has_aliased_values(node) for node in (first, second, third)] == [False, False, True]


@pytest.mark.parametrize(
    ("text", "newline", "line_end"),
    [
        ("a: 1", "\n", 4),
        ("a: 1 # x\r\n", "\r\n", 8),
        ("a: 1\nb: 2\r\n", "\n", 4),
        ("a: 1 # x\u2028b: 2\n", "\n", 8),
        ("# x\r\na: 1", "\r\n", 9),
    ],
)
def test_a_new_line_ends_as_the_line_before_it(text: str, newline: str, line_end: int) -> None:
    edits = editor(text)
    position = text.index("a: 1") + 4
    assert edits.newline(position) == newline
    assert edits.line_end(position) == line_end
    assert edits.ends_line(position) == (position == line_end)


def test_positions_count_from_behind_a_byte_order_mark() -> None:
    assert without_byte_order_mark("\ufeffa: 1") == ("\ufeff", "a: 1")
    assert without_byte_order_mark("a: 1") == ("", "a: 1")
