import math
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from kit.errors import ProblemsError
from kit.yamlfile import parse, read_text

CORE = [
    ("NO", "NO"),
    ("on", "on"),
    ("yes", "yes"),
    ("y", "y"),
    ("22:30", "22:30"),
    ("1_000", "1_000"),
    ("2026-11-21", "2026-11-21"),
    ("0b1", "0b1"),
    ("=", "="),
    ("0o17", 15),
    ("0x1F", 31),
    ("017", "017"),
    ("+12", 12),
    ("-12", -12),
    ("1.", 1.0),
    (".5", 0.5),
    ("-1.5e3", -1500.0),
    ("1e3", 1000.0),
    (".inf", math.inf),
    ("-.INF", -math.inf),
    ("true", True),
    ("False", False),
    ("~", None),
    ("null", None),
    ("", None),
    ('"null"', "null"),
    ("'12'", "12"),
    ("!!str 12", "12"),
    ("!!int '12'", 12),
    ("{a: 1, b: [c, {}]}", {"a": 1, "b": ["c", {}]}),
    ("{1: a, null: b}", {"1": "a", "null": "b"}),
    ("|\n  a\n  b\n", "a\nb\n"),
    ("[&a {x: 1}, *a]", [{"x": 1}, {"x": 1}]),
    ("{a: &a {x: 1, y: 2}, b: {<<: *a, y: 3}}", {"a": {"x": 1, "y": 2}, "b": {"x": 1, "y": 3}}),
    (
        "{a: &a {x: 1}, b: &b {x: 2, y: 2}, c: {<<: [*a, *b]}}",
        {"a": {"x": 1}, "b": {"x": 2, "y": 2}, "c": {"x": 1, "y": 2}},
    ),
    ('{"<<": 1}', {"<<": 1}),
]


@pytest.mark.parametrize(("text", "value"), CORE)
def test_scalars_follow_the_core_schema_of_yaml_1_2(text: str, value: object) -> None:
    found = parse(text, "f").value
    assert found == value
    assert type(found) is type(value)


def test_nan() -> None:
    assert math.isnan(parse(".nan", "f").value)


@pytest.mark.parametrize("text", ["\ufeffa: 1\n", "a: 1\r\n", "%YAML 1.2\n---\na: 1\n...\n"])
def test_what_an_editor_adds_is_left_out(text: str) -> None:
    assert parse(text, "f").value == {"a": 1}


POSITIONS = """\
# a comment
a: 1
b:

  - x
  - {y: 1,
     z: 2}
base: &base
  p: 1
  q: {r: 1}
c:
  <<: *base
  s: 3
d: *base
"quoted.key": 1
"""
LINES = [
    ((), 2),
    (("a",), 2),
    (("a", "below", "a", "scalar"), 2),
    (("b",), 3),
    (("b", 0), 5),
    (("b", 1), 6),
    (("b", 1, "y"), 6),
    (("b", 1, "z"), 7),
    (("b", 2), 3),
    (("b", 1, "missing"), 6),
    (("c",), 11),
    (("c", "s"), 13),
    (("c", "p"), 9),
    (("c", "q", "r"), 10),
    (("c", "missing"), 11),
    (("d",), 14),
    (("d", "q"), 10),
    (("quoted.key",), 15),
    (("missing",), 2),
]


@pytest.mark.parametrize(("loc", "line"), LINES)
def test_every_value_knows_its_line(loc: tuple[str | int, ...], line: int) -> None:
    assert parse(POSITIONS, "f").line(loc) == line


def test_all_duplicate_keys_are_told() -> None:
    with pytest.raises(ProblemsError) as caught:
        parse("a: 1\nb:\n  c: 1\n  c: 2\na: 3\na: 4\n", "f.yaml")
    assert str(caught.value).splitlines() == [
        "f.yaml:4: the key c is already given in line 3; keep one of the two",
        "f.yaml:5: the key a is already given in line 1; keep one of the two",
        "f.yaml:6: the key a is already given in line 5; keep one of the two",
    ]


def test_a_merged_key_may_be_given_anew() -> None:
    assert parse("a: &a {x: 1}\nb: {x: 2, <<: *a}\n", "f").value["b"] == {"x": 2}


DEEP = {
    "lists": "[" * 200,
    "mappings": "{a: " * 200,
    "items": "- " * 200,
    "keys": "? " * 200,
    "closed": "[[[" * 60 + "]]]" * 60,
}


@pytest.mark.parametrize("text", DEEP.values(), ids=list(DEEP))
def test_deep_nesting_is_refused(text: str) -> None:
    with pytest.raises(ProblemsError, match=r"^f:1: this is nested too deeply"):
        parse(text, "f")


def test_brackets_in_texts_are_not_depth() -> None:
    text = "a: '" + "[" * 500 + "'\n" + "b: {c: [[d]]}\n" * 1 + "# " + "{" * 500 + "\n"
    assert parse(text, "f").value == {"a": "[" * 500, "b": {"c": [["d"]]}}


def test_the_character_that_is_not_allowed_is_named() -> None:
    with pytest.raises(ProblemsError) as caught:
        parse("# 漢字漢字\nü: 1\nb: \x1b[0m\n", "f")
    assert str(caught.value) == "f:3: the character #x1b is not allowed in YAML; remove it"


def test_the_line_that_is_not_utf_8_is_named(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes("ä\nb\n".encode() + b"c: \xe4\n")
    with pytest.raises(ProblemsError) as caught:
        read_text(tmp_path / "f", "f", "")
    assert str(caught.value) == "f:3: this is not UTF-8 text; save the file as UTF-8"


TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=10)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63) + 1, 2**63 - 1)
    | st.floats(allow_nan=False)
    | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=15,
)


class Dumper(yaml.SafeDumper):
    """Dumps text with the same meaning in YAML 1.1 and 1.2: strings are quoted, no aliases."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002
        return True


Dumper.add_representer(
    str, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"')
)


@given(VALUES, st.booleans())
def test_what_is_dumped_is_read_again(value: Any, flow: bool) -> None:
    text = yaml.dump(value, Dumper=Dumper, allow_unicode=True, default_flow_style=flow)
    assert parse(text, "f").value == value


@given(st.dictionaries(st.from_regex(r"[a-z]{1,8}", fullmatch=True), VALUES, min_size=1))
def test_lines_of_a_dumped_mapping_are_those_of_its_keys(mapping: dict[str, Any]) -> None:
    text = yaml.dump(mapping, Dumper=Dumper, allow_unicode=True, default_flow_style=False)
    document = parse(text, "f")
    lines = text.split("\n")
    for key in mapping:
        assert lines[document.line((key,)) - 1].startswith(f'"{key}":')


@given(st.text(max_size=60) | st.text(alphabet="ab:-{}[]&*!#|>'\"\n \t<%@,?0", max_size=40))
def test_any_text_is_read_or_refused_in_words(text: str) -> None:
    try:
        parse(text.encode(errors="ignore").decode(), "f")
    except ProblemsError as error:
        assert error.problems  # noqa: PT017 - not every text is refused
