"""Pages, messages, docstrings and comments are plain English: subject, verb, object.

Readers stumble over the phrases below, and do not search for them. `make lint` runs this file.
"""

from __future__ import annotations

import ast
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pages import PAGES, prose
from tests.sandbox import ROOT

LONGEST_SENTENCE = 45
"""Words. A longer sentence has more than one idea."""

# A phrase, and what to write instead.
PHRASES = {
    r"\b(?:is|are|was|were|be|been|gets?) told\b": "kit reports …",
    r"\b(?:tells|told)\b": "report, say, show",
    r"\bof (?:one's|people's|somebody's|the user's) own\b": "the user's own …, custom …",
    r"\b(?:has|have) met\b": "was tested with",
    r"\b(?:has|have|had) not (?:the|a|an)\b": "lacks, has no",
    r"\bthere (?:is|are) no\b[^.;:|]* on purpose\b": "name what kit does not do",
    r"\bas long as\b[^.;|]{0,60}\bthere\b": "while … exists",
    r"\b(?:is|are|was|were) there(?=[.,;:)]|$)": "exists, is present, is up",
    r"\bends? (?:its|their) \w+ing\b": "stops",
    r"\b(?:has|have|had) no room for\b": "does not fit",
    r"\b[Ww](?:ho|hat|hom)ever\b": "name the person or the thing",
    r"\b(?:go|goes|going|went|gone) on\b": "continue",
    r"\banew\b": "again",
    r"\b(?:[Aa]ll|[Ww]hat) else\b": "everything else",
    r"\b(?:for )?so long\b": "for this time",
    r"\bfor lack of\b": "because … is missing",
    r"\b(?:could|can|may|must) (?:not )?be had\b": "is (not) available",
    r"\bgive or take\b": "say by how much",
    r"\bbr(?:ing|ings|ought) along\b": "include",
    r"\b(?:here|there|where)(?:by|of|upon)\b|\b(?:shall|hence|hitherto)\b": "name the thing",
    r"\b(?:him|his)\b": "their",
    r"\bsees? to\b": "check, correct",
    r"\bcan not\b": "cannot",
}
SENTENCE = r"(?:^|(?<=[.!] ))"
DO = r"(?:do|does|did|is|are|was|were|can|has|have)"
OPENINGS = {
    rf"{SENTENCE}Nor\b|\bnor {DO}\b": "a sentence with its own subject",
    rf"{SENTENCE}So {DO}\b": "the subject first",
    rf"{SENTENCE}Only (?:then|now|there|here) {DO}\b": "the subject first",
    rf"{SENTENCE}Of (?:a|all|an|each|its|the|these)\b": "the subject first",
    rf"{SENTENCE}It is [^.,;:|]{{1,40}} (?:that|which|who)\b": "the subject first",
    rf"{SENTENCE}Wh(?:at|o)\b[^.?:|]*\.(?= |$)": "a noun as the subject",
}

# Sentences of former pages, and how they read now.
FORMER = {
    "What failed is told.": "kit reports failures.",
    "Servers of one's own were tried.": "Custom servers were tested.",
    "Data is on one host; there is no second copy on purpose.": "Data sets are not replicated.",
    "kit doctor has met NVIDIA's programs as stand-ins.": "It was tested with fake NVIDIA tools.",
    "PyTorch has not the kernel.": "PyTorch lacks the kernel.",
    "A server whose client is gone ends its drawing.": "It stops when the client disconnects.",
    "One GPU has no room for the model.": "The model does not fit on one GPU.",
    "It serves as long as the file is there.": "It serves the file while it exists.",
    "Without it, whatever runs goes on.": "Without it, running jobs continue.",
    "Nor does it know a name.": "It knows no name.",
    "So does a GPU that computes.": "A GPU that computes does too.",
    "Only then does a job stop.": "If this is not enough, a job stops.",
    "Of a text they are losses.": "For a text, they are losses.",
    "It is the first that answers.": "The first one answers.",
    "Who has gone takes no place.": "Disconnected clients leave the queue.",
    "It writes the file anew.": "It rewrites the file.",
}


def faults(text: str, rules: dict[str, str]) -> list[str]:
    """Return each phrase that breaks a rule, with the better one."""
    return [
        f"{found[0]!r}: {better}"
        for pattern, better in rules.items()
        for found in re.finditer(pattern, text, re.MULTILINE)
    ]


def paragraphs(text: str) -> Iterator[str]:
    """Yield paragraphs, items and cells of a page, each as one line without code and links."""
    text = re.sub(r"<!--.*?-->", "", prose(text), flags=re.DOTALL)
    text = re.sub(r"`[^`\n]*`", "`…`", text)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    for block in re.split(r"\n\s*\n|\n(?=\s*(?:[-*#]|\d+\.) )|\n(?=\|)", text):
        for cell in block.split("|") if block.lstrip().startswith("|") else [block]:
            if words := " ".join(cell.split()):
                yield re.sub(r"^(?:[-*#]+|\d+\.) ", "", words)


def messages(file: Path) -> Iterator[str]:
    """Yield the lines of a module's strings, without its docstrings."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    docstrings = {id(each.value) for each in ast.walk(tree) if isinstance(each, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and id(node) not in docstrings:
            yield from str(node.value).splitlines() if isinstance(node.value, str) else ()


def notes(file: Path) -> Iterator[str]:
    """Yield a module's docstrings and comments, each as one line; adjacent comments are one."""
    words: list[str] = []
    begins = True  # Whether the next token begins a statement.
    with file.open(encoding="utf-8") as lines:
        for token in tokenize.generate_tokens(lines.readline):
            if token.type == tokenize.COMMENT:
                words += token.string.lstrip("# ").split()
            elif token.type != tokenize.NL:
                yield " ".join(words)
                words = []
                if begins and token.type == tokenize.STRING:
                    yield " ".join(token.string.split())
                begins = token.type in {tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}


def names(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


READ = [*(each for each in PAGES if "decisions" not in each.parts), ROOT / "SECURITY.md"]
COMMENTED = [
    *(ROOT / "templates").rglob("*.j2"),
    *(each for each in (ROOT / "templates/init").rglob("*") if each.is_file()),
    ROOT / "Makefile",
    ROOT / "inventory.yaml",
]


@pytest.mark.parametrize("former", FORMER)
def test_a_former_sentence_is_found(former: str) -> None:
    rules = {**PHRASES, **OPENINGS}
    assert faults(former, rules)
    assert not faults(FORMER[former], rules)


@pytest.mark.parametrize("file", READ, ids=names)
def test_pages_are_plain(file: Path) -> None:
    for text in paragraphs(file.read_text(encoding="utf-8")):
        assert not faults(text, {**PHRASES, **OPENINGS}), text
        for sentence in re.split(r"(?<=[.?!:;]) ", text):
            assert len(sentence.split()) <= LONGEST_SENTENCE, sentence


@pytest.mark.parametrize("room", ["kit", "trainer"])
def test_messages_and_help_are_plain(room: str) -> None:
    for file in (ROOT / room).rglob("*.py"):
        for line in messages(file):
            assert not faults(line, PHRASES), f"{names(file)}: {line}"


@pytest.mark.parametrize("room", ["kit", "trainer"])
def test_docstrings_and_comments_are_plain(room: str) -> None:
    for file in (ROOT / room).rglob("*.py"):
        for text in filter(None, notes(file)):
            assert not faults(text, PHRASES), f"{names(file)}: {text}"


@pytest.mark.parametrize("file", COMMENTED, ids=names)
def test_comments_of_rendered_files_are_plain(file: Path) -> None:
    for line in re.findall(r"#+ (.+)", file.read_text(encoding="utf-8")):
        assert not faults(line, PHRASES), line
